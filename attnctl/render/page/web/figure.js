// Lay out the grid of weights, and draw it with a pen.

const zoom = { rows: null, cols: null }; // [first, past the last] of the cells in view; null: all
let hover = null; // {i, j, panel} under the pointer
let layout = null; // of the last drawing on the screen

const LABEL_ROOM = 132;
const COLUMN_LABEL = 112; // the longest name of a column, along its slanted line
const SLANT = 48; // angle of a column's name, in degrees
const VEIL = 0.2; // how much paler the rows are that are not chosen: the bar must still explain their colours
const LEAST_LABEL = 7.5; // the smallest height of a row with a name
const LEAST_PRINTED = 20; // the smallest cell with a number on paper
const LEAST_GAP = 9; // the smallest cell with a gap around it
const sizeFor = (cell) => (cell >= 14 ? 13 : cell >= 11 ? 10.5 : cell >= 9 ? 8.5 : 7.5);

/** Return the rows r0 to r1 and columns c0 to c1 in view. */
function windowOf({ nq, nk }) {
  const zoomed = nq === view.grid.nq && nk === view.grid.nk; // not an exact block
  const [r0, r1] = (zoomed && zoom.rows) || [0, nq];
  const [c0, c1] = (zoomed && zoom.cols) || [0, nk];
  return { r0: Math.min(r0, nq - 1), r1: Math.min(r1, nq), c0: Math.min(c0, nk - 1), c1: Math.min(c1, nk) };
}

/** Return the places of all parts, in CSS pixels, for a drawing of this width. */
function layoutOf(panels, width) {
  const across = panels.length > 1 && width >= 700 ? panels.length : 1;
  const gap = 26;
  const room = (width - gap * (across - 1)) / across;
  const boxes = [];
  let top = 0;
  for (const panel of panels) {
    const column = boxes.length % across;
    boxes.push(boxOf(panel, column * (room + gap), top, room, panels.length > 1));
    if (column === across - 1) top = Math.max(...boxes.slice(-across).map((box) => box.bottom)) + 18;
  }
  return { width, height: Math.max(...boxes.map((box) => box.bottom)), boxes };
}

function boxOf(panel, left, top, room, titled) {
  const { grid } = panel;
  const seen = windowOf(grid);
  const [nq, nk] = [seen.r1 - seen.r0, seen.c1 - seen.c0];
  const widths = (groups, size) => sampled(groups).map(({ label }) => textWidth(label, size, true));
  const rows = grid.rows.slice(seen.r0, seen.r1);
  const cols = grid.cols.slice(seen.c0, seen.c1);
  const lastLabel = Math.min(COLUMN_LABEL, ...widths(cols.slice(-1), 13));
  const sumRoom = Math.max(50, lastLabel * Math.cos((SLANT * Math.PI) / 180) - 6); // the last slanted label reaches over it
  const tallest = onPaper ? 340 : 760; // on paper, the sentence, the grid and its caption fit on one page
  const biggest = Math.min(Math.max(nq, nk) <= 6 && !onPaper ? 84 : 60, Math.max(tallest / nq, 2));
  const cellBeside = (labels) => Math.min(biggest, (room - labels - sumRoom) / nk);
  const most = room < 420 ? 74 : LABEL_ROOM;
  const rowSize = cellBeside(most) < LEAST_LABEL - 1 ? 10.5 : sizeFor(cellBeside(most));
  const widest = clamp(Math.max(...widths(rows, rowSize)) + 12, 54, most);
  const cell = cellBeside(widest);
  const cellH = Math.max(cell, Math.min(26, 260 / nq));
  const widestCol = Math.max(...widths(cols, 13));
  const style = cell < LEAST_LABEL ? "ticks" : widestCol <= cell - 6 ? "flat" : "turned";
  const turned = Math.min(96, (widestCol * sizeFor(cell) * (cell < 12 ? 0.97 : 0.76)) / 13 + 14);
  const head = { flat: 24, ticks: 34, turned }[style];
  const [x, y] = [left + widest, top + (titled ? 28 : 0) + 18 + head];
  const [w, h] = [cell * nk, cellH * nq];
  const bottom = y + h + 58;
  return { panel, seen, left, top, room, titled, x, y, w, h, cell, cellH, style, widest, head, bottom };
}

