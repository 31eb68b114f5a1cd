"use strict";
/* The page of a census: a table to sort and choose from, and the map of the chosen relation. */

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const percent = (share, digits = 1) => (share === undefined || share === null ? "·" : (100 * share).toFixed(digits));
const thousands = (n) => n.toLocaleString("en-US");

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const signed = (n) => (n > 0 ? `+${n}` : `${n}`);
const finding = (one) => `${one.relation}, ${one.direction.replace("→", " → ")} (${percent(one.accuracy, 0)} %)`;

const rule = (row, name) => row.rules[name] && row.rules[name].accuracy;
const COLUMNS = [
  ["relation", (row) => row.relation, "left"],
  ["direction", (row) => row.direction.replace("→", " → "), "left"],
  ["head", (row) => (row.best ? row.best.layer + row.best.head / 1000 : -1)],
  ["found %", (row) => (row.best ? row.best.accuracy : -1)],
  ["95 %", (row) => (row.best ? row.best.interval[0] : -1)],
  ["offset", (row) => rule(row, "offset") ?? -1],
  ["nearest", (row) => rule(row, "nearest") ?? -1],
  ["head match", (row) => rule(row, "head_match") ?? -1],
  ["first", (row) => rule(row, "first") ?? -1],
  ["untrained", (row) => (row.untrained ? row.untrained.accuracy : -1)],
  ["cases", (row) => row.cases],
].filter(
  ([name]) =>
    (name !== "untrained" || data.compared_with_untrained) &&
    (name !== "head match" || data.relations.some((row) => row.rules.head_match)),
);

const state = { row: null, sort: null, down: true, at: null };

/* --- the table --- */

function shown() {
  const wanted = $("filter").value.trim().toLowerCase();
  const least = Number($("least").value) || 1;
  const rows = data.relations.filter(
    (row) =>
      row.best && row.best.scored_on >= least && ($("subtypes").checked || !row.subtype) &&
      row.relation.toLowerCase().includes(wanted),
  );
  if (!state.sort) return rows;
  const [, value] = COLUMNS.find(([name]) => name === state.sort);
  const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0);
  return [...rows].sort((a, b) => (state.down ? -1 : 1) * order(a, b));
}

function ruleText(row, name) {
  const own = row.rules[name];
  if (!own) return ["·", ""];
  const said = row.rule_texts[name];
  return [percent(own.accuracy), name === "first" || said === name ? "" : ` ${said}`];
}

function cell(row, name) {
  const best = row.best;
  const plain = {
    relation: () => [row.relation, row.subtype ? "" : ""],
    direction: () => [row.direction.replace("→", " → "), ""],
    head: () => [`${best.layer}.${best.head}`, ""],
    "found %": () => [percent(best.accuracy), best.beats_rules ? " ✓" : ""],
    "95 %": () => [`${percent(best.interval[0], 0)}–${percent(best.interval[1], 0)}`, ""],
    offset: () => ruleText(row, "offset"),
    "head match": () => [percent(rule(row, "head_match")), ""],
    nearest: () => ruleText(row, "nearest"),
    first: () => ruleText(row, "first"),
    untrained: () => [percent(row.untrained && row.untrained.accuracy), ""],
    cases: () => [thousands(row.cases), ""],
  };
  return plain[name]();
}

function drawTable() {
  const head = $("relations").tHead, body = $("relations").tBodies[0];
  head.replaceChildren(element("tr"));
  for (const [name, , className] of COLUMNS) {
    const th = element("th", name, className);
    th.tabIndex = 0;
    if (state.sort === name) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    const sort = () => {
      state.down = state.sort === name ? !state.down : className !== "left";
      state.sort = name;
      drawTable();
    };
    th.addEventListener("click", sort);
    th.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    head.rows[0].append(th);
  }
  body.replaceChildren();
  for (const row of shown()) {
    const tr = element("tr", undefined, row.best.beats_rules ? "beats" : "");
    tr.tabIndex = 0;
    tr.setAttribute("aria-selected", row === state.row);
    for (const [name, , className] of COLUMNS) {
      const [text, more] = cell(row, name);
      const td = element("td", text, className);
      if (name === (row.best_rule ?? "").replace("_", " ")) td.classList.add("strongest");
      if (more) td.append(element("span", more, "quiet"));
      tr.append(td);
    }
    const choose = () => { state.row = row; state.at = null; drawTable(); drawMap(); };
    tr.addEventListener("click", choose);
    tr.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    body.append(tr);
  }
}

/* --- the map --- */

function stops() {
  return data.maps[matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"];
}

function colour(share) {
  const all = stops();
  const at = Math.min(1, Math.max(0, share)) * (all.length - 1);
  const low = Math.floor(at), high = Math.min(all.length - 1, low + 1);
  const part = (hex, k) => parseInt(hex.slice(1 + 2 * k, 3 + 2 * k), 16);
  const mixed = [0, 1, 2].map((k) => Math.round(part(all[low], k) + (at - low) * (part(all[high], k) - part(all[low], k))));
  const light = (0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2]) / 255;
  return [`rgb(${mixed.join(" ")})`, light > 0.55 ? "#14161a" : "#ffffff"];
}

const headAt = (layer, head) => data.heads.find((one) => one.layer === layer && one.head === head);

