// Save what the page shows: PNG, SVG, the numbers as CSV, the link.

function download(blob, suffix) {
  const words = TRACES[0].text
    .normalize("NFKD")
    .replace(/[^A-Za-z0-9]+/g, " ")
    .trim();
  const start = words.slice(0, 40).toLowerCase().replaceAll(" ", "-").replace(/-$/, "") || "attention";
  const link = el("a", {
    href: URL.createObjectURL(blob),
    download: `${start}-layer${view.head.layer}-head${view.head.head}.${suffix}`,
  });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Return the drawing as a file, with its background and without the mark under the pointer. */
function svgText() {
  const touched = hover;
  hover = null;
  const svg = drawFigure(svgEl("svg"), layoutOf(view.panels, clamp(byId("grid").clientWidth, 560, 1200)));
  hover = touched;
  svg.querySelector("defs").after(svgEl("rect", { width: "100%", height: "100%", fill: theme().paper }));
  return `${new XMLSerializer().serializeToString(svg)}\n`;
}

const svgBlob = () => new Blob([svgText()], { type: "image/svg+xml" });

/** Save the drawing with three times as many pixels as on a plain screen. */
async function savePng() {
  const picture = new Image();
  picture.src = URL.createObjectURL(svgBlob());
  await picture.decode();
  const canvas = el("canvas", { width: 3 * picture.width, height: 3 * picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => download(blob, "png"));
  URL.revokeObjectURL(picture.src);
}

/** Return the weights shown, in full precision, one line for each query; masked cells are empty. */
function csvText() {
  const { rows, cols, w, hidden, nk } = view.grid;
  const safe = (text) => (/^[=+@\-＝＋－＠]./u.test(text) ? `'${text}` : text); // as `in_a_cell` of text.py: no formula
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const names = (groups) => groups.map(({ label }) => quoted(safe(label)));
  const number = (at) => (hidden?.[at] ? "" : Number(w[at].toPrecision(9)));
  const lines = names(rows).map((name, i) => [name, ...cols.map((_, j) => number(i * nk + j))]);
  return [["query", ...names(cols)], ...lines].map((line) => `${line.join(",")}\n`).join("");
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea.unseen");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy"); // where the page may not use the clipboard directly
    area.remove();
  }
  byId("copied").textContent = `${what} copied`;
  setTimeout(() => (byId("copied").textContent = ""), 2500);
}

function startSaves() {
  on("save-png", "click", savePng);
  on("save-svg", "click", () => download(svgBlob(), "svg"));
  on("copy-csv", "click", () => copy(csvText(), "Numbers"));
  on("copy-link", "click", () => copy(location.href, "Link"));
}
