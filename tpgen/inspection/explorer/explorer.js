// The explorer: which paths are chosen is one set; everything shown follows from it.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const panes = all(".pane");
const tabs = all("#tabs button");
const order = data.paths.map((path) => path.index);
const served = new Map(order.map((path) => [path, []])); // path -> its lines in every pane
const marks = new Map(order.map((path) => [path, []])); // path -> its curve, its row, its point
for (const line of all(".code b[data-p]")) for (const path of pathsOf(line)) served.get(path).push(line);
for (const mark of all("#map [data-p], #pane-costs [data-p]")) marks.get(Number(mark.dataset.p)).push(mark);

let chosen = new Set();
let hits = [];
let hit = -1;
let taken = -1; // the hit that Enter chose last

function pathsOf(line) {
  const text = line.dataset.p;
  return text === "*" ? order : text ? text.split(" ").map(Number) : [];
}

function choose(paths, from = null) {
  for (const path of chosen) {
    for (const mark of marks.get(path)) mark.classList.remove("lit");
    for (const line of served.get(path)) line.classList.remove("lit", "own");
  }
  chosen = new Set(paths);
  document.body.classList.toggle("choosing", chosen.size > 0);
  for (const path of chosen) {
    for (const mark of marks.get(path)) mark.classList.add("lit");
    for (const line of served.get(path)) line.classList.add(line.dataset.p === String(path) ? "own" : "lit");
  }
  for (const pane of panes) report(pane, pane === from);
  describe();
  history.replaceState(null, "", chosen.size ? `#path=${[...chosen].join(",")}` : "#");
}

// The paths that the address names, as in page.html#path=5 or #path=2,5.
function addressed() {
  const named = /^#path=([\d,]+)$/.exec(location.hash);
  return named ? named[1].split(",").map(Number).filter((path) => order.includes(path)) : [];
}

// Say how many lines of a pane are lit, and bring the first of them into view.
function report(pane, stay) {
  const lit = all(".lit, .own", pane.querySelector(".code"));
  pane.querySelector("output").textContent = chosen.size ? `${lit.length} line${lit.length === 1 ? "" : "s"}` : "";
  const tab = tabs.find((tab) => tab.dataset.pane === pane.id);
  if (chosen.size) tab.dataset.count = lit.length;
  else delete tab.dataset.count;
  // a body of several lines rather than a mention in a comment
  const first = lit.find((line) => isOwn(line) && isOwn(line.nextElementSibling)) ?? lit.find(isOwn) ?? lit[0];
  if (first && !stay && !pane.hidden) show(first);
}

function isOwn(line) {
  return line !== null && line.classList.contains("own");
}

function show(line) {
  const box = line.closest(".code");
  box.scrollTop += line.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 4;
}

function describe() {
  const facts = data.paths.filter((path) => chosen.has(path.index)).slice(0, 3).map(factsOf);
  const more = chosen.size > 3 ? [text("p", `and ${chosen.size - 3} more paths`)] : [];
  const box = document.getElementById("chosen");
  box.replaceChildren(...facts.flat(), ...more);
  if (chosen.size) box.parentElement.scrollTop = 0;
}

function factsOf(path) {
  const list = document.createElement("dl");
  for (const [name, value] of Object.entries(path.facts)) list.append(text("dt", name), text("dd", value));
  return [text("h3", `path ${path.index}`), list];
}

function text(tag, content) {
  const made = document.createElement(tag);
  made.textContent = content;
  return made;
}

function step(by) {
  if (!order.length) return;
  const last = [...chosen].pop();
  const at = order.indexOf(last);
  const next = last === undefined ? (by > 0 ? 0 : order.length - 1) : (at + by + order.length) % order.length;
  choose([order[next]]);
  const dot = document.querySelector(`.path[data-p="${order[next]}"] .dot`); // the curves reach across the whole map
  dot.scrollIntoView({ block: "nearest" });
}

