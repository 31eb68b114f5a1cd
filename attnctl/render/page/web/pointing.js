// The grid answers: the pointer and the keys choose, and zoom.

let waiting = false; // for the next frame, with a drawing to be made in it

/** The cell under a point of the drawing: {i, j, panel}, or null. */
function cellAt(px, py) {
  for (const box of layout?.boxes ?? []) {
    const j = Math.floor((px - box.x) / box.cell);
    const i = Math.floor((py - box.y) / box.cellH);
    const inside = i >= 0 && i < box.seen.r1 - box.seen.r0 && j >= 0 && j < box.seen.c1 - box.seen.c0;
    if (inside) return { i: i + box.seen.r0, j: j + box.seen.c0, panel: box.panel };
    // labels are as good as cells: a query's name chooses its row
    if (px >= box.left && px < box.x && i >= 0 && i < box.seen.r1 - box.seen.r0)
      return { i: i + box.seen.r0, j: -1, panel: box.panel };
  }
  return null;
}

function pointAt(event) {
  const area = byId("canvas").getBoundingClientRect();
  return cellAt(event.clientX - area.left, event.clientY - area.top);
}

function onMove(event) {
  if (dragging(event)) return;
  const found = pointAt(event);
  const next = found && found.j >= 0 ? found : null;
  if (next?.i === hover?.i && next?.j === hover?.j && next?.panel === hover?.panel) return;
  hover = next;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    paint();
    writeReadout();
  });
}

function onLeave() {
  hover = null;
  paint();
  writeReadout();
}

function onPick(event) {
  if (dragged) return;
  const found = pointAt(event);
  if (!found) return;
  const { grid } = found.panel;
  const changes = { query: grid.rows[found.i].tokens[0] };
  if (found.j >= 0) changes.key = grid.cols[found.j].tokens[0];
  chooseIn(grid.head.trace, changes);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !view) return;
  const { grid } = view;
  const i = Math.max(0, chosenRow(grid));
  const j = chosenCol(grid);
  const moves = {
    ArrowUp: [i - (state.query === null ? 0 : 1), j],
    ArrowDown: [i + (state.query === null ? 0 : 1), j],
    ArrowLeft: [i, j - 1],
    ArrowRight: [i, j + 1],
    Home: [i, 0],
    End: [i, grid.nk - 1],
    PageUp: [0, j],
    PageDown: [grid.nq - 1, j],
  };
  if (event.key in moves) {
    const [row, col] = moves[event.key];
    const to = {
      query: grid.rows[clamp(row, 0, grid.nq - 1)].tokens[0],
      key: grid.cols[clamp(col, 0, grid.nk - 1)].tokens[0],
    };
    choose(to).then(() => {
      keepInView();
      say(spoken());
    });
  } else if (event.key === "Escape") choose({ query: null, key: null }).then(() => say("No query chosen."));
  else if (event.key === "+" || event.key === "=") zoomBy(0.5);
  else if (event.key === "-") zoomBy(2);
  else if (event.key === "0") zoomBy(Infinity);
  else return;
  event.preventDefault();
}

// --- zoom ------------------------------------------------------------------------------------------------------

/** Show `factor` times as many cells, around the chosen cell or the one given. */
function zoomBy(factor, around = null) {
  const { grid } = view;
  const seen = windowOf(grid);
  const i = around?.i ?? (chosenRow(grid) >= 0 ? chosenRow(grid) : (seen.r0 + seen.r1) / 2);
  const j = around?.j ?? (chosenCol(grid) >= 0 ? chosenCol(grid) : (seen.c0 + seen.c1) / 2);
  zoom.rows = narrowed(seen.r0, seen.r1, i, factor, grid.nq);
  zoom.cols = narrowed(seen.c0, seen.c1, j, factor, grid.nk);
  paint();
  writeZoom();
}

function narrowed(first, past, at, factor, n) {
  const span = Math.round(Math.max(Math.min(n, 8), (past - first) * factor));
  if (span >= n) return null;
  const share = (at - first) / (past - first);
  const start = clamp(Math.round(at - span * clamp(share, 0, 1)), 0, n - span);
  return [start, start + span];
}

function keepInView() {
  const shift = (range, at, n) => {
    if (!range || at < 0 || (at >= range[0] && at < range[1])) return range;
    const span = range[1] - range[0];
    const start = clamp(at < range[0] ? at : at - span + 1, 0, n - span);
    return [start, start + span];
  };
  zoom.rows = shift(zoom.rows, chosenRow(view.grid), view.grid.nq);
  zoom.cols = shift(zoom.cols, chosenCol(view.grid), view.grid.nk);
  paint();
  writeZoom();
}

let drag = null;
let dragged = false;

function dragging(event) {
  if (!drag || !(event.buttons & 1) || !(zoom.rows || zoom.cols)) return false;
  const box = layout.boxes[0];
  const dr = Math.round((drag.y - event.clientY) / box.cellH);
  const dc = Math.round((drag.x - event.clientX) / box.cell);
  if (!dr && !dc) return dragged;
  dragged = true;
  const move = (range, by, n) => range && [0, 1].map((k) => range[k] + clamp(by, -range[0], n - range[1]));
  zoom.rows = move(drag.rows, dr, view.grid.nq);
  zoom.cols = move(drag.cols, dc, view.grid.nk);
  hover = null;
  paint();
  writeZoom();
  return true;
}

function writeZoom() {
  const { grid } = view;
  const host = byId("zoom");
  host.hidden = grid.nq < 24 && grid.nk < 24;
  if (host.hidden) return;
  const seen = windowOf(grid);
  if (!host.children.length) {
    host.append(
      el(
        "button",
        { class: "plain", type: "button", id: "zoom-in", "aria-label": "zoom in", onclick: () => zoomBy(0.5) },
        "closer",
      ),
      el(
        "button",
        { class: "plain", type: "button", id: "zoom-out", "aria-label": "zoom out", onclick: () => zoomBy(2) },
        "farther",
      ),
      el("button", { class: "plain", type: "button", id: "zoom-all", onclick: () => zoomBy(Infinity) }, "all"),
      el("span", {}),
    );
  }
  const whole = !zoom.rows && !zoom.cols;
  byId("zoom-out").disabled = byId("zoom-all").disabled = whole;
  host.lastChild.textContent = whole
    ? ""
    : `queries ${seen.r0} to ${seen.r1 - 1}, keys ${seen.c0} to ${seen.c1 - 1}; drag to move`;
}

function startFigure() {
  const host = byId("grid");
  host.addEventListener("pointermove", onMove);
  host.addEventListener("pointerleave", onLeave);
  host.addEventListener("pointerdown", (event) => {
    dragged = false;
    drag = { x: event.clientX, y: event.clientY, rows: zoom.rows, cols: zoom.cols };
  });
  addEventListener("pointerup", () => (drag = null));
  host.addEventListener("click", onPick);
  host.addEventListener("dblclick", (event) => {
    const found = pointAt(event);
    if (found && view.grid.nk >= 24) zoomBy(0.5, found);
  });
  host.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      zoomBy(event.deltaY < 0 ? 0.7 : 1.4, pointAt(event));
    },
    { passive: false },
  );
  host.addEventListener("keydown", onKey);
  byId("skip").addEventListener("click", () => host.focus());
  new ResizeObserver(() => paint()).observe(host);
}
