// The arithmetic of the chosen pair, step by step, in the words of `attnctl explain`.

const FEW = 8; // as many numbers of a vector as are written out; longer ones are drawn, and abridged
let allTerms = false;

function drawArithmetic() {
  const host = byId("arithmetic");
  const { head } = view;
  const places = { query: state.query, key: state.key, row: head.rows.indexOf(state.query) };
  if (state.query === null || places.row < 0 || state.key === null) {
    return host.replaceChildren(
      el("p", { class: "pair-line" }, "Choose a query and a key, and their arithmetic is written out here."),
    );
  }
  const pair = pairOf(head, places);
  const line = el(
    "p",
    { class: "pair-line" },
    "How ",
    el("b", {}, pair.query),
    " comes to look at ",
    el("b", {}, pair.key),
    `: layer ${head.layer}, head ${head.head}`,
    view.panels.length > 1 ? `, ${head.trace.label}.` : ".",
  );
  const steps = stepsOf(head.trace, head.layer, head.head)
    .map((step) => [step, figureOf(step, pair)])
    .filter(([step, figure]) => figure || WORDS_ALONE.has(step.name));
  const sections = steps.map(([step, figure], at) => stepSection(step, figure, at + 1));
  const lacking = head.trace.lacking.length
    ? el(
        "p",
        { class: "pair-line" },
        `To keep this file small, ${head.trace.lacking.join(", ")} of this long text were left out; "attnctl explain --layer ${head.layer} --head ${head.head} --query ${places.query}" shows them.`,
      )
    : null;
  return host.replaceChildren(...[line, lacking, ...sections].filter(Boolean));
}

// steps that are told in words alone, without a figure of their own
const WORDS_ALONE = new Set(["rope", "difference", "gate", "output", "residual"]);

function stepSection(step, figure, number) {
  return el(
    "section",
    { class: "step", "data-step": step.name },
    el("span", { class: "number", "aria-hidden": "true" }, String(number)),
    el(
      "div",
      {},
      el("h3", {}, step.title),
      formula(step.formula),
      el("p", { class: "words-of-step" }, ...indexed(step.sentence)),
      figure,
    ),
  );
}

/** All numbers that the steps need, taken from the file, or worked out where it left them out. */
function pairOf(head, { query, key, row }) {
  const { trace, details, nk } = head;
  const keys = keyTokens(trace);
  const pair = {
    head,
    trace,
    row,
    j: key,
    nk,
    query: trace.tokens.labels[query],
    key: keys.labels[key],
    labels: keys.labels,
  };
  pair.w = head.weights.subarray(row * nk, (row + 1) * nk);
  pair.sink = head.sink ? Math.max(0, 1 - head.sums[row]) : null; // what a learned sink takes of the row
  pair.masked = (j) => head.mask !== null && !head.mask[row * nk + j];
  pair.q = details.queries && rowOf(details.queries, row);
  pair.k = details.keys && ((j) => rowOf(details.keys, j));
  pair.v = details.values && ((j) => rowOf(details.values, j));
  const every = Array.from({ length: nk }, (_, j) => j);
  pair.scores = details.scores ? rowOf(details.scores, row) : pair.q && every.map((j) => dot(pair.q, pair.k(j)));
  const { scale, soft_cap: cap } = trace.model;
  const plain = pair.scores && scale !== undefined && cap === undefined && !details.bias;
  pair.scaled = details.scaled_scores
    ? rowOf(details.scaled_scores, row)
    : plain
      ? every.map((j) => pair.scores[j] * scale)
      : null;
  pair.bias = details.bias ? rowOf(details.bias, row) : null;
  pair.dropped = details.dropped_weights ? rowOf(details.dropped_weights, row) : null;
  pair.context = details.context ? rowOf(details.context, row) : pair.v && weighted(pair);
  return pair;
}

const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);

function weighted({ w, v, nk }) {
  const sum = new Float32Array(v(0).length);
  for (let j = 0; j < nk; j++) v(j).forEach((x, at) => (sum[at] += w[j] * x));
  return sum;
}

function figureOf(step, pair) {
  const figures = {
    projections: figureVectors,
    scores: figureScore,
    scaled: figureScaled,
    mask: figureMask,
    weights: figureWeights,
    dropout: figureDropout,
    context: figureContext,
    prediction: figurePrediction,
  };
  return figures[step.name]?.(pair) ?? null;
}

// --- vectors ---------------------------------------------------------------------------------------------------

/** A vector as cells: numbers on their colour where they are few, else a strip. */
function vectorCells(vector, high) {
  const table = mapTable("difference");
  return Array.from(vector.slice(0, FEW), (x) => {
    const colour = colourAt(table, 0.5 + (0.42 * x) / high);
    return el("td", { class: "cell", vars: { background: css(colour), color: inkOn(colour) } }, fixed(x));
  });
}

