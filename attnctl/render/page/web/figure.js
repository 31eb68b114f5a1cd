// The grid of weights: laid out once for both pens, drawn, pointed at, walked over with the keys.

const zoom = { rows: null, cols: null }; // [first, past the last] of what is in view; null: all
let hover = null; // {i, j, panel} under the pointer
let layout = null; // of the last drawing on the screen

const bigCell = (n) => (n <= 6 ? 84 : 60);
const LABEL_ROOM = 132;
const COLUMN_LABEL = 112; // the longest name of a column, along its slanted line
const SLANT = 48; // degrees that a column's name is turned by
const VEIL = 0.2; // how far the rows that are not chosen step back: their colours must still be read by the bar
const LEAST_LABEL = 7.5; // the least height of a row that can carry its name
const sizeFor = (cell) => (cell >= 14 ? 13 : cell >= 11 ? 10.5 : cell >= 9 ? 8.5 : 7.5);

function windowOf(grid) {
  if (grid.nq !== view.grid.nq || grid.nk !== view.grid.nk) return { r0: 0, r1: grid.nq, c0: 0, c1: grid.nk }; // an exact block
  const [r0, r1] = zoom.rows ?? [0, grid.nq];
  const [c0, c1] = zoom.cols ?? [0, grid.nk];
  return {
    r0: Math.min(r0, grid.nq - 1),
    r1: Math.min(r1, grid.nq),
    c0: Math.min(c0, grid.nk - 1),
    c1: Math.min(c1, grid.nk),
  };
}

/** Where everything stands, in CSS pixels, for a drawing `width` wide. */
function layoutOf(panels, width) {
  const across = panels.length > 1 && width >= 700 ? panels.length : 1;
  const gap = 26;
  const room = (width - gap * (across - 1)) / across;
  const boxes = [];
  let top = 0;
  for (let at = 0; at < panels.length; at++) {
    const left = (at % across) * (room + gap);
    const box = boxOf(panels[at], left, top, room, panels.length > 1);
    boxes.push(box);
    if (at % across === across - 1) top = Math.max(...boxes.slice(-across).map((b) => b.bottom)) + 18;
  }
  return { width, height: Math.max(...boxes.map((box) => box.bottom)), boxes };
}

function boxOf(panel, left, top, room, titled) {
  const { grid } = panel;
  const seen = windowOf(grid);
  const nq = seen.r1 - seen.r0;
  const nk = seen.c1 - seen.c0;
  const narrow = room < 420;
  const most = narrow ? 74 : LABEL_ROOM;
  const lastLabel = Math.min(COLUMN_LABEL, textWidth(grid.cols[seen.c1 - 1]?.label ?? "", 13, true));
  const sumRoom = Math.max(50, lastLabel * Math.cos((SLANT * Math.PI) / 180) - 6); // the last label leans out over it
  const cellFor = (labels) =>
    Math.min(bigCell(Math.max(nq, nk)), (room - labels - sumRoom) / nk, Math.max(760 / nq, 2));
  const rowSize = cellFor(most) < LEAST_LABEL - 1 ? 10.5 : sizeFor(cellFor(most));
  const rowLabels = grid.rows.slice(seen.r0, seen.r1).map((row) => row.label);
  const widest = Math.min(
    most,
    Math.max(54, ...sampled(rowLabels).map((label) => textWidth(label, rowSize, true) + 12)),
  );
  const cell = cellFor(widest);
  const cellH = nq > 0 ? Math.max(cell, Math.min(26, 260 / nq)) : cell;
  const colLabels = sampled(grid.cols.slice(seen.c0, seen.c1).map((col) => col.label));
  const widestCol = Math.max(0, ...colLabels.map((label) => textWidth(label, 13, true)));
  const style = cell < LEAST_LABEL ? "ticks" : widestCol <= cell - 6 ? "flat" : "turned";
  const head =
    style === "flat"
      ? 24
      : style === "ticks"
        ? 34
        : Math.min(96, (widestCol * sizeFor(cell) * (cell < 12 ? 0.97 : 0.76)) / 13 + 14);
  const y = top + (titled ? 28 : 0) + 18 + head;
  const x = left + widest;
  const w = cell * nk;
  const h = cellH * nq;
  return {
    panel,
    seen,
    left,
    top,
    room,
    titled,
    x,
    y,
    w,
    h,
    cell,
    cellH,
    style,
    widest,
    head,
    sumRoom,
    bottom: y + h + 58,
  };
}

