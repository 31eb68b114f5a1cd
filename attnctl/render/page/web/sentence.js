// The sentence itself: its tokens in a line, shaded by the attention they get from (or give to) the chosen one.

function drawSentences({ panels }) {
  const host = byId("sentences");
  if (panels[0].head.trace.overview) {
    drawExcerpts(panels[0].head);
    return writeFinding();
  }
  const own = panels.filter((panel) => panel.head);
  if (host.children.length !== own.length || host.dataset.of !== String(state.step)) {
    host.replaceChildren(...own.map((panel) => buildSentence(panel, own.length > 1)));
    host.dataset.of = state.step;
  }
  own.forEach((panel, at) => shadeSentence(host.children[at], panel));
  writeFinding();
}

function buildSentence({ head, title }, named) {
  const { trace } = head;
  const { tokens } = trace;
  const n = tokens.labels.length;
  const size = n > 160 ? "words very-many" : n > 26 ? "words many" : "words";
  const words = el("div", {
    class: size,
    role: "group",
    "aria-label": "Tokens: choose a query",
    onkeydown: (event) => onTokenKey(event, trace),
  });
  const glued = new Set(tokens.glued);
  tokens.labels.forEach((label, token) => {
    const kind = tokens.special.includes(token) ? "token special" : "token";
    if (!glued.has(token) && token) words.append(" ");
    words.append(
      el(
        "button",
        {
          type: "button",
          class: kind,
          dir: "auto",
          "data-token": token,
          tabindex: -1,
          onclick: () => pickToken(token, trace),
        },
        label,
      ),
    );
  });
  const name = named ? el("p", { class: "name" }, title) : null;
  return el("div", { class: "sentence" }, name, words, svgEl("svg", { "aria-hidden": "true" }));
}

/** What a token chosen in the sentence is: the query that looks, or the key that is looked at. */
function pickToken(token, trace = view.head.trace) {
  if (state.direction === "from" && !trace.crossed) chooseIn(trace, { key: token });
  else chooseIn(trace, { query: token, key: strongestKey(token, trace) });
}

/** The key that gets most of a query's attention, itself left aside; null where there is nothing. */
function strongestKey(token, trace = view.head.trace) {
  const { grid } = view.panels.find((panel) => panel.head?.trace === trace) ?? view;
  const i = grid.rowFor.get(token);
  if (i === undefined) return null;
  let best = -1;
  for (let j = 0; j < grid.nk; j++) {
    if (grid.nk > 1 && grid.cols[j].tokens.includes(token) && !trace.crossed) continue;
    if (grid.hidden?.[i * grid.nk + j]) continue;
    if (best < 0 || grid.w[i * grid.nk + j] > grid.w[i * grid.nk + best]) best = j;
  }
  return best < 0 ? grid.cols[grid.colFor.get(token) ?? 0].tokens[0] : grid.cols[best].tokens[0];
}

const spotToken = () => (state.direction === "from" && !view.head.trace.crossed ? state.key : state.query);

/** The weight between the chosen token and each token of the sentence. */
function shares({ grid, head }) {
  const found = new Map();
  const n = head.trace.tokens.labels.length;
  if (state.direction === "to") {
    const i = chosenRow(grid);
    if (i >= 0 && !head.trace.crossed)
      grid.cols.forEach((col, j) => col.tokens.forEach((t) => t < n && found.set(t, grid.w[i * grid.nk + j])));
  } else {
    const j = chosenCol(grid);
    if (j >= 0) grid.rows.forEach((row, i) => row.tokens.forEach((t) => found.set(t, grid.w[i * grid.nk + j])));
  }
  return found;
}

function shadeSentence(host, panel) {
  const words = host.querySelector(".words");
  const table = mapTable("heat");
  const found = shares(panel);
  const axis = state.direction === "from" && !view.head.trace.crossed ? "key" : "query";
  const spot = tokenIn(panel.head.trace, spotToken(), axis);
  const chosen = spot < panel.head.trace.tokens.labels.length ? spot : null; // a slot of keys is no token of the sentence
  const top = Math.max(...found.values(), 0) || 1;
  for (const button of words.querySelectorAll(".token")) {
    const token = Number(button.dataset.token);
    const w = found.get(token);
    button.setAttribute("aria-pressed", token === chosen);
    button.tabIndex = token === (chosen ?? 0) ? 0 : -1;
    const t = w === undefined || w <= 0 ? 0 : found.size > 26 ? w / top : w;
    const colour = colourAt(table, 0.06 + 0.94 * t);
    const shaded = t > 0.012;
    button.style.setProperty("background-color", shaded ? css(colour) : "transparent");
    button.style.setProperty("color", shaded ? inkOn(colour) : "inherit");
    button.title = w === undefined ? "" : weightText(w, 4);
  }
  drawArcs(host, words, found, chosen);
  const own = words.querySelector('[aria-pressed="true"]');
  if (own && words.classList.contains("very-many"))
    words.scrollTop = own.offsetTop - words.offsetTop - words.clientHeight / 2;
}

