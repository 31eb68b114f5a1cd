// The sentence: its tokens in a line, coloured by the attention they get from (or give to) the chosen token.

const MOST_ARCS = 26; // a text with at most this many tokens is set large, with arcs between them

function drawSentences({ own, head }) {
  const host = byId("sentences");
  if (POOLED) return drawExcerpts(head);
  if (host.children.length !== own.length || host.dataset.of !== String(state.step))
    refill(
      host,
      { "data-of": state.step },
      own.map((panel) => buildSentence(panel, own)),
    );
  fitOneLine([...host.querySelectorAll(".words.few")]);
  own.forEach((panel, at) => shadeSentence(host.children[at], panel));
}

function buildSentence({ head: { trace }, title }, own) {
  const { labels, special, glued } = trace.tokens;
  const size = own.some((panel) => panel.head.trace.tokens.labels.length > MOST_ARCS) ? "many" : "few";
  const onkeydown = (event) => onTokenKey(event, trace);
  const photograph = trace.photograph && buildPhotograph(trace.photograph);
  const words = labels.map((label, token) => {
    const [kind, box] = [special.includes(token) ? ".special" : "", photograph && trace.tokens.boxes[token]];
    const acts = { type: "button", onclick: () => pickToken(token, trace), dir: "auto", "data-token": token };
    if (!box) return [token && !glued.includes(token) ? " " : "", el(`button.token${kind}`, acts, label)];
    const first = !photograph.querySelector("button");
    const patch = el("button.token.patch", acts, { "aria-label": label, vars: placeOf(box, trace.photograph) });
    if (label.includes("whole-")) photograph.firstChild.after(patch); // of a small view of all, under its tiles
    else photograph.append(patch);
    return first && photograph;
  });
  const group = { role: "group", "aria-label": "Tokens: choose a query", onkeydown };
  const arcs = svgEl("svg", { "aria-hidden": "true" });
  return el("div.sentence", own.length > 1 && el("p.small", title), el(`div.words.${size}`, group, words), arcs);
}

/** Make the picture whose patches are tokens; the line below it describes the patch under the pointer or with the focus. */
function buildPhotograph({ url, width, height }) {
  const said = el("p.small", "\u00a0");
  const tell = ({ target: { title, ariaLabel } }) => ariaLabel && (said.textContent = `${ariaLabel}: ${title}`);
  return el("div.photograph", { onpointerover: tell, onfocusin: tell }, el("img", { src: url, width, height, alt: "" }), said);
}

/** Return the place of a box (left, top, right, bottom in pixels) over its picture, in percent. */
function placeOf([left, top, right, bottom], { width, height }) {
  const sides = { left: left / width, top: top / height, width: (right - left) / width, height: (bottom - top) / height };
  return Object.fromEntries(Object.entries(sides).map(([name, share]) => [name, `${100 * share}%`]));
}

/** Choose a token of the sentence: as the query that looks, or as the key that is looked at. */
function pickToken(token, trace) {
  if (isFrom()) return chooseIn(trace, { key: token });
  const { grid } = view.own.find((panel) => panel.head.trace === trace);
  return chooseIn(trace, { query: token, key: strongestKey(grid, token) });
}

/** Return the key that gets most of a query's attention, except the query itself; null without a row. */
function strongestKey({ rowFor, cols, nk, w, hidden, head }, token) {
  const first = rowFor.get(token) * nk;
  if (Number.isNaN(first)) return null;
  const itself = (col) => col.tokens.includes(token) && !head.trace.crossed;
  const others = range(0, nk).filter((j) => !hidden?.[first + j] && (nk === 1 || !itself(cols[j])));
  const best = others.sort((a, b) => w[first + b] - w[first + a])[0];
  return best === undefined ? token : cols[best].tokens[0];
}

/** Return the weight between the chosen token and each token of the sentence. */
function shares({ grid, head: { trace } }) {
  const line = isFrom() || !trace.crossed ? chosenLine(grid) : null; // the keys are not tokens of the sentence
  const found = new Map();
  line?.others.forEach(({ tokens }, other) => tokens.forEach((token) => found.set(token, grid.w[line.cell(other)])));
  for (const token of found.keys()) if (token >= trace.tokens.labels.length) found.delete(token);
  return found;
}

