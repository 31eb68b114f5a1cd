// The arithmetic of the chosen pair, step by step, in the words of `attnctl explain`.

const FEW = 8; // numbers of a vector that are written in full; longer vectors are drawn, and shortened in text
let allTerms = false;

function drawArithmetic({ head, panels }) {
  const host = byId("arithmetic");
  const row = head.rows.indexOf(state.query);
  if (row < 0 || state.key === null)
    return refill(host, el("p.lead", "Choose a query and a key, and their arithmetic is written out here."));
  const pair = pairOf(head, row, state.key);
  const place = `: layer ${head.layer}, head ${head.head}${panels.length > 1 ? `, ${head.trace.label}` : ""}.`;
  const { lacking } = head.trace;
  const asked = `--layer ${head.layer} --head ${head.head} --query ${state.query}`;
  const left = `To keep this file small, ${lacking.join(", ")} of this long text were left out; "attnctl explain ${asked}" shows them.`;
  const steps = stepsOf(head)
    .map((step) => [step, FIGURES[step.name]?.(pair)])
    .filter(([step, figure]) => figure || WORDS_ALONE.includes(step.name));
  return refill(
    host,
    el("p.lead", "How ", el("b", pair.query), " comes to look at ", el("b", pair.key), place),
    lacking.length > 0 && el("p.lead", left),
    steps.map(([step, figure], at) => stepSection(step, figure, at + 1)),
  );
}

// steps in words only, without a figure
const WORDS_ALONE = ["rope", "gate", "output", "residual"];

const FIGURES = {
  projections: figureVectors,
  scores: figureScore,
  scaled: figureScaled,
  mask: figureMask,
  weights: figureWeights,
  dropout: figureDropout,
  context: figureContext,
  prediction: figurePrediction,
};

function stepSection(step, figure, number) {
  const words = el("p.lead", indexed(step.sentence));
  const name = [el("span.number", { "aria-hidden": "true" }, number), el("h3", step.title), formula(step.formula)];
  return el("section.step", { "data-step": step.name }, name, words, figure);
}

/** Return all numbers that the steps of one row need, from the file, or computed if the file does not have them. */
function pairOf(head, row, j) {
  const { trace, details, nk, rows, hidden } = head;
  const { labels } = keyTokens(trace);
  const { scale, soft_cap: cap } = trace.model;
  const own = (name) => details[name]?.(row) ?? null;
  const every = range(0, nk);
  const masked = (at) => Boolean(hidden?.[row * nk + at]);
  const seen = every.filter((at) => !masked(at));
  const w = head.weights.subarray(row * nk, (row + 1) * nk);
  const { keys: k, values: v } = details;
  const q = own("queries");
  const bias = own("bias");
  const scores = own("scores") ?? (q && every.map((at) => dot(q, k(at))));
  const factor = scores && cap === undefined && !bias ? scale : undefined; // the factor from scores to scaled scores
  const scaled = own("scaled_scores") ?? (factor === undefined ? null : scores.map((score) => score * factor));
  const dropped = own("dropped_weights");
  const context = own("context") ?? (v && weighted(w, v));
  const sink = head.sink ? Math.max(0, 1 - head.sums[row]) : null; // the weight of a learned sink in the row
  const names = { query: trace.tokens.labels[rows[row]], key: labels[j], labels };
  return { ...names, trace, nk, j, masked, seen, q, k, v, w, scores, bias, factor, scaled, sink, dropped, context };
}

const dot = (a, b) => a.reduce((sum, x, at) => sum + x * b[at], 0);

/** Return the sum of the vectors v(j), each times its weight. */
const weighted = (w, v) => v(0).map((_, at) => w.reduce((sum, share, j) => sum + share * v(j)[at], 0));

const equation = (left, result) => el("p.equation", left, el("b", result));

// --- vectors ---------------------------------------------------------------------------------------------------

const highest = (...vectors) => Math.max(1e-9, ...vectors.flatMap((v) => Array.from(v, Math.abs)));

