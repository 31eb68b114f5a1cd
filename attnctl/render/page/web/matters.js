// What matters: the tokens coloured by the weight of the watched token on them, and below by the effect of cutting that edge.

function startMatters() {
  const { effects } = PAGE;
  if (!effects) return;
  const { target, against, baseline, tokens, query, model } = effects;
  const word = (given) => el("b", given.text.trim() || given.text);
  const what = against ? "the logit difference" : "the log-probability";
  const watched = [
    ` (${percent(baseline.probability)}) ${model.causal ? "after" : "at"} `,
    el("b", tokens[query].text),
  ];
  const lines =
    ". Above, the tokens by the weight they get from it in the chosen head; " +
    `below, by what ${what} does when that edge is cut in every layer and head: `;
  const sign = el("span.quiet", "after minus before.");
  refill(
    byId("matters-lead"),
    "The prediction ",
    word(target),
    against && [" against ", word(against)],
    watched,
    lines,
    sign,
  );
  for (const line of document.querySelectorAll(".matters-line"))
    tokens.forEach(({ text }) => line.append(el("span.token", { dir: "auto" }, text), " "));
  byId("matters").hidden = false;
}

const edgeValue = (edge) => edge.logit_difference ?? edge.log_probability;

function drawMatters({ panels: [{ grid, head }] }) {
  const { effects } = PAGE;
  if (!effects) return;
  const { edges, tokens, heads, baseline, target } = effects;
  const first = grid.rowFor.get(effects.query) * grid.nk;
  const change = new Map(edges.map((edge) => [edge.key, edgeValue(edge)]));
  const most = Math.max(...edges.map((edge) => Math.abs(edgeValue(edge))), 1e-9);
  shadeLine("weight", (node, token) => {
    const w = grid.w[first + grid.colFor.get(token)];
    heated(node, w);
    return w === undefined ? "" : weightText(w, 4);
  });
  shadeLine("effect", (node, token) => {
    const share = (change.get(token) ?? 0) / most;
    shade(node, Math.abs(share) > 0.01 ? colourAt(mapTable("difference"), 0.5 + 0.5 * share) : null);
    return change.has(token) ? signed(change.get(token)) : "";
  });
  const strongest = [...edges].sort((a, b) => Math.abs(edgeValue(b)) - Math.abs(edgeValue(a))).slice(0, 3);
  const cuts = strongest.map((edge, at) => [
    at ? ", " : "",
    el("b", tokens[edge.key].text),
    ` (${edge.key}) ${signed(edgeValue(edge))}`,
  ]);
  const without = heads?.find((other) => other.layer === head.layer && other.head === head.head);
  const [was, now] = [baseline, without ?? baseline].map(({ probability }) => percent(probability));
  const way = without?.probability < baseline.probability ? "falls" : "rises";
  const said = [
    `Without head ${head.head} of layer ${head.layer}, `,
    el("b", target.text.trim()),
    was === now ? ` stays at ${was}.` : ` ${way} from ${was} to ${now}.`,
  ];
  refill(byId("matters-head"), "Cut: ", cuts, ". ", without && said);
}

/** Colour each token of a line; the result of `of` is its title. */
function shadeLine(kind, of) {
  const line = document.querySelectorAll(`.matters-line[data-kind="${kind}"] .token`);
  line.forEach((node, token) => put(node, { title: of(node, token) }));
}
