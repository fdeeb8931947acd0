// Every text that can be seen, with its colour and what stands behind it: the backgrounds of all elements around it, or
// of a number in the map its dot, each as opaque as it is.
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = text => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data]; };
const over = ([r, g, b, a], under, opacity = 1) => [r, g, b].map((c, n) => c * a / 255 * opacity + under[n] * (1 - a / 255 * opacity));
const found = new Map();
for (const at of document.querySelectorAll("body *")) {
  const words = [...at.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join("");
  if (!words || at.tagName === "STYLE" || at.tagName === "SCRIPT" || !at.checkVisibility({contentVisibilityAuto: false})) continue;
  let ground = [255, 255, 255], opacity = 1;
  for (const up of [...(function* () { for (let e = at; e; e = e.parentElement) yield e; })()].reverse()) {
    const style = getComputedStyle(up);
    ground = over(rgba(style.backgroundColor), ground);
    opacity *= style.opacity;
  }
  const dot = at.closest(".path")?.querySelector(".dot"), style = getComputedStyle(at);
  if (dot) ground = over(rgba(getComputedStyle(dot).fill), ground, getComputedStyle(dot).opacity);
  const text = over(rgba(at.closest("svg") ? style.fill : style.color), ground, opacity);
  found.set([text, ground].map(c => c.map(Math.round)).join("|"), [text, ground, `${at.tagName}.${at.className.baseVal ?? at.className}: ${words.slice(0, 40)}`]);
  const number = getComputedStyle(at, "::before");
  if (number.content !== "none" && number.content !== "normal")
    found.set([number.color, ground].join("|"), [over(rgba(number.color), ground), ground, "::before"]);
}
return [...found.values()];
