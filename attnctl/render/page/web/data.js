// Read the arrays in the file: blocks of bytes in base64, most of them deflated, each unpacked when it is needed.

const TRACES = PAGE.traces;

/** Return the bytes of a block; null for none. Those of the first drawing wait for nothing, so that it precedes the load event. */
async function bytesOf(block) {
  if (block === null) return null;
  const stored = byId(`b${block}`);
  const text = atob(stored.textContent);
  const packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) packed[at] = text.charCodeAt(at);
  if ("inflated" in stored.dataset) return packed;
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const floatsOf = async (block) => (block === null ? null : new Float32Array((await bytesOf(block)).buffer));

/** Return weights, which are stored as float32, or as whole numbers c with weight = top · (c / levels)². */
async function weightsOf({ blob, top }, levels) {
  if (!levels) return floatsOf(blob);
  const bytes = await bytesOf(blob);
  const wide = levels > 255;
  const count = wide ? bytes.length / 2 : bytes.length;
  return Float32Array.from({ length: count }, (_, at) => {
    const code = (wide ? bytes[at] + 256 * bytes[count + at] : bytes[at]) / levels;
    return top * code * code;
  });
}

const keyTokens = (trace) => trace.keyTokens ?? trace.tokens;
const layerOf = (trace, number) => trace.layers.find((layer) => layer.layer === number) ?? trace.layers[0];
const headOf = (layer, number) => layer.heads.find((head) => head.head === number) ?? layer.heads[0];

const kept = new Map(); // the heads that were unpacked last, the oldest first
const KEEP = 12;

/** Return one head, unpacked: weights (n_q × n_k), row sums, mask, and the details in the file. */
function readHead(trace, layerNumber, headNumber) {
  const layer = layerOf(trace, layerNumber);
  const head = headOf(layer, headNumber);
  if (!kept.has(head)) {
    kept.set(head, unpackHead(trace, layer, head));
    if (kept.size > KEEP) kept.delete(kept.keys().next().value);
  }
  return kept.get(head);
}

async function unpackHead(trace, layer, head) {
  const rows = layer.rows ?? range(0, trace.tokens.labels.length);
  const weights = await weightsOf(head.weights, trace.levels);
  const details = {}; // name → the vector of a token
  for (const [name, [block, , columns]] of Object.entries(head.details)) {
    const array = await floatsOf(block);
    details[name] = (at) => array.subarray(at * columns, (at + 1) * columns);
  }
  const sums = await floatsOf(head.sums);
  const hidden = await bytesOf(layer.hidden);
  const blocks = await Promise.all(
    (head.blocks ?? []).map(async (block) => {
      return { ...block, weights: await floatsOf(block.blob), hidden: await bytesOf(block.hidden) };
    }),
  );
  return { ...layer, ...head, trace, rows, nk: weights.length / rows.length, weights, details, sums, hidden, blocks };
}

/** Return the words of the steps of a head, the same as in `attnctl explain`. */
function stepsOf({ trace, layer, head }) {
  const steps = trace.steps ?? TRACES[0].steps;
  if (!steps) return [];
  const own = steps.lists[steps.of[`${layer}/${head}`] ?? 0] ?? [];
  return [...own, ...steps.whole.filter((step) => step.layer === null || step.layer === layer)];
}
