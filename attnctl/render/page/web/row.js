// Beside the grid: the chosen pair and its number, the whole row as bars, and lists to choose from.

const MOST_ROWS = 12;

/** Return the cell under the pointer, or else the chosen cell: its groups, its weight, the sum of its row. */
function spokenCell() {
  const { i, j, panel } = hover ?? { i: chosenRow(view.grid), j: chosenCol(view.grid), panel: view.panel };
  if (i < 0) return null;
  const { grid, scale } = panel;
  const w = grid.w[i * grid.nk + j];
  const masked = j >= 0 && grid.hidden?.[i * grid.nk + j] === 1;
  const plus = scale.kind === "difference" && w > 0 ? "+" : "";
  return { grid, i, j, masked, number: plus + weightText(w ?? 0, 4), sum: grid.sums && fixed(grid.sums[i], 4) };
}

function writeReadout() {
  const cell = spokenCell();
  if (!cell) return refill(byId("readout"), "Point at a cell, or choose a query.");
  const { grid, i, j, masked, number, sum } = cell;
  const value = el("span.value", masked ? "masked" : number);
  const hidden = masked && ": the query may not see this key";
  const pair = j >= 0 && [" → ", el("b", named(grid.cols, j)), "  ", value, hidden];
  const row = sum && `The row of ${named(grid.rows, i)} sums to ${sum}.`;
  return refill(byId("readout"), el("b", named(grid.rows, i)), pair, ". ", row);
}

/** Return the chosen cell in words, for a screen reader. */
function spoken() {
  const cell = spokenCell();
  if (!cell) return "No query chosen.";
  const { grid, i, j, masked, number, sum } = cell;
  const pair = j < 0 ? [] : [`key ${grid.cols[j].label}`, masked ? "masked" : `weight ${number}`];
  return [`query ${grid.rows[i].label}`, ...pair, ...(sum ? [`row sum ${sum}`] : [])].join(", ");
}

function drawGrid({ head, grid, panels }) {
  const name = `Weights of layer ${head.layer}, head ${head.head}: ${grid.nq} queries by ${grid.nk} keys. `;
  hover = null;
  put(byId("grid"), { "aria-label": name + spoken() });
  document.querySelector(".split").classList.toggle("wide", panels.length > 1);
  paint();
}

function drawCaption({ head: { trace, layer, head, parked }, grid, own, panels }) {
  const { labels } = keyTokens(trace);
  const { overview, levels } = trace;
  const out = grid.out.slice(0, 4).map((at) => `“${labels[at]}” (${at})`);
  const more = grid.out.length > 4 ? ` and ${grid.out.length - 4} more` : "";
  const masked = own.filter((panel) => panel.grid.hidden).length;
  const said = [
    `Rows are queries, columns keys${overview ? `, pooled; ${overview.said}` : ""}`,
    out.length > 0 && `${grid.out.length === 1 ? "key" : "keys"} ${out.join(", ")}${more} left out`,
    state.renorm && "rows rescaled to sum to 1",
    panels.length === 3 && masked === 1 && "the difference is shown where both may look",
    state.words === "merged" && "pieces of a word merged: summed over keys, averaged over queries",
    state.colour === "log" && "logarithmic colour",
  ];
  const role = trace.measure?.joinsHeads ? null : trace.roles[`${layer}.${head}`];
  const name = trace.measure?.joinsHeads ? "all heads together" : `head ${head}`;
  const place = `Layer ${layer}, ${name}${role ? `: usually links ${role}` : ""}.`;
  const stored = levels ? ` Stored in ${levels} steps: a weight w is within √w / ${levels}.` : "";
  const opening = openingHere(trace);
  const reason = opening?.reason ? ` The page opens here: ${opening.reason}.` : "";
  const doubt = opening?.doubt ? ` Unsure: ${opening.doubt}` : "";
  byId("caption").textContent = `${place} ${said.filter(Boolean).join("; ")}.${stored}${reason}${doubt}${sinkOf(parked, grid)}`;
}

/** Return the selection that the page opens with, and what is known of it, while it is selected; else null. */
function openingHere(trace) {
  const opening = { ...trace.focus, ...PAGE.start };
  return ["layer", "head", "query"].every((name) => state[name] === opening[name]) ? opening : null;
}

/** Explain a column that stands out, and name the controls that show the other columns; nothing once the column is left out. */
function sinkOf(parked, { out }) {
  if (!parked || (out.length && parked.columns.every((column) => out.includes(column)))) return "";
  const offered = CHOICES.drop && parked.drop.filter((name) => name in CHOICES.drop[1]);
  const ways = [
    offered?.length && `“Leave out: ${offered.at(-1)}”`,
    parked.drop.length && state.colour !== "log" && "“Colour: log”",
    !parked.drop.length && !state.renorm && "“rescale rows to 1”",
  ].filter(Boolean);
  return ` ${parked.said}${ways.length ? ` To see past it: ${ways.join(" or ")}.` : ""}`;
}

// --- the row as bars -------------------------------------------------------------------------------------------