/** A few of many labels: enough to know how wide they are. */
const sampled = (labels) =>
  labels.length <= 300 ? labels : labels.filter((_, at) => at % Math.ceil(labels.length / 300) === 0);

// --- drawing ---------------------------------------------------------------------------------------------------

const pictures = new WeakMap(); // grid → {key, canvas}: its cells, one pixel each

/** A canvas with one pixel a cell; masked cells are left clear, so that the hatching below them shows. */
function pictureOf(panel) {
  const { grid, scale } = panel;
  const key = `${scale.kind}/${scale.map}/${scale.high}/${isDark()}`;
  const known = pictures.get(grid);
  if (known && known.key === key) return known.canvas;
  const table = mapTable(scale.map);
  const canvas = el("canvas", { width: grid.nk, height: grid.nq });
  const c = canvas.getContext("2d");
  const image = c.createImageData(grid.nk, grid.nq);
  for (let at = 0; at < grid.w.length; at++) {
    if (grid.hidden && grid.hidden[at]) continue;
    const step = 3 * Math.round(255 * clamp(positionOf(grid.w[at], scale), 0, 1));
    image.data.set([table[step], table[step + 1], table[step + 2], 255], 4 * at);
  }
  c.putImageData(image, 0, 0);
  pictures.set(grid, { key, canvas });
  return canvas;
}

function drawFigure(pen, plan) {
  for (const box of plan.boxes) drawBox(pen, box);
}

function drawBox(pen, box) {
  const { panel, seen, x, y, w, h } = box;
  const { grid, scale } = panel;
  const table = mapTable(scale.map);
  const colourOf = (i, j) =>
    grid.hidden && grid.hidden[i * grid.nk + j] ? null : colourAt(table, positionOf(grid.w[i * grid.nk + j], scale));
  if (box.titled) pen.text(cut(panel.title, box.room - 8, 14, true), box.left, box.top + 12, { size: 14, bold: true });
  if (grid.hidden) pen.hatch(x, y, w, h);
  pen.cells(() => pictureOf(panel), seen, x, y, w, h, colourOf);
  if (Math.min(box.cell, box.cellH) >= 9) drawLines(pen, box);
  drawBlocks(pen, box);
  drawSpotlight(pen, box);
  if (box.cell >= 36 && box.cellH >= 18) drawNumbers(pen, box, colourOf);
  drawLabels(pen, box);
  drawBar(pen, box);
}

/** Thin gaps of paper between the cells. */
function drawLines(pen, { seen, x, y, w, h, cell, cellH }) {
  const { paper } = pen.colours;
  for (let j = 1; j < seen.c1 - seen.c0; j++) pen.rect(x + j * cell - 0.5, y, 1, h, paper);
  for (let i = 1; i < seen.r1 - seen.r0; i++) pen.rect(x, y + i * cellH - 0.5, w, 1, paper);
}

function drawNumbers(pen, { panel, seen, x, y, cell, cellH }, colourOf) {
  const { grid } = panel;
  const paper = rgbOf(pen.colours.paper);
  const [row, col] = [chosenRow(grid), chosenCol(grid)];
  const veiled = (i, j) => (state.direction === "to" ? row >= 0 && i !== row : col >= 0 && j !== col);
  for (let i = seen.r0; i < seen.r1; i++) {
    for (let j = seen.c0; j < seen.c1; j++) {
      let colour = colourOf(i, j);
      if (!colour) continue;
      if (veiled(i, j)) colour = colour.map((c, k) => c + VEIL * (paper[k] - c));
      const at = [x + (j - seen.c0 + 0.5) * cell, y + (i - seen.r0 + 0.5) * cellH];
      pen.text(fixed(grid.w[i * grid.nk + j]), ...at, {
        size: cell >= 48 ? 14 : 12,
        align: "center",
        fill: inkOn(colour),
      });
    }
  }
}

/** Where an overview has exact blocks: a thin frame around each. */
function drawBlocks(pen, { panel, seen, x, y, cell, cellH }) {
  for (const { rows, keys } of panel.head?.blocks ?? []) {
    const [top, bottom] = [panel.grid.rowFor.get(rows[0]), panel.grid.rowFor.get(rows[1] - 1)];
    const [left, right] = [panel.grid.colFor.get(keys[0]), panel.grid.colFor.get(keys[1] - 1)];
    if (top < seen.r0 || bottom >= seen.r1 || left < seen.c0 || right >= seen.c1) continue;
    const [wide, high] = [Math.max(5, (right - left + 1) * cell), Math.max(5, (bottom - top + 1) * cellH)];
    pen.frame(x + (left - seen.c0) * cell - 1, y + (top - seen.r0) * cellH - 1, wide + 1, high + 1, pen.colours.ink, 1);
  }
}