function strip(vector, high, name) {
  const canvas = el("canvas", {
    class: "strip",
    width: vector.length,
    height: 1,
    role: "img",
    "aria-label": `${name}: ${vector.length} numbers, from ${fixed(Math.min(...vector))} to ${fixed(Math.max(...vector))}`,
  });
  const c = canvas.getContext("2d");
  const image = c.createImageData(vector.length, 1);
  const table = mapTable("difference");
  vector.forEach((x, at) => image.data.set([...colourAt(table, 0.5 + (0.5 * x) / high), 255], 4 * at));
  c.putImageData(image, 0, 0);
  return canvas;
}

const highest = (...vectors) => Math.max(1e-9, ...vectors.flatMap((v) => Array.from(v, Math.abs)));

function scrolling(name, ...children) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, ...children);
}

/** Rows of [name, vector, class, the number whose colour is full (`high` unless told otherwise)]. */
function vectorTable(name, rows, high) {
  const body = rows.map(([label, vector, kind, own = high]) => {
    const cells = vector.length <= FEW ? vectorCells(vector, own) : [el("td", {}, strip(vector, own, label))];
    return el("tr", { class: kind ?? null }, el("th", { scope: "row" }, label), ...cells);
  });
  return scrolling(name, el("table", { class: "terms" }, el("tbody", {}, ...body)));
}

function figureVectors(pair) {
  const rows = [];
  if (pair.q) rows.push([`query of ${pair.query}`, pair.q]);
  if (pair.k) rows.push([`key of ${pair.key}`, pair.k(pair.j)]);
  if (pair.v) rows.push([`value of ${pair.key}`, pair.v(pair.j)]);
  return rows.length ? vectorTable("query, key and value", rows, highest(...rows.map((row) => row[1]))) : null;
}

// --- one score -------------------------------------------------------------------------------------------------

function figureScore(pair) {
  if (!pair.scores) return null;
  const total = el("b", {}, fixed(pair.scores[pair.j]));
  if (!pair.q) return el("p", { class: "equation" }, `q(${pair.query}) · k(${pair.key}) = `, total);
  const k = pair.k(pair.j);
  const products = pair.q.map((x, at) => x * k[at]);
  const shown = pair.q.length <= FEW || allTerms ? pair.q.length : 6;
  const terms = Array.from({ length: shown }, (_, at) => {
    const minus = at > 0 && pair.q[at] < 0 && Number(pair.q[at].toFixed(2)) !== 0;
    const sign = at === 0 ? "" : minus ? " − " : " + ";
    return `${sign}${fixed(minus ? -pair.q[at] : pair.q[at])}×${inProduct(k[at])}`;
  });
  const rest = pair.q.length - shown;
  const toggle =
    pair.q.length > FEW
      ? el(
          "button",
          {
            class: "plain",
            type: "button",
            onclick: () => {
              allTerms = !allTerms;
              drawArithmetic();
            },
          },
          rest ? `${rest} more` : "fewer",
        )
      : null;
  const sum = el(
    "p",
    { class: "equation" },
    `${pair.query} · ${pair.key} = ${terms.join("")}`,
    rest ? " + … " : " ",
    toggle,
    " = ",
    total,
  );
  const rows = [
    [`query of ${pair.query}`, pair.q],
    [`× key of ${pair.key}`, k],
    ["= products", products, "total", highest(products)],
  ];
  return el("div", {}, sum, vectorTable("the dot product, term by term", rows, highest(pair.q, k)));
}

function figureScaled(pair) {
  if (!pair.scaled) return null;
  const { model } = pair.trace;
  const score = pair.scores ? fixed(pair.scores[pair.j]) : "score";
  const how = model.defaultScale
    ? ` / √${model.d_k}`
    : model.scale === 1
      ? ""
      : ` × ${model.scale?.toPrecision(4) ?? "scale"}`;
  const cap = model.soft_cap === undefined ? "" : `, capped at ±${model.soft_cap}`;
  const bias = pair.bias ? ` + ${inProduct(pair.bias[pair.j])}` : "";
  return el(
    "p",
    { class: "equation" },
    `${pair.query} → ${pair.key}: ${score}${how}${cap}${bias} = `,
    el("b", {}, fixed(pair.scaled[pair.j])),
  );
}

function figureMask(pair) {
  const seen = Array.from({ length: pair.nk }, (_, j) => j).filter((j) => !pair.masked(j)).length;
  const own = pair.masked(pair.j) ? `${pair.key} is hidden from it` : `${pair.key} is one of them`;
  return el("p", { class: "equation" }, `${pair.query} may look at ${seen} of ${plural(pair.nk, "token")}; ${own}.`);
}

// --- the softmax of the row ------------------------------------------------------------------------------------

