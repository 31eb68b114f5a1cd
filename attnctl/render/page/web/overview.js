// Long texts: pooled bins instead of tokens, the exact blocks in the file, the strongest links.

/** Return the parts of one axis, bins or named spans, as groups of tokens. */
const binsOf = (parts) =>
  parts.map(([label, ranges], at) =>
    group(
      label,
      ranges.flatMap((part) => range(...part)),
      at,
      at,
    ),
  );

/** Return the pooled grid of a head. */
function pooledGrid(head) {
  const { rows, columns, pool } = head.trace.overview;
  const grid = makeGrid(head, binsOf(rows), binsOf(columns), head.weights, head.hidden);
  return pool === "mass" ? { ...grid, sums: rowSums(grid) } : grid;
}

/** Return the stored block with the chosen pair, or else with the chosen query, or else the first block. */
function blockFor({ blocks }) {
  const within = ([first, past], token) => token !== null && token >= first && token < past;
  const own = blocks.filter((block) => within(block.rows, state.query));
  return own.find((block) => within(block.keys, state.key)) ?? own[0] ?? blocks[0];
}

/** Return the exact block as a grid, if the file has one. */
function blockPanels(head) {
  const block = blockFor(head);
  if (!block) return [];
  const [queries, keys] = [range(...block.rows), range(...block.keys)];
  const groups = [groupsOf(head.trace.tokens, queries), groupsOf(keyTokens(head.trace), keys)];
  const title = `exact: queries ${queries[0]}–${queries.at(-1)}, keys ${keys[0]}–${keys.at(-1)}`;
  return [{ title, grid: makeGrid(head, ...groups, block.weights, block.hidden) }];
}

// --- beside the picture ----------------------------------------------------------------------------------------

/** Return the text around a chosen token. */
function excerpt(name, token, { labels, glued }) {
  const first = Math.max(0, token - 24);
  const past = Math.min(labels.length, token + 25);
  const words = range(first, past).map((at) => [
    at > first && !glued.includes(at) ? " " : "",
    at === token ? el("mark", labels[at]) : labels[at],
  ]);
  const text = el("div.words.many", first > 0 && "… ", words, past < labels.length && " …");
  return el("div.sentence", el("p.small", `${name} ${token}`), text);
}

function drawExcerpts({ trace }) {
  const query = state.query !== null && excerpt("Query", state.query, trace.tokens);
  refill(byId("sentences"), query, state.key !== null && excerpt("Key", state.key, keyTokens(trace)));
}

/** List the strongest links of the head; a click or a key chooses one. */
function drawLinks({ head }) {
  const links = head.links ?? [];
  byId("links").hidden = links.length === 0;
  const rows = links.slice(0, 14).map(([i, j, w]) => {
    const kind = i === state.query && j === state.key ? "chosen" : null;
    const pick = { type: "button", onclick: () => choose({ query: i, key: j }) };
    const name = el("button.plain", pick, `${head.trace.tokens.labels[i]} ${i}`);
    return tableRow(kind, name, `${keyTokens(head.trace).labels[j]} ${j}`, cellText(w));
  });
  refill(byId("links"), el("h3", "Strongest links"), table("rows.links", ["query", "key", "weight"], rows));
}
