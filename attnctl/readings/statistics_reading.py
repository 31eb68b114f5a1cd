"""The reading of head statistics: every head of every layer of a text, or the heads that an overview holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.readings.head_statistics import HeadStatistics, head_statistics
from attnctl.readings.overview import LongRow, Overview
from attnctl.tokens import Token
from attnctl.trace.run import Run


class HeadStatisticsReading:
    """A reading of the statistics of every head; `keys` has the meaning that it has in `head_statistics`."""

    predicts = False

    def __init__(self, tokens: Sequence[Token], keys: Sequence[Token] | None = None) -> None:
        self._tokens, self._keys = tokens, keys
        self._heads: list[HeadStatistics] = []

    def take(self, layer: LayerAttention) -> None:
        """Compute the statistics of one layer. Raises AttnctlError if its scores are NaN or infinite."""
        self._heads += head_statistics(layer, self._tokens, self._keys)

    def kept_in(self, overview: Overview | LongRow, name: str) -> tuple[HeadStatistics, ...]:
        """Return the statistics that an overview holds. Raises AttnctlError if it holds no statistics of these heads."""
        statistics = overview.head_statistics if isinstance(overview, Overview) else ()
        if not statistics:
            raise AttnctlError(f"{name} holds no statistics of these heads: give the text and its model")
        return statistics

    def value(self, run: Run) -> tuple[HeadStatistics, ...]:
        """Return the statistics of all heads, layer by layer."""
        return tuple(_gated_statistics(head, run.gates.get(head.layer)) for head in self._heads)


def _gated_statistics(head: HeadStatistics, gates: Array) -> HeadStatistics:
    """Return the statistics with the mean opening of the gate; `gates` (heads, n_q) of its layer, None without gates."""
    return head if gates is None else replace(head, values={**head.values, "gate": float(gates[head.head].mean())})
