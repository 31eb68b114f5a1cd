// The page put together: its controls, its facts, and the first drawing.

/** A choice of one among a few, as quiet words. */
function radios(name, legend, entries) {
  const labels = entries.map(([value, text]) => {
    const input = el("input", { type: "radio", name, value, onchange: () => choose({ [name]: value }) });
    return el("label", {}, input, el("span", {}, text));
  });
  return el("fieldset", {}, el("legend", {}, legend), ...labels);
}

function startControls() {
  const tokens = TRACES.map((trace) => keyTokens(trace));
  const crossed = TRACES.some((trace) => trace.crossed);
  if (!crossed)
    byId("direction").append(
      radios("direction", "What a token ", [
        ["to", "looks at"],
        ["from", "is looked at by"],
      ]),
    );
  const drops = [
    ["none", "nothing"],
    ["first", "first"],
  ];
  if (tokens.some((t) => t.special.length)) drops.push(["special", "special"]);
  const options = byId("options");
  options.append(
    radios("colour", "Colour", [
      ["linear", "linear"],
      ["log", "log"],
    ]),
  );
  options.append(
    radios(
      "map",
      "Map",
      Object.keys(PAGE.maps).map((name) => [name, name]),
    ),
  );
  if (TRACES.some((trace) => trace.overview)) return; // what is pooled already is neither merged nor left out
  options.append(radios("drop", "Leave out", drops));
  const box = el("input", {
    type: "checkbox",
    id: "renorm",
    onchange: (event) => choose({ renorm: event.target.checked }),
  });
  options.append(el("label", { class: "toggle" }, box, "rescale rows to 1"));
  if (tokens.some((t) => t.words.at(-1) < t.words.length - 1))
    options.append(
      radios("words", "Words", [
        ["pieces", "in pieces"],
        ["merged", "merged"],
      ]),
    );
}

function drawControls() {
  for (const name of Object.keys(CHOICES)) {
    for (const input of document.getElementsByName(name)) input.checked = input.value === state[name];
  }
  if (byId("renorm")) byId("renorm").checked = state.renorm;
}

const MEASURED = { rollout: "Rollout", "value-norm": "Value norms" }; // what stands in place of the weights

function drawLead() {
  const { head } = view;
  const step = stepNamed(head.trace, head.layer, head.head, "weights");
  byId("weights-title").textContent = MEASURED[head.trace.measure] ?? (head.trace.holdsWeights ? "Weights" : "Numbers as given");
  byId("weights-lead").replaceChildren(...(step ? [formula(step.formula), step.sentence] : []));
}

