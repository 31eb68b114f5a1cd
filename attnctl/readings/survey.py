"""Several readings of a text in one run, put together as an Overview; no n × n weights are held."""

from __future__ import annotations

from collections.abc import Callable

from attnctl.layer import LayerAttention, Run
from attnctl.readings.grid import GridReading
from attnctl.readings.head_statistics import HeadStatisticsReading
from attnctl.readings.links import LinksReading
from attnctl.readings.overview import LongRow, Overview


class OverviewReading:
    """A grid, the statistics of each head, the strongest links: whichever of them are given."""

    predicts = False

    def __init__(
        self,
        grid: GridReading | None = None,
        statistics: HeadStatisticsReading | None = None,
        links: LinksReading | None = None,
    ) -> None:
        self._grid, self._statistics, self._links = grid, statistics, links

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer. Raises AttnctlError where its scores are NaN or infinite."""
        for reading in (self._grid, self._statistics, self._links):
            if reading is not None:
                reading.take(layer)

    def kept_in(self, overview: Overview | LongRow, wanted: Callable[[int, int], bool], name: str) -> Overview:
        """What an overview holds of it. Raises AttnctlError where it does not hold what is asked for."""
        return Overview(
            overview.text,
            overview.tokens,
            overview.model,
            None if overview.keys_of == overview.tokens else overview.keys_of,
            grid=None if self._grid is None else self._grid.kept_in(overview, wanted, name),
            facts=() if self._statistics is None else self._statistics.kept_in(overview, wanted, name),
            links={} if self._links is None else self._links.kept_in(overview, wanted, name),
            notes=overview.notes,
        )

    def value(self, run: Run) -> Overview:
        """The overview."""
        return Overview(
            text=run.text,
            tokens=run.tokens,
            model=run.known_model,
            key_tokens=run.key_tokens,
            grid=None if self._grid is None else self._grid.value(run),
            facts=() if self._statistics is None else self._statistics.value(run),
            links={} if self._links is None else self._links.value(run),
            notes=run.notes,
        )
