// Colour texts: each names a colour map, and the place in it from 0 to 1.
const shadeOf = (node) => shade(node, colourAt(mapTable(node.dataset.map), node.dataset.place));
const shadeTexts = () => document.querySelectorAll("[data-map]").forEach(shadeOf);
darkQuery.addEventListener("change", shadeTexts);
shadeTexts();