function figureWeights(pair) {
  if (!pair.scaled) return null;
  const t = pair.trace.model.temperature ?? 1;
  const seen = Array.from({ length: pair.nk }, (_, j) => j).filter((j) => !pair.masked(j));
  if (!seen.length) return null;
  const top = Math.max(...seen.map((j) => pair.scaled[j] / t));
  const shift = top > 8 ? top : 0; // large scores: their exponentials would be unreadable, so the largest is taken off first
  const e = (j) => Math.exp(pair.scaled[j] / t - shift);
  const exps = seen.reduce((sum, j) => sum + e(j), 0);
  const sunk = pair.sink === null ? 0 : (exps * pair.sink) / Math.max(1 - pair.sink, 1e-9); // the sink's exponential
  const total = exps + sunk;
  const hidden = pair.nk - seen.length;
  const order = rowOrder(pair.nk, (j) => (!pair.masked(j) ? pair.w[j] : hidden > 3 ? -1 : 0));
  if (!order.includes(pair.j)) order.push(pair.j);
  const rows = order.map((j) => {
    const masked = pair.masked(j);
    const cells = masked ? ["−∞", "0", "·"] : [fixed(pair.scaled[j]), short(e(j)), cellText(pair.w[j])];
    const bar = masked ? null : barOf(pair.w[j]);
    return el(
      "tr",
      { class: j === pair.j ? "chosen" : null },
      el("th", { scope: "row" }, pair.labels[j]),
      ...cells.map((cell) => el("td", {}, cell)),
      el("td", { class: "bar" }, bar),
    );
  });
  const rest = pair.nk - order.length - (hidden > 3 ? hidden - order.filter(pair.masked).length : 0);
  const aside = (text, ...cells) =>
    el(
      "tr",
      { class: "quiet" },
      el("th", { scope: "row" }, text),
      ...cells.map((cell) => el("td", {}, cell)),
      el("td"),
    );
  if (rest > 0) rows.push(aside(`${rest} more`, "", "", ""));
  if (hidden > 3) rows.push(aside(`${hidden} masked`, "−∞", "0", "·"));
  if (pair.sink !== null) rows.push(aside("sink", "", short(sunk), cellText(pair.sink)));
  const sum = seen.reduce((s, j) => s + pair.w[j], pair.sink ?? 0);
  rows.push(
    el(
      "tr",
      { class: "total" },
      el("th", { scope: "row" }, "Σ"),
      el("td"),
      el("td", {}, short(total)),
      el("td", {}, fixed(sum, 3)),
      el("td"),
    ),
  );
  const name = shift ? `exp(· − ${fixed(shift)})` : "exp";
  const head = el(
    "thead",
    {},
    el(
      "tr",
      {},
      ...["key", t === 1 ? "scaled" : `scaled / ${t}`, name, "÷ Σ"].map((text) => el("th", { scope: "col" }, text)),
      el("th", { class: "bar" }),
    ),
  );
  return scrolling("the softmax of the row", el("table", { class: "rows" }, head, el("tbody", {}, ...rows)));
}

const short = (x) =>
  x >= 0.005 && x < 100000 ? fixed(x, x >= 1000 ? 0 : 2) : x === 0 ? "0" : x.toExponential(1).replace("-", "−");

function figureDropout(pair) {
  if (!pair.dropped) return null;
  return el(
    "p",
    { class: "equation" },
    `${pair.query} → ${pair.key}: ${weightText(pair.w[pair.j], 4)} becomes `,
    el("b", {}, weightText(pair.dropped[pair.j], 4)),
  );
}

// --- the context -----------------------------------------------------------------------------------------------

function figureContext(pair) {
  if (!pair.v || !pair.context) return null;
  const weights = pair.dropped ?? pair.w;
  const seen = Array.from({ length: pair.nk }, (_, j) => j).filter((j) => !pair.masked(j));
  const order = rowOrder(seen.length, (at) => weights[seen[at]]).map((at) => seen[at]);
  const shares = order.map((j) => pair.v(j).map((x) => x * weights[j]));
  const high = highest(pair.context, ...shares);
  const rows = order.map((j, at) => [
    `${fixed(weights[j])} × ${pair.labels[j]}`,
    shares[at],
    j === pair.j ? "chosen" : null,
  ]);
  const rest = seen.length - order.length;
  if (rest > 0)
    rows.push([
      `${rest} more`,
      pair.context.map((x, at) => x - shares.reduce((sum, share) => sum + share[at], 0)),
      "quiet",
    ]);
  rows.push([`Σ context of ${pair.query}`, pair.context, "total"]);
  return vectorTable("the weighted values, added up", rows, high);
}

function figurePrediction(pair) {
  const { predictions, tokens, model } = pair.trace;
  if (!predictions.length) return null;
  const places = [...new Set(predictions.map(({ at }) => at))];
  const tables = places.map((place) => {
    const label = tokens.labels[place];
    const blank = /^(_{2,}|\[MASK\]|<mask>)$/.test(label);
    const rows = predictions
      .filter(({ at }) => at === place)
      .map(({ text, p }) =>
        el("tr", {}, el("th", { scope: "row" }, text), el("td", {}, cellText(p)), el("td", { class: "bar" }, barOf(p))),
      );
    const title = el("th", { scope: "col" }, model.causal && !blank ? `after ${label}` : `for ${label}`);
    return el(
      "table",
      { class: "rows" },
      el("thead", {}, el("tr", {}, title, el("th", { scope: "col" }, "probability"), el("th", { class: "bar" }))),
      el("tbody", {}, ...rows),
    );
  });
  return el("div", {}, ...tables);
}
