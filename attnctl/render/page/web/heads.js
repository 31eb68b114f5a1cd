// All heads of all layers side by side, small; the chosen one is the one drawn large.

let thumbs = null; // {trace, bytes}
let headsBuilt = null; // {trace, wide}: what they were laid out for

async function drawHeads({ head }) {
  const { trace } = head;
  const host = byId("heads");
  const count = trace.layers.reduce((sum, layer) => sum + layer.heads.length, 0);
  host.hidden = count < 2;
  host.parentElement.classList.toggle("deep", trace.layers.length > 8); // the row would stand far below
  if (host.hidden) return;
  if (thumbs?.trace !== trace) {
    thumbs = { trace, bytes: await bytesOf(trace.thumbs.blob) };
  }
  const wide = host.clientWidth; // another on paper, or in another window
  if (headsBuilt?.trace !== trace || headsBuilt.wide !== wide) {
    headsBuilt = { trace, wide };
    buildHeads(host, trace);
  }
  paintHeads();
  markHead(host);
}

function buildHeads(host, trace) {
  const most = Math.max(...trace.layers.map((layer) => layer.heads.length));
  const numbers = [...new Set(trace.layers.flatMap((layer) => layer.heads.map((head) => head.head)))].sort(
    (a, b) => a - b,
  );
  const room = Math.max(240, host.clientWidth || 360);
  const side = clamp(Math.floor((room - 26) / most) - 7, 15, 62);
  const table = el("div", {
    class: "heads",
    role: "radiogroup",
    "aria-label": "Layer and head",
    vars: { "grid-template-columns": `auto repeat(${most}, auto)`, "--side": `${side}px` },
    onkeydown: onHeadKey,
  });
  table.append(
    el("span", { class: "tick" }),
    ...numbers.slice(0, most).map((n) => el("span", { class: "tick", "aria-hidden": "true" }, String(n))),
  );
  let at = 0;
  for (const layer of trace.layers) {
    table.append(el("span", { class: "tick layer", "aria-hidden": "true" }, String(layer.layer)));
    for (let column = 0; column < most; column++) {
      const head = layer.heads[column];
      table.append(head ? headButton(layer.layer, head.head, at++, trace.thumbs) : el("span"));
    }
  }
  const heading = el("h3", {}, "Heads ", el("span", { class: "quiet" }, "layers down, heads across"));
  host.replaceChildren(heading, table);
}

function headButton(layer, head, at, { rows, columns }) {
  return el(
    "button",
    {
      type: "button",
      class: "head",
      role: "radio",
      "aria-label": `layer ${layer}, head ${head}`,
      title: `layer ${layer}, head ${head}`,
      "data-layer": layer,
      "data-head": head,
      onclick: () => choose({ layer, head }),
    },
    el("canvas", { width: columns, height: rows, "data-at": at, "aria-hidden": "true" }),
  );
}

function paintHeads() {
  if (!thumbs) return;
  const { rows, columns } = thumbs.trace.thumbs;
  const table = mapTable(state.map);
  const size = rows * columns;
  for (const canvas of byId("heads").querySelectorAll("canvas")) {
    const at = Number(canvas.dataset.at) * size;
    const c = canvas.getContext("2d");
    const image = c.createImageData(columns, rows);
    for (let cell = 0; cell < size; cell++) {
      // stored as square roots: shown squared, which is the weight, or as they are, which lifts the small ones
      const root = thumbs.bytes[at + cell] / 255;
      const step = 3 * Math.round(255 * (state.colour === "log" ? root : root * root));
      image.data.set([table[step], table[step + 1], table[step + 2], 255], 4 * cell);
    }
    c.putImageData(image, 0, 0);
  }
}

function markHead(host) {
  for (const button of host.querySelectorAll(".head")) {
    const own = Number(button.dataset.layer) === view.head.layer && Number(button.dataset.head) === view.head.head;
    button.setAttribute("aria-checked", own);
    button.tabIndex = own ? 0 : -1;
  }
}

function onHeadKey(event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step) return;
  event.preventDefault();
  const { layers } = view.head.trace;
  const at = layers.findIndex((layer) => layer.layer === view.head.layer);
  const layer = layers[clamp(at + step[0], 0, layers.length - 1)];
  const place = layers[at].heads.findIndex((head) => head.head === view.head.head);
  const head = layer.heads[clamp(place + step[1], 0, layer.heads.length - 1)];
  choose({ layer: layer.layer, head: head.head }).then(() => {
    byId("heads").querySelector('[aria-checked="true"]')?.focus();
  });
}
