"""Weights by words: the pieces of a tokenizer merged into the words that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnctl import tokens as cutting
from attnctl.layer import LayerTrace
from attnctl.readings.traces.trace import Trace
from attnctl.tokens import Token

WORDS = (
    "Pieces are merged into words: weights to a split word are added up, those from it averaged (Clark et al. 2019, "
    "section 4.1)."
)
UNPLACED = "Tokens that are not of the text, as a decoder's, stay pieces."


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