/** Return a sample of many labels, enough to know their width. */
const sampled = (groups) => groups.filter((_, at) => at % Math.ceil(groups.length / 300) === 0);

// --- drawing ---------------------------------------------------------------------------------------------------

/** Draw a layout in an SVG. */
function drawFigure(svg, { width, height, boxes }) {
  const pen = svgPen(svg, width, height);
  for (const box of boxes) {
    if (box.titled)
      pen.text(cut(box.panel.title, box.room - 8, 14, true), box.left, box.top + 12, { size: 14, bold: true });
    if (box.panel.grid.hidden) pen.hatch(box.x, box.y, box.w, box.h);
    drawCells(pen, box);
    drawBlocks(pen, box);
    drawSpotlight(pen, box);
    drawLabels(pen, box);
    drawBar(pen, box);
  }
  return svg;
}

/** Draw cells with thin gaps, and their numbers if there is room; very small cells as an image. */
function drawCells(pen, { panel, seen, x, y, w, h, cell, cellH }) {
  const { grid, scale } = panel;
  const [high, wide] = [seen.r1 - seen.r0, seen.c1 - seen.c0];
  const paper = rgbOf(pen.colours.paper);
  const line = chosenLine(grid);
  const lit = line && new Set(line.others.map((_, other) => line.cell(other))); // the other cells are paler
  const placeOf = (at) => (seen.r0 + Math.floor(at / wide)) * grid.nk + seen.c0 + (at % wide);
  const colourOf = (at) => {
    if (grid.hidden?.[placeOf(at)]) return null;
    const colour = colourAt(mapTable(scale.map), positionOf(grid.w[placeOf(at)], scale));
    return lit && !lit.has(placeOf(at)) ? mixed(colour, paper, VEIL) : colour;
  };
  if (Math.min(cell, cellH) < LEAST_GAP) {
    const key = [mode(), ...Object.values(seen)].join();
    if (panel.picture?.key !== key)
      panel.picture = { key, href: pixels(el("canvas"), high, wide, colourOf).toDataURL() };
    return pen.image(panel.picture.href, w < wide, x, y, w, h);
  }
  for (let at = 0; at < high * wide; at++) {
    const colour = colourOf(at);
    if (!colour) continue;
    const [left, top] = [x + (at % wide) * cell, y + Math.floor(at / wide) * cellH];
    pen.rect(left + 0.5, top + 0.5, cell - 1, cellH - 1, css(colour));
    // paper has no pointer: write numbers in all cells that are large enough to read them
    if (cell < (onPaper ? LEAST_PRINTED : 36) || cellH < (onPaper ? 12 : 18)) continue;
    const size = cell >= 48 ? 14 : cell >= 36 ? 12 : cell >= 27 ? 9.5 : 7.5;
    const look = { size, align: "middle", fill: inkOn(colour) };
    const number = fixed(grid.w[placeOf(at)]);
    pen.text(cell < 27 ? number.replace(/^0\./, ".") : number, left + cell / 2, top + cellH / 2, look);
  }
}

/** Draw a thin frame around each exact block of an overview. */
function drawBlocks(pen, { panel, seen, x, y, cell, cellH }) {
  for (const { rows, keys } of panel.head?.blocks ?? []) {
    const [top, bottom] = [panel.grid.rowFor.get(rows[0]), panel.grid.rowFor.get(rows[1] - 1)];
    const [left, right] = [panel.grid.colFor.get(keys[0]), panel.grid.colFor.get(keys[1] - 1)];
    if (top < seen.r0 || bottom >= seen.r1 || left < seen.c0 || right >= seen.c1) continue;
    const [wide, high] = [Math.max(5, (right - left + 1) * cell), Math.max(5, (bottom - top + 1) * cellH)];
    pen.frame(x + (left - seen.c0) * cell - 1, y + (top - seen.r0) * cellH - 1, wide + 1, high + 1, pen.colours.ink, 1);
  }
}

