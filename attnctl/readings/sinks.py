"""Sinks on a map of weights: which keys take much of the attention of some head, and how to see the other keys.

A sink is the first token, a special token or a mark that gets SINK_MASS or more of a head's attention, and at least OF_EVEN
times its share of uniform attention: with few keys uniform attention gives each key a large share.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnctl.errors import option_name
from attnctl.layer import LayerTrace
from attnctl.readings.head_statistics import SINK_MASS
from attnctl.readings.parked_attention import heads_text, other_special, parked_sentence
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import percent, visible_text
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo

OF_EVEN = 1.5  # times the share that uniform attention would give
FEWEST_ROWS = 4  # rows of a matrix of numbers: with fewer, a column may stand out by chance
WHAT = "a head parks attention there that it does not need"


class Sinks(NamedTuple):
    """The sinks of a map: the sentence below its grid, the columns, and the values of `drop` that leave them out."""

    sentence: str
    columns: tuple[int, ...] = ()
    drop: tuple[str, ...] = ()

    def caption(self, log: bool = False) -> str:
        """Return the sentence, and how to see the other keys; `log`: the colours are logarithmic already."""
        if not self.drop:
            return f"{self.sentence} {option_name('renormalise', True)} shares it among the keys."
        ways = [" ".join(option_name("drop", name) for name in self.drop), *[option_name("log", True)] * (not log)]
        return f"{self.sentence} To see past {'it' if len(self.columns) == 1 else 'them'}: {' or '.join(ways)}."


class Cells(NamedTuple):
    """The cells of a map, each a share of its row: layer and head → (rows, columns), masks by layer."""

    weights: Mapping[tuple[int, int], Floats]
    masks: Mapping[int, Bools]
    keys: Sequence[Token]
    numbers: Sequence[int]  # the number in the text of each column's first token
    counts: Sequence[int]  # the number of tokens of each column
    own_row: int | None = None  # the row of the first token, if the text reads itself
    learned: bool = False  # whether the missing part of a row went to a learned sink
    is_remainder: bool = False  # whether keys were left out, and the cells are shares of what remains


def may_have_sinks(model: ModelInfo, rows: int, reads_itself: bool) -> bool:
    """Return whether a column of large weights of a map with `rows` rows may be a sink.

    A head of weights that was measured to find a relation parks nothing: it looks at the word that it finds. The demo's
    heads keep attention on the token itself. In a checkpoint such heads are few.
    """
    if model.nature.is_given:
        return reads_itself and rows >= FEWEST_ROWS
    return model.nature.is_network or model.nature.is_trained and not model.nature.is_demo and model.finds is None


def least_sink_share(even: Floats, rows: int = FEWEST_ROWS) -> Floats:
    """Return the share of attention from which keys are sinks, by the share `even` that uniform attention gives each.

    It is infinite with fewer than FEWEST_ROWS rows.
    """
    return np.maximum(SINK_MASS, OF_EVEN * even) if rows >= FEWEST_ROWS else np.full_like(even, np.inf)


def _rows_that_see(cells: Cells, layer: int, rows: int) -> Bools:
    """Return which rows of a layer see any column → (rows,)."""
    mask = cells.masks.get(layer)
    return np.ones(rows, bool) if mask is None else np.asarray(mask.any(1), bool)


def sinks_of_cells(cells: Cells) -> Sinks | None:
    """Return the sinks of a map; None if no head has one."""
    places = list(cells.weights)
    any_weights = next(iter(cells.weights.values()))
    seeing = np.any([_rows_that_see(cells, layer, len(any_weights)) for layer, _ in places], axis=0)  # (rows,)
    rows = [row for row in np.flatnonzero(seeing).tolist() if row != cells.own_row]
    if not places or not rows or len(cells.keys) < 2:
        return None
    shares = np.stack([cells.weights[place][rows].mean(axis=0, dtype=np.float64) for place in places])  # (heads, n_k)
    if cells.learned:
        return _learned_sink(places, 1 - shares.sum(axis=1))
    kinds = {
        column: kind
        for column, key in enumerate(cells.keys)
        if (kind := _kind(key, cells.numbers[column], cells.counts[column]))
    }
    columns = list(kinds)
    if not columns:
        return None
    even = {layer: _even_shares(cells, layer, rows) for layer in {layer for layer, _ in places}}
    thresholds = np.stack([least_sink_share(even[layer]) for layer, _ in places])  # (heads, n_k)
    taking = (shares >= thresholds)[:, columns]  # (heads, candidates)
    sinks = [column for column, heads in zip(columns, taking.T, strict=True) if heads.any()]
    if not sinks:
        return None
    parts = _named_shares(cells, shares.mean(axis=0), sinks, kinds)
    return Sinks(
        f"{_beginning(sinks, kinds, int(taking.any(axis=1).sum()), len(places))} "
        f"{parked_sentence(heads_text(places), parts, cells.is_remainder)}",
        tuple(sinks),
        _ways_to_drop(cells, sinks, kinds),
    )


def sinks_of_heads(trace: Trace, layer: LayerTrace) -> list[Sinks | None]:
    """Return the sinks of each head of a layer; None for a head without a sink."""
    rows = range(len(trace.tokens)) if layer.rows is None else layer.rows
    if layer.weights is None or trace.measure is not None or "no-weights" in trace.noted:
        return [None] * len(layer.heads)
    if not may_have_sinks(trace.model, len(rows), trace.reads_itself):
        return [None] * len(layer.heads)
    masks = {} if layer.mask is None else {layer.layer: layer.mask}
    first = rows.index(0) if trace.reads_itself and 0 in rows else None
    is_remainder = trace.noted >= {"rescaled", "left-out"}
    arguments = masks, trace.key_axis, trace.key_numbers, [1] * len(trace.key_axis), first
    learned = layer.sink_weights is not None
    return [
        sinks_of_cells(Cells({(layer.layer, head): weights}, *arguments, learned=learned, is_remainder=is_remainder))
        for head, weights in zip(layer.heads, layer.weights, strict=True)
    ]


def _kind(key: Token, number: int, count: int) -> str:
    """Return "first", "special" or "mark"; empty for a word, which cannot be a sink."""
    if number == 0 and not key.seconds:
        return "first"
    if count > 1:
        return ""
    word = key.text.strip()
    mark = word != "" and all(unicodedata.category(sign)[0] == "P" for sign in word)
    return "special" if key.special else "mark" if mark else ""


def _even_shares(cells: Cells, layer: int, rows: Sequence[int]) -> Floats:
    """Return the mean share of each key if each of `rows` gave the same weight to every key that it sees → (n_k,)."""
    counts = np.asarray(cells.counts, dtype=np.float64)  # (n_k,)
    mask = cells.masks.get(layer)
    visible = np.broadcast_to(counts, (len(rows), len(counts))) if mask is None else mask[rows] * counts  # (rows, n_k)
    even: Floats = (visible / np.maximum(visible.sum(axis=1, keepdims=True), 1)).mean(axis=0)  # (n_k,)
    return even


def _beginning(sinks: Sequence[int], kinds: Mapping[int, str], having: int, heads: int) -> str:
    first = [kinds[column] for column in sinks] == ["first"]
    many = f" in {having} of {heads} heads" if heads > 1 else ""
    if len(sinks) == 1:
        column = "first column, which stands out," if first else "column that stands out"
        return f"The {column} is a sink{many}: {WHAT}."
    return f"The columns that stand out are sinks{many}: {WHAT}."


def _named_shares(
    cells: Cells, mean: Floats, sinks: Sequence[int], kinds: Mapping[int, str]
) -> list[tuple[float, str]]:
    """Return share and name of the first token, of the other special tokens and of each mark, if a sink is among them."""
    shares: list[tuple[float, str]] = []
    for column in sinks:
        if kinds[column] == "first":
            name = visible_text(cells.keys[column].text)
            count = cells.counts[column]
            shares.append(
                (float(mean[column]), f"the first token, “{name}”" if count == 1 else f"the first {count} tokens")
            )
        elif kinds[column] == "mark":
            shares.append(
                (float(mean[column]), f"the mark “{visible_text(cells.keys[column].text)}” ({cells.numbers[column]})")
            )
    special = [column for column, kind in kinds.items() if kind == "special"]
    if any(column in sinks for column in special):
        name = other_special([cells.keys[column] for column in special])
        name = name if shares and kinds[sinks[0]] == "first" else name.replace("other special ones", "special tokens")
        shares.append((float(mean[special].sum()), name))
    return shares[:4]


def _ways_to_drop(cells: Cells, sinks: Sequence[int], kinds: Mapping[int, str]) -> tuple[str, ...]:
    """Return the shortest list of values of `drop` that leaves the sinks out."""
    special = [column for column in sinks if cells.keys[column].special]
    if len(special) == len(sinks) and any(kinds[column] == "special" for column in sinks):
        return ("special",)
    names = [
        "first" if kinds[column] == "first" else str(cells.numbers[column])
        for column in sinks
        if kinds[column] != "special"
    ]
    return (*names, *["special"] * any(kinds[column] == "special" for column in sinks))


def _learned_sink(places: Sequence[tuple[int, int]], lacking: Floats) -> Sinks | None:
    """Return the sentence on a learned sink, which takes `lacking` (heads,) of the rows; None if it takes little."""
    having = int((lacking >= SINK_MASS).sum())
    if not having:
        return None
    of = f", {percent(SINK_MASS)} or more of {having} of them" if len(places) > 1 else ""
    beginning = f"A learned sink, which has no column, takes {percent(float(lacking.mean()))} of the attention"
    return Sinks(f"{beginning} of {heads_text(places)}{of}.")
