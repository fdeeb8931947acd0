// How many labels of a drawing there are, pairs of them whose boxes meet, and those that are not in the drawing whole.  A
// pixel or two of a box are room around its letters.
const boxes = [...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length && t.textContent)
  .map(t => [t.textContent, t.getBoundingClientRect()]);
const meet = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
const room = document.querySelector('svg').getBoundingClientRect();
const cut = boxes.filter(([, at]) => at.left < room.left || at.right > room.right);
return [boxes.length, boxes.flatMap(([name, a], n) => boxes.slice(n + 1).filter(([, b]) => meet(a, b)).map(([other]) => `${name} / ${other}`)), cut.map(([name]) => name)];
