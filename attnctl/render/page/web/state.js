// The choices of the reader, stored in the page's address, and the view that follows from them.

const POOLED = TRACES.some((trace) => trace.overview);
const SPOKEN = PAGE.mode === "steps" ? "step" : "of"; // the choice that says which trace the page describes

/** The choices among a few values: the name of each, and the names of its values. */
const CHOICES = {
  direction: ["What a token ", { to: "looks at", from: "is looked at by" }],
  colour: ["Colour", { linear: "linear", log: "log" }],
  map: ["Map", Object.fromEntries(Object.keys(PAGE.maps).map((name) => [name, name]))],
  drop: ["Leave out", { none: "nothing", first: "first", special: "special" }],
  words: ["Words", { pieces: "in pieces", merged: "merged" }],
};
/** The first choices: the first value of each; but in a long text most weights are small, so colours are logarithmic. */
const DEFAULTS = { renorm: false, of: 0, step: 0 };
for (const [name, [, values]] of Object.entries(CHOICES)) DEFAULTS[name] = Object.keys(values)[0];
if (TRACES.some((trace) => keyTokens(trace).labels.length > 40)) DEFAULTS.colour = "log";

// remove choices that these traces do not have; pooled tokens can be neither merged nor left out
if (TRACES.some((trace) => trace.crossed)) delete CHOICES.direction;
if (!TRACES.some((trace) => keyTokens(trace).special.length)) delete CHOICES.drop[1].special;
if (!TRACES.some((trace) => keyTokens(trace).words.at(-1) < keyTokens(trace).words.length - 1)) delete CHOICES.words;
if (POOLED) for (const name of ["drop", "words"]) delete CHOICES[name];

const state = { ...DEFAULTS, layer: 0, head: 0, query: null, key: null };
const drawers = []; // called with the view, in the order of the page
let view = null;
let turn = 0;

/** Change choices, and draw everything again. */
function choose(changes) {
  Object.assign(state, changes);
  writeAddress();
  return refresh();
}

async function refresh() {
  const mine = ++turn;
  const made = await makeView();
  if (mine !== turn) return; // the choice has changed meanwhile
  view = made;
  for (const draw of drawers) draw(view);
}

// --- the address -----------------------------------------------------------------------------------------------

function writeAddress() {
  const parts = new URLSearchParams();
  for (const name of ["layer", "head", "query", "key"]) if (state[name] !== null) parts.set(name, state[name]);
  for (const [name, value] of Object.entries(DEFAULTS)) if (state[name] !== value) parts.set(name, state[name]);
  try {
    history.replaceState(null, "", `#${parts}`);
  } catch {
    // inside a notebook's frame there is no address to keep
  }
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const found = {};
  const readNumber = (name, past) => {
    const text = parts.get(name);
    if (/^\d+$/.test(text) && Number(text) < past) found[name] = Number(text);
  };
  for (const [name, [, values]] of Object.entries(CHOICES))
    if (Object.hasOwn(values, parts.get(name))) found[name] = parts.get(name);
  if (parts.has("renorm") && !POOLED) found.renorm = parts.get("renorm") === "true";
  readNumber(SPOKEN, TRACES.length);
  const trace = TRACES[found[SPOKEN] ?? 0];
  readNumber("layer", Infinity);
  readNumber("head", Infinity);
  readNumber("query", trace.tokens.labels.length);
  readNumber("key", keyTokens(trace).labels.length);
  return found;
}

/** Choose what the page opens with: the address, else the options of the command, else the strongest link. */
function beginning() {
  const asked = readAddress();
  const trace = TRACES[asked[SPOKEN] ?? (PAGE.mode === "steps" ? TRACES.length - 1 : 0)];
  const start = { [SPOKEN]: TRACES.indexOf(trace), ...trace.focus, ...PAGE.start };
  const moved = ["layer", "head", "query"].some((name) => name in asked && asked[name] !== start[name]);
  if (moved) start.key = null;
  Object.assign(state, start, asked);
  state.layer = layerOf(trace, state.layer).layer;
  state.head = headOf(layerOf(trace, state.layer), state.head).head;
}

// --- the view --------------------------------------------------------------------------------------------------

/**
 * Everything the drawers need: a panel for each grid to be drawn; of them `own`, one a trace (not blocks and differences);
 * and the panel, head and grid that are spoken of.
 */