/** Lines from the chosen token to the others, where all stand on one line. */
function drawArcs(host, words, found, chosen) {
  const svg = host.querySelector("svg");
  svg.replaceChildren();
  const buttons = [...words.querySelectorAll(".token")];
  words.classList.remove("one-line", "below");
  words.style.removeProperty("font-size");
  if (words.classList.contains("many") || words.classList.contains("very-many")) return;
  fitOneLine(words);
  const middle = (button) => button.offsetTop + button.offsetHeight / 2; // special tokens are smaller than words
  const oneLine = buttons.every((button) => Math.abs(middle(button) - middle(buttons[0])) < 12);
  if (!oneLine || buttons.length < 2) return;
  const below = state.direction === "from";
  words.classList.add(below ? "below" : "one-line");
  const area = host.getBoundingClientRect();
  const centre = (button) => {
    const box = button.getBoundingClientRect();
    return { x: box.left + box.width / 2 - area.left, y: (below ? box.bottom + 3 : box.top - 3) - area.top };
  };
  const spans = buttons.map(centre);
  const widest = Math.max(1, spans.at(-1).x - spans[0].x);
  const most = Math.min(74, 26 + widest * 0.14);
  words.style.setProperty("--room", `${most + 10}px`);
  const again = buttons.map(centre); // the room for the arcs has moved the words
  const from = again[chosen];
  if (from === undefined) return;
  for (const [token, w] of found) {
    if (w < 0.005 || !again[token]) continue;
    svg.append(arc(from, again[token], w, below, most / Math.sqrt(widest)));
  }
}

/** Set the words smaller where that brings them onto one line. */
function fitOneLine(words) {
  const size = parseFloat(getComputedStyle(words).fontSize);
  words.style.setProperty("white-space", "nowrap");
  const wanted = words.scrollWidth;
  words.style.removeProperty("white-space");
  const fitting = (size * words.clientWidth) / (wanted + 2);
  if (fitting < size && fitting >= 21) words.style.setProperty("font-size", `${Math.floor(fitting * 10) / 10}px`);
}

function arc(from, to, w, below, rise) {
  const side = below ? 1 : -1;
  const span = Math.abs(to.x - from.x);
  const look = { fill: "none", stroke: "currentColor", "stroke-linecap": "round" };
  const weight = {
    "stroke-width": (0.7 + 5.3 * Math.min(1, w)).toFixed(2),
    "stroke-opacity": (0.12 + 0.6 * Math.min(1, w * 1.3)).toFixed(3),
  };
  const bend = Math.max(16, rise * Math.sqrt(span)) * 1.33 * side;
  const d = span
    ? `M${from.x} ${from.y}C${from.x} ${from.y + bend} ${to.x} ${to.y + bend} ${to.x} ${to.y}`
    : `M${from.x - 7} ${from.y}c-9 ${22 * side} 23 ${22 * side} 14 0`;
  return svgEl("path", { d, ...look, ...weight });
}

function onTokenKey(event, trace) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
  const token = Number(event.target.dataset?.token);
  if (!step || Number.isNaN(token)) return;
  event.preventDefault();
  const n = trace.tokens.labels.length;
  const host = event.currentTarget;
  const next = clamp(token + step, 0, n - 1);
  pickToken(next, trace);
  host.querySelector(`[data-token="${next}"]`)?.focus();
}