function say(layer, head) {
  const row = state.row, info = headAt(layer, head);
  const count = row.correct[layer][head];
  $("readout").textContent =
    `Head ${layer}.${head} finds ${thousands(count)} of ${thousands(row.cases)} (${percent(count / row.cases)} %). ` +
    `Over the whole corpus: entropy ${info.entropy.toFixed(2)} nats, mean distance ${info.distance.toFixed(1)} words, ` +
    `${percent(info.own, 0)} % on the word itself, ${percent(info.special, 0)} % on special tokens, ` +
    `${percent(info.dependency_mass, 0)} % of the rest on words joined by a dependency` +
    (info.uuas === undefined ? "." : `, UUAS ${percent(info.uuas)} %.`) +
    (info.positional ? ` Positional: ${percent(info.positional.share, 0)} % at ${signed(info.positional.offset)}.` : "") +
    (info.syntactic.length ? ` Syntactic: ${info.syntactic.map(finding).join(", ")}.` : "");
  for (const other of $("map").querySelectorAll(".at")) other.classList.remove("at");
  $("map").querySelector(`[data-at="${layer}.${head}"]`).classList.add("at");
  state.at = [layer, head];
}

function drawMap() {
  const row = state.row, map = $("map");
  if (!row) return;
  const heads = row.correct[0].length;
  $("map-title").textContent = `Every head: ${row.relation}, ${row.direction.replace("→", " → ")}`;
  $("map-lead").textContent =
    `Per cent of ${thousands(row.cases)} cases, all sentences; layers down, heads across.` +
    (row.ahead ? ` The model is causal: ${thousands(row.ahead)} words that stand ahead are no cases, neither of heads nor of rules.` : "");
  map.style.gridTemplateColumns = `auto repeat(${heads}, minmax(34px, auto))`;
  map.replaceChildren(element("span", "", "name"));
  for (let head = 0; head < heads; head++) map.append(element("span", head, "name"));
  row.correct.forEach((counts, layer) => {
    map.append(element("span", layer, "name"));
    counts.forEach((count, head) => {
      if (!headAt(layer, head)) {  // a layer without attention, or with fewer heads
        map.append(element("span", "", "cell"));
        return;
      }
      const share = row.cases ? count / row.cases : 0;
      const made = element("span", percent(share, 0), "cell");
      [made.style.background, made.style.color] = colour(share);
      made.dataset.at = `${layer}.${head}`;
      if (row.best && row.best.layer === layer && row.best.head === head) made.classList.add("best");
      made.addEventListener("pointerenter", () => say(layer, head));
      map.append(made);
    });
  });
  const best = row.best || data.heads[0];
  if (best) say(...(state.at || [best.layer, best.head]));
}

$("map").addEventListener("keydown", (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step || !state.at) return;
  event.preventDefault();
  const layers = state.row.correct.length, heads = state.row.correct[0].length;
  let [layer, head] = state.at;
  do {
    [layer, head] = [(layer + step[0] + layers) % layers, (head + step[1] + heads) % heads];
  } while (!headAt(layer, head));
  say(layer, head);
});

/* --- the rest --- */

function drawRest() {
  const { read, used, skipped } = data.sentences;
  const out = Object.entries(skipped).map(([reason, count]) => `${reason} ${thousands(count)}`).join(", ");
  $("facts").textContent =
    `${data.model} on ${data.corpus}: ${thousands(used)} sentences, ${thousands(data.words.used)} words` +
    (out ? ` (of ${thousands(read)}; left out: ${out})` : "");
  const trees = data.uuas, best = trees.best_head;
  $("trees").textContent = best
    ? `Maximum spanning trees, undirected attachment (UUAS): head ${best.layer}.${best.head} ${percent(best.accuracy)} %, ` +
      `the mean of layer ${trees.best_layer.layer} ${percent(trees.best_layer.accuracy)} %, ` +
      (trees.untrained ? `untrained ${percent(trees.untrained.accuracy)} %, ` : "") +
      `right-branching ${percent(trees.right_branching)} %.`
    : "The corpus has no edges to compare trees with.";
  const positional = data.heads.filter((one) => one.positional);
  const syntactic = data.heads.filter((one) => one.syntactic.length);
  const place = (one) => `${one.layer}.${one.head}`;
  $("kinds").textContent =
    "Positional heads, whose largest weight stands at one offset in 90 % of the words: " +
    (positional.map((one) => `${place(one)} (${signed(one.positional.offset)})`).join(", ") || "none") +
    ". Syntactic heads, 10 points above the best offset of a relation: " +
    (syntactic.map((one) => `${place(one)}: ${one.syntactic.map(finding).join(", ")}`).join("; ") || "none") + ".";
  const head = element("tr"), body = $("layers").tBodies[0];
  for (const name of ["layer", "on dependencies %", "mean distance", "entropy, nats", "UUAS %"]) head.append(element("th", name));
  $("layers").tHead.append(head);
  for (const layer of data.layers) {
    const tr = element("tr");
    const { layer: at, dependency_mass: mass, distance, entropy, uuas } = layer;
    for (const text of [at, percent(mass), distance.toFixed(2), entropy.toFixed(2), percent(uuas)]) tr.append(element("td", text));
    body.append(tr);
  }
  $("colophon").textContent =
    "Words from pieces and directions as in Clark et al. 2019; mass on dependencies as in Vig & Belinkov 2019; " +
    "positional and syntactic heads as in Voita et al. 2019; intervals after Wilson 1927. " +
    `Made by ${document.querySelector('meta[name="description"]').content}.`;
}

for (const id of ["filter", "subtypes", "least"]) $(id).addEventListener("input", drawTable);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMap);
state.row = shown()[0] || data.relations[0] || null;
drawTable();
drawMap();
drawRest();

document.documentElement.dataset.ready = "true";
