// Start the page: its controls, its facts, and the first drawing.

function startControls() {
  for (const [name, [legend, values]] of Object.entries(CHOICES)) {
    const labels = Object.entries(values).map(([value, text]) => {
      const input = el("input", { type: "radio", name, value, onchange: () => choose({ [name]: value }) });
      return el("label", input, el("span", text));
    });
    byId(name === "direction" ? "direction" : "options").append(el("fieldset", el("legend", legend), labels));
  }
  byId("options").append(byId("rescale")); // after the others
  byId("rescale").hidden = POOLED;
  on("renorm", "change", (event) => choose({ renorm: event.target.checked }));
}

function drawControls({ head }) {
  for (const name of Object.keys(CHOICES))
    for (const input of document.getElementsByName(name)) input.checked = input.value === state[name];
  byId("renorm").checked = state.renorm;
  const step = stepsOf(head).find(({ name }) => name === "weights");
  const given = head.trace.holdsWeights ? "Weights" : "Numbers as given";
  byId("weights-title").textContent = head.trace.measure?.title ?? given;
  refill(byId("weights-lead"), step && [formula(step.formula), step.sentence]);
}

function writeFacts() {
  const told = PAGE.mode === "compare" ? TRACES : TRACES.slice(-1);
  const same = told.every(({ model }) => model.name === told[0].model.name);
  const beside = told.length > 1 && told.map(({ label }) => label).join(" beside ");
  const lines = same ? [beside, told[0].facts].filter(Boolean) : told.map(({ facts }, at) => `${"AB"[at]}  ${facts}`);
  put(
    byId("facts"),
    lines.map((line) => el("span.line", line)),
  );
  const notes = new Set(TRACES.flatMap((trace) => trace.notes));
  byId("colophon").prepend(...[...notes].map((note) => el("p", note)));
}

// --- a run over training ---------------------------------------------------------------------------------------

let playing = null;

function startRun() {
  byId("run").hidden = PAGE.mode !== "steps";
  byId("step").max = TRACES.length - 1;
  on("step", "input", (event) => choose({ step: Number(event.target.value) }));
  on("play", "click", () => (playing ? stop() : play()));
}

function play() {
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
  const { label } = TRACES[state.step];
  byId("step").value = state.step;
  byId("step-name").textContent = label;
  put(byId("step"), { "aria-valuetext": label });
}

// --- begin -----------------------------------------------------------------------------------------------------

function redraw() {
  if (view) for (const draw of drawers) draw(view);
}

/** Draw for paper (white, as wide as a page), or for the screen again. */
function paper(printing) {
  onPaper = printing;
  document.documentElement.classList.toggle("printing", printing);
  redraw();
}

function start() {
  const starts = [
    startControls,
    startChoice,
    startRun,
    startMatters,
    startSaves,
    startFigure,
    startExplorer,
    writeFacts,
  ];
  for (const begin of starts) begin();
  drawers.push(drawControls, drawRun, drawChoice, drawSentences, drawFinding, drawMatters, drawGrid, drawCaption);
  drawers.push(drawHeads, drawRow, drawLinks);
  const counted = !TRACES.some((trace) => trace.overview || trace.measure);
  for (const name of ["arithmetic", "explorer"]) document.querySelector(`section.${name}`).hidden = !counted;
  if (counted) drawers.push(drawArithmetic, drawExplorer);
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
    if (innerWidth === width) return;
    width = innerWidth;
    redraw();
  });
  refresh().then(() => {
    document.documentElement.dataset.ready = "true"; // for programs that wait for the first drawing
  });
}

start();
