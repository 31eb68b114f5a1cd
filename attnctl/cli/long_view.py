"""What `attnctl view` does with a text whose weights are too many for a page: an overview, and a few exact blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.cli import options as o

if TYPE_CHECKING:
    from attnctl.models import Model
    from attnctl.readings.exact_blocks import ExactBlock
    from attnctl.readings.overview import Overview, Part
    from attnctl.tokens import Token

MOST_WEIGHTS = 40_000_000  # in a page: 12 layers × 12 heads × 512 tokens, and a little more
SIZE = 256  # cells a side of an overview
LINKS = 3  # keys kept for each query


def long_tokens(model: Model, text: str, layer: str | None, head: str | None) -> tuple[Token, ...] | None:
    """The tokens of a text that is too long to keep all its weights; None for another."""
    from attnctl.tokens import checked

    tokens = model.tokenize(checked(text))
    info = model.info
    layers, heads = chosen(model, layer, head)
    many = len(layers or range(info.n_layers or 1)) * len(heads or range(info.n_heads or 1))
    return tokens if many * len(tokens) ** 2 > MOST_WEIGHTS else None


def chosen(model: Model, layer: str | None, head: str | None) -> tuple[list[int] | None, list[int] | None]:
    """The layers and heads asked for; None: all."""
    info = model.info
    layers = o.selection(layer, info.n_layers or 1, "layer", info.name)
    return layers, o.selection(head, info.n_heads or 1, "head", info.name)


def surveyed(
    model: Model, text: str, tokens: tuple[Token, ...], layer: str | None, head: str | None
) -> tuple[Overview, list[ExactBlock]]:
    """The overview of a long text with its strongest links, and the blocks around them, exactly: two readings."""
    from attnctl.readings.exact_blocks import ExactBlock, telling_blocks
    from attnctl.readings.grid import GridReading
    from attnctl.readings.links import LinksReading
    from attnctl.readings.rows import BlocksReading
    from attnctl.readings.survey import OverviewReading
    from attnctl.sources import TextSource

    layers, heads = chosen(model, layer, head)
    parts = cells(tokens, text)
    source = TextSource(model, text, tokens)
    reading = OverviewReading(GridReading(parts, parts, "mass"), links=LinksReading(LINKS))
    overview = source.read(reading, layers, heads)
    blocks = telling_blocks(overview)
    found = source.read(BlocksReading(blocks), layers, heads)
    exact = [
        ExactBlock(at_layer, at_head, block[:2], block[2:], weights)
        for (at_layer, at_head), grids in found.items()
        for block, weights in zip(blocks, grids, strict=True)
    ]
    return overview, exact


def cells(tokens: tuple[Token, ...], text: str) -> tuple[Part, ...]:
    """The tokens in at most SIZE even cells, each named by its position and the beginning of its text."""
    from attnctl.blockwise import even
    from attnctl.readings.overview import Part, snippet

    return tuple(Part(snippet(tokens, a, b, text), ((a, b),)) for ((a, b),) in even(0, len(tokens), SIZE))