/** Draw a vector as cells: a few numbers on their colours, otherwise a strip of colours. */
function vectorCells(name, vector, high) {
  const map = mapTable("difference");
  if (vector.length <= FEW)
    return Array.from(vector, (x) => shade(el("td.cell", fixed(x)), colourAt(map, 0.5 + (0.42 * x) / high)));
  const told = `${name}: ${vector.length} numbers, from ${fixed(Math.min(...vector))} to ${fixed(Math.max(...vector))}`;
  const strip = el("canvas.strip", { role: "img", "aria-label": told });
  return el(
    "td",
    pixels(strip, 1, vector.length, (at) => colourAt(map, 0.5 + (0.5 * vector[at]) / high)),
  );
}

/** Rows of [name, vector, class, the number whose colour is full (default: `high`)]. */
function vectorTable(name, rows, high) {
  const body = rows.map(([label, vector, kind, own = high]) => tableRow(kind, label, vectorCells(label, vector, own)));
  return scrolling(name, el("table.terms", el("tbody", body)));
}

function figureVectors({ q, k, v, query, key, j }) {
  const given = [q && [`query of ${query}`, q], k && [`key of ${key}`, k(j)], v && [`value of ${key}`, v(j)]];
  const rows = given.filter(Boolean);
  return rows.length ? vectorTable("query, key and value", rows, highest(...rows.map((row) => row[1]))) : null;
}

// --- one score -------------------------------------------------------------------------------------------------

/** Return a number as text after a sign or inside a product. */
const inProduct = (x) => (Number(x.toFixed(2)) < 0 ? `(${fixed(x)})` : fixed(x));

function figureScore({ q, k, scores, query, key, j }) {
  if (!scores) return null;
  const total = fixed(scores[j]);
  if (!q) return equation(`q(${query}) · k(${key}) = `, total);
  const shown = q.length <= FEW || allTerms ? q.length : 6;
  const terms = Array.from(q.slice(0, shown), (x, at) => {
    const minus = at > 0 && Number(x.toFixed(2)) < 0;
    return `${at === 0 ? "" : minus ? " − " : " + "}${fixed(minus ? -x : x)}×${inProduct(k(j)[at])}`;
  });
  const turn = () => {
    allTerms = !allTerms;
    drawArithmetic(view);
  };
  const rest = q.length - shown;
  const toggle =
    q.length > FEW && el("button.plain", { type: "button", onclick: turn }, rest ? `${rest} more` : "fewer");
  const products = q.map((x, at) => x * k(j)[at]);
  const rows = [
    [`query of ${query}`, q],
    [`× key of ${key}`, k(j)],
    ["= products", products, "total", highest(products)],
  ];
  return [
    equation([`${query} · ${key} = ${terms.join("")}`, rest ? " + … " : " ", toggle, " = "], total),
    vectorTable("the dot product, term by term", rows, highest(q, k(j))),
  ];
}

function figureScaled({ scaled, scores, bias, trace: { model }, query, key, j }) {
  if (!scaled) return null;
  const score = scores ? fixed(scores[j]) : "score";
  const factor = model.scale === 1 ? "" : ` × ${model.scale?.toPrecision(4) ?? "scale"}`;
  const how = model.defaultScale ? ` / √${model.d_k}` : factor;
  const cap = model.soft_cap === undefined ? "" : `, capped at ±${model.soft_cap}`;
  const added = bias ? ` + ${inProduct(bias[j])}` : "";
  return equation(`${query} → ${key}: ${score}${how}${cap}${added} = `, fixed(scaled[j]));
}

function figureMask({ masked, seen, nk, query, key, j }) {
  const own = masked(j) ? `${key} is hidden from it` : `${key} is one of them`;
  return el("p.equation", `${query} may look at ${seen.length} of ${plural(nk, "token")}; ${own}.`);
}

function figureDropout({ dropped, w, query, key, j }) {
  if (!dropped) return null;
  return equation(`${query} → ${key}: ${weightText(w[j], 4)} becomes `, weightText(dropped[j], 4));
}