/** The chosen row (or column) stays as it is, the others step back; the chosen cell has a frame of its own. */
function drawSpotlight(pen, { panel, seen, x, y, w, h, cell, cellH }) {
  const { paper, accent, ink } = pen.colours;
  const i = chosenRow(panel.grid);
  const j = chosenCol(panel.grid);
  const row = i >= seen.r0 && i < seen.r1 ? i - seen.r0 : null;
  const col = j >= seen.c0 && j < seen.c1 ? j - seen.c0 : null;
  if (state.direction === "to" && row !== null) {
    pen.rect(x, y, w, row * cellH, paper, VEIL);
    pen.rect(x, y + (row + 1) * cellH, w, h - (row + 1) * cellH, paper, VEIL);
    if (cellH >= 4) pen.frame(x, y + row * cellH, w, cellH, accent, 1.5);
    else for (const side of [x - 6, x + w + 1]) pen.rect(side, y + (row + 0.5) * cellH - 1.5, 5, 3, accent);
  }
  if (state.direction === "from" && col !== null) {
    pen.rect(x, y, col * cell, h, paper, VEIL);
    pen.rect(x + (col + 1) * cell, y, w - (col + 1) * cell, h, paper, VEIL);
    if (cell >= 4) pen.frame(x + col * cell, y, cell, h, accent, 1.5);
    else for (const side of [y - 6, y + h + 1]) pen.rect(x + (col + 0.5) * cell - 1.5, side, 3, 5, accent);
  }
  if (row !== null && col !== null) {
    const [wide, high] = [Math.max(cell, 4) + 2, Math.max(cellH, 4) + 2];
    pen.frame(
      x + (col + 0.5) * cell - wide / 2,
      y + (row + 0.5) * cellH - high / 2,
      wide,
      high,
      accent,
      cell < 8 ? 1.5 : 2.5,
    );
  }
  if (hover && hover.i >= seen.r0 && hover.i < seen.r1 && hover.j >= seen.c0 && hover.j < seen.c1) {
    pen.frame(x + (hover.j - seen.c0) * cell, y + (hover.i - seen.r0) * cellH, cell, cellH, ink, 1);
  }
}

function drawLabels(pen, box) {
  const { quiet } = pen.colours;
  pen.text("query ↓", box.x - 8, box.y - 9, { size: 11, fill: quiet, align: "right" });
  const keyAt = box.style === "flat" ? box.y - 34 : box.y - box.head - 8;
  pen.text("key →", box.x, keyAt, { size: 11, fill: quiet });
  drawRowLabels(pen, box);
  if (box.style === "ticks") drawKeyTicks(pen, box);
  else drawKeyLabels(pen, box);
}

function drawRowLabels(pen, box) {
  const { panel, seen, x, y, w, cellH, widest } = box;
  const { ink, quiet, accent } = pen.colours;
  const { grid } = panel;
  const chosen = chosenRow(grid);
  const all = cellH >= LEAST_LABEL;
  const rowSize = all ? sizeFor(cellH) : 10.5;
  const every = all ? 1 : niceStep((24 / cellH) | 0 || 1);
  for (let i = seen.r0; i < seen.r1; i++) {
    const own = i === chosen || (hover && hover.i === i);
    if (!own && i % every) continue;
    const middle = y + (i - seen.r0 + 0.5) * cellH;
    if (!all && !own && chosen >= 0 && Math.abs((i - chosen) * cellH) < 14) continue;
    const label =
      all || own ? cut(grid.rows[i].label, widest - 12, rowSize) : String(grid.rows[i].tokens[0]);
    const size = all || own ? rowSize : 10.5;
    const fill = i === chosen ? accent : grid.rows[i].special || !(all || own) ? quiet : ink;
    pen.text(label, x - 8, middle, { size, align: "right", fill, bold: i === chosen });
    if (grid.sums && (all ? cellH >= 14 || i === chosen : i === chosen)) {
      const sum = `Σ ${fixed(grid.sums[i])}`;
      pen.text(sum, x + w + 7, middle, { size: 12, fill: i === chosen ? ink : quiet });
    }
  }
}