/** What it comes to, in a sentence for each trace; and what a mark on a token means. */
function writeFinding() {
  const own = view.panels.filter((panel) => panel.head);
  const lines = own.map((panel) => el("span", { class: "line" }, ...findingOf(panel, own.length > 1)));
  const unknown = own.some(({ head }) => [head.trace.tokens, keyTokens(head.trace)].some((t) => t.unknown.length));
  const legend = "† not among the words the model knows: read by its shape, or as its unknown word";
  const doubts = own.flatMap(({ head }) => head.trace.doubts);
  const below = [...new Set(doubts), ...(unknown ? [legend] : [])];
  byId("finding").replaceChildren(...lines, ...below.map((said) => el("span", { class: "line legend" }, said)));
}

/** Where the attention of the chosen token of one trace goes, in words. */
function findingOf({ grid, head, title }, several) {
  const { trace } = head;
  const from = state.direction === "from";
  const at = from ? chosenCol(grid) : chosenRow(grid);
  const where = several ? [el("span", { class: "which" }, title.slice(0, 1)), " "] : [];
  if (at < 0) {
    const chosen = from ? state.key : state.query;
    const none = several && chosen !== null ? "has no such token." : "Choose a token to see where its attention goes.";
    return [...where, none];
  }
  const others = from ? grid.rows : grid.cols;
  const cell = (other) => (from ? grid.w[other * grid.nk + at] : grid.w[at * grid.nk + other]);
  const pool = trace.overview?.pool;
  const keysOf = (other) => grid.cols[from ? at : other].tokens.length;
  const weight = (other) => cell(other) * (pool === "mean" ? keysOf(other) : 1); // a mean times its keys is a share
  const best = others
    .map((_, other) => other)
    .sort((a, b) => weight(b) - weight(a))
    .slice(0, 3)
    .filter((other) => weight(other) >= 0.005);
  const own = (from ? grid.cols : grid.rows)[at];
  const name = el("b", {}, clearLabel(own.label));
  const rest = state.renorm && state.drop !== "none" ? "the rest of " : ""; // shares of what is left of a row
  const itself = (other) => !trace.crossed && other.tokens[0] === own.tokens[0];
  const parts = best.map((other) => [
    percent(weight(other)),
    el("b", {}, itself(others[other]) ? (trace.overview ? "themselves" : "itself") : named(others, other)),
  ]);
  if (!trace.holdsWeights) return [...where, ...largestIn("numbers", name, from, best, cell, others)];
  if (pool === "max") return [...where, ...largestIn("weights", name, from, best, cell, others)];
  const thin = from ? " gets almost no attention here." : " spreads its attention so thinly that no key gets 0.5 %.";
  if (!parts.length) return [...where, name, thin];
  if (trace.overview) {
    const of = from ? ` of ${rest}the attention of ` : ` of ${rest}their attention to `;
    const listing = listed(parts.map(([share, label]) => [share, of, label]));
    return [from ? "Keys " : "Queries ", name, from ? " get " : " pay ", ...listing, "."];
  }
  if (trace.measure) {
    const [verb, to] = from ? [" makes up ", " of "] : [" comes ", " from "];
    return [...where, name, verb, ...listed(parts.map(([share, label]) => [share, to, label])), "."];
  }
  const said = from
    ? [" gets ", ...listed(parts.map(([share, label]) => [share, ` of ${rest}the attention of `, label]))]
    : [" pays ", ...listed(parts.map(([share, label], k) => [share, k ? " to " : ` of ${rest}its attention to `, label]))];
  return [...where, name, ...said, "."];
}

/** The largest numbers of a row or column that are no shares. */
function largestIn(what, name, from, best, cell, others) {
  if (!best.length) return [name, ` has no ${what} of 0.005 or more.`];
  const parts = best.map((other) => [
    weightText(cell(other), 3),
    from ? " from " : " on ",
    el("b", {}, named(others, other)),
  ]);
  return [`The largest ${what} ${from ? "on" : "of"} `, name, ": ", ...listed(parts), "."];
}

/** A label in quotation marks where it is no word. */
const clearLabel = (label) => (/[\p{L}\p{N}]/u.test(label) ? label : `“${label}”`);

/** A token's label: in quotation marks where it is no word, with its place where others read the same. */
function named(groups, at) {
  const { label, tokens } = groups[at];
  const clear = clearLabel(label);
  return groups.filter((group) => group.label === label).length > 1 ? `${clear} (${tokens[0]})` : clear;
}

/** a, b and c */
const listed = (parts) =>
  parts.flatMap((part, at) => [at === 0 ? "" : at === parts.length - 1 ? " and " : ", ", ...part]);
