"""The strongest links as a reading: the keys that each query attends to most."""

from __future__ import annotations

from collections.abc import Callable

from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, Run
from attnctl.readings.overview import Links, LongRow, Overview


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

    def kept_in(
        self, overview: Overview | LongRow, wanted: Callable[[int, int], bool], name: str
    ) -> dict[tuple[int, int], Links]:
        """The links of an overview, the strongest of each query. Raises AttnctlError where it has fewer."""
        links = overview.links if isinstance(overview, Overview) else {}
        found = {at: link for at, link in links.items() if wanted(*at)}
        held = min((link.keys.shape[1] for link in found.values()), default=0)
        if held < min(self._count, len(overview.key_axis)):
            links_held = f"{held} links a query, not {self._count}" if held else "no links of single queries"
            raise AttnctlError(f"{name} holds {links_held}: give the text and its model")
        return {at: Links(link.keys[:, : self._count], link.weights[:, : self._count]) for at, link in found.items()}

    def value(self, run: Run) -> dict[tuple[int, int], Links]:
        """(layer, head) → its links."""
        return self._links