function search(word) {
  for (const line of hits) line.classList.remove("hit", "here");
  const wanted = word.toLowerCase();
  const open = panes.filter((pane) => !pane.hidden);
  hits = wanted ? open.flatMap((pane) => all(".code b", pane)).filter((line) => line.textContent.toLowerCase().includes(wanted)) : [];
  for (const line of hits) line.classList.add("hit");
  hit = taken = -1;
  document.getElementById("found").textContent = wanted ? (hits.length ? `${hits.length}` : "none") : "";
  if (hits.length) nextHit(1);
}

function nextHit(by) {
  if (!hits.length) return;
  hits[hit]?.classList.remove("here");
  hit = (hit + by + hits.length) % hits.length;
  hits[hit].classList.add("here");
  show(hits[hit]);
  document.getElementById("found").textContent = `${hit + 1}/${hits.length}`;
}

// Choose the paths of the hit that is shown; where that is done, go to the next one.
function takeHit(by) {
  if (!hits.length) return;
  if (taken === hit) nextHit(by);
  taken = hit;
  const paths = pathsOf(hits[hit]);
  if (paths.length) choose(paths, hits[hit].closest(".pane"));
}

function toggle(tab) {
  const pane = document.getElementById(tab.dataset.pane);
  pane.hidden = !pane.hidden;
  tab.setAttribute("aria-pressed", String(!pane.hidden));
  if (!pane.hidden && panes.includes(pane)) report(pane, false);
  if (field.value) search(field.value);
  arrange();
}

// As few rows as there is width for, as few columns as these rows need; the last pane takes what is left of its row.
function arrange() {
  const grid = document.getElementById("panes");
  const open = all(".board, .pane").filter((pane) => !pane.hidden);
  const most = Math.max(1, Math.floor(grid.clientWidth / 400));
  const rows = Math.ceil(open.length / most);
  const columns = Math.ceil(open.length / rows) || 1;
  grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  open.forEach((pane, n) => {
    pane.style.gridColumn = n === open.length - 1 ? `${(n % columns) + 1} / -1` : "";
  });
}

function theme() {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function wrap() {
  const on = document.body.classList.toggle("wrap");
  document.getElementById("wrap").setAttribute("aria-pressed", String(on));
}

const field = document.getElementById("search");
const help = document.getElementById("help");
for (const side of all("#map, #pane-costs"))
  side.addEventListener("click", (event) => {
    const mark = event.target.closest("[data-p]");
    if (mark && !String(getSelection())) choose([...(event.shiftKey ? chosen : []), Number(mark.dataset.p)]);
  });
for (const tab of tabs) tab.addEventListener("click", () => toggle(tab));
document.getElementById("panes").addEventListener("click", (event) => {
  const line = event.target.closest(".code b[data-p]");
  if (line && !String(getSelection())) choose(pathsOf(line), line.closest(".pane"));
});
field.addEventListener("input", () => search(field.value));
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("wrap").addEventListener("click", wrap);
document.getElementById("ask").addEventListener("click", () => help.showModal());
help.addEventListener("click", () => help.close());

addEventListener("resize", arrange);
addEventListener("hashchange", () => choose(addressed()));
arrange();
choose(addressed().length ? addressed() : order.filter((path) => path === data.costliest));

const keys = {
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  "/": () => { field.focus(); field.select(); },
  "?": () => help.showModal(),
  n: () => nextHit(1),
  N: () => nextHit(-1),
  t: theme,
  w: wrap,
  Escape: () => { field.value = ""; field.blur(); search(""); choose([]); },
};
tabs.forEach((tab, n) => { if (n < 10) keys[(n + 1) % 10] = () => toggle(tab); });
document.addEventListener("keydown", (event) => {
  if (help.open) return; // Escape closes it by itself
  if (event.target === field && event.key === "Enter") return takeHit(event.shiftKey ? -1 : 1);
  const mark = event.key === "Enter" && event.target.closest("#map [data-p]");
  if (mark) return choose([...(event.shiftKey ? chosen : []), Number(mark.dataset.p)]);
  if (event.ctrlKey || event.metaKey || event.altKey || (event.target === field && event.key !== "Escape")) return;
  if (!(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});
