// Reading the file's own data: one JSON block, and blocks of deflated bytes in base64, each unpacked when it is needed.

const PAGE = JSON.parse(byId("data").textContent);
const TRACES = PAGE.traces;

async function bytesOf(block) {
  const text = atob(byId(`b${block}`).textContent);
  const packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) packed[at] = text.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const floatsOf = async (block) => new Float32Array((await bytesOf(block)).buffer);

/** Weights as they are stored: float32, or whole numbers c with weight = top · (c / levels)². */
async function weightsOf(stored, levels) {
  if (!levels) return floatsOf(stored.blob);
  const bytes = await bytesOf(stored.blob);
  const wide = levels > 255;
  const count = wide ? bytes.length / 2 : bytes.length;
  const weights = new Float32Array(count);
  for (let at = 0; at < count; at++) {
    const code = (wide ? bytes[at] + 256 * bytes[count + at] : bytes[at]) / levels;
    weights[at] = stored.top * code * code;
  }
  return weights;
}

const keyTokens = (trace) => trace.keyTokens ?? trace.tokens;
const layerNumbers = (trace) => trace.layers.map((layer) => layer.layer);
const layerOf = (trace, number) => trace.layers.find((layer) => layer.layer === number) ?? trace.layers[0];
const headOf = (layer, number) => layer.heads.find((head) => head.head === number) ?? layer.heads[0];

const kept = new Map(); // the last heads that were unpacked, oldest first
const KEEP = 12;

/** One head, unpacked: weights (n_q × n_k), row sums, mask, and the details that the file holds. */
function readHead(trace, layerNumber, headNumber) {
  const layer = layerOf(trace, layerNumber);
  const head = headOf(layer, headNumber);
  const name = `${TRACES.indexOf(trace)}/${layer.layer}/${head.head}`;
  if (!kept.has(name)) {
    kept.set(name, unpackHead(trace, layer, head));
    if (kept.size > KEEP) kept.delete(kept.keys().next().value);
  }
  return kept.get(name);
}

async function unpackHead(trace, layer, head) {
  const names = Object.keys(head.details);
  const [weights, sums, mask, ...arrays] = await Promise.all([
    weightsOf(head.weights, trace.levels),
    head.sums === null ? null : floatsOf(head.sums),
    layer.mask === null ? null : bytesOf(layer.mask),
    ...names.map((name) => floatsOf(head.details[name][0])),
  ]);
  const details = {};
  names.forEach((name, at) => {
    const [, rows, columns] = head.details[name];
    details[name] = { data: arrays[at], rows, columns };
  });
  if (trace.overview) {
    const blocks = await Promise.all(
      head.blocks.map(async (block) => ({ ...block, weights: await floatsOf(block.blob) })),
    );
    const bins = trace.overview.rows.length;
    return {
      trace,
      layer: layer.layer,
      head: head.head,
      weights,
      sums,
      mask,
      details,
      blocks,
      links: head.links,
      rows: Array.from({ length: bins }, (_, at) => at),
      nk: weights.length / bins,
    };
  }
  const rows = layer.rows ?? trace.tokens.labels.map((_, at) => at);
  return {
    trace,
    layer: layer.layer,
    head: head.head,
    weights,
    sums,
    mask,
    sink: layer.sink === true,
    details,
    rows,
    nk: keyTokens(trace).labels.length,
  };
}

const rowOf = (array, at) => array.data.subarray(at * array.columns, (at + 1) * array.columns);

/** The words of a step, as `attnctl explain` says them. */
function stepsOf(trace, layer, head) {
  const steps = trace.steps ?? TRACES[0].steps;
  if (!steps) return [];
  const own = steps.lists[steps.of[`${layer}/${head}`] ?? 0] ?? [];
  return [...own, ...steps.whole.filter((step) => step.layer === null || step.layer === layer)];
}

const stepNamed = (trace, layer, head, name) => stepsOf(trace, layer, head).find((step) => step.name === name);