function factsOf({ model, tokens, layers }) {
  const heads = layers[0].heads.length;
  const sizes = [
    ["d_model", model.d_model],
    ["d_k", model.d_k],
  ]
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name} ${value}`);
  const more = [model.causal ? "causal" : null, model.seed === undefined ? null : `seed ${model.seed}`].filter(Boolean);
  return [
    model.name,
    plural(tokens.labels.length, "token"),
    layersShown(model, layers),
    plural(heads, "head"),
    ...sizes,
    ...more,
  ]
    .map((fact) => fact.replaceAll(" ", "\u00a0"))
    .join(" · ");
}

/** How many layers there are, and of which the page shows some: "layer 13 of 30", "2 of 30 layers". */
function layersShown(model, layers) {
  if (!model.n_layers || model.n_layers <= layers.length) return plural(layers.length, "layer");
  if (layers.length === 1) return `layer ${layers[0].layer} of ${model.n_layers}`;
  return `${layers.length} of ${model.n_layers} layers`;
}

function writeFacts() {
  const told = PAGE.mode === "compare" ? TRACES : TRACES.slice(-1);
  const same = new Set(told.map((trace) => trace.model.name)).size === 1;
  const compared = PAGE.mode === "compare" && same ? [`${TRACES[0].label} beside ${TRACES[1].label}`] : [];
  const lettered = told.map((trace, at) => (same ? factsOf(trace) : `${"AB"[at]}  ${factsOf(trace)}`));
  const lines = [...compared, ...(same ? lettered.slice(0, 1) : lettered)];
  byId("facts").replaceChildren(...lines.map((line) => el("span", { class: "line" }, line)));
  const notes = [...new Set(TRACES.flatMap((trace) => trace.notes))].map((note) => el("p", {}, note));
  const kbd = (key) => el("kbd", {}, key);
  const keys = el(
    "p",
    { class: "keys" },
    "Keys, once the grid has the focus: ",
    kbd("←"),
    " ",
    kbd("→"),
    " ",
    kbd("↑"),
    " ",
    kbd("↓"),
    " move, ",
    kbd("Home"),
    " ",
    kbd("End"),
    " first and last key, ",
    kbd("+"),
    " ",
    kbd("−"),
    " ",
    kbd("0"),
    " zoom, ",
    kbd("Esc"),
    " lifts the spotlight. Tab reaches everything else.",
  );
  const exact = TRACES.every((trace) => !trace.levels);
  const kept = el(
    "p",
    {},
    exact
      ? "All numbers are in this file, in full float32 precision; it needs no network."
      : "All weights are in this file, rounded as the caption says; it needs no network.",
  );
  const source = el("p", {}, `Made by ${document.querySelector('meta[name="description"]').content}.`);
  byId("colophon").append(...notes, keys, kept, source);
}

// --- a run over training ---------------------------------------------------------------------------------------

let playing = null;

function startRun() {
  if (PAGE.mode !== "steps") return;
  const host = byId("run");
  host.hidden = false;
  const slider = el("input", {
    type: "range",
    id: "step",
    min: 0,
    max: TRACES.length - 1,
    step: 1,
    "aria-label": "step of training",
    oninput: (event) => choose({ step: Number(event.target.value) }),
  });
  host.append(
    el("button", { class: "plain", type: "button", id: "play", onclick: play }, "play"),
    slider,
    el("output", { id: "step-name", for: "step" }),
  );
}

function play() {
  if (playing) return stop();
  if (state.step === TRACES.length - 1) choose({ step: 0 });
  playing = setInterval(() => (state.step < TRACES.length - 1 ? choose({ step: state.step + 1 }) : stop()), 600);
  byId("play").textContent = "pause";
}

function stop() {
  clearInterval(playing);
  playing = null;
  byId("play").textContent = "play";
}

function drawRun() {
  if (PAGE.mode !== "steps") return;
  byId("step").value = state.step;
  byId("step-name").textContent = TRACES[state.step].label;
  byId("step").setAttribute("aria-valuetext", TRACES[state.step].label);
}

// --- begin -----------------------------------------------------------------------------------------------------

function redraw() {
  tables.clear();
  if (!view) return;
  for (const draw of drawers) draw(view);
}

/** Draw for paper (white, as wide as a page), or for the screen again. */
function paper(printing) {
  onPaper = printing;
  document.documentElement.classList.toggle("printing", printing);
  redraw();
}

function start() {
  startControls();
  startRun();
  startMatters();
  startSaves();
  startFigure();
  writeFacts();
  drawers.push(drawControls, drawRun, drawChoice, drawSentences, drawMatters, drawLead, drawGrid, drawHeads, drawRow, drawLinks);
  if (TRACES.some((trace) => trace.overview || trace.measure))
    for (const name of ["arithmetic", "explorer"]) document.querySelector(`section.${name}`).hidden = true;
  else drawers.push(drawArithmetic, drawExplorer);
  beginning();
  darkQuery.addEventListener("change", redraw);
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  addEventListener("hashchange", () => {
    beginning();
    refresh();
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width || !view) return;
    width = innerWidth;
    drawSentences(view);
  });
  refresh().then(() => {
    document.documentElement.dataset.ready = "true"; // for those who wait for the first drawing
  });
}

start();
