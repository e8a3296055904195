/* What the charts of predict.html and result.html have in common. */
const width = 420, height = 250, left = 62, bottom = 46, top_ = 12;
function made(name, words, className) {
  const node = document.createElement(name);
  if (words !== undefined) node.textContent = words;
  if (className) node.className = className;
  return node;
}
function drawn(name, attributes, words) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (words !== undefined) node.textContent = words;
  return node;
}
/* Steps of 1, 2 or 5 times a power of ten, at most five of them. */
function ticks(most) {
  const rough = most / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((times) => times * power >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, number) => number * step);
}