/** Draw frames around the chosen row (or column), the chosen cell, and the cell under the pointer. */
function drawSpotlight(pen, { panel, seen, x, y, w, h, cell, cellH }) {
  const { accent, ink } = pen.colours;
  const [i, j] = [chosenRow(panel.grid), chosenCol(panel.grid)];
  const inRows = (row) => row >= seen.r0 && row < seen.r1;
  const inCols = (col) => col >= seen.c0 && col < seen.c1;
  const [leftOf, topOf] = [(col) => x + (col - seen.c0) * cell, (row) => y + (row - seen.r0) * cellH];
  // at least 4 pixels, so that the frame does not hide its cell
  const frame = (left, top, wide, high, colour, thick) => {
    const [more, taller] = [Math.max(0, 4 - wide), Math.max(0, 4 - high)];
    pen.frame(left - more / 2, top - taller / 2, wide + more, high + taller, colour, thick);
  };
  if (!isFrom() && inRows(i)) frame(x, topOf(i), w, cellH, accent, 1.5);
  if (isFrom() && inCols(j)) frame(leftOf(j), y, cell, h, accent, 1.5);
  if (inRows(i) && inCols(j)) frame(leftOf(j) - 1, topOf(i) - 1, cell + 2, cellH + 2, accent, cell < 8 ? 1.5 : 2.5);
  if (hover && inRows(hover.i) && inCols(hover.j)) frame(leftOf(hover.j), topOf(hover.i), cell, cellH, ink, 1);
}

function drawLabels(pen, box) {
  const small = { size: 11, fill: pen.colours.quiet };
  pen.text("query ↓", box.x - 8, box.y - 9, { ...small, align: "end" });
  pen.text("key →", box.x, box.style === "flat" ? box.y - 34 : box.y - box.head - 8, small);
  drawRowLabels(pen, box);
  if (box.style === "ticks") drawKeyTicks(pen, box);
  else drawKeyLabels(pen, box);
}

/** Write the names of the rows; without room for all, some numbers, and the names of the chosen and the pointed row. */
function drawRowLabels(pen, { panel, seen, x, y, w, cellH, widest }) {
  const { ink, quiet, accent } = pen.colours;
  const { rows, sums } = panel.grid;
  const chosen = chosenRow(panel.grid);
  const all = cellH >= LEAST_LABEL;
  const every = all ? 1 : niceStep(Math.floor(24 / cellH));
  for (let i = seen.r0; i < seen.r1; i++) {
    const named = all || i === chosen || hover?.i === i;
    const crowded = chosen >= 0 && Math.abs((i - chosen) * cellH) < 14;
    if (!named && (i % every || crowded)) continue;
    const middle = y + (i - seen.r0 + 0.5) * cellH;
    const size = all ? sizeFor(cellH) : 10.5;
    const label = named ? cut(rows[i].label, widest - 12, size, i === chosen) : String(rows[i].tokens[0]);
    const fill = i === chosen ? accent : rows[i].special || !named ? quiet : ink;
    pen.text(label, x - 8, middle, { size, align: "end", fill, bold: i === chosen });
    if (sums && (i === chosen || cellH >= 14))
      pen.text(`Σ ${fixed(sums[i])}`, x + w + 7, middle, { size: 12, fill: i === chosen ? ink : quiet });
  }
}

