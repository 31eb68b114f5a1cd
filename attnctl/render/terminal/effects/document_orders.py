"""An answer with the documents of its prompt in several orders, as tables: what each document does, what its place does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from attnctl.readings.effects.document_orders import DocumentOrders
from attnctl.render.terminal.number_grid import DIM
from attnctl.text import visible_text

LEAST_BIAS = 0.005  # of a place's looks beyond the documents' own, from which a sentence names it


class OrdersTable:
    """Means by document and by place, as a rich renderable; `top` None is all documents."""

    def __init__(self, orders: DocumentOrders, top: int | None = None) -> None:
        self.orders, self.top = orders, top

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Two tables, and what they come to."""
        orders = self.orders
        yield Text(f"The same answer with the documents in {len(orders.orders)} orders: means, and ± over the orders")
        yield Text()
        rows = [
            (
                visible_text(one.name),
                _share_text(one.looks),
                f"± {100 * one.looks_deviation:.1f}",
                _nats_text(one.matters),
                "" if one.matters_deviation is None else f"± {one.matters_deviation:.2f}",
            )
            for one in orders.document_means()[: self.top]
        ]
        yield _aligned_table(("document", "looks", "", "matters", ""), rows, options.max_width)
        yield Text()
        yield Text("by place; bias: beyond the own means of the documents that stood there", style=DIM)
        yield Text()
        rows = [
            (
                str(one.place + 1),
                _share_text(one.looks),
                points_text(one.looks_bias),
                _nats_text(one.matters),
                _nats_text(one.matters_bias),
            )
            for one in orders.place_means()
        ]
        yield _aligned_table(("place", "looks", "bias", "matters", "bias"), rows, options.max_width)
        yield Text()
        for sentence in orders_sentences(orders):
            yield Padding(Text(sentence), (0, 0, 0, 2))


def _aligned_table(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style=DIM)
    others = sum(max(len(heading), *(len(row[at]) for row in rows)) + 3 for at, heading in enumerate(headings) if at)
    for at, heading in enumerate(headings):
        if at == 0:
            longest = max(len(heading), *(len(row[0]) for row in rows))
            table.add_column(heading, width=max(8, min(longest, width - others)), overflow="ellipsis", no_wrap=True)
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def orders_sentences(orders: DocumentOrders) -> Iterator[str]:
    """What the tables come to: the document that matters most wherever it stands, the place that is looked at most."""
    firsts = orders.firsts()
    if firsts:
        name, count = next(iter(firsts.items()))
        yield f"“{visible_text(name)}” matters most in {count} of {len(orders.orders)} orders."
    places = orders.place_means()
    most = max(places, key=lambda one: one.looks_bias)
    if most.looks_bias >= LEAST_BIAS:
        yield (
            f"Position bias: at place {most.place + 1} of {len(places)} a document is looked at "
            f"{100 * most.looks_bias:.1f} points more than it is on average."
        )
    else:
        yield "Position bias: no place is looked at half a point more than its documents are on average."


def points_text(value: float) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * value:+.1f}".replace("-", "−")


def _share_text(value: float) -> str:
    return f"{100 * value:.1f} %"


def _nats_text(value: float | None) -> str:
    return "·" if value is None else f"{value:+.2f}".replace("-", "−")


def plain_orders(orders: DocumentOrders) -> Iterator[str]:
    """The same for a pipe: tab-separated, the documents, an empty line, the places."""
    yield "document\tlooks\tlooks_deviation\tmatters\tmatters_deviation\torders"
    for one in orders.document_means():
        cells = (one.looks, one.looks_deviation, one.matters, one.matters_deviation)
        yield "\t".join((visible_text(one.name), *map(_table_number, cells), str(one.orders)))
    yield ""
    yield "place\tlooks\tlooks_bias\tmatters\tmatters_bias\torders"
    for place in orders.place_means():
        cells = (place.looks, place.looks_bias, place.matters, place.matters_bias)
        yield "\t".join((str(place.place + 1), *map(_table_number, cells), str(place.orders)))


def _table_number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
