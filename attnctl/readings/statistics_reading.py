"""The reading of head statistics: every head of every layer of a text, or those that an overview holds."""

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
    """The statistics of every head of every layer of a text; `keys` as of `head_statistics`."""

    predicts = False

    def __init__(self, tokens: Sequence[Token], keys: Sequence[Token] | None = None) -> None:
        self._tokens, self._keys = tokens, keys
        self._heads: list[HeadStatistics] = []

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer. Raises AttnctlError where its scores are NaN or infinite."""
        self._heads += head_statistics(layer, self._tokens, self._keys)

    def kept_in(self, overview: Overview | LongRow, name: str) -> tuple[HeadStatistics, ...]:
        """The statistics of an overview. Raises AttnctlError where it has none of these heads."""
        found = overview.head_statistics if isinstance(overview, Overview) else ()
        if not found:
            raise AttnctlError(f"{name} holds no statistics of these heads: give the text and its model")
        return found

    def value(self, run: Run) -> tuple[HeadStatistics, ...]:
        """The statistics, layer by layer."""
        return tuple(_gated_statistics(head, run.gates.get(head.layer)) for head in self._heads)


def _gated_statistics(head: HeadStatistics, gates: Array) -> HeadStatistics:
    """The statistics with what a learned gate lets through; `gates` (heads, n_q) of its layer, None where there are none."""
    return head if gates is None else replace(head, values={**head.values, "gate": float(gates[head.head].mean())})
