"""What `attnctl view` does with a text whose weights are too many for a page: an overview, and a few exact blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.cli.inputs.zoom import SIZE, zoom_cells

if TYPE_CHECKING:
    from attnctl.cli.inputs.weights import Chosen
    from attnctl.readings.exact_blocks import ExactBlock
    from attnctl.readings.overview import Overview

MOST_WEIGHTS = 40_000_000  # in a page: 12 layers × 12 heads × 512 tokens, and a little more
LINKS = 3  # keys kept for each query


def survey_text(given: Chosen) -> tuple[Overview, list[ExactBlock]]:
    """The overview of a long text with its strongest links, and the blocks around them, exactly: two readings."""
    from attnctl.readings.exact_blocks import ExactBlock, telling_blocks
    from attnctl.readings.grid import GridReading, OverviewReading
    from attnctl.readings.links import LinksReading
    from attnctl.readings.rows import BlocksReading

    source, layers, heads = given
    parts = zoom_cells(source.tokens, None, "--rows", SIZE, source.text)
    columns = (
        parts if source.key_tokens == source.tokens else zoom_cells(source.key_tokens, None, "--columns", SIZE, "")
    )
    reading = OverviewReading(GridReading(parts, columns, "mass"), links=LinksReading(LINKS))
    overview = source.read(reading, layers, heads)
    blocks = telling_blocks(overview)
    found = source.read(BlocksReading(blocks), layers, heads)
    exact = [
        ExactBlock(at_layer, at_head, block[:2], block[2:], weights)
        for (at_layer, at_head), grids in found.items()
        for block, weights in zip(blocks, grids, strict=True)
    ]
    return overview, exact