function shadeSentence(host, panel) {
  const words = host.querySelector(".words");
  const found = shares(panel);
  const spot = tokenIn(panel.head.trace, isFrom() ? state.key : state.query, isFrom() ? "key" : "query");
  const buttons = [...words.querySelectorAll(".token")].sort((a, b) => a.dataset.token - b.dataset.token);
  const chosen = spot < buttons.length ? spot : null; // a slot of keys is not a token of the sentence
  const { photograph, tokens } = panel.head.trace; // over a photograph the strongest patch has the darkest colour
  const top = Math.max(...[...found].map(([token, w]) => (!photograph || tokens.boxes[token] ? w : 0)), 0) || 1;
  buttons.forEach((button, token) => {
    const w = found.get(token);
    const look = { "aria-pressed": String(token === chosen), tabindex: token === (chosen ?? 0) ? 0 : -1 };
    put(button, look, { title: w === undefined ? "" : weightText(w, 4) });
    heated(button, photograph || found.size > MOST_ARCS ? w / top : w);
  });
  drawArcs(host, words, buttons, found, chosen);
  if (chosen !== null) words.scrollTop = buttons[chosen].offsetTop - words.offsetTop - words.clientHeight / 2;
}

/** Draw arcs from the chosen token to the others, if all are on one line. */
function drawArcs(host, words, buttons, found, chosen) {
  const svg = refill(host.querySelector("svg"));
  words.classList.remove("one-line", "below");
  if (!words.classList.contains("few")) return;
  const middle = (button) => button.offsetTop + button.offsetHeight / 2; // special tokens are smaller than words
  const oneLine = buttons.every((button) => Math.abs(middle(button) - middle(buttons[0])) < 12);
  if (!oneLine || buttons.length < 2 || chosen === null) return;
  words.classList.add(isFrom() ? "below" : "one-line");
  const centre = (button) => {
    const [area, box] = [host.getBoundingClientRect(), button.getBoundingClientRect()];
    return { x: box.left + box.width / 2 - area.left, y: (isFrom() ? box.bottom + 3 : box.top - 3) - area.top };
  };
  const widest = Math.max(1, Math.abs(centre(buttons.at(-1)).x - centre(buttons[0]).x));
  const most = Math.min(74, 26 + widest * 0.14);
  words.style.setProperty("--room", `${most + 10}px`);
  const ends = buttons.map(centre); // the room for the arcs has moved the words
  for (const [token, w] of found)
    if (w >= 0.005) svg.append(arc(ends[chosen], ends[token], Math.min(1, w), most / Math.sqrt(widest)));
}

/** Make all sentences smaller if each then fits on one line. */
function fitOneLine(sentences) {
  const sizes = sentences.map((words) => {
    words.style.removeProperty("font-size");
    const size = parseFloat(getComputedStyle(words).fontSize);
    words.style.setProperty("white-space", "nowrap");
    const fitting = (size * words.clientWidth) / (words.scrollWidth + 2);
    words.style.removeProperty("white-space");
    return fitting < size && fitting >= 21 ? Math.floor(fitting * 10) / 10 : Infinity;
  });
  const least = Math.min(...sizes);
  for (const words of sentences) if (least < Infinity) words.style.setProperty("font-size", `${least}px`);
}

function arc(from, to, w, rise) {
  const side = isFrom() ? 1 : -1;
  const span = Math.abs(to.x - from.x);
  const bend = Math.max(16, rise * Math.sqrt(span)) * 1.33 * side;
  const itself = `M${from.x - 7} ${from.y}c-9 ${22 * side} 23 ${22 * side} 14 0`;
  const over = `M${from.x} ${from.y}C${from.x} ${from.y + bend} ${to.x} ${to.y + bend} ${to.x} ${to.y}`;
  const strength = { "stroke-width": 0.7 + 5.3 * w, "stroke-opacity": 0.12 + 0.6 * Math.min(1, w * 1.3) };
  return svgEl("path", { d: span ? over : itself, fill: "none", stroke: "currentColor", ...strength });
}

