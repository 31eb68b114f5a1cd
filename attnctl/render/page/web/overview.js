// Long texts: pooled bins in place of tokens, exact blocks where they were stored, the strongest links.

/** The parts of one axis, bins or named spans, as groups of tokens. */
function binsOf(parts) {
  return parts.map(([label, ranges], at) => {
    const tokens = ranges.flatMap(([first, past]) => Array.from({ length: past - first }, (_, k) => first + k));
    return { label, tokens, at: [at], word: at, special: false };
  });
}

/** The pooled grid of a head. */
function overviewGrid(head) {
  const { rows: rowParts, columns, pool } = head.trace.overview;
  const rows = binsOf(rowParts);
  const cols = binsOf(columns);
  const grid = { nq: rows.length, nk: cols.length, rows, cols, out: [], head, w: head.weights, sums: null };
  grid.hidden = head.mask === null ? null : invert(head.mask);
  if (pool === "mass") grid.sums = rows.map((_, i) => sumOf(grid, i));
  return withLookups(grid);
}

/** An exact block as a grid of its own. */
function blockGrid(head, block) {
  const keys = keyTokens(head.trace);
  const tokensOf = (labels, first, past) =>
    Array.from({ length: past - first }, (_, k) => ({
      label: labels[first + k],
      tokens: [first + k],
      at: [k],
      word: k,
      special: false,
    }));
  const rows = tokensOf(head.trace.tokens.labels, block.rows[0], block.rows[1]);
  const cols = tokensOf(keys.labels, block.keys[0], block.keys[1]);
  const grid = { nq: rows.length, nk: cols.length, rows, cols, out: [], head, w: block.weights, sums: null };
  grid.hidden = future(
    head.trace,
    rows.map((row) => row.tokens[0]),
    cols.map((col) => col.tokens[0]),
  );
  return withLookups(grid);
}

function withLookups(grid) {
  grid.rowFor = lookup(grid.rows, (row) => row.tokens);
  grid.colFor = lookup(grid.cols, (col) => col.tokens);
  return grid;
}

function future(trace, lastQueries, firstKeys) {
  if (!trace.model.causal) return null;
  return Uint8Array.from(lastQueries.flatMap((i) => firstKeys.map((j) => (j > i ? 1 : 0))));
}

/** The stored block that holds the chosen pair, or else the chosen query, or the first there is. */
function blockFor(head) {
  const within = ([first, past], token) => token !== null && token >= first && token < past;
  const both = head.blocks.find((block) => within(block.rows, state.query) && within(block.keys, state.key));
  return both ?? head.blocks.find((block) => within(block.rows, state.query)) ?? head.blocks[0] ?? null;
}

function overviewPanels(head) {
  const grid = overviewGrid(head);
  const panels = [{ title: head.trace.overview.title, head, grid, scale: scaleOf(grid) }];
  const block = blockFor(head);
  if (block) {
    const exact = blockGrid(head, block);
    const title = `exact: queries ${block.rows[0]}–${block.rows[1] - 1}, keys ${block.keys[0]}–${block.keys[1] - 1}`;
    panels.push({ title, head: null, grid: exact, scale: scaleOf(exact) });
  }
  return panels;
}

// --- beside the picture ----------------------------------------------------------------------------------------

/** The text around the chosen query and the chosen key. */
function drawExcerpts(head) {
  const parts = [
    ["Query", state.query, head.trace.tokens],
    ["Key", state.key, keyTokens(head.trace)],
  ];
  const lines = parts
    .filter(([, token]) => token !== null)
    .map(([name, token, tokens]) => {
      const first = Math.max(0, token - 24);
      const glued = new Set(tokens.glued);
      const words = el("div", { class: "words many excerpt" }, first > 0 ? "… " : "");
      tokens.labels.slice(first, token + 25).forEach((label, at) => {
        const here = first + at === token;
        if (at && !glued.has(first + at)) words.append(" ");
        words.append(here ? el("mark", {}, label) : label);
      });
      if (token + 25 < tokens.labels.length) words.append(" …");
      return el("div", { class: "sentence" }, el("p", { class: "name" }, `${name} ${token}`), words);
    });
  byId("sentences").replaceChildren(...lines);
}

/** The strongest links of the head: each chosen with a click or a key. */
function drawLinks({ head }) {
  const host = byId("links");
  const links = head.links ?? [];
  host.hidden = links.length === 0;
  if (host.hidden) return;
  const keys = keyTokens(head.trace).labels;
  const rows = links.slice(0, 14).map(([i, j, w]) => {
    const chosen = i === state.query && j === state.key ? "chosen" : null;
    const pick = el(
      "button",
      { class: "plain", type: "button", onclick: () => choose({ query: i, key: j }) },
      `${head.trace.tokens.labels[i]} ${i}`,
    );
    return el(
      "tr",
      { class: chosen },
      el("th", { scope: "row" }, pick),
      el("td", {}, `${keys[j]} ${j}`),
      el("td", {}, cellText(w)),
    );
  });
  const head_ = el(
    "thead",
    {},
    el("tr", {}, ...["query", "key", "weight"].map((text) => el("th", { scope: "col" }, text))),
  );
  host.replaceChildren(
    el("h3", {}, "Strongest links"),
    el("table", { class: "rows links" }, head_, el("tbody", {}, ...rows)),
  );
}
