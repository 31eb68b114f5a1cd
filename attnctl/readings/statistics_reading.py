"""The reading of head statistics: every head of every layer of a text, or the heads that an overview holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, LayerTrace
from attnctl.readings.counted_rows import count_notes
from attnctl.readings.head_statistics import HeadStatistics, statistics_of_counted
from attnctl.readings.overview import LongRow, Overview
from attnctl.runtime.arrays import Bools
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import Note
from attnctl.trace.run import Run
from attnctl.trace.subject import Subject, numbers_in_text

VALUES_BEFORE_W_O = Note(
    "What sinks bring is measured by values before W_O, which is unknown here (a trace of a checkpoint does not hold it): "
    "after W_O the numbers differ, and a passing sink may be an empty one."
)


class HeadStatisticsReading:
    """A reading of the statistics of every head; the arguments are those of `statistics_of_counted`.

    The `subject` of a stored trace says whether keys were left out of it.
    """

    predicts = False

    def __init__(
        self,
        tokens: Sequence[Token],
        keys: Sequence[Token] | None = None,
        left_out: Sequence[int] = (),
        subject: Subject | None = None,
    ) -> None:
        self._tokens, self._keys, self._left_out = tokens, keys, left_out
        # the numbers, in the text, of the keys that a stored trace still has
        stored = subject is not None and not left_out and "left-out" in subject.noted
        self._numbers = numbers_in_text(tuple(tokens), tuple(keys)) if stored and keys is not None else None
        self._heads: list[HeadStatistics] = []
        self._counted: dict[int, Bools] = {}  # layer → the queries that count (n_q,)
        self._lacks_w_o = False  # whether sinks were measured by values that did not go through the layer's W_O

    def may_lag(self, layer: LayerAttention) -> bool:
        """Return true: also of a short text the statistics are computed from queries and keys."""
        return True

    def take(self, layer: LayerAttention) -> None:
        """Compute the statistics of one layer. Raises AttnctlError if its scores are NaN or infinite."""
        keys, left_out, numbers = self._keys, self._left_out, self._numbers
        if numbers is not None and layer.n_q == len(self._tokens) and layer.n_k == len(numbers):
            # with its keys in the columns of the text, the first token and the distances are those of the text
            layer, keys = _in_columns_of_text(layer, numbers), None
            left_out = [place for place in range(layer.n_k) if place not in set(numbers)]
        heads, self._counted[layer.layer] = statistics_of_counted(layer, self._tokens, keys, left_out)
        self._heads += heads
        has_sinks = any(head["sink_norm"] is not None for head in heads)
        self._lacks_w_o = self._lacks_w_o or (has_sinks and layer.output_matrix is None)

    def notes_of(self, info: ModelInfo) -> tuple[Note, ...]:
        """Return a note if some queries count in no mean, and one if sinks were measured before the model's W_O."""
        # a built-in model has its W_O in its trace, or has none
        projects = info.nature.is_network or info.nature.has_own_code
        without = (VALUES_BEFORE_W_O,) if self._lacks_w_o and projects else ()
        return (*count_notes(self._counted.values()), *without)

    def kept_in(self, overview: Overview | LongRow, name: str) -> tuple[HeadStatistics, ...]:
        """Return the statistics that an overview holds. Raises AttnctlError if it holds no statistics of these heads."""
        statistics = overview.head_statistics if isinstance(overview, Overview) else ()
        if not statistics:
            raise AttnctlError(f"{name} holds no statistics of these heads: give the text and its model")
        return statistics

    def value(self, run: Run) -> tuple[HeadStatistics, ...]:
        """Return the statistics of all heads, layer by layer."""
        return tuple(self._with_gate(head, run.gates.get(head.layer)) for head in self._heads)

    def _with_gate(self, head: HeadStatistics, gates: Array) -> HeadStatistics:
        """Return the statistics with the mean opening of the gate; `gates` (heads, n_q) of its layer, None without gates."""
        counted = self._counted[head.layer]
        if gates is None or not counted.any():
            return head
        return replace(head, values={**head.values, "gate": float(gates[head.head][counted].mean())})


def _in_columns_of_text(layer: LayerAttention, numbers: Sequence[int]) -> LayerTrace:
    """Return the weights of some keys, tokens `numbers` of the text, with a column of 0 for each token left out."""
    weights = np.zeros((len(layer.heads), layer.n_q, layer.n_q), np.float32)
    weights[:, :, list(numbers)] = layer.all_weights()
    mask = np.zeros((layer.n_q, layer.n_q), bool)
    mask[:, list(numbers)] = True if layer.mask is None else layer.mask
    return LayerTrace(layer.layer, layer.heads, layer.kv_heads, weights=weights, mask=mask, tick=layer.tick)