function onTokenKey(event, trace) {
  const [down, across] = arrowStep(event) ?? [];
  const token = Number(event.target.dataset?.token);
  if (down === undefined || Number.isNaN(token)) return;
  event.preventDefault();
  const { labels, boxes } = trace.tokens;
  const row = boxes?.[token] ? boxes.filter((box) => box?.[1] === boxes[token][1]).length : 1;
  const next = clamp(token + down * row + across, 0, labels.length - 1);
  pickToken(next, trace);
  event.currentTarget.querySelector(`[data-token="${next}"]`).focus();
}

// --- the finding in words ------------------------------------------------------------------------------------------

/** Write a sentence for each trace, and the meaning of a mark on a token. */
function drawFinding({ own }) {
  const lines = own.map((panel) => {
    const letter = own.length > 1 && [el("b", panel.title.slice(0, 1)), " "];
    const certainty = openingHere(panel.head.trace)?.certainty;
    return el("span.line", letter, findingOf(panel, own.length > 1), certainty && el("span.certainty", ` ${certainty}`));
  });
  const unknown = own.some(({ head: { trace } }) => [trace.tokens, keyTokens(trace)].some((t) => t.unknown.length));
  const legend = "† not among the words the model knows: read by its shape, or as its unknown word";
  const below = new Set([...own.flatMap(({ head }) => head.trace.doubts), ...(unknown ? [legend] : [])]);
  refill(
    byId("finding"),
    lines,
    [...below].map((said) => el("span.line.legend", said)),
  );
}

/** Say in words where the attention of the chosen token of one trace goes. */
function findingOf({ grid, head: { trace } }, several) {
  const line = chosenLine(grid);
  if (!line && several && (isFrom() ? state.key : state.query) !== null) return "has no such token.";
  if (!line) return "Choose a token to see where its attention goes.";
  const { own, others, cell } = line;
  const pool = trace.overview?.pool;
  // a mean times its keys is a share
  const weight = (other) =>
    grid.w[cell(other)] * (pool === "mean" ? (isFrom() ? own : others[other]).tokens.length : 1);
  const best = others
    .map((_, other) => other)
    .sort((a, b) => weight(b) - weight(a))
    .slice(0, 3)
    .filter((other) => weight(other) >= 0.005);
  const name = el("b", clearLabel(own.label));
  if (!trace.holdsWeights || pool === "max") {
    const what = trace.holdsWeights ? "weights" : "numbers";
    if (!best.length) return [name, ` has no ${what} of 0.005 or more.`];
    const parts = best.map((other) => [
      `${weightText(grid.w[cell(other)], 3)} ${isFrom() ? "from" : "on"} `,
      el("b", named(others, other)),
    ]);
    return [`The largest ${what} ${isFrom() ? "on" : "of"} `, name, ": ", listed(parts), "."];
  }
  if (!best.length && isFrom()) return [name, " gets almost no attention here."];
  if (!best.length) return [name, " spreads its attention so thinly that no key gets 0.5 %."];
  const itself = (other) => !trace.crossed && others[other].tokens[0] === own.tokens[0];
  const rest = state.renorm && state.drop !== "none" ? "the rest of " : ""; // shares of a row without the keys left out
  const [verb, of, then = of] = phrase(trace, rest);
  const parts = best.map((other, place) => {
    const label = itself(other) ? (pool ? "themselves" : "itself") : named(others, other);
    return [`${percent(weight(other))} ${place ? then : of} `, el("b", label)];
  });
  return [pool ? (isFrom() ? "Keys " : "Queries ") : "", name, ` ${verb} `, listed(parts), "."];
}

/** Return the verb of a finding, the words before its first token, and the words before later tokens if these differ. */
function phrase({ measure, overview }, rest) {
  if (measure) return isFrom() ? ["makes up", "of"] : ["comes", "from"];
  if (isFrom()) return [overview ? "get" : "gets", `of ${rest}the attention of`];
  return overview ? ["pay", `of ${rest}their attention to`, "to"] : ["pays", `of ${rest}its attention to`, "to"];
}

/** Return a label, in quotation marks if it is not a word. */
const clearLabel = (label) => (/[\p{L}\p{N}]/u.test(label) ? label : `“${label}”`);

/** Return a token's label: in quotation marks if it is not a word, with its place if other labels are equal. */
function named(groups, at) {
  const { label, tokens } = groups[at];
  const several = groups.filter((other) => other.label === label).length > 1;
  return `${clearLabel(label)}${several ? ` (${tokens[0]})` : ""}`;
}
