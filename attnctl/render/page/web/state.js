// What is chosen, kept in the page's address, and the view that follows from it.

// in a long text nearly every weight is small: there the colours begin logarithmic
const LONG = TRACES.some((trace) => keyTokens(trace).labels.length > 40);
const DEFAULTS = {
  direction: "to",
  colour: LONG ? "log" : "linear",
  map: "heat",
  drop: "none",
  renorm: false,
  words: "pieces",
  of: 0,
  step: 0,
};
const CHOICES = {
  direction: ["to", "from"],
  colour: ["linear", "log"],
  map: Object.keys(PAGE.maps),
  drop: ["none", "first", "special"],
  words: ["pieces", "merged"],
};

const state = { ...DEFAULTS, layer: 0, head: 0, query: null, key: null };
const drawers = []; // called with the view, in the order of the page
let view = null;
let turn = 0;

/** Change what is chosen, and draw everything again. */
function choose(changes) {
  Object.assign(state, changes);
  writeAddress();
  return refresh();
}

async function refresh() {
  const mine = ++turn;
  const made = await makeView();
  if (mine !== turn) return; // something else was chosen meanwhile
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
  const number = (name, most) => {
    const value = Number(parts.get(name));
    return parts.has(name) && Number.isInteger(value) && value >= 0 && value < most ? value : undefined;
  };
  const found = {
    step: number("step", TRACES.length),
    of: number("of", TRACES.length),
    layer: number("layer", Infinity),
    head: number("head", Infinity),
    renorm: parts.has("renorm") ? parts.get("renorm") === "true" : undefined,
  };
  for (const [name, allowed] of Object.entries(CHOICES))
    if (allowed.includes(parts.get(name))) found[name] = parts.get(name);
  const trace = TRACES[PAGE.mode === "compare" ? (found.of ?? 0) : (found.step ?? 0)];
  found.query = number("query", trace.tokens.labels.length);
  found.key = number("key", keyTokens(trace).labels.length);
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}

/** What the page opens with: the address, else what the command asked for, else the most telling place. */
function beginning() {
  const asked = readAddress();
  const trace = TRACES[PAGE.mode === "steps" ? (asked.step ?? TRACES.length - 1) : (asked.of ?? 0)];
  const start = { step: TRACES.indexOf(trace), ...trace.focus, ...PAGE.start };
  const moved = ["layer", "head", "query"].some((name) => name in asked && asked[name] !== start[name]);
  if (moved && !("key" in asked)) start.key = null;
  Object.assign(state, start, asked);
  if (PAGE.mode !== "steps") state.step = 0;
  state.layer = layerOf(trace, state.layer).layer;
  state.head = headOf(layerOf(trace, state.layer), state.head).head;
}

// --- the view --------------------------------------------------------------------------------------------------

const shownTraces = () => (PAGE.mode === "steps" ? [TRACES[state.step]] : TRACES);

/** Everything the drawers need: one grid a trace, their difference where there is one, and the trace spoken of. */
async function makeView() {
  const heads = await Promise.all(shownTraces().map((trace) => readHead(trace, state.layer, state.head)));
  if (heads.length === 1 && heads[0].trace.overview) {
    const panels = overviewPanels(heads[0]);
    return { panels, of: 0, panel: panels[0], head: heads[0], grid: panels[0].grid };
  }
  const letter = heads.length === 2 ? (at) => `${"AB"[at]}  ` : () => "";
  const panels = heads.map((head, at) => ({ title: letter(at) + titleOf(head), head, grid: gridOf(head), scale: null }));
  for (const panel of panels) panel.scale = scaleOf(panel.grid);
  if (panels.length === 2) {
    const [a, b] = panels;
    const high = Math.max(a.scale.high, b.scale.high); // one scale for both, so that colours compare
    a.scale = b.scale = { ...a.scale, high, low: Math.min(a.scale.low, b.scale.low) };
    const difference = differenceOf(a, b);
    if (difference) panels.push(difference);
  }
  const of = Math.min(state.of, heads.length - 1);
  return { panels, of, panel: panels[of], head: heads[of], grid: panels[of].grid };
}

/** A trace's name, and its place where it lacks the one that was chosen. */
function titleOf({ trace, layer, head }) {
  return layer === state.layer && head === state.head ? trace.label : `${trace.label} (layer ${layer}, head ${head})`;
}

/** The weights as they are to be shown: pieces merged into words, keys left out, rows rescaled. */
function gridOf(head) {
  const queries = head.trace.tokens;
  const keys = keyTokens(head.trace);
  const out = leftOut(keys);
  const rows = groupsOf(queries, head.rows);
  const cols = groupsOf(
    keys,
    keys.labels.map((_, at) => at).filter((at) => !out.has(at)),
  );
  const grid = { nq: rows.length, nk: cols.length, rows, cols, out: [...out], head };
  const same = rows.length === head.rows.length && cols.length === head.nk;
  grid.w = same ? head.weights : pooledWeights(head, rows, cols);
  grid.hidden = head.mask === null ? null : same ? invert(head.mask) : pooledMask(head, rows, cols);
  grid.sums = rows.map((row) => mean(row.at.map((at) => head.sums[at])));
  grid.sinks = head.sink && !state.renorm ? grid.sums.map((sum) => Math.max(0, 1 - sum)) : null; // what a learned sink takes
  if (out.size) grid.sums = rows.map((_, i) => sumOf(grid, i));
  if (state.renorm) rescale(grid);
  grid.rowFor = lookup(rows, (row) => row.tokens);
  grid.colFor = lookup(cols, (col) => col.tokens);
  return grid;
}

