// The page of a census: a table to sort and choose from, and the map of the chosen relation.

/** Per cent of a share, without the sign; a point where there is none. */
const points = (share, digits = 1) => (share === undefined || share === null ? "·" : fixed(100 * share, digits));
const thousands = (n) => n.toLocaleString("en-US");
const nameOf = ({ layer, head }) => `${layer}.${head}`;
const headAt = (layer, head) => PAGE.heads.find((one) => one.layer === layer && one.head === head);

/** The columns: name → what is sorted by, and, where the cell is not just that in per cent, its text. */
const COLUMNS = {
  relation: [(row) => row.relation, (row) => row.relation],
  direction: [(row) => row.direction, (row) => row.direction],
  head: [({ best }) => best.layer + best.head / 1000, ({ best }) => nameOf(best)],
  "found %": [({ best }) => best.accuracy, ({ best }) => points(best.accuracy) + (best.beats_rules ? " ✓" : "")],
  "95 %": [({ best }) => best.interval[0], ({ best }) => best.interval.map((share) => points(share, 0)).join("–")],
  offset: ruleColumn("offset"),
  nearest: ruleColumn("nearest"),
  "head match": ruleColumn("head_match"),
  first: ruleColumn("first"),
  untrained: [({ untrained }) => untrained?.accuracy, ({ untrained }) => points(untrained?.accuracy)],
  cases: [(row) => row.cases, (row) => thousands(row.cases)],
};
if (!PAGE.untrained) delete COLUMNS.untrained;
if (!PAGE.relations.some((row) => row.rules.head_match)) delete COLUMNS["head match"];

function ruleColumn(name) {
  const share = (row) => row.rules[name]?.accuracy;
  const said = ({ rule_texts: texts }) => texts[name] && el("span.quiet", ` ${texts[name]}`);
  return [share, (row) => [points(share(row)), said(row)], name];
}

let chosen = null; // the relation whose map is drawn
let at = null; // the head that is told of: {layer, head}
let sorted = { name: null, down: true };

// --- the table -------------------------------------------------------------------------------------------------

function shown() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const least = Number(byId("least").value) || 1;
  const rows = PAGE.relations.filter(
    ({ best, subtype, relation }) =>
      best?.scored_on >= least && (byId("subtypes").checked || !subtype) && relation.toLowerCase().includes(wanted),
  );
  if (!sorted.name) return rows;
  const value = (row) => COLUMNS[sorted.name][0](row) ?? -1;
  return rows.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (sorted.down ? -1 : 1));
}

/** What is done with a click, or with Enter. */
const chosenBy = (act) => ({ tabindex: 0, onclick: act, onkeydown: (event) => event.key === "Enter" && act() });

function drawTable() {
  const headings = Object.keys(COLUMNS).map((name) => {
    const order = sorted.name === name && (sorted.down ? "descending" : "ascending");
    const sort = () => {
      sorted = { name, down: sorted.name === name ? !sorted.down : !["relation", "direction"].includes(name) };
      drawTable();
    };
    return el("th", { scope: "col", "aria-sort": order }, chosenBy(sort), name);
  });
  const rows = shown().map((row) => {
    const cells = Object.values(COLUMNS).map(([, text, rule]) =>
      el("td", { class: rule && rule === row.best_rule && "strongest" }, text(row)),
    );
    const choose = () => {
      [chosen, at] = [row, null];
      drawTable();
      drawMap();
    };
    const kind = row.best.beats_rules ? "tr.beats" : "tr";
    return el(kind, { "aria-selected": String(row === chosen) }, chosenBy(choose), cells);
  });
  refill(byId("relations"), el("thead", el("tr", headings)), el("tbody", rows));
}

// --- the map ---------------------------------------------------------------------------------------------------

function drawMap() {
  if (!chosen) return;
  const { relation, direction, cases, ahead, correct, best } = chosen;
  byId("map-title").textContent = `Every head: ${relation}, ${direction}`;
  const causal = ` The model is causal: ${thousands(ahead)} words that stand ahead are no cases, neither of heads nor of rules.`;
  const over = `Per cent of ${thousands(cases)} cases, all sentences; layers down, heads across.`;
  byId("map-lead").textContent = over + (ahead ? causal : "");
  const cells = correct.map((counts, layer) => counts.map((count, head) => mapCell(count, layer, head)));
  const rows = cells.map((own, layer) => tableRow(null, layer, own));
  refill(byId("map"), table("terms", ["", ...correct[0].keys()], rows));
  tell(at ?? best ?? PAGE.heads[0]);
}

function mapCell(count, layer, head) {
  if (!headAt(layer, head)) return ""; // a layer without attention, or with fewer heads
  const { cases, best } = chosen;
  const share = cases ? count / cases : 0;
  const kind = best?.layer === layer && best.head === head ? "td.cell.best" : "td.cell";
  const place = { "data-at": `${layer}.${head}`, onpointerenter: () => tell({ layer, head }) };
  return shade(el(kind, place, points(share, 0)), colourAt(mapTable("heat"), share));
}

/** Tell of a head below the map, and mark it there. */
function tell({ layer, head }) {
  at = { layer, head };
  const count = chosen.correct[layer][head];
  const found = `${thousands(count)} of ${thousands(chosen.cases)} (${points(count / chosen.cases)} %)`;
  byId("readout").textContent = `Head ${nameOf(at)} finds ${found}. ${headAt(layer, head).told}`;
  for (const cell of byId("map").querySelectorAll(".cell")) cell.classList.toggle("at", cell.dataset.at === nameOf(at));
}

on("map", "keydown", (event) => {
  const [down, across] = arrowStep(event) ?? [];
  if (down === undefined || !at) return;
  event.preventDefault();
  const [layers, heads] = [chosen.correct.length, chosen.correct[0].length];
  let { layer, head } = at;
  do {
    [layer, head] = [(layer + down + layers) % layers, (head + across + heads) % heads];
  } while (!headAt(layer, head));
  tell({ layer, head });
});

for (const id of ["filter", "subtypes", "least"]) on(id, "input", drawTable);
darkQuery.addEventListener("change", drawMap);
chosen = shown()[0] ?? PAGE.relations[0] ?? null;
drawTable();
drawMap();

document.documentElement.dataset.ready = "true";
