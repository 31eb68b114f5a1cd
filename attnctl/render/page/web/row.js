// Beside the grid: the chosen pair named, its number, and the whole row as bars.

const MOST_ROWS = 12;

/** The cell that is spoken of: under the pointer, else the chosen one. */
function spokenCell() {
  if (hover) return hover;
  const { grid } = view;
  const i = chosenRow(grid);
  return i < 0 ? null : { i, j: chosenCol(grid), panel: view.panel };
}

function writeReadout() {
  const host = byId("readout");
  const cell = view && spokenCell();
  if (!cell) return host.replaceChildren("Point at a cell, or choose a query.");
  const { grid, scale } = cell.panel;
  const query = el("b", {}, named(grid.rows, cell.i));
  const sum = grid.sums ? `The row of ${named(grid.rows, cell.i)} sums to ${fixed(grid.sums[cell.i], 4)}.` : "";
  if (cell.j < 0) return host.replaceChildren(query, ". ", sum);
  const key = el("b", {}, named(grid.cols, cell.j));
  const w = grid.w[cell.i * grid.nk + cell.j];
  const masked = grid.hidden?.[cell.i * grid.nk + cell.j];
  const number = masked ? "masked" : scale.kind === "difference" && w > 0 ? `+${weightText(w, 4)}` : weightText(w, 4);
  const value = el("span", { class: "value" }, number);
  return host.replaceChildren(
    query,
    " → ",
    key,
    "  ",
    value,
    masked ? ": the query may not see this key. " : ". ",
    sum,
  );
}

/** The chosen cell, for a screen reader. */
function spoken() {
  const cell = spokenCell();
  if (!cell) return "No query chosen.";
  const { grid } = cell.panel;
  const name = `query ${grid.rows[cell.i].label}`;
  const sum = grid.sums ? `, row sum ${fixed(grid.sums[cell.i], 4)}` : "";
  if (cell.j < 0) return `${name}${sum}`;
  const masked = grid.hidden?.[cell.i * grid.nk + cell.j];
  const value = masked ? "masked" : `weight ${weightText(grid.w[cell.i * grid.nk + cell.j], 4)}`;
  return `${name}, key ${grid.cols[cell.j].label}, ${value}${sum}`;
}

function drawGrid() {
  const name = `Weights of layer ${view.head.layer}, head ${view.head.head}: ${view.grid.nq} queries by ${view.grid.nk} keys. `;
  byId("grid").setAttribute("aria-label", name + spoken());
  document.querySelector(".split").classList.toggle("wide", view.panels.length > 1);
  hover = null;
  paint();
  writeZoom();
  writeReadout();
  writeCaption();
}

/** The rule by which the page opened on this layer, head and query; nothing elsewhere, and where they were asked for. */
function whyHere() {
  const opening = { ...view.head.trace.focus, ...PAGE.start };
  const here = ["layer", "head", "query"].every((name) => state[name] === opening[name]);
  return here && opening.reason ? ` The page opens here: ${opening.reason}.` : "";
}

function writeCaption() {
  const { head, grid } = view;
  const keys = keyTokens(head.trace);
  const bins = head.trace.overview;
  const said = [
    `Layer ${head.layer}, ${head.trace.measure === "rollout" ? "all heads together" : `head ${head.head}`}. ${bins ? `Rows are queries, columns keys, pooled; ${bins.said}` : "Rows are queries, columns keys"}`,
  ];
  if (grid.out.length) {
    const names = grid.out
      .slice(0, 4)
      .map((at) => `“${keys.labels[at]}” (${at})`)
      .join(", ");
    const more = grid.out.length > 4 ? ` and ${grid.out.length - 4} more` : "";
    said.push(`${grid.out.length === 1 ? "key" : "keys"} ${names}${more} left out`);
  }
  if (state.renorm) said.push("rows rescaled to sum to 1");
  const pair = view.panels.filter((panel) => panel.head);
  if (view.panels.length === 3 && pair.some((panel) => panel.grid.hidden) && !pair.every((panel) => panel.grid.hidden))
    said.push("the difference is shown where both may look");
  if (state.words === "merged") said.push("pieces of a word merged: summed over keys, averaged over queries");
  if (state.colour === "log") said.push("logarithmic colour");
  const stored = head.trace.levels
    ? ` Stored in ${head.trace.levels} steps: a weight w is within √w / ${head.trace.levels}.`
    : "";
  byId("caption").textContent = `${said.join("; ")}.${stored}${whyHere()}`;
}