function drawRow({ grid, panel: spokenOf, own: all, head: { trace } }) {
  const line = chosenLine(grid);
  if (!line) return byId("row").replaceChildren();
  const { own, others, cell } = line;
  const several = all.filter((panel) => chosenLine(panel.grid));
  const panels = several.length === 2 ? several : [spokenOf];
  const columns = panels.map((panel) => others.map(({ tokens }) => weightOfToken(panel, tokens[0], trace)));
  const compared = panels.length === 2;
  const numbers = (values) => values.map((w) => (w === null ? "·" : cellText(w, grid.nk > 60 ? 4 : 3)));
  const sumOf = (weights, places) => places.reduce((sum, other) => sum + (weights[other] ?? 0), 0);
  const ofOthers = (places) => columns.map((weights) => fixed(sumOf(weights, places), 3));
  const closing = (name, cells, kind) => tableRow(kind, name, cells, compared ? "" : [], "");

  const masked = others.map((_, other) => other).filter((other) => grid.hidden?.[cell(other)]);
  const apart = masked.length > 3; // many masked tokens are counted, not listed
  const strength = (other) => Math.max(...columns.map((weights) => weights[other] ?? 0));
  const told = range(0, others.length).filter((other) => !apart || !masked.includes(other));
  const order = strongest(told, strength);
  const rows = order.map((other) => {
    const values = columns.map((weights) => weights[other]);
    const change = values.includes(null) ? "·" : signed(values.at(-1) - values[0]);
    // the first of two is grey, so that the second reads as the change
    const bars = values.map((w, which) => w !== null && barOf(w, compared && which === 0 ? theme().quiet : null));
    const chosen = others[other].tokens.includes(isFrom() ? state.query : state.key);
    const token = others[other].tokens[0];
    const bar = el(compared ? "td.bar.two" : "td.bar", { "aria-hidden": "true" }, bars);
    const row = tableRow(chosen && "chosen", others[other].label, numbers(values), compared ? change : [], bar);
    return put(row, { "data-key": token, onclick: () => choose(isFrom() ? { query: token } : { key: token }) });
  });
  const rest = told.filter((other) => !order.includes(other));
  if (rest.length) rows.push(closing(`${rest.length} more`, ofOthers(rest), "quiet"));
  const unseen = panels.map(() => "·");
  if (apart) rows.push(closing(`${masked.length} masked`, unseen, "quiet"));
  const sums = (name) => panels.map((panel) => fixed(panel.grid[name][chosenRow(panel.grid)], 3));
  if (!isFrom() && grid.sums) rows.push(closing("Σ", sums("sums"), "total"));
  if (!isFrom() && panels.every((panel) => panel.grid.sinks)) rows.push(closing("sink", sums("sinks"), "quiet"));
  const single = trace.measure ? "share" : trace.holdsWeights ? "weight" : "number";
  const headings = compared ? [...panels.map(({ title }) => el("th", { title }, title.slice(0, 1))), "Δ"] : [single];
  const title = el("h3", own.label, el("span.quiet", isFrom() ? " is looked at by" : " looks at"));
  refill(byId("row"), title, table("rows", [isFrom() ? "query" : "key", ...headings, el("th.bar")], rows));
}

/** Return the weight of a token of `trace` in the chosen line of a panel; null if the line does not have it. */
function weightOfToken({ grid, head }, token, trace) {
  const places = isFrom() ? grid.rowFor : grid.colFor;
  const at = places.get(tokenIn(head.trace, token, isFrom() ? "query" : "key", trace));
  const place = at === undefined ? undefined : chosenLine(grid).cell(at);
  return place === undefined || grid.hidden?.[place] ? null : grid.w[place];
}

/** Return all, in their order, if there are few; otherwise the strongest. */
const strongest = (all, strength) =>
  all.length <= MOST_ROWS ? all : [...all].sort((a, b) => strength(b) - strength(a)).slice(0, MOST_ROWS);

// --- lists to choose from --------------------------------------------------------------------------------------

function drawChoice({ head: { trace, rows }, grid }) {
  const keys = keyTokens(trace);
  const numbers = (all) => all.map((n) => [n, n]);
  const tokens = ({ labels }, all) => all.map((at) => [at, labels.length > 12 ? `${at} ${labels[at]}` : labels[at]]);
  const bins = (groups) => groups.map((group) => [group.tokens[0], group.label]);
  const lists = {
    query: POOLED ? bins(grid.rows) : tokens(trace.tokens, rows),
    key: POOLED ? bins(grid.cols) : tokens(keys, range(0, keys.labels.length)),
    layer: numbers(trace.layers.map(({ layer }) => layer)),
    head: numbers(layerOf(trace, state.layer).heads.map(({ head }) => head)),
  };
  const firsts = { query: grid.rows[chosenRow(grid)]?.tokens[0], key: grid.cols[chosenCol(grid)]?.tokens[0] };
  const chosen = POOLED ? { ...state, ...firsts } : state; // the first token names a bin
  for (const [name, entries] of Object.entries(lists)) {
    const select = byId(`choose-${name}`);
    select.parentElement.hidden = (name === "layer" || name === "head") && entries.length < 2;
    refill(
      select,
      entries.map(([value, text]) => el("option", { value }, text)),
    );
    select.value = chosen[name] ?? "";
  }
}

function startChoice() {
  for (const name of ["query", "key", "layer", "head"])
    on(`choose-${name}`, "change", ({ target }) => {
      const chosen = Number(target.value);
      choose({ [name]: chosen, ...(name === "query" && { key: strongestKey(view.grid, chosen) }) });
    });
}