function leftOut(keys) {
  if (state.drop === "first") return new Set(keys.labels.length > 1 ? [0] : []);
  return new Set(state.drop === "special" && keys.special.length < keys.labels.length ? keys.special : []);
}

/** Groups of tokens: each alone, or the pieces of one word together. `at` is the place in the arrays. */
function groupsOf(tokens, indices) {
  const groups = [];
  indices.forEach((token, at) => {
    const word = tokens.words[token];
    const last = groups.at(-1);
    if (state.words === "merged" && last && last.word === word) {
      last.tokens.push(token);
      last.at.push(at);
      last.label += tokens.labels[token];
    } else {
      groups.push({
        label: tokens.labels[token],
        tokens: [token],
        at: [at],
        word,
        special: tokens.special.includes(token),
      });
    }
  });
  return groups;
}

const lookup = (groups, of) => new Map(groups.flatMap((group, at) => of(group).map((token) => [token, at])));
const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;
const invert = (mask) => mask.map((shown) => 1 - shown);

function sumOf(grid, i) {
  let sum = 0;
  for (let j = 0; j < grid.nk; j++) sum += grid.w[i * grid.nk + j];
  return sum;
}

/** A word's weight: summed over the pieces it looks at, averaged over the pieces that look (Clark et al. 2019). */
function pooledWeights(head, rows, cols) {
  const w = new Float32Array(rows.length * cols.length);
  rows.forEach((row, i) => {
    cols.forEach((col, j) => {
      let sum = 0;
      for (const r of row.at) for (const c of col.tokens) sum += head.weights[r * head.nk + c];
      w[i * cols.length + j] = sum / row.at.length;
    });
  });
  return w;
}

function pooledMask(head, rows, cols) {
  const hidden = new Uint8Array(rows.length * cols.length);
  rows.forEach((row, i) => {
    cols.forEach((col, j) => {
      hidden[i * cols.length + j] = row.at.every((r) => col.tokens.every((c) => !head.mask[r * head.nk + c])) ? 1 : 0;
    });
  });
  return hidden;
}

function rescale(grid) {
  grid.w = Float32Array.from(grid.w);
  for (let i = 0; i < grid.nq; i++) {
    const sum = sumOf(grid, i);
    for (let j = 0; j < grid.nk && sum; j++) grid.w[i * grid.nk + j] /= sum;
    grid.sums[i] = sum ? 1 : 0;
  }
}

function scaleOf(grid) {
  let low = 0;
  let high = 0;
  for (const w of grid.w) {
    if (w > high) high = w;
    if (w < low) low = w;
  }
  return { kind: state.colour, low, high: high > low ? high : 1, map: state.map };
}

/** B − A where the two have the same queries and keys; null where they have too few of them. */
function differenceOf(a, b) {
  const rows = sharedGroups(a.grid.rows, a, b.grid.rowFor, "query", b);
  const cols = sharedGroups(a.grid.cols, a, b.grid.colFor, "key", b);
  const least = (own, one, other) => own.length < Math.max(1, Math.min(one.length, other.length) / 2);
  if (least(rows, a.grid.rows, b.grid.rows) || least(cols, a.grid.cols, b.grid.cols)) return null;
  const pairs = rows.flatMap(([i, x]) => cols.map(([j, y]) => [i * a.grid.nk + j, x * b.grid.nk + y]));
  const w = Float32Array.from(pairs, ([one, other]) => b.grid.w[other] - a.grid.w[one]);
  const masked = (one, other) => a.grid.hidden?.[one] || b.grid.hidden?.[other];
  const hidden = a.grid.hidden || b.grid.hidden ? Uint8Array.from(pairs, (pair) => (masked(...pair) ? 1 : 0)) : null;
  const high = w.reduce((most, value, at) => (hidden?.[at] ? most : Math.max(most, Math.abs(value))), 0);
  const groups = { rows: rows.map(([i]) => a.grid.rows[i]), cols: cols.map(([j]) => a.grid.cols[j]) };
  const grid = withLookups({ ...a.grid, ...groups, nq: rows.length, nk: cols.length, w, hidden, sums: null });
  return { title: "B − A", head: null, grid, scale: { kind: "difference", low: -high, high: high || 1, map: "difference" } };
}

/** Pairs [place in a, place in b] of the groups whose tokens both have. */
function sharedGroups(groups, a, lookupOfB, axis, b) {
  return groups
    .map((group, at) => [at, lookupOfB.get(tokenIn(b.head.trace, group.tokens[0], axis, a.head.trace))])
    .filter(([, other]) => other !== undefined);
}

/** The token of `trace` that is the same as `token` of another ("query" or "key"): with two traces, each has its own. */
function tokenIn(trace, token, axis, of = TRACES[state.of]) {
  if (token === null || PAGE.mode !== "compare" || trace === of) return token;
  return PAGE.aligned[axis][TRACES.indexOf(of)][token] ?? null;
}

/** Choose in the terms of one of two traces: what is not named stays what it was, as that trace has it. */
function chooseIn(trace, changes) {
  if (PAGE.mode !== "compare") return choose(changes);
  const [query, key] = ["query", "key"].map((axis) => tokenIn(trace, state[axis], axis));
  return choose({ of: TRACES.indexOf(trace), query, key, ...changes });
}

/** Where the chosen query and key stand in a grid; -1 for what is not chosen or not shown. */
const chosenRow = (grid) => grid.rowFor.get(tokenIn(grid.head.trace, state.query, "query")) ?? -1;
const chosenCol = (grid) => grid.colFor.get(tokenIn(grid.head.trace, state.key, "key")) ?? -1;