async function makeView() {
  const shown = PAGE.mode === "steps" ? [TRACES[state.step]] : TRACES;
  const heads = await Promise.all(shown.map((trace) => readHead(trace, state.layer, state.head)));
  const own = heads.map((head, at) => ({ title: titleOf(head, heads.length > 1 ? `${"AB"[at]}  ` : ""), head }));
  for (const panel of own) panel.grid = POOLED ? pooledGrid(panel.head) : gridOf(panel.head);
  const panels = [...own, ...(POOLED ? blockPanels(heads[0]) : [])];
  for (const panel of panels) panel.scale = scaleOf(panel.grid);
  if (own.length === 2) {
    const [a, b] = own;
    const high = Math.max(a.scale.high, b.scale.high); // one scale for both, so that colours compare
    a.scale = b.scale = { ...a.scale, high, low: Math.min(a.scale.low, b.scale.low) };
    panels.push(...differencePanels(a, b));
  }
  const panel = own[Math.min(state.of, own.length - 1)];
  return { panels, own, panel, head: panel.head, grid: panel.grid };
}

/** Return a trace's name, with its layer and head if these are not the chosen ones. */
function titleOf({ trace, layer, head }, letter) {
  if (trace.overview) return trace.overview.title;
  const place = layer === state.layer && head === state.head ? "" : ` (layer ${layer}, head ${head})`;
  return `${letter}${trace.label}${place}`;
}

/** Make a grid of weights w (queries × keys), with the groups of tokens of its rows and columns, and its masked cells. */
function makeGrid(head, rows, cols, w, hidden, more = {}) {
  const lookup = (groups) => new Map(groups.flatMap((group, at) => group.tokens.map((token) => [token, at])));
  const at = { nq: rows.length, nk: cols.length, rowFor: lookup(rows), colFor: lookup(cols) };
  return { head, rows, cols, w, hidden, sums: null, out: [], ...at, ...more };
}

/** Return the weights to show: pieces merged into words, keys left out, rows rescaled. */
function gridOf(head) {
  const keys = keyTokens(head.trace);
  const out = leftOut(keys);
  const seen = range(0, head.nk).filter((at) => !out.includes(at));
  const [rows, cols] = [groupsOf(head.trace.tokens, head.rows), groupsOf(keys, seen)];
  const same = rows.length === head.rows.length && cols.length === head.nk;
  const [w, hidden] = same ? [head.weights, head.hidden] : pooled(head, rows, cols);
  const sums = rows.map((row) => row.at.reduce((sum, at) => sum + head.sums[at], 0) / row.at.length);
  const sinks = head.sink && !state.renorm ? sums.map((sum) => Math.max(0, 1 - sum)) : null; // the weights of a learned sink
  const grid = makeGrid(head, rows, cols, w, hidden, { out, sums, sinks });
  if (out.length) grid.sums = rowSums(grid);
  return state.renorm ? rescaled(grid) : grid;
}

function leftOut({ labels, special }) {
  if (state.drop === "first") return labels.length > 1 ? [0] : [];
  return state.drop === "special" && special.length < labels.length ? special : [];
}

/** Return groups of tokens: each alone, or the pieces of one word together. `at` is the place in the arrays. */
function groupsOf({ labels, words, special }, tokens) {
  const groups = [];
  tokens.forEach((token, at) => {
    const last = groups.at(-1);
    if (state.words === "merged" && last?.word === words[token]) {
      last.tokens.push(token);
      last.at.push(at);
      last.label += labels[token];
    } else {
      groups.push(group(labels[token], [token], at, words[token], special.includes(token)));
    }
  });
  return groups;
}

const group = (label, tokens, at, word, special = false) => ({ label, tokens, at: [at], word, special });

const rowSums = ({ w, nq, nk }) => range(0, nq).map((i) => w.subarray(i * nk, (i + 1) * nk).reduce((a, b) => a + b, 0));

/**
 * Of each pair of groups the weight: summed over the pieces that are looked at, averaged over those that look
 * (Clark et al. 2019); and whether all of it is masked.
 */
function pooled(head, rows, cols) {
  const cells = rows.flatMap((row) =>
    cols.map((col) => row.at.flatMap((r) => col.tokens.map((key) => r * head.nk + key))),
  );
  const lookers = (at) => rows[Math.floor(at / cols.length)].at.length;
  const w = Float32Array.from(cells, (cell, at) => cell.reduce((sum, c) => sum + head.weights[c], 0) / lookers(at));
  return [w, head.hidden && Uint8Array.from(cells, (cell) => cell.every((c) => head.hidden[c]))];
}