function drawKeyLabels(pen, box) {
  const { panel, seen, x, y, cell, style } = box;
  const { ink, quiet, accent } = pen.colours;
  const chosen = chosenCol(panel.grid);
  for (let j = seen.c0; j < seen.c1; j++) {
    const { label, special } = panel.grid.cols[j];
    const fill = j === chosen ? accent : special ? quiet : ink;
    const place = x + (j - seen.c0 + 0.5) * cell;
    if (style === "flat") pen.text(label, place, y - 12, { align: "center", fill, bold: j === chosen });
    else {
      const size = sizeFor(cell);
      pen.text(cut(label, COLUMN_LABEL, size), place + 2, y - 6, {
        size,
        fill,
        bold: j === chosen,
        turn: cell < 12 ? -74 : -SLANT,
      });
    }
  }
}

function drawKeyTicks(pen, box) {
  const { panel, seen, x, y, cell } = box;
  const { quiet, accent, ink } = pen.colours;
  const chosen = chosenCol(panel.grid);
  const every = niceStep(Math.ceil(44 / cell));
  for (let j = seen.c0; j < seen.c1; j++) {
    if (j % every) continue;
    const place = x + (j - seen.c0 + 0.5) * cell;
    pen.rect(place - 0.5, y - 5, 1, 4, quiet);
    pen.text(String(panel.grid.cols[j].tokens[0]), place, y - 11, { size: 10.5, fill: quiet, align: "center" });
  }
  const named = hover
    ? [
        [hover.j, ink],
        [chosen, accent],
      ]
    : [[chosen, accent]];
  const done = new Set();
  for (const [j, fill] of named) {
    if (j < seen.c0 || j >= seen.c1 || done.size) continue;
    const label = cut(panel.grid.cols[j].label, 120, 12);
    const half = textWidth(label, 12, true) / 2;
    const place = clamp(x + (j - seen.c0 + 0.5) * cell, x + half + 44, Math.max(x + half + 44, x + box.w - half));
    pen.text(label, place, y - 25, { size: 12, fill, align: "center", bold: true });
    done.add(j);
  }
}

/** 1, 2, 5, 10, 20, 50, …: the first that is no less. */
function niceStep(least) {
  for (let unit = 1; ; unit *= 10) for (const factor of [1, 2, 5]) if (unit * factor >= least) return unit * factor;
}

/** The colour bar, and what a hatched cell means. */
function drawBar(pen, box) {
  const { scale, grid } = box.panel;
  const { quiet, line } = pen.colours;
  const table = mapTable(scale.map);
  const wide = Math.min(170, Math.max(110, box.w * 0.5));
  const y = box.y + box.h + 20;
  const x = box.x;
  const strips = 64;
  for (let at = 0; at < strips; at++) {
    pen.rect(x + (at * wide) / strips, y, wide - (at * wide) / strips, 8, css(colourAt(table, at / (strips - 1))));
  }
  pen.frame(x, y, wide, 8, line, 0.6);
  for (const [place, label] of barTicks(scale)) {
    const align = place === 0 ? "left" : place === 1 ? "right" : "center";
    pen.text(label, x + place * wide, y + 20, { size: 11, fill: quiet, align });
  }
  if (grid.hidden && grid.hidden.some((h) => h)) {
    const right = x + wide + 22;
    pen.hatch(right, y - 2, 14, 12);
    pen.frame(right, y - 2, 14, 12, line, 0.6);
    pen.text("masked", right + 20, y + 4, { size: 11, fill: quiet });
  }
}

function barTicks(scale) {
  const high = weightText(scale.high);
  if (scale.kind === "difference")
    return [
      [0, `−${high}`],
      [0.5, "0"],
      [1, `+${high}`],
    ];
  if (scale.kind === "log")
    return [
      [0, `≤ ${(scale.high / 10 ** DECADES).toPrecision(1)}`],
      [1, high],
    ];
  return [
    [0, scale.low < 0 ? weightText(scale.low) : "0"],
    [1, high],
  ];
}

/** Draw on the screen. */
function paint() {
  if (!view) return;
  const host = byId("grid");
  const width = host.clientWidth;
  if (!width) return;
  layout = layoutOf(view.panels, width);
  const canvas = byId("canvas");
  canvas.style.setProperty("height", `${layout.height}px`);
  const ratio = clamp((devicePixelRatio || 1) * (onPaper ? 2 : 1), 1, 4);
  drawFigure(canvasPen(canvas, layout.width, layout.height, ratio, theme()), layout);
}