// --- the row as bars -------------------------------------------------------------------------------------------

function drawRow() {
  const host = byId("row");
  const { grid } = view;
  const from = state.direction === "from";
  const at = from ? chosenCol(grid) : chosenRow(grid);
  if (at < 0) return host.replaceChildren();
  const others = from ? grid.rows : grid.cols;
  const own = view.panels.filter((panel) => panel.head && (from ? chosenCol(panel.grid) : chosenRow(panel.grid)) >= 0);
  const cellIn = ({ grid: g, head }, other) => {
    const token = tokenIn(head.trace, others[other].tokens[0], from ? "query" : "key", view.head.trace);
    const there = (from ? g.rowFor : g.colFor).get(token);
    if (there === undefined) return -1;
    return from ? there * g.nk + chosenCol(g) : chosenRow(g) * g.nk + there;
  };
  const weightIn = (panel, other) => {
    const cell = cellIn(panel, other);
    return cell < 0 || panel.grid.hidden?.[cell] ? null : panel.grid.w[cell];
  };
  const masked = (other) => (grid.hidden ? grid.hidden[from ? other * grid.nk + at : at * grid.nk + other] : 0);
  const compared = own.length === 2;
  const hidden = others.filter((_, other) => masked(other)).length;
  const strength = (other) =>
    hidden > 3 && masked(other) ? -1 : Math.max(...(compared ? own : [view.panel]).map((p) => weightIn(p, other) ?? 0));
  const order = rowOrder(others.length, strength);
  const panels = compared ? own : [view.panel];
  const rows = order.map((other) => barRow(others[other], other, panels, weightIn, from));
  const rest = others.length - order.length - (hidden > 3 ? hidden : 0);
  if (rest > 0) rows.push(restRow(rest, order, others.length, panels, weightIn));
  if (hidden > 3)
    rows.push(
      el(
        "tr",
        { class: "quiet" },
        el("th", { scope: "row" }, `${hidden} masked`),
        ...panels.map(() => el("td", {}, "·")),
        compared ? el("td") : null,
        el("td"),
      ),
    );
  if (!from && grid.sums) rows.push(sumRow(panels.map((panel) => panel.grid.sums[chosenRow(panel.grid)])));
  if (!from && panels.every((panel) => panel.grid.sinks))
    rows.push(sinkRow(panels.map((panel) => panel.grid.sinks[chosenRow(panel.grid)])));
  const names = compared ? panels.map((panel) => el("th", { title: panel.title }, panel.title.slice(0, 1))) : [el("th", {}, numberName(view.head.trace))];
  const head = el(
    "thead",
    {},
    el(
      "tr",
      {},
      el("th", { scope: "col" }, from ? "query" : "key"),
      ...names,
      compared ? el("th", {}, "Δ") : null,
      el("th", { class: "bar" }),
    ),
  );
  const title = el(
    "h3",
    {},
    (from ? grid.cols : grid.rows)[at].label,
    el("span", { class: "quiet" }, from ? " is looked at by" : " looks at"),
  );
  return host.replaceChildren(title, el("table", { class: "rows" }, head, el("tbody", {}, ...rows)));
}

/** All, in their order, where they are few; else the strongest; never what has weight -1. */
function rowOrder(n, weight) {
  const all = Array.from({ length: n }, (_, at) => at).filter((at) => weight(at) > -1);
  if (all.length <= MOST_ROWS) return all;
  return all.sort((a, b) => weight(b) - weight(a)).slice(0, MOST_ROWS);
}

function barRow(other, at, panels, weightIn, from) {
  const token = other.tokens[0];
  const chosen = token === (from ? state.query : state.key) || other.tokens.includes(from ? state.query : state.key);
  const weights = panels.map((panel) => weightIn(panel, at));
  const cells = weights.map((w) => el("td", {}, w === null ? "·" : cellText(w, panels[0].grid.nk > 60 ? 4 : 3)));
  const both = weights.length === 2 && !weights.includes(null);
  const change = panels.length === 2 ? el("td", {}, both ? signed(weights[1] - weights[0]) : "·") : null;
  const bars = weights.every((w) => w === null)
    ? []
    : weights.map((w, which) => barOf(w ?? 0, weights.length === 2 && which === 0));
  const pick = () => choose(from ? { query: token } : { key: token });
  return el(
    "tr",
    { class: chosen ? "chosen" : null, "data-key": token, onclick: pick },
    el("th", { scope: "row", title: other.label }, other.label),
    ...cells,
    change,
    el("td", { class: panels.length === 2 ? "bar two" : "bar", "aria-hidden": "true" }, ...bars),
  );
}