function drawKeyLabels(pen, { panel, seen, x, y, cell, style }) {
  const { ink, quiet, accent } = pen.colours;
  const chosen = chosenCol(panel.grid);
  for (let j = seen.c0; j < seen.c1; j++) {
    const { label, special } = panel.grid.cols[j];
    const look = { fill: j === chosen ? accent : special ? quiet : ink, bold: j === chosen };
    const place = x + (j - seen.c0 + 0.5) * cell;
    const size = sizeFor(cell);
    if (style === "flat") pen.text(label, place, y - 12, { ...look, align: "middle" });
    else pen.text(cut(label, COLUMN_LABEL, size, look.bold), place + 2, y - 6, { ...look, size, turn: cell < 12 ? -74 : -SLANT });
  }
}

/** Write the numbers of some keys, and the name of the key under the pointer, or else of the chosen key. */
function drawKeyTicks(pen, { panel, seen, x, y, w, cell }) {
  const { quiet, accent, ink } = pen.colours;
  const placeOf = (j) => x + (j - seen.c0 + 0.5) * cell;
  const every = niceStep(Math.ceil(44 / cell));
  for (let j = Math.ceil(seen.c0 / every) * every; j < seen.c1; j += every) {
    pen.rect(placeOf(j) - 0.5, y - 5, 1, 4, quiet);
    pen.text(String(panel.grid.cols[j].tokens[0]), placeOf(j), y - 11, { size: 10.5, fill: quiet, align: "middle" });
  }
  const inView = (j) => j >= seen.c0 && j < seen.c1;
  const touched = hover !== null && inView(hover.j);
  const named = touched ? hover.j : chosenCol(panel.grid);
  if (!inView(named)) return;
  const label = cut(panel.grid.cols[named].label, 120, 12, true);
  const half = textWidth(label, 12, true) / 2;
  const least = x + half + 44;
  const place = clamp(placeOf(named), least, Math.max(least, x + w - half));
  pen.text(label, place, y - 25, { size: 12, fill: touched ? ink : accent, align: "middle", bold: true });
}

/** Return the first of 1, 2, 5, 10, 20, 50, … that is not less. */
function niceStep(least) {
  for (let unit = 1; ; unit *= 10) for (const factor of [1, 2, 5]) if (unit * factor >= least) return unit * factor;
}

/** Draw the colour bar, and the meaning of a hatched cell. */
function drawBar(pen, { panel, x, y: top, w, h }) {
  const { scale, grid } = panel;
  const { quiet, line } = pen.colours;
  const small = { size: 11, fill: quiet };
  const wide = clamp(w * 0.5, 110, 170);
  const y = top + h + 20;
  const strip = pixels(el("canvas"), 1, 64, (at) => colourAt(mapTable(scale.map), at / 63));
  pen.image(strip.toDataURL(), false, x, y, wide, 8);
  pen.frame(x, y, wide, 8, line, 0.6);
  for (const [label, place, align] of barTicks(scale)) pen.text(label, x + place * wide, y + 20, { ...small, align });
  if (!grid.hidden?.some((hidden) => hidden)) return;
  const right = x + wide + 22;
  pen.hatch(right, y - 2, 14, 12);
  pen.frame(right, y - 2, 14, 12, line, 0.6);
  pen.text("masked", right + 20, y + 4, small);
}

function barTicks({ kind, low, high }) {
  const last = [`${kind === "difference" ? "+" : ""}${weightText(high)}`, 1, "end"];
  const first = kind === "log" ? `≤ ${(high / 10 ** DECADES).toPrecision(1)}` : weightText(low);
  return [[first, 0, "start"], ...(kind === "difference" ? [["0", 0.5, "middle"]] : []), last];
}

/** Draw on the screen, and write the cells in view and the cell under the pointer. */
function paint() {
  const width = byId("grid").clientWidth;
  if (!view || !width) return;
  layout = layoutOf(view.panels, width);
  drawFigure(byId("canvas"), layout);
  writeZoom();
  writeReadout();
}
