"""Other readings of the weights: by words, by the values they carry, through all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnctl import tokens as cutting
from attnctl.arrays import as_numpy
from attnctl.errors import UsageError
from attnctl.layer import LayerAttention
from attnctl.readings.traces.trace import LayerTrace, Trace
from attnctl.text import number_list
from attnctl.tokens import Token

MEASURES = ("weights", "value-norm", "rollout")

WORDS = (
    "Pieces are merged into words: weights to a split word are added up, those from it averaged (Clark et al. 2019, "
    "section 4.1)."
)
UNPLACED = "Tokens that are not of the text, as a decoder's, stay pieces."
VALUE_NORM = (
    "Shown is the length of each weighted value, ‖weight × value‖, as a share of its row, instead of the weight (Kobayashi "
    "et al. 2020{w_o})."
)
ROLLOUT = (
    "Shown is attention rollout (Abnar & Zuidema 2020): the heads' mean, half of it the token itself for the residual "
    "stream, multiplied through the layers up to this one."
)


def check_measure(measure: str | None, chosen_heads: bool = False) -> None:
    """Raise UsageError where `measure` is none, or does not go with a choice of heads."""
    if measure is not None and measure not in MEASURES:
        raise UsageError(f"no measure {measure!r}: it is {', '.join(MEASURES)}")
    if measure == "rollout" and chosen_heads:
        raise UsageError("--measure rollout takes the mean of every head: give no --head")


# --- words -------------------------------------------------------------------------------------------------------


def by_words(trace: Trace) -> Trace:
    """`trace` with its pieces merged into words; rows still sum to 1. Of the arrays, weights and mask remain.

    Weights to a split word are summed, from a split word averaged (Clark et al. 2019). Special and generated tokens stay
    as they are.
    """
    keys = word_groups(trace.key_axis, trace.text)
    queries = keys if trace.key_tokens is None else word_groups(trace.tokens, trace.text)
    layers = []
    for layer in trace.layers:
        kept = list(range(len(trace.tokens))) if layer.rows is None else list(layer.rows)
        rows = [[kept.index(i) for i in group if i in kept] for group in queries]
        whole = [(word, places) for word, places in enumerate(rows) if places]
        merged = None
        if layer.weights is not None:
            columns = np.add.reduceat(layer.weights, [group[0] for group in keys], axis=-1)  # (heads, rows, words)
            merged = np.stack([columns[:, places].mean(axis=1) for _, places in whole], axis=1)  # (heads, words, words)
        mask = layer.mask
        if mask is not None:
            shown = np.logical_or.reduceat(mask, [group[0] for group in keys], axis=-1)  # (rows, words)
            mask = np.stack([shown[places].any(axis=0) for _, places in whole])  # (words, words)
        layers.append(
            LayerTrace(
                layer.layer,
                layer.heads,
                layer.kv_heads,
                weights=merged,
                mask=mask,
                rows=None if layer.rows is None else tuple(word for word, _ in whole),
            )
        )
    place = {i: word for word, group in enumerate(queries) for i in group}
    return replace(
        trace,
        tokens=tuple(_joined_word([trace.tokens[i] for i in group], trace.text) for group in queries),
        key_tokens=None
        if trace.key_tokens is None
        else tuple(_joined_word([trace.key_tokens[j] for j in group], trace.text) for group in keys),
        layers=tuple(layers),
        embeddings=None,
        predictions=tuple(replace(p, position=place[p.position]) for p in trace.predictions),
        # without a place in the text are tokens that were generated, or are of a decoder's own text
        notes=(*trace.notes, WORDS, *(UNPLACED,) * any(t.start is None and not t.special for t in trace.tokens)),
    )


def word_groups(tokens: Sequence[Token], text: str) -> list[list[int]]:
    """Neighbouring tokens of one word, as lists of indices that cover `tokens` in order."""
    word_at: dict[int, int] = {}
    for number, span in enumerate(cutting.split_words(text)):
        assert span.start is not None and span.end is not None
        word_at |= dict.fromkeys(range(span.start, span.end), number)
    found: list[list[int]] = []
    last: int | None = None
    for i, token in enumerate(tokens):
        word = None
        if not token.special and token.start is not None and token.end is not None:
            covered = text[token.start : token.end]
            first = next((at for at, letter in enumerate(covered, token.start) if not letter.isspace()), None)
            word = None if first is None else word_at.get(first)
        if word is not None and word == last:
            found[-1].append(i)
        else:
            found.append([i])
        last = word
    return found


def _joined_word(pieces: Sequence[Token], text: str) -> Token:
    if len(pieces) == 1:
        return pieces[0]
    start, end = pieces[0].start, pieces[-1].end
    return Token(text[start:end].strip(), start=start, end=end, unknown=any(piece.unknown for piece in pieces))


# --- value norms -------------------------------------------------------------------------------------------------


def value_norm(layer: LayerAttention) -> LayerAttention:
    """The layer with each weight times the length of its value, ‖weight_ij · value_j‖, as a share of its row.

    Where W_O of the layer is at hand, a value is first sent through its head's part of it, as in Kobayashi et al. 2020.
    Raises UsageError where there are no values.
    """
    if layer.values is None:
        raise UsageError("--measure value-norm needs the values, and this source gives none")
    values, w_o = as_numpy(layer.values), layer.output_matrix  # (heads, n_k, d_v), (heads · d_v, d_out)
    if w_o is None:
        return layer.reweighted(np.linalg.norm(values, axis=-1))
    d_v = values.shape[-1]
    parts = np.stack([w_o[head * d_v : (head + 1) * d_v] for head in layer.heads]).astype(np.float64)
    grams = parts @ parts.transpose(
        0, 2, 1
    )  # (heads, d_v, d_v): ‖v W‖² = v W Wᵀ vᵀ, without a row of d_out for each key
    squares = ((values @ grams) * values).sum(-1)  # (heads, n_k)
    return layer.reweighted(np.sqrt(np.maximum(squares, 0)))


def value_norm_note(projected: bool) -> str:
    """What a reader must know of these numbers; `projected` where the values went through W_O."""
    return VALUE_NORM.format(w_o="" if projected else ", without W_O, which is not recorded here")


# --- rollout -----------------------------------------------------------------------------------------------------


def attention_rollout(trace: Trace) -> Trace:
    """Attention rollout (Abnar & Zuidema 2020): one map a layer, how much of each token has reached each row by then.

    Half of each layer is its heads' mean, half the token itself, for the residual stream; the layers are multiplied. Rows
    sum to 1. Raises UsageError where layers, heads or rows are missing, or the keys are another text's.
    """
    if trace.key_tokens is not None:
        why = "but it has keys besides its tokens" if trace.reads_itself else "not cross attention"
        raise UsageError(f"--measure rollout needs a text that reads itself, {why}")
    most = max((len(layer.heads) for layer in trace.layers), default=0)  # some models have fewer in some layers
    if trace.model.n_heads is not None and trace.layers and most < trace.model.n_heads:
        check_measure("rollout", chosen_heads=True)
    reached = np.eye(len(trace.tokens), dtype=np.float64)  # (n, n)
    seen = np.eye(len(trace.tokens), dtype=bool)  # (n, n), what a row can have been reached by
    layers = []
    for expected, layer in enumerate(trace.layers):
        if layer.layer != expected or layer.weights is None or layer.rows is not None:
            raise UsageError(
                f"--measure rollout multiplies every layer from 0 on, and layer {expected} of {trace.model.name} is not "
                f"there whole: its attention is in layers {number_list(part.layer for part in trace.layers)}"
            )
        mean = layer.weights.astype(np.float64).mean(axis=0)  # (n, n)
        reached = (0.5 * mean + 0.5 * np.eye(len(mean))) @ reached  # (n, n)
        reached /= reached.sum(axis=-1, keepdims=True)  # a sink may have kept a part
        if layer.mask is not None:
            own = np.eye(len(seen), dtype=bool)
            seen = (layer.mask | own).astype(np.float32) @ seen > 0
        else:
            seen = np.ones_like(seen)
        mask = None if seen.all() else seen
        layers.append(LayerTrace(layer.layer, (0,), (0,), weights=reached[None].astype(np.float32), mask=mask))
    model = replace(trace.model, n_heads=1, n_kv_heads=1, causal=None, finds=None)  # `finds` is of single heads
    return replace(
        trace, model=model, layers=tuple(layers), predictions=(), measure="rollout", notes=(*trace.notes, ROLLOUT)
    )
