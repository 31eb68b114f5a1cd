// What matters: the tokens shaded by the weight they get from the watched one, and below by what cutting that edge does.

function startMatters() {
  const { effects } = PAGE;
  if (!effects) return;
  const host = byId("matters");
  host.hidden = false;
  const word = (given) => el("b", {}, given.text.trim() || given.text);
  const what = effects.against ? "the logit difference" : "the log-probability";
  const against = effects.against ? [" against ", word(effects.against)] : [];
  host.append(
    el("h2", { id: "matters-title" }, "What matters"),
    el(
      "p",
      { class: "lead" },
      "The prediction ",
      word(effects.target),
      ...against,
      ` (${percent(effects.baseline.probability)}) ${effects.model.causal ? "after" : "at"} `,
      el("b", {}, effects.tokens[effects.query].text),
      `. Above, the tokens by the weight they get from it in the chosen head; below, by what ${what} does when that edge is`,
      " cut in every layer and head: ",
      el("span", { class: "quiet" }, "after minus before."),
    ),
    mattersLine("weight"),
    mattersLine("effect"),
    el("p", { class: "readout", id: "matters-head" }),
  );
}

function mattersLine(kind) {
  const tokens = PAGE.effects.tokens.map(({ text }, token) =>
    el("span", { class: "token", dir: "auto", "data-token": token }, text),
  );
  const name = el("span", { class: "matters-name" }, kind);
  return el("div", { class: "matters-line", "data-kind": kind }, name, ...tokens.flatMap((token) => [token, " "]));
}

const edgeValue = (edge) => edge.logit_difference ?? edge.log_probability;

function drawMatters({ panels }) {
  const { effects } = PAGE;
  if (!effects) return;
  const { grid, head } = panels[0];
  const row = grid.rowFor.get(effects.query);
  const weights = new Map();
  if (row !== undefined)
    grid.cols.forEach((col, j) => col.tokens.forEach((token) => weights.set(token, grid.w[row * grid.nk + j])));
  const changes = new Map(effects.edges.map((edge) => [edge.key, edgeValue(edge)]));
  const most = Math.max(...[...changes.values()].map(Math.abs), 1e-9);
  const heat = mapTable("heat");
  const difference = mapTable("difference");
  shadeLine("weight", (token) => {
    const w = weights.get(token);
    return w === undefined ? null : { colour: colourAt(heat, 0.06 + 0.94 * w), text: weightText(w, 4), strong: w > 0.012 };
  });
  shadeLine("effect", (token) => {
    const change = changes.get(token);
    if (change === undefined) return null;
    const colour = colourAt(difference, 0.5 + (0.5 * change) / most);
    return { colour, text: changeText(change), strong: Math.abs(change) > 0.01 * most };
  });
  byId("matters-head").replaceChildren(...edgeEffects(), ...headEffect(head));
}

const changeText = (x) => (x > 0 ? "+" : "") + fixed(x, 3);

function shadeLine(kind, of) {
  for (const token of document.querySelectorAll(`.matters-line[data-kind="${kind}"] .token`)) {
    const found = of(Number(token.dataset.token));
    token.title = found ? found.text : "";
    token.style.setProperty("background-color", found?.strong ? css(found.colour) : "transparent");
    token.style.setProperty("color", found?.strong ? inkOn(found.colour) : "inherit");
  }
}

/** The three edges that do most, in words. */
function edgeEffects() {
  const { edges, tokens } = PAGE.effects;
  const most = [...edges].sort((a, b) => Math.abs(edgeValue(b)) - Math.abs(edgeValue(a))).slice(0, 3);
  const said = most.map((edge) => [el("b", {}, tokens[edge.key].text), ` (${edge.key}) ${changeText(edgeValue(edge))}`]);
  return ["Cut: ", ...said.flatMap((part, at) => [at ? ", " : "", ...part]), ". "];
}

/** What the chosen head does, in words. */
function headEffect({ layer, head }) {
  const { effects } = PAGE;
  const one = effects.heads?.find((other) => other.layer === layer && other.head === head);
  if (!one) return [];
  const [was, now] = [effects.baseline.probability, one.probability].map((share) => percent(share));
  const way = one.probability < effects.baseline.probability ? "falls" : "rises";
  return [
    `Without head ${head} of layer ${layer}, `,
    el("b", {}, effects.target.text.trim()),
    was === now ? ` stays at ${was}.` : ` ${way} from ${was} to ${now}.`,
  ];
}
