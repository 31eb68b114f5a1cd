// The prompt of an answer, shaded by what matters; a token of the answer, or a part, chooses that part everywhere.

const HUES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a7a80"]; // of the parts
const all = (selector) => document.querySelectorAll(selector);

function choosePart(part) {
  for (const node of all("[data-part]")) node.classList.toggle("chosen", node.dataset.part === part);
}

for (const node of all("[data-first]"))
  put(
    node,
    Object.fromEntries(
      ["onmouseenter", "onfocus", "onclick"].map((type) => [type, () => choosePart(node.dataset.first)]),
    ),
  );
for (const node of all("[data-part]")) put(node, { onmouseenter: () => choosePart(node.dataset.part) });
for (const node of all("[data-hue]")) put(node, { vars: { "--hue": HUES[node.dataset.hue] } });

function draw() {
  const colourOf = (node) => colourAt(mapTable("difference"), 0.5 + 0.4 * Number(node.dataset.matters));
  for (const cell of all("[data-looks]")) refill(cell, barOf(Number(cell.dataset.looks), theme().quiet));
  for (const cell of all("td[data-matters]"))
    refill(cell, barOf(Math.abs(Number(cell.dataset.matters)), css(colourOf(cell))));
  for (const part of all("pre [data-matters]")) shade(part, colourOf(part));
}

darkQuery.addEventListener("change", draw);
draw();
document.documentElement.dataset.ready = "true";
