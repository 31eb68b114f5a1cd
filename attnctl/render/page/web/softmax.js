// The softmax explorer: drag the scores or the temperature and see what becomes of the weights.

const MOST_SLIDERS = 8;
const explorer = {
  of: null,
  scores: [],
  labels: [],
  start: [],
  others: 0,
  fixed: -Infinity,
  temperature: 1,
  scaled: true,
  factor: 1,
};

/** Take the scores of the chosen row, when another row is chosen. */
function drawExplorer() {
  const { head, grid } = view;
  const row = chosenRow(grid) < 0 ? 0 : head.rows.indexOf(state.query);
  const of = `${TRACES.indexOf(head.trace)}/${head.layer}/${head.head}/${row}`;
  if (explorer.of === of) return writeExplorer();
  const pair = pairOf(head, { query: head.rows[row], key: 0, row });
  const seen = Array.from({ length: pair.nk }, (_, j) => j).filter((j) => !pair.masked(j) && pair.w[j] >= 0);
  const order =
    seen.length <= MOST_SLIDERS
      ? seen
      : [...seen]
          .sort((a, b) => pair.w[b] - pair.w[a])
          .slice(0, MOST_SLIDERS)
          .sort((a, b) => a - b);
  const simple = pair.scores && pair.scaled && head.trace.model.soft_cap === undefined && !pair.bias;
  const { scale } = head.trace.model;
  explorer.factor = simple && scale ? scale : 1;
  const t = head.trace.model.temperature ?? 1;
  const scoreOf = (j) =>
    simple ? pair.scores[j] : pair.scaled ? pair.scaled[j] : t * Math.log(Math.max(pair.w[j], 1e-9));
  const rest = seen.filter((j) => !order.includes(j));
  Object.assign(explorer, {
    of,
    query: pair.query,
    labels: order.map((j) => pair.labels[j]),
    start: order.map(scoreOf),
    temperature: t,
    scaled: true,
    others: rest.length,
  });
  explorer.rest = rest.map(scoreOf);
  explorer.given = pair.scores
    ? "scores"
    : pair.scaled
      ? "scaled scores"
      : "logarithms of the weights (this file holds no scores)";
  explorer.scores = [...explorer.start];
  buildExplorer();
  return writeExplorer();
}

function buildExplorer() {
  const low = Math.floor(Math.min(...explorer.start, 0) - 3);
  const high = Math.ceil(Math.max(...explorer.start, 0) + 3);
  const rows = explorer.labels.map((label, at) => {
    const move = (event) => {
      explorer.scores[at] = Number(event.target.value);
      writeExplorer();
    };
    const slider = el("input", {
      type: "range",
      min: low,
      max: high,
      step: 0.01,
      value: explorer.start[at],
      "aria-label": `score of ${label}`,
      oninput: move,
    });
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, label),
      el("td", { class: "slide" }, slider),
      el("td", { "data-is": "score" }),
      el("td", { "data-is": "exp" }),
      el("td", { "data-is": "weight" }),
      el("td", { class: "bar", "aria-hidden": "true" }, el("i", { vars: { "--long": "0%" } })),
      el("td", { "data-is": "plain" }),
    );
  });
  const head = ["key", "score", "", "exp", "weight"].map((text) => el("th", { scope: "col" }, text));
  const table = el(
    "table",
    { class: "sliders" },
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        ...head,
        el("th", { class: "bar" }),
        el("th", { scope: "col", title: "each score divided by the plain sum of the scores" }, "score ÷ Σ"),
      ),
    ),
    el("tbody", {}, ...rows),
  );
  byId("softmax").replaceChildren(
    el(
      "p",
      { class: "lead" },
      `These are the ${explorer.given} of ${explorer.query}. Drag them. A score enters only through its exponential, so what counts is by how much it leads: one more makes the weight `,
      el("span", { id: "one-more" }),
      " times as large against the others. Dividing by the plain sum instead, in the last column, fails as soon as a score is negative.",
    ),
    explorerControls(),
    scrolling("scores and their weights", table),
    el("p", { class: "remark", id: "remark", role: "status" }),
  );
}

function explorerControls() {
  const heat = el("input", {
    type: "range",
    id: "temperature",
    min: -2,
    max: 2,
    step: 0.02,
    value: Math.log2(explorer.temperature),
    oninput: (event) => {
      explorer.temperature = 2 ** Number(event.target.value);
      writeExplorer();
    },
  });
  const parts = [el("label", {}, "Temperature", heat, el("output", { id: "temperature-value", for: "temperature" }))];
  if (explorer.factor !== 1) {
    const { d_k, defaultScale } = view.head.trace.model;
    const how = defaultScale ? `÷ √${d_k}` : `× ${explorer.factor.toPrecision(3)}`;
    const box = el("input", {
      type: "checkbox",
      id: "scaling",
      checked: true,
      onchange: (event) => {
        explorer.scaled = event.target.checked;
        writeExplorer();
      },
    });
    parts.push(el("label", { class: "toggle" }, box, `scaled, ${how}`));
  }
  const again = () => {
    explorer.of = null;
    drawExplorer();
  };
  parts.push(el("button", { class: "plain", type: "button", onclick: again }, "as it was"));
  return el("div", { class: "controls" }, ...parts);
}

function writeExplorer() {
  const { scores, temperature, rest } = explorer;
  const factor = explorer.scaled ? explorer.factor : 1;
  const z = [...scores, ...rest].map((score) => (score * factor) / temperature);
  const top = Math.max(...z);
  const e = z.map((x) => Math.exp(x - top));
  const total = e.reduce((a, b) => a + b, 0);
  const weights = e.map((x) => x / total);
  const plainSum = [...scores, ...rest].reduce((a, b) => a + b, 0);
  byId("softmax")
    .querySelectorAll("tbody tr")
    .forEach((row, at) => {
      const cell = (name) => row.querySelector(`[data-is="${name}"]`);
      cell("score").textContent = fixed(scores[at]);
      cell("exp").textContent = short(Math.exp(z[at]));
      cell("weight").textContent = cellText(weights[at]);
      cell("plain").textContent = Math.abs(plainSum) < 1e-9 ? "÷ 0" : fixed(scores[at] / plainSum);
      const bar = row.querySelector("i");
      bar.style.setProperty("--long", `${(100 * weights[at]).toFixed(2)}%`);
      bar.style.setProperty("--bar", css(colourAt(mapTable("heat"), 0.35 + 0.45 * weights[at])));
    });
  byId("temperature-value").textContent = fixed(temperature);
  const exponent = factor / temperature;
  const grown = short(Math.exp(exponent));
  byId("one-more").textContent = Math.abs(exponent - 1) < 1e-9 ? `e = ${grown}` : `exp(${fixed(exponent)}) = ${grown}`;
  writeRemark(weights, z);
}

function writeRemark(weights) {
  const best = weights.indexOf(Math.max(...weights));
  const entropy = weights.reduce((sum, w) => (w > 0 ? sum - w * Math.log(w) : sum), 0);
  const name = explorer.labels[best] ?? "another key";
  const rest = explorer.others
    ? ` ${plural(explorer.others, "more key")} of this row ${explorer.others === 1 ? "keeps its" : "keep their"} scores.`
    : "";
  byId("remark").replaceChildren(
    el("b", {}, name),
    ` takes ${percent(weights[best])}. As spread out as an even choice among `,
    el("b", {}, fixed(Math.exp(entropy), 1)),
    ` keys.${rest}`,
  );
}
