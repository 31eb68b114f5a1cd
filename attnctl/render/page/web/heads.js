// Small pictures of all heads of all layers; the chosen head is the one drawn large.

let builtHeads = null; // {trace, wide, thumbs}: the trace and width of the layout, and the small pictures

async function drawHeads({ head: { trace, layer: chosenLayer, head: chosenHead } }) {
  const host = byId("heads");
  host.hidden = trace.layers.length === 1 && trace.layers[0].heads.length < 2;
  if (host.hidden) return;
  const wide = host.clientWidth || 360; // different on paper, or in another window
  if (builtHeads?.trace !== trace) builtHeads = { trace, thumbs: await bytesOf(trace.thumbs.blob) };
  if (builtHeads.wide !== wide) buildHeads(host, trace, Math.max(240, wide));
  builtHeads.wide = wide;
  const map = mapTable(state.map);
  const { rows, columns } = trace.thumbs;
  host.querySelectorAll(".head").forEach((button, at) => {
    // square roots are stored: their squares are the weights; the roots make small weights visible
    const root = (cell) => builtHeads.thumbs[at * rows * columns + cell] / 255;
    const share = (cell) => (state.colour === "log" ? root(cell) : root(cell) ** 2);
    pixels(button.firstChild, rows, columns, (cell) => colourAt(map, share(cell)));
    const { layer, head } = button.dataset;
    const chosen = Number(layer) === chosenLayer && Number(head) === chosenHead;
    put(button, { "aria-checked": String(chosen), tabindex: chosen ? 0 : -1 });
  });
}

function buildHeads(host, { layers }, wide) {
  const most = Math.max(...layers.map(({ heads }) => heads.length));
  const numbers = [...new Set(layers.flatMap(({ heads }) => heads.map(({ head }) => head)))].sort((a, b) => a - b);
  const side = clamp(Math.floor((wide - 26) / most) - 7, 15, 62);
  const look = { "grid-template-columns": `auto repeat(${most}, auto)`, "--side": `${side}px` };
  const group = { role: "radiogroup", "aria-label": "Layer and head", vars: look, onkeydown: onHeadKey };
  const tick = (text) => el("span.tick", { "aria-hidden": "true" }, text);
  const rows = layers.map(({ layer, heads }) => [
    tick(layer),
    range(0, most).map((at) => (at < heads.length ? headButton(layer, heads[at].head) : el("span"))),
  ]);
  const names = el("h3", "Heads ", el("span.quiet", "layers down, heads across"));
  refill(host, names, el("div.heads", group, tick(""), numbers.slice(0, most).map(tick), rows));
}

function headButton(layer, head) {
  const name = `layer ${layer}, head ${head}`;
  const place = { "data-layer": layer, "data-head": head, "aria-label": name, title: name };
  const acts = { type: "button", role: "radio", onclick: () => choose({ layer, head }) };
  return el("button.head", acts, place, el("canvas", { "aria-hidden": "true" }));
}

function onHeadKey(event) {
  const [down, across] = arrowStep(event) ?? [];
  if (down === undefined) return;
  event.preventDefault();
  const { trace, layer, head } = view.head;
  const at = trace.layers.findIndex((other) => other.layer === layer);
  const place = trace.layers[at].heads.findIndex((other) => other.head === head);
  const { layer: nextLayer, heads } = trace.layers[clamp(at + down, 0, trace.layers.length - 1)];
  const nextHead = heads[clamp(place + across, 0, heads.length - 1)].head;
  byId("heads").querySelector(`[data-layer="${nextLayer}"][data-head="${nextHead}"]`).focus();
  choose({ layer: nextLayer, head: nextHead });
}
