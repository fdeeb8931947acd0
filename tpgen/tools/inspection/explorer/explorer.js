// The explorer: which product is shown and which of its paths are chosen; everything shown follows from that.
"use strict";
const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const sheets = new Map(all("template").map((sheet) => [sheet.dataset.name, sheet.content]));
const picker = document.getElementById("product");
const note = document.getElementById("note");

let shown = null; // the name of the product on the page, and what is known of it:
let data, panes, tabs, order; // its facts, elements and paths
let served, marks; // path -> its lines in every pane; path -> its curve, its row, its point

let chosen = new Set();
let hits = [];
let hit = -1;
let taken = -1; // the hit that Enter chose last

// Put a product on the page.
function open(name) {
  const sheet = sheets.get(name).cloneNode(true);
  data = JSON.parse(sheet.querySelector("script").textContent);
  for (const part of [...sheet.children].filter((part) => part.id)) document.getElementById(part.id).replaceWith(part);
  shown = name;
  if (picker) picker.value = name;
  panes = all(".pane");
  tabs = all("#tabs button");
  order = data.paths.map((path) => path.index);
  served = new Map(order.map((path) => [path, []]));
  marks = new Map(order.map((path) => [path, []]));
  for (const line of all(".code b[data-p]")) for (const path of pathsOf(line)) served.get(path).push(line);
  for (const mark of all("#map [data-p], #pane-costs [data-p]")) marks.get(Number(mark.dataset.p)).push(mark);
  chosen = new Set();
  note.hidden = true;
  arrange();
  if (field.value) search(field.value);
}

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
  history.replaceState(null, "", `#${address()}`);
}

// What a link to the choice says: #path=5 or #path=2,5, and in a network #product=layers.0&path=5.
function address() {
  const product = sheets.size > 1 ? [`product=${encodeURIComponent(shown)}`] : [];
  return [...product, ...(chosen.size ? [`path=${[...chosen].join(",")}`] : [])].join("&");
}

// Show what the address names: a product, that of the list where it names none, and its paths, the costliest where none.
// What it names and this page has not is said beside the choice.
function follow() {
  const named = new URLSearchParams(location.hash.slice(1));
  const first = shown ?? picker?.value ?? sheets.keys().next().value;
  const wanted = sheets.has(named.get("product")) ? named.get("product") : first;
  if (wanted !== shown) open(wanted);
  const asked = (named.get("path") ?? "").split(",").filter(Boolean);
  const paths = asked.map(Number).filter((path) => order.includes(path));
  choose(paths.length ? paths : order.filter((path) => path === data.costliest));
  const product = named.get("product");
  const absent = product && !sheets.has(product) ? [`product ${product}`] : [];
  absent.push(...asked.filter((path) => !order.includes(Number(path))).map((path) => `${data.noun} ${path}`));
  if (absent.length) document.getElementById("chosen").prepend(text("p", `This page has no ${absent.join(", no ")}.`));
}

function go(by) {
  const names = [...sheets.keys()];
  visit(names[(names.indexOf(shown) + by + names.length) % names.length]);
}

function visit(name) {
  open(name);
  choose(order.filter((path) => path === data.costliest));
}

// Beside a line that the mouse rests on: the shape of its result, its bytes and its operations.
function remark(line) {
  note.hidden = !line;
  if (!line) return;
  const box = line.closest(".code").getBoundingClientRect();
  note.textContent = line.dataset.n;
  note.style.top = `${line.getBoundingClientRect().top}px`;
  note.style.right = `${root.clientWidth - box.left - line.closest(".code").clientWidth + 8}px`;
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
  line.closest("details")?.setAttribute("open", "");
  const box = line.closest(".code");
  box.scrollTop += line.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 4;
}

function describe() {
  const facts = data.paths.filter((path) => chosen.has(path.index)).slice(0, 3).map(factsOf);
  const more = chosen.size > 3 ? [text("p", `and ${chosen.size - 3} more`)] : [];
  const box = document.getElementById("chosen");
  box.replaceChildren(...facts.flat(), ...more);
  if (chosen.size) box.parentElement.scrollTop = 0;
}

function factsOf(path) {
  const list = document.createElement("dl");
  for (const [name, value] of Object.entries(path.facts)) list.append(text("dt", name), text("dd", value));
  return [text("h3", `${data.noun} ${path.index}`), list];
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
document.body.addEventListener("click", (event) => {
  if (String(getSelection())) return;
  const tab = event.target.closest("#tabs button");
  if (tab) return toggle(tab);
  const mark = event.target.closest("#map [data-p], #pane-costs [data-p]");
  if (mark) return choose([...(event.shiftKey ? chosen : []), Number(mark.dataset.p)]);
  const line = event.target.closest(".code b[data-p]");
  if (line) choose(pathsOf(line), line.closest(".pane"));
});
document.body.addEventListener("mouseover", (event) => remark(event.target.closest(".code b[data-n]")));
document.body.addEventListener("scroll", () => remark(null), { capture: true, passive: true });
picker?.addEventListener("change", () => visit(picker.value));
field.addEventListener("input", () => search(field.value));
document.getElementById("theme").addEventListener("click", theme);
document.getElementById("wrap").addEventListener("click", wrap);
document.getElementById("ask").addEventListener("click", () => help.showModal());
help.addEventListener("click", () => help.close());

addEventListener("resize", arrange);
addEventListener("hashchange", follow);
follow();

const keys = {
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  "/": () => { field.focus(); field.select(); },
  "?": () => help.showModal(),
  "]": () => go(1),
  "[": () => go(-1),
  n: () => nextHit(1),
  N: () => nextHit(-1),
  t: theme,
  w: wrap,
  Escape: () => { field.value = ""; field.blur(); search(""); choose([]); },
};
for (let n = 0; n < 10; n++) keys[(n + 1) % 10] = () => tabs[n] && toggle(tabs[n]);
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
