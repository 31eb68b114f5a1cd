"""The strongest links as a reading: the keys that each query attends to most."""

from __future__ import annotations

from attnctl.layer import LayerAttention, Run
from attnctl.readings.overview import Links


class LinksReading:
    """The `count` keys that each query attends to most, for each layer and head."""

    predicts = False

    def __init__(self, count: int) -> None:
        self._count = count
        self._links: dict[tuple[int, int], Links] = {}

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer."""
        keys, weights = layer.links(self._count)  # (heads, n_q, count) each
        for head, *link in zip(layer.heads, keys, weights, strict=True):
            self._links[layer.layer, head] = Links(*link)

    def value(self, run: Run) -> dict[tuple[int, int], Links]:
        """(layer, head) → its links."""
        return self._links
