"""Two traces compared: A, B and B - A for each chosen layer and head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnctl.measures import joins_heads
from attnctl.readings import Comparison
from attnctl.render import Form, Grid, Line, token_label
from attnctl.text import number_text

INDENT = 5


def comparison_forms(pair: Comparison, places: Sequence[tuple[int, int]], precision: int = 2) -> Iterator[Form]:
    """Yield the grids of each (layer, head), then the largest difference over all heads."""
    rows, columns = ([token_label(name) for name in side] for side in pair.axis_labels())
    for layer, head in places:
        yield ""
        yield Line(f"layer {layer}, {pair.head_text(head)}", "bold accent", INDENT)
        _, _, i, j = pair.largest_difference(layer, head)
        masks = pair.whole_masks(layer)
        for side, (trace, array, mask) in enumerate(
            zip((pair.a, pair.b), pair.whole_weights(layer, head), masks, strict=True)
        ):
            cell, names = (i, j), (rows, columns)
            if pair.aligned is not None:  # each with all its tokens
                cell = (pair.aligned.queries[i][side], pair.aligned.keys[j][side])
                names = (
                    [token_label(token.text) for token in trace.tokens],
                    [token_label(token.text) for token in trace.key_axis],
                )
            yield ""
            yield Line(token_label(pair.side_name(side)), "bold", INDENT, cut=True)
            yield Grid(array, *names, precision, mask=mask, heat=True, marks=cell[:1], must=cell)
        a, b = pair.both_weights(layer, head)
        *_, mask = pair.both_masks(layer)
        yield ""
        yield Line("B - A", "bold", INDENT)
        yield Grid(b - a, rows, columns, precision, mask=mask, change=True, marks=(i,), must=(i, j))
        if (hidden := pair.hidden_in_one(layer)) is not None:
            yield ""
            note = f"{hidden.sum():,} of {hidden.size:,} places are hidden in one of the two: no weights to compare"
            yield Line(note, "dim", INDENT)
    if note := pair.unmatched_tokens():
        yield ""
        yield Line(note, "dim", INDENT)
    yield ""
    largest = pair.largest_difference()
    if len(places) == 1 and places[0] != largest[:2] and pair.gap_of_head(places[0]):
        finds = ", ".join(pair.a.model.roles_of_heads().get(places[0], ()))
        in_head = f"the largest change in this head{f', which finds {finds}' if finds else ''}"
        yield _change_line(pair, pair.largest_difference(*places[0]), precision, in_head)
    layer, head, i, j = largest
    x, y = (float(side[i, j]) for side in pair.both_weights(layer, head))
    if x == y:
        where = "Where both may look, " if pair.hidden_in_one(layer) is not None else ""
        yield Line(f"{where}A and B are the same, to the last bit.", "bold accent", INDENT)
        return
    of_head = "all heads together" if joins_heads(pair.a.measure) else f"head {head}"
    yield _change_line(pair, largest, precision, f"the largest change of all, in layer {layer}, {of_head}")


def _change_line(pair: Comparison, cell: tuple[int, int, int, int], precision: int, note: str) -> Line:
    """Return a line on how one cell (layer, head, query, key) changes from A to B."""
    layer, head, i, j = cell
    rows, columns = ([token_label(name) for name in side] for side in pair.axis_labels())
    x, y = (number_text(float(side[i, j]), precision) for side in pair.both_weights(layer, head))
    return Line([(f"{rows[i]} → {columns[j]}  {x} → {y}", "bold accent"), (f"   {note}", "dim")], indent=INDENT)