function rescaled(grid) {
  const sums = rowSums(grid);
  const w = grid.w.map((weight, at) => weight / (sums[Math.floor(at / grid.nk)] || 1));
  return { ...grid, w, sums: sums.map((sum) => (sum ? 1 : 0)) };
}

function scaleOf({ w }) {
  const low = w.reduce((least, weight) => Math.min(least, weight), 0);
  const high = w.reduce((most, weight) => Math.max(most, weight), 0);
  return { kind: state.colour, low, high: high > low ? high : 1, map: state.map };
}

// --- two traces ------------------------------------------------------------------------------------------------

/** Return B − A for the queries and keys of both; nothing if too few are in both. */
function differencePanels(a, b) {
  const [gridA, gridB] = [a.grid, b.grid];
  const rows = sharedGroups(gridA.rows, gridB.rowFor, "query", a, b);
  const cols = sharedGroups(gridA.cols, gridB.colFor, "key", a, b);
  const few = (shared, one, other) => shared.length < Math.max(1, Math.min(one.length, other.length) / 2);
  if (few(rows, gridA.rows, gridB.rows) || few(cols, gridA.cols, gridB.cols)) return [];
  const pairs = rows.flatMap(([i, x]) => cols.map(([j, y]) => [i * gridA.nk + j, x * gridB.nk + y]));
  const w = Float32Array.from(pairs, ([one, other]) => gridB.w[other] - gridA.w[one]);
  const masked = ([one, other]) => gridA.hidden?.[one] || gridB.hidden?.[other];
  const hidden = gridA.hidden || gridB.hidden ? Uint8Array.from(pairs, (pair) => (masked(pair) ? 1 : 0)) : null;
  const high = w.reduce((most, value, at) => (hidden?.[at] ? most : Math.max(most, Math.abs(value))), 0) || 1;
  const groups = [namedByBoth(rows, gridA.rows, gridB.rows), namedByBoth(cols, gridA.cols, gridB.cols)];
  const scale = { kind: "difference", low: -high, high, map: "difference" };
  return [{ title: "B − A", grid: makeGrid(a.head, ...groups, w, hidden), scale }];
}

/** Return the groups of one trace that the other has too; if their names differ, with both names. */
const namedByBoth = (pairs, ours, theirs) =>
  pairs.map(([at, other]) => {
    const [one, two] = [ours[at].label, theirs[other].label].map((label) => label.replace("†", "").trim());
    return one === two ? ours[at] : { ...ours[at], label: `${one}/${two}` };
  });

/** Return pairs [place in a, place in b] of the groups whose tokens are in both. */
function sharedGroups(groups, placesInB, axis, a, b) {
  return groups
    .map((group, at) => [at, placesInB.get(tokenIn(b.head.trace, group.tokens[0], axis, a.head.trace))])
    .filter(([, other]) => other !== undefined);
}

/** Return the token of `trace` that is the same as `token` of the other trace ("query" or "key"). */
function tokenIn(trace, token, axis, of = TRACES[state.of]) {
  if (token === null || PAGE.mode !== "compare" || trace === of) return token;
  return PAGE.aligned[axis][TRACES.indexOf(of)][token] ?? null;
}

/** Choose tokens by the numbers of one of two traces; other choices stay, translated to that trace. */
function chooseIn(trace, changes) {
  if (PAGE.mode !== "compare") return choose(changes);
  const [query, key] = ["query", "key"].map((axis) => tokenIn(trace, state[axis], axis));
  return choose({ of: TRACES.indexOf(trace), query, key, ...changes });
}

// --- what is chosen in a grid ----------------------------------------------------------------------------------

/** Return the row of the chosen query and the column of the chosen key in a grid; -1 if not chosen or not shown. */
const chosenRow = (grid) => grid.rowFor.get(tokenIn(grid.head.trace, state.query, "query")) ?? -1;
const chosenCol = (grid) => grid.colFor.get(tokenIn(grid.head.trace, state.key, "key")) ?? -1;

const isFrom = () => state.direction === "from";

/** Return the chosen row, or the chosen column if keys are chosen; null without one. `cell`: the place of each weight. */
function chosenLine(grid) {
  const at = isFrom() ? chosenCol(grid) : chosenRow(grid);
  if (at < 0) return null;
  if (isFrom()) return { own: grid.cols[at], others: grid.rows, cell: (other) => other * grid.nk + at };
  return { own: grid.rows[at], others: grid.cols, cell: (other) => at * grid.nk + other };
}
