// The explorer: which paths are chosen is one set; everything shown follows from it.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const panes = all(".pane");
const curves = new Map(all(".path").map((curve) => [Number(curve.dataset.p), curve]));
const order = data.paths.map((path) => path.index);
const served = new Map(); // path -> its lines in every pane
for (const line of all(".code b[data-p]"))
  for (const path of pathsOf(line)) served.has(path) ? served.get(path).push(line) : served.set(path, [line]);

let chosen = new Set();
let hits = [];
let hit = -1;

function pathsOf(line) {
  const text = line.dataset.p;
  return text === "*" ? order : text ? text.split(" ").map(Number) : [];
}

function choose(paths, from = null) {
  for (const path of chosen) {
    curves.get(path)?.classList.remove("lit");
    for (const line of served.get(path) ?? []) line.classList.remove("lit", "own");
  }
  chosen = new Set(paths);
  document.body.classList.toggle("choosing", chosen.size > 0);
  for (const path of chosen) {
    curves.get(path)?.classList.add("lit");
    for (const line of served.get(path) ?? []) line.classList.add(line.dataset.p === String(path) ? "own" : "lit");
  }
  for (const pane of panes) report(pane, pane === from);
  describe();
}

// Say how many lines of a pane are lit, and bring the first of them into view.
function report(pane, stay) {
  const lit = all(".lit, .own", pane.querySelector(".code"));
  pane.querySelector("output").textContent = chosen.size ? `${lit.length} line${lit.length === 1 ? "" : "s"}` : "";
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
  const box = document.getElementById("chosen");
  const facts = data.paths.filter((path) => chosen.has(path.index)).slice(0, 3).map(factsOf);
  const more = chosen.size > 3 ? [text("p", `and ${chosen.size - 3} more paths`)] : [];
  box.replaceChildren(...(chosen.size ? [...facts.flat(), ...more] : [text("p", "Nothing chosen.")]));
}

function factsOf(path) {
  const list = document.createElement("dl");
  for (const [name, value] of Object.entries(path.facts)) list.append(text("dt", name), text("dd", value));
  return [text("h2", `path ${path.index}`), list];
}

function text(tag, content) {
  const made = document.createElement(tag);
  made.textContent = content;
  return made;
}

function step(by) {
  const last = [...chosen].pop();
  const at = order.indexOf(last);
  const next = last === undefined ? (by > 0 ? 0 : order.length - 1) : (at + by + order.length) % order.length;
  if (!order.length) return;
  choose([order[next]]);
  curves.get(order[next]).scrollIntoView({ block: "nearest" });
}

function search(word) {
  for (const line of hits) line.classList.remove("hit", "here");
  const wanted = word.toLowerCase();
  const open = panes.filter((pane) => !pane.hidden);
  hits = wanted ? open.flatMap((pane) => all(".code b", pane)).filter((line) => line.textContent.toLowerCase().includes(wanted)) : [];
  for (const line of hits) line.classList.add("hit");
  hit = -1;
  document.getElementById("found").textContent = wanted ? `${hits.length}` : "";
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

function toggle(tab) {
  const pane = document.getElementById(tab.dataset.pane);
  pane.hidden = !pane.hidden;
  tab.setAttribute("aria-pressed", String(!pane.hidden));
  if (!pane.hidden) report(pane, false);
}

for (const [path, curve] of curves)
  curve.addEventListener("click", (event) => choose(event.shiftKey ? [...chosen, path] : [path]));
for (const tab of all("#tabs button")) tab.addEventListener("click", () => toggle(tab));
document.getElementById("panes").addEventListener("click", (event) => {
  const line = event.target.closest("b[data-p]");
  if (line && !String(getSelection())) choose(pathsOf(line), line.closest(".pane"));
});
const field = document.getElementById("search");
field.addEventListener("input", () => search(field.value));
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

const keys = {
  ArrowDown: () => step(1),
  ArrowUp: () => step(-1),
  "/": () => field.focus(),
  Escape: () => { field.value = ""; field.blur(); search(""); choose([]); },
};
document.addEventListener("keydown", (event) => {
  if (event.target === field && event.key === "Enter") return nextHit(event.shiftKey ? -1 : 1);
  if (event.ctrlKey || event.metaKey || event.altKey || (event.target === field && event.key !== "Escape")) return;
  if (!(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});
