// Colours of the page, from its style sheet, and colour maps as tables of 256 steps, made from a few stops.

const darkQuery = matchMedia("(prefers-color-scheme: dark)");
let onPaper = false; // while printing: paper is always white
const mode = () => (darkQuery.matches && !onPaper ? "dark" : "light");

/** Return the page's current colours and its font. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "quiet", "line", "accent", "sans"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const css = ([r, g, b]) => `rgb(${r},${g},${b})`;
const mixed = (from, to, share) => from.map((part, at) => Math.round(part + share * (to[at] - part)));

function tableOf(stops) {
  const colours = stops.map(rgbOf);
  return range(0, 256).map((step) => {
    const place = (step / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(place), colours.length - 2);
    return mixed(colours[low], colours[low + 1], place - low);
  });
}

const tables = new Map();

/** Return the table of a map ("heat", "viridis", …), or of "difference": blue below 0, the accent above 0, paper between. */
function mapTable(name) {
  const key = `${name}/${mode()}`;
  if (!tables.has(key)) tables.set(key, tableOf((name === "difference" ? DIFFERENCE : PAGE.maps[name])[mode()]));
  return tables.get(key);
}

const DIFFERENCE = {
  light: ["#063f6b", "#1d78a8", "#66aacb", "#bcd9e8", "#f7f5f1", "#f3cdbb", "#e08a68", "#bf3f1d", "#7a1f06"],
  dark: ["#b9e2fa", "#55aedb", "#1f6c98", "#123c58", "#1f2127", "#62291a", "#b9532f", "#ff8e68", "#ffc4ab"],
};

const colourAt = (table, t) => table[Math.round(255 * clamp(t, 0, 1))];

/** Return the ink that can be read on this colour, dark or white: the same choice as in pictures and on the terminal. */
function inkOn(rgb) {
  const linear = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = linear.reduce((sum, part, at) => sum + PAGE.ink.luminance[at] * part, 0);
  return luminance > PAGE.ink.darkFrom ? "#10151c" : "#ffffff";
}

/** Give a node a colour, and its text an ink that can be read on it; null removes both. */
const shade = (node, rgb) =>
  put(node, { vars: { "background-color": rgb ? css(rgb) : "transparent", color: rgb ? inkOn(rgb) : "inherit" } });

/** Colour a text by a share; a very small share has no colour. */
const heated = (node, share, least = 0.012) =>
  shade(node, share > least ? colourAt(mapTable("heat"), 0.06 + 0.94 * share) : null);

/** Return a share as a bar, in the colours of heat unless `colour` is given. */
function barOf(share, colour = null) {
  const part = clamp(share, 0, 1);
  const heat = colourAt(mapTable("heat"), 0.35 + 0.45 * part);
  return el("i", { vars: { "--bar": colour ?? css(heat), "--long": `${(100 * part).toFixed(2)}%` } });
}

/** Draw cells on a canvas, one pixel for each; cells without a colour are transparent. */
function pixels(canvas, rows, columns, colourOf) {
  put(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let at = 0; at < rows * columns; at++) {
    const colour = colourOf(at);
    if (colour) image.data.set([...colour, 255], 4 * at);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

const DECADES = 4; // of a logarithmic scale, below the largest weight

/** Return the position of a weight on the scale, from 0 to 1. */
function positionOf(w, scale) {
  if (scale.kind === "difference") return 0.5 + (0.5 * w) / (scale.high || 1);
  if (scale.kind === "log") return w <= 0 ? 0 : 1 + Math.log10(w / scale.high) / DECADES;
  return (w - scale.low) / (scale.high - scale.low || 1);
}
