// Saving what is seen: PNG, SVG, the numbers as CSV, the link.

function fileName(suffix) {
  const words = TRACES[0].text
    .normalize("NFKD")
    .replace(/[^A-Za-z0-9]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 40)
    .toLowerCase();
  return `${words || "attention"}-layer${view.head.layer}-head${view.head.head}.${suffix}`;
}

function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** The drawing, without what the pointer happens to touch. */
function undisturbed(draw) {
  const before = hover;
  hover = null;
  draw(layoutOf(view.panels, clamp(byId("grid").clientWidth, 560, 1200)));
  hover = before;
}

function savePng() {
  undisturbed((plan) => {
    const canvas = el("canvas");
    const pen = canvasPen(canvas, plan.width, plan.height, 3, theme());
    pen.rect(0, 0, plan.width, plan.height, theme().paper);
    drawFigure(pen, plan);
    canvas.toBlob((blob) => download(blob, fileName("png")));
  });
}

function svgText() {
  let text = "";
  undisturbed((plan) => {
    const pen = svgPen(plan.width, plan.height, theme());
    drawFigure(pen, plan);
    text = pen.done();
  });
  return text;
}

const saveSvg = () => download(new Blob([svgText()], { type: "image/svg+xml" }), fileName("svg"));

/** The weights as shown, in full, one line a query; masked cells are empty. */
function csvText() {
  const { grid } = view;
  const safe = (text) => (/^[=+@-]./u.test(text) ? `'${text}` : text); // no formula, where a spreadsheet reads it
  const quote = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const quoted = (text) => quote(safe(text));
  const lines = [["query", ...grid.cols.map((col) => quoted(col.label))].join(",")];
  for (let i = 0; i < grid.nq; i++) {
    const cells = [quoted(grid.rows[i].label)];
    for (let j = 0; j < grid.nk; j++)
      cells.push(grid.hidden?.[i * grid.nk + j] ? "" : String(Number(grid.w[i * grid.nk + j].toPrecision(9))));
    lines.push(cells.join(","));
  }
  return `${lines.join("\n")}\n`;
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "unseen" });
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
  const button = (id, label, act) => el("button", { class: "plain", type: "button", id, onclick: act }, label);
  byId("saves").append(
    button("save-png", "Save PNG", savePng),
    button("save-svg", "Save SVG", saveSvg),
    button("copy-csv", "Copy CSV", () => copy(csvText(), "Numbers")),
    button("copy-link", "Copy link", () => copy(location.href, "Link")),
    el("span", { id: "copied", role: "status" }),
  );
}
