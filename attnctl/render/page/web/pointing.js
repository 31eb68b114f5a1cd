// The pointer and the keys on the grid: choose cells, and zoom.

/** Return the cell under the pointer: {i, j, panel}, or null; on the name of a row, j is -1. */
function cellAt(event) {
  const area = byId("canvas").getBoundingClientRect();
  const [px, py] = [event.clientX - area.left, event.clientY - area.top];
  for (const { panel, seen, left, x, y, w, h, cell, cellH } of layout?.boxes ?? []) {
    if (px < left || px >= x + w || py < y || py >= y + h) continue;
    const j = px < x ? -1 : seen.c0 + Math.floor((px - x) / cell);
    return { i: seen.r0 + Math.floor((py - y) / cellH), j, panel };
  }
  return null;
}

let waiting = false; // whether the next frame will draw

function touch(found) {
  if (found?.i === hover?.i && found?.j === hover?.j && found?.panel === hover?.panel) return;
  hover = found;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint();
  });
}

function onMove(event) {
  if (drag && event.buttons & 1 && (zoom.rows || zoom.cols)) return moveBy(event);
  const found = cellAt(event);
  touch(found?.j >= 0 ? found : null);
}

function onPick(event) {
  const found = drag?.moved ? null : cellAt(event);
  if (!found) return;
  const { grid } = found.panel;
  const query = grid.rows[found.i].tokens[0];
  chooseIn(grid.head.trace, found.j < 0 ? { query } : { query, key: grid.cols[found.j].tokens[0] });
}

async function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !view) return;
  const { grid } = view;
  const [i, j] = [Math.max(0, chosenRow(grid)), chosenCol(grid)];
  const [down, across] = arrowStep(event) ?? [0, 0];
  const moves = { Home: [i, 0], End: [i, grid.nk - 1], PageUp: [0, j], PageDown: [grid.nq - 1, j] };
  const zooms = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity };
  const to = moves[event.key] ?? (arrowStep(event) && [i + (state.query === null ? 0 : down), j + across]);
  if (!to && !zooms[event.key] && event.key !== "Escape") return;
  event.preventDefault();
  if (zooms[event.key]) return zoomBy(zooms[event.key]);
  if (!to) {
    await choose({ query: null, key: null });
    return say("No query chosen.");
  }
  const [row, col] = [clamp(to[0], 0, grid.nq - 1), clamp(to[1], 0, grid.nk - 1)];
  await choose({ query: grid.rows[row].tokens[0], key: grid.cols[col].tokens[0] });
  keepInView();
  say(spoken());
}

// --- zoom ------------------------------------------------------------------------------------------------------

/** Show `factor` times as many cells, around the given cell or the chosen one. */
function zoomBy(factor, around = null) {
  const { grid } = view;
  const { r0, r1, c0, c1 } = windowOf(grid);
  const chosen = { i: chosenRow(grid), j: chosenCol(grid) };
  const centre = (at, first, past) => (at >= 0 ? at : (first + past) / 2);
  zoom.rows = narrowed(r0, r1, centre((around ?? chosen).i, r0, r1), factor, grid.nq);
  zoom.cols = narrowed(c0, c1, centre((around ?? chosen).j, c0, c1), factor, grid.nk);
  paint();
}

function narrowed(first, past, at, factor, n) {
  const span = Math.round(Math.max(Math.min(n, 8), (past - first) * factor));
  if (span >= n) return null;
  const share = clamp((at - first) / (past - first), 0, 1);
  const start = clamp(Math.round(at - span * share), 0, n - span);
  return [start, start + span];
}

function keepInView() {
  const shifted = (seen, at, n) => {
    if (!seen || at < 0 || (at >= seen[0] && at < seen[1])) return seen;
    const start = clamp(at < seen[0] ? at : at - (seen[1] - seen[0]) + 1, 0, n - (seen[1] - seen[0]));
    return [start, start + seen[1] - seen[0]];
  };
  zoom.rows = shifted(zoom.rows, chosenRow(view.grid), view.grid.nq);
  zoom.cols = shifted(zoom.cols, chosenCol(view.grid), view.grid.nk);
  paint();
}

let drag = null; // where the pointer went down and the cells shown then; `moved`: whether it was dragged

function moveBy(event) {
  const box = layout.boxes[0];
  const down = Math.round((drag.y - event.clientY) / box.cellH);
  const across = Math.round((drag.x - event.clientX) / box.cell);
  if (!drag.moved && !down && !across) return;
  drag.moved = true;
  const moved = (seen, by, n) => seen && seen.map((end) => end + clamp(by, -seen[0], n - seen[1]));
  zoom.rows = moved(drag.rows, down, view.grid.nq);
  zoom.cols = moved(drag.cols, across, view.grid.nk);
  hover = null;
  paint();
}

function writeZoom() {
  const { grid } = view;
  const { r0, r1, c0, c1 } = windowOf(grid);
  const whole = !zoom.rows && !zoom.cols;
  byId("zoom").hidden = grid.nq < 24 && grid.nk < 24;
  byId("zoom-out").disabled = byId("zoom-all").disabled = whole;
  byId("zoomed").textContent = whole ? "" : `queries ${r0} to ${r1 - 1}, keys ${c0} to ${c1 - 1}; drag to move`;
}

function startFigure() {
  on("grid", "pointermove", onMove);
  on("grid", "pointerleave", () => touch(null));
  addEventListener("pointerdown", ({ target, clientX: x, clientY: y }) => {
    drag = byId("grid").contains(target) ? { x, y, ...zoom, moved: false } : null;
  });
  on("grid", "click", onPick);
  on("grid", "dblclick", (event) => view.grid.nk >= 24 && cellAt(event) && zoomBy(0.5, cellAt(event)));
  on("grid", "keydown", onKey);
  on("skip", "click", () => byId("grid").focus());
  const zooms = { "zoom-in": 0.5, "zoom-out": 2, "zoom-all": Infinity };
  for (const [id, factor] of Object.entries(zooms)) on(id, "click", () => zoomBy(factor));
  const onWheel = (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    zoomBy(event.deltaY < 0 ? 0.7 : 1.4, cellAt(event));
  };
  byId("grid").addEventListener("wheel", onWheel, { passive: false });
  new ResizeObserver(paint).observe(byId("grid"));
}