// --- the softmax of the row ------------------------------------------------------------------------------------

function figureWeights({ scaled, seen, masked, sink, w, nk, labels, j: chosen, trace: { model } }) {
  if (!scaled || !seen.length) return null;
  const t = model.temperature ?? 1;
  const top = Math.max(...seen.map((j) => scaled[j] / t));
  const shift = Math.abs(top) > 8 ? top : 0; // if exponentials would be unreadable, subtract the largest score first
  const e = (j) => Math.exp(scaled[j] / t - shift);
  const exps = seen.reduce((sum, j) => sum + e(j), 0);
  const sunk = sink === null ? 0 : (exps * sink) / Math.max(1 - sink, 1e-9); // the sink's exponential
  const apart = nk - seen.length > 3; // many masked keys are counted, not listed
  const told = apart ? seen : range(0, nk);
  const order = strongest(told, (j) => (masked(j) ? 0 : w[j]));
  if (!order.includes(chosen)) order.push(chosen);
  const rows = order.map((j) => {
    const cells = masked(j) ? ["−∞", "0", "·"] : [fixed(scaled[j]), short(e(j)), cellText(w[j])];
    return tableRow(j === chosen && "chosen", labels[j], cells, el("td.bar", !masked(j) && barOf(w[j])));
  });
  const rest = told.filter((j) => !order.includes(j)).length;
  if (rest > 0) rows.push(tableRow("quiet", `${rest} more`, "", "", "", ""));
  if (apart) rows.push(tableRow("quiet", `${nk - seen.length} masked`, "−∞", "0", "·", ""));
  if (sink !== null) rows.push(tableRow("quiet", "sink", "", short(sunk), cellText(sink), ""));
  const sum = seen.reduce((total, j) => total + w[j], sink ?? 0);
  rows.push(tableRow("total", "Σ", "", short(exps + sunk), fixed(sum, 3), ""));
  const headings = ["key", t === 1 ? "scaled" : `scaled / ${t}`, shift ? `exp(· − ${inProduct(shift)})` : "exp", "÷ Σ"];
  return scrolling("the softmax of the row", table("rows", [...headings, el("th.bar")], rows));
}

// --- the context, and the prediction ------------------------------------------------------------------------

function figureContext({ v, context, dropped, w, seen, labels, query, j: chosen }) {
  if (!v || !context) return null;
  const weights = dropped ?? w;
  const order = strongest(seen, (j) => weights[j]);
  const shares = order.map((j) => v(j).map((x) => x * weights[j]));
  const rows = order.map((j, at) => [`${fixed(weights[j])} × ${labels[j]}`, shares[at], j === chosen && "chosen"]);
  const rest = context.map((x, at) => shares.reduce((left, share) => left - share[at], x));
  if (seen.length > order.length) rows.push([`${seen.length - order.length} more`, rest, "quiet"]);
  rows.push([`Σ context of ${query}`, context, "total"]);
  return vectorTable("the weighted values, added up", rows, highest(context, ...shares));
}

function figurePrediction({ trace: { predictions, tokens, model } }) {
  if (!predictions.length) return null;
  return [...new Set(predictions.map(({ at }) => at))].map((place) => {
    const label = tokens.labels[place];
    const blank = /^(_{2,}|\[MASK\]|<mask>)$/.test(label);
    const own = predictions.filter(({ at }) => at === place);
    const rows = own.map(({ text, p }) => tableRow(null, text, cellText(p), el("td.bar", barOf(p))));
    const title = `${model.causal && !blank ? "after" : "for"} ${label}`;
    const { among } = own[0];
    // among many words a small probability may be a good guess
    if (among >= 100) {
      rows.push(tableRow("quiet", `each by chance, of ${among.toLocaleString("en")}`, (1 / among).toPrecision(2), ""));
    }
    return table("rows", [title, "probability", el("th.bar")], rows);
  });
}