/** A weight as a bar; the first of two is grey, so that the second reads as what became of it. */
function barOf(w, first = false) {
  const share = clamp(w, 0, 1);
  const colour = first ? theme().quiet : css(colourAt(mapTable("heat"), 0.35 + 0.45 * share));
  return el("i", { vars: { "--bar": colour, "--long": `${(100 * share).toFixed(2)}%` } });
}

const signed = (x, digits = 3) => `${x > 0 && Number(x.toFixed(digits)) !== 0 ? "+" : ""}${fixed(x, digits)}`;

function restRow(count, order, n, panels, weightIn) {
  const shown = new Set(order);
  const sums = panels.map((panel) => {
    let sum = 0;
    for (let other = 0; other < n; other++) if (!shown.has(other)) sum += weightIn(panel, other) ?? 0;
    return sum;
  });
  const change = panels.length === 2 ? el("td") : null;
  return el(
    "tr",
    { class: "quiet" },
    el("th", { scope: "row" }, `${count} more`),
    ...sums.map((sum) => el("td", {}, fixed(sum, 3))),
    change,
    el("td"),
  );
}

const sumRow = (sums) => closingRow("Σ", sums, "total");
const sinkRow = (shares) => closingRow("sink", shares, "quiet");

function closingRow(name, numbers, kind) {
  const change = numbers.length === 2 ? el("td") : null;
  return el(
    "tr",
    { class: kind },
    el("th", { scope: "row" }, name),
    ...numbers.map((number) => el("td", {}, fixed(number, 3))),
    change,
    el("td"),
  );
}

// --- lists to choose from --------------------------------------------------------------------------------------

function drawChoice() {
  const host = byId("choice");
  const { trace } = view.head;
  const options = (tokens, rows) =>
    rows.map((at) => [at, tokens.labels.length > 12 ? `${at} ${tokens.labels[at]}` : tokens.labels[at]]);
  const every = (tokens) => tokens.labels.map((_, at) => at);
  const bins = (groups) => groups.map((group) => [group.tokens[0], group.label]);
  const queries = trace.overview ? bins(view.grid.rows) : options(trace.tokens, view.head.rows);
  const keys = trace.overview ? bins(view.grid.cols) : options(keyTokens(trace), every(keyTokens(trace)));
  const lists = [
    ["query", "Query ", queries, (query) => choose({ query, key: strongestKey(query) })],
    ["key", "Key ", keys, (key) => choose({ key })],
  ];
  if (trace.layers.length > 1)
    lists.push(["layer", "Layer ", layerNumbers(trace).map((n) => [n, String(n)]), (layer) => choose({ layer })]);
  const heads = layerOf(trace, state.layer).heads.map((head) => [head.head, String(head.head)]);
  if (heads.length > 1) lists.push(["head", "Head ", heads, (head) => choose({ head })]);
  const of = `${TRACES.indexOf(trace)}/${state.layer}`;
  if (host.dataset.of !== of) {
    host.dataset.of = of;
    host.replaceChildren(...lists.map(([name, label, entries, pick]) => chooser(name, label, entries, pick)));
  }
  for (const name of ["query", "key", "layer", "head"]) {
    const select = byId(`choose-${name}`);
    if (select) select.value = chosenOption(name) ?? "";
  }
}

/** The entry of a list that holds what is chosen: for bins, their first token. */
function chosenOption(name) {
  if (!view.head.trace.overview || name === "layer" || name === "head") return state[name];
  const [groups, at] =
    name === "query" ? [view.grid.rows, chosenRow(view.grid)] : [view.grid.cols, chosenCol(view.grid)];
  return groups[at]?.tokens[0];
}

function chooser(name, label, entries, pick) {
  const none = name === "query" || name === "key" ? [el("option", { value: "", hidden: true }, "none")] : [];
  const options = entries.map(([value, text]) => el("option", { value }, text));
  return el(
    "label",
    {},
    label,
    el("select", { id: `choose-${name}`, onchange: (e) => pick(Number(e.target.value)) }, ...none, ...options),
  );
}

const numberName = (trace) => (trace.measure ? "share" : trace.holdsWeights ? "weight" : "number");
