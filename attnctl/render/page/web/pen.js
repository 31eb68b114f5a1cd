// A pen that draws into an SVG, on the screen and for files, in CSS pixels.

const SANS = theme().sans;

function svgPen(svg, width, height) {
  const colours = theme();
  const line = svgEl("path", { d: "M-1 7L7 -1", stroke: colours.quiet, "stroke-opacity": 0.5 });
  const hatched = svgEl("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, line);
  const look = { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": SANS };
  refill(svg, look, svgEl("defs", hatched));
  const add = (tag, ...parts) => svg.append(svgEl(tag, parts));
  const rect = (x, y, wide, high, fill, more) => add("rect", { x, y, width: wide, height: high, fill }, more);
  return {
    colours,
    rect,
    frame: (x, y, wide, high, stroke, thick) => rect(x, y, wide, high, "none", { stroke, "stroke-width": thick }),
    hatch: (x, y, wide, high) => rect(x, y, wide, high, "url(#hatch)"),
    image(href, smooth, x, y, wide, high) {
      const place = { x, y, width: wide, height: high, preserveAspectRatio: "none" };
      add("image", place, { href, "image-rendering": smooth ? "auto" : "pixelated" });
    },
    text(string, x, y, { size = 13, fill = colours.ink, align = "start", turn = 0, bold = false } = {}) {
      const place = { x, y, "font-size": size, fill, "text-anchor": align, "dominant-baseline": "central" };
      const more = { "font-weight": bold && 600, transform: turn !== 0 && `rotate(${turn} ${x} ${y})` };
      add("text", place, more, string);
    },
  };
}

const measurer = document.createElement("canvas").getContext("2d");

const MOST_MEASURED = 400; // characters of a text: no label has room for more

function textWidth(text, size, bold = false) {
  measurer.font = `${bold ? "600 " : ""}${size}px ${SANS}`;
  return measurer.measureText(text.slice(0, MOST_MEASURED)).width;
}

/** Return `text` cut to `width` pixels, with an ellipsis if something is missing. */
function cut(text, width, size, bold = false) {
  if (text.length <= MOST_MEASURED && textWidth(text, size, bold) <= width) return text;
  const signs = Array.from(text.slice(0, MOST_MEASURED));
  let [fitting, tooMany] = [0, signs.length];
  while (tooMany - fitting > 1) {
    const middle = (fitting + tooMany) >> 1;
    if (textWidth(`${signs.slice(0, middle).join("")}…`, size, bold) > width) tooMany = middle;
    else fitting = middle;
  }
  return `${signs.slice(0, fitting).join("")}…`;
}
