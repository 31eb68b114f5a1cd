// The softmax explorer: drag the scores or the temperature and see how the weights change.

const MOST_SLIDERS = 8;
const explorer = { of: null }; // the row that is explored, and its current scores, temperature and scale

/** Take the scores of the chosen row when another row is chosen. */
function drawExplorer({ head, grid }) {
  const row = chosenRow(grid) < 0 ? 0 : head.rows.indexOf(state.query);
  if (explorer.head !== head || explorer.row !== row) explore(head, row);
  writeExplorer();
}

function explore(head, row) {
  const { scale: factor = 1, temperature = 1, defaultScale, d_k } = head.trace.model;
  const { scores, scaled, factor: simple, w, seen, labels, query } = pairOf(head, row, 0);
  const byWeight = seen.filter((j) => w[j] >= 0).sort((a, b) => w[b] - w[a]);
  const order = byWeight.slice(0, MOST_SLIDERS).sort((a, b) => a - b);
  const logarithms = (j) => temperature * Math.log(Math.max(w[j], 1e-9));
  const scoreOf = (j) => (simple !== undefined ? scores[j] : scaled ? scaled[j] : logarithms(j));
  Object.assign(explorer, {
    head,
    row,
    temperature,
    factor: simple ?? 1,
    scaled: true,
    labels: order.map((j) => labels[j]),
    scores: order.map(scoreOf),
    rest: byWeight.slice(MOST_SLIDERS).map(scoreOf),
  });
  const numbers = scores
    ? "scores"
    : scaled
      ? "scaled scores"
      : "logarithms of the weights (this file holds no scores)";
  byId("explored").textContent = `${numbers} of ${query}`;
  byId("temperature").value = Math.log2(temperature);
  byId("scaling").checked = true;
  byId("scaling").parentElement.hidden = explorer.factor === 1;
  byId("scaling-how").textContent = defaultScale ? `÷ √${d_k}` : `× ${factor.toPrecision(3)}`;
  const low = Math.floor(Math.min(...explorer.scores, 0) - 3);
  const high = Math.ceil(Math.max(...explorer.scores, 0) + 3);
  refill(
    byId("sliders"),
    explorer.labels.map((label, at) => sliderRow(label, at, low, high)),
  );
}

function sliderRow(label, at, min, max) {
  const oninput = (event) => change({ scores: explorer.scores.with(at, Number(event.target.value)) });
  const look = { type: "range", min, max, step: 0.01, value: explorer.scores[at], "aria-label": `score of ${label}` };
  const cells = ["score", "exp", "weight"].map((name) => el("td", { "data-is": name }));
  const bar = el("td.bar", { "aria-hidden": "true" });
  const slide = el("td.slide", el("input", look, { oninput }));
  return tableRow(null, label, slide, cells, bar, el("td", { "data-is": "plain" }));
}

function change(changes) {
  Object.assign(explorer, changes);
  writeExplorer();
}

function writeExplorer() {
  const { temperature, labels } = explorer;
  const scores = [...explorer.scores, ...explorer.rest];
  const exponent = (explorer.scaled ? explorer.factor : 1) / temperature;
  const top = Math.max(...scores);
  const e = scores.map((score) => Math.exp((score - top) * exponent));
  const sumOf = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const [total, plain] = [sumOf(e), sumOf(scores)];
  const weights = e.map((x) => x / total);
  [...byId("sliders").rows].forEach((row, at) => {
    const texts = {
      score: fixed(scores[at]),
      exp: short(Math.exp(scores[at] * exponent)),
      weight: cellText(weights[at]),
      plain: Math.abs(plain) < 1e-9 ? "÷ 0" : fixed(scores[at] / plain),
    };
    for (const [name, text] of Object.entries(texts)) row.querySelector(`[data-is="${name}"]`).textContent = text;
    row.querySelector(".bar").replaceChildren(barOf(weights[at]));
  });
  const grown = short(Math.exp(exponent));
  byId("temperature-value").textContent = fixed(temperature);
  byId("one-more").textContent = Math.abs(exponent - 1) < 1e-9 ? `e = ${grown}` : `exp(${fixed(exponent)}) = ${grown}`;
  const best = labels[weights.indexOf(Math.max(...weights))] ?? "another key";
  const even = Math.exp(sumOf(weights.map((w) => (w > 0 ? -w * Math.log(w) : 0))));
  const others = explorer.rest.length;
  refill(
    byId("remark"),
    el("b", best),
    ` takes ${percent(Math.max(...weights))}. As spread out as an even choice among `,
    el("b", fixed(even, 1)),
    " keys.",
    others > 0 && ` ${plural(others, "more key")} of this row ${others === 1 ? "keeps its" : "keep their"} scores.`,
  );
}

function startExplorer() {
  on("temperature", "input", (event) => change({ temperature: 2 ** Number(event.target.value) }));
  on("scaling", "change", (event) => change({ scaled: event.target.checked }));
  on("again", "click", () => {
    explore(explorer.head, explorer.row);
    writeExplorer();
  });
}
