"""`attnctl explain` on a long text: one exact row in the terminal, the strongest links as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnctl.cli import options as o
from attnctl.cli.lengthy import check_cost, progress
from attnctl.cli.output import put, show
from attnctl.errors import AttnctlError

if TYPE_CHECKING:
    from attnctl.readings.overview import LongRow, Overview
    from attnctl.tokens import Token

TOP = 10  # links of a query, unless told otherwise
LARGEST = 500e6  # bytes of JSON


def explain_long(
    model: Any,
    text: str,
    tokens: tuple[Token, ...],
    form: str,
    output: str | None,
    *,
    layer: str | None,
    head: str | None,
    query: str | None,
    top: int | None,
    spans: str | None,
) -> None:
    """Write what a long text comes to; `form` is as of explain. Raises AttnctlError where it would be too large."""
    from attnctl.tokens import find

    info = model.info
    layers = o.selection(layer, info.n_layers or 1, "layer", info.name)
    heads = o.selection(head, info.n_heads or 1, "head", info.name)
    count = len(layers or range(info.n_layers or 1)) * len(heads or range(info.n_heads or 1))
    if form == "npz":
        raise AttnctlError(
            f"a trace of {len(tokens):,} tokens and {count} heads is about {count * 12e-9 * len(tokens) ** 2:.1f} GB: write "
            ".json, the strongest links of each query, or see attnctl heatmap and attnctl heads"
        )
    at = None if query is None else find(tokens, query)
    if form == "json" and at is None:
        _write(_links(model, text, tokens, layers, heads, count, top or TOP), output)
        return
    row = _row(model, text, tokens, layers, heads, count, at)
    if form == "json":
        _write(row, output)
        return
    from attnctl.readings.spans import parts_of
    from attnctl.render.terminal.row import Row

    shown = Row(row, parts_of(spans or _natural(text), text, tokens), top or TOP)
    if output is None or output == "-":
        show(shown)
        return
    from attnctl.render.terminal.console import as_svg, as_text

    saved = as_svg(shown, "attnctl explain") if form == "svg" else as_text(shown)
    put(saved.encode(), output)


def _row(
    model: Any,
    text: str,
    tokens: tuple[Token, ...],
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    count: int,
    at: int | None,
) -> LongRow:
    from attnctl.readings.rows import RowReading
    from attnctl.sources import TextSource

    if at is None:
        at = len(tokens) - 1
        o.say((f"the text has {len(tokens):,} tokens: shown is where the last one looks (--query names another)",))
    with progress(f"{len(tokens):,} tokens, {count} heads") as tick:
        row = TextSource(model, text, tokens).read(RowReading(at), layers, heads, tick)
    o.say(row.notes)
    return row


def _links(
    model: Any,
    text: str,
    tokens: tuple[Token, ...],
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    count: int,
    top: int,
) -> Overview:
    from attnctl.readings.links import LinksReading
    from attnctl.readings.survey import OverviewReading
    from attnctl.sources import TextSource

    size = 16.0 * count * len(tokens) * min(top, len(tokens))
    if size > LARGEST:
        raise AttnctlError(
            f"the {top} strongest links of {len(tokens):,} tokens in {count} heads are about {size / 1e9:.1f} GB of JSON: "
            "choose with --layer, --head or --query, or fewer with --top"
        )
    check_cost(model.info, len(tokens), count)
    with progress(f"{len(tokens):,} tokens, {count} heads") as tick:
        reading = OverviewReading(links=LinksReading(top))
        found = TextSource(model, text, tokens).read(reading, layers, heads, tick)
    o.say(found.notes)
    return found


def _natural(text: str) -> str:
    """The parts a text falls into by itself: paragraphs where blank lines part it in a few, lines where not."""
    paragraphs = text.count("\n\n")
    return "paragraphs" if 1 <= paragraphs <= 150 or text.count("\n") > 150 else "lines"


def _write(found: Overview | LongRow, output: str | None) -> None:
    from attnctl.formats.overview_json import overview_to_json

    put(overview_to_json(found) + b"\n", output)
