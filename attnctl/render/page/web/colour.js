// Colours: the page's own, from its style sheet, and the heat, as tables of 256 steps made from a few stops.

const darkQuery = matchMedia("(prefers-color-scheme: dark)");
let onPaper = false; // printing: paper is white, whatever the screen is

const isDark = () => darkQuery.matches && !onPaper;

/** The page's colours as they are now. */
function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  if (onPaper)
    return {
      paper: "#ffffff",
      ink: "#000000",
      quiet: "#4d4d4d",
      line: "#cccccc",
      accent: "#a83214",
      sans: read("sans"),
    };
  return {
    paper: read("paper"),
    ink: read("ink"),
    quiet: read("quiet"),
    line: read("line"),
    accent: read("accent"),
    sans: read("sans"),
  };
}

const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function tableOf(stops) {
  const colours = stops.map(rgbOf);
  const table = new Uint8Array(256 * 3);
  for (let step = 0; step < 256; step++) {
    const place = (step / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(place), colours.length - 2);
    for (let c = 0; c < 3; c++) {
      table[step * 3 + c] = Math.round(colours[low][c] + (place - low) * (colours[low + 1][c] - colours[low][c]));
    }
  }
  return table;
}

const tables = new Map();

/** The table of a map ("heat", "viridis", …), or of "difference": blue where less, the accent where more, paper between. */
function mapTable(name) {
  const mode = isDark() ? "dark" : "light";
  const key = `${name}/${mode}`;
  if (!tables.has(key)) tables.set(key, tableOf(name === "difference" ? DIFFERENCE[mode] : PAGE.maps[name][mode]));
  return tables.get(key);
}

const DIFFERENCE = {
  light: ["#063f6b", "#1d78a8", "#66aacb", "#bcd9e8", "#f7f5f1", "#f3cdbb", "#e08a68", "#bf3f1d", "#7a1f06"],
  dark: ["#b9e2fa", "#55aedb", "#1f6c98", "#123c58", "#1f2127", "#62291a", "#b9532f", "#ff8e68", "#ffc4ab"],
};

function colourAt(table, t) {
  const at = 3 * Math.round(255 * clamp(t, 0, 1));
  return [table[at], table[at + 1], table[at + 2]];
}

const css = ([r, g, b]) => `rgb(${r},${g},${b})`;

/** Dark ink or white: what can be read on this colour, as the pictures and the terminal choose it. */
function inkOn(rgb) {
  const linear = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = linear.reduce((sum, part, at) => sum + PAGE.ink.luminance[at] * part, 0);
  return luminance > PAGE.ink.darkFrom ? "#10151c" : "#ffffff";
}

const DECADES = 4; // what a logarithmic scale spans, below the largest weight

/** Where a weight stands on the scale, from 0 to 1. */
function positionOf(w, scale) {
  if (scale.kind === "difference") return 0.5 + (0.5 * w) / (scale.high || 1);
  if (scale.kind === "log") return w <= 0 ? 0 : 1 + Math.log10(w / scale.high) / DECADES;
  return (w - scale.low) / (scale.high - scale.low || 1);
}
