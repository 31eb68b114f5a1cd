#!/usr/bin/env bash
# CTranslate2 4.8.5: return_attention leaves out the end of the source if the model adds it itself, and rows do not sum to 1.
#
# A model with add_source_eos (every one that ct2-marian-converter makes, OPUS-MT among them) adds </s> to the source. One expects a
# weight for each token that the decoder can look at, so that a row sums to 1; Marian's own --alignment soft has that column. Here
# the column of </s> is cut off, and the other weights stay as they are: rows sum to less than 1, the less the more the decoder rests
# on </s>. The same weights saved without add_source_eos, with </s> typed at the end of the source, give the same translation and
# whole rows. The documentation of return_attention does not say which tokens have a column.
#
# This script makes one small random model, saves it both ways, and prints the rows. It exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ctranslate2==4.8.5 numpy==2.4.6
cd "$folder"
venv/bin/python - <<'PYTHON' 2>log || { cat log >&2; exit 1; }
import os

import ctranslate2
import numpy as np
from ctranslate2.specs.transformer_spec import TransformerSpec

print(f"ctranslate2 {ctranslate2.__version__}")
SIZE, SOURCE, TARGET = 16, ["<unk>", "<s>", "</s>", *"abcd"], ["<unk>", "<s>", "</s>", *"ABCD"]


def saved(adds_end):
    """Write the model to a folder; the same random numbers each time."""
    rng = np.random.default_rng(0)

    def linear(layer, rows, columns=SIZE):
        layer.weight = rng.normal(scale=0.3, size=(rows, columns)).astype(np.float32)
        layer.bias = np.zeros(rows, np.float32)

    def norm(layer):
        layer.gamma, layer.beta = np.ones(SIZE, np.float32), np.zeros(SIZE, np.float32)

    def attention(layer, sizes):
        norm(layer.layer_norm)
        for part, rows in zip(layer.linear, sizes, strict=True):
            linear(part, rows)

    def feed_forward(layer):
        norm(layer.layer_norm)
        linear(layer.linear_0, 2 * SIZE)
        linear(layer.linear_1, SIZE, 2 * SIZE)

    spec = TransformerSpec.from_config(1, 2)
    spec.encoder.embeddings[0].weight = rng.normal(size=(len(SOURCE), SIZE)).astype(np.float32)
    spec.decoder.embeddings.weight = rng.normal(size=(len(TARGET), SIZE)).astype(np.float32)
    for part in (spec.encoder, spec.decoder):
        norm(part.layer_norm)
        for layer in part.layer:
            attention(layer.self_attention, (3 * SIZE, SIZE))
            if part is spec.decoder:
                attention(layer.attention, (SIZE, 2 * SIZE, SIZE))
            feed_forward(layer.ffn)
    linear(spec.decoder.projection, len(TARGET))
    spec.register_source_vocabulary(SOURCE)
    spec.register_target_vocabulary(TARGET)
    spec.config.add_source_eos = adds_end
    spec.validate()
    os.mkdir(f"adds_{adds_end}")
    spec.save(f"adds_{adds_end}")
    return f"adds_{adds_end}"


results = []
for adds_end, source in ((True, ["a", "b", "c"]), (False, ["a", "b", "c", "</s>"])):
    (answer,) = ctranslate2.Translator(saved(adds_end), device="cpu").translate_batch(
        [source], return_attention=True, beam_size=1, min_decoding_length=3, max_decoding_length=3
    )
    weights = np.array(answer.attention[0])
    results.append((answer.hypotheses[0], weights))
    print(f"add_source_eos={adds_end}, source {' '.join(source)}: {answer.hypotheses[0]}, weights {weights.shape}")
    print(f"  rows sum to {' '.join(f'{total:.3f}' for total in weights.sum(-1))}")
(first, cut), (second, whole) = results
same = first == second and cut.shape == (3, 3) and whole.shape == (3, 4) and np.allclose(cut, whole[:, :3], atol=1e-5)
if not same or not np.allclose(whole.sum(-1), 1, atol=1e-5) or cut.sum(-1).min() > 0.7:
    raise SystemExit("the behaviour has changed")
print("the first three columns are equal: the fourth, </s>, is missing")
PYTHON
echo "as described above"
