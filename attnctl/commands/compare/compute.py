"""`attnctl.compare`: two models on one text, two traces, or two texts, and which of their heads to show."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnctl.checks.argument_types import check_types, is_network, named_value
from attnctl.checks.selection import selected_indices
from attnctl.errors import UsageError
from attnctl.measures import needs_of
from attnctl.models import DEFAULT, Model, changes_of_arguments, source_of_argument
from attnctl.readings import Comparison, compare_traces
from attnctl.source import NO_CHANGES, Changes, prepare
from attnctl.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnctl.checks.selection import Selection
    from attnctl.models import ModelArgument
    from attnctl.source import Say, Source


def compare(
    a: ModelArgument | Trace,
    b: ModelArgument | Trace,
    text: str | None = None,
    *,
    text_pair: str | None = None,
    names: tuple[str, str] | None = None,
    measure: str | None = None,
    words: bool = False,
    drop: str | list[str] | tuple[str, ...] | None = None,
    renormalise: bool = False,
) -> Comparison:
    """Return the comparison of two traces, or of two models on `text`: `both_weights(layer, head)`, `largest_difference()`.

    With `text_pair`, both models read it as the second of two texts.

    >>> from attnctl import compare
    >>> compare("demo", "random", "Alice will eat pizza").names
    ('demo', 'random')
    """
    check_types("compare", str | None, text=text, text_pair=text_pair)
    check_types("compare", tuple | list | None, names=names)
    if names is not None and (len(names) != 2 or not all(isinstance(name, str) for name in names)):
        raise TypeError(f"compare(): names is two names, not {named_value(names)}")
    if text_pair is not None and text is None:
        raise TypeError("compare(): text_pair needs a text")
    changes = changes_of_arguments("compare", measure, words, renormalise, drop)
    sides = []
    for name, side in (("a", a), ("b", b)):
        if text is None:
            if not isinstance(side, Trace):
                raise TypeError(f"compare(): without a text, {name} is a Trace, not {type(side).__name__}")
            sides.append(source_of_argument("compare", side, DEFAULT, {}))
        else:
            if not (isinstance(side, (str, os.PathLike, Model)) or is_network(side)):
                raise TypeError(f"compare(): with a text, {name} is a model, not {type(side).__name__}")
            sides.append(source_of_argument("compare", text, side, {"text_pair": text_pair}))
    default_names = tuple(
        side if isinstance(side, str) else sides[index].info.name for index, side in enumerate((a, b))
    )
    return compare_sources(sides[0], sides[1], names or (default_names[0], default_names[1]), changes)


def compare_sources(
    a: Source, b: Source, names: tuple[str, str], changes: Changes = NO_CHANGES, say: Say | None = None
) -> Comparison:
    """Return the comparison of two sources, with the same changes to both; `say` receives notes on a long one."""
    instead = "compare needs them all: take a shorter text, or attnctl heatmap of each side"
    every_layer = needs_of(changes.measure) == "layers"
    traces = [
        prepare(source, changes, range(source.counts[0]) if every_layer else None, say=say).trace(instead=instead)
        for source in (a, b)
    ]
    return compare_traces(traces[0], traces[1], names)


def places_of_both(pair: Comparison, layer: Selection, head: Selection) -> tuple[tuple[int, int], ...]:
    """Return each (layer, head) that the user names, or all. Raises UsageError for one that only one of the two has."""
    of_both = "what {} and {} share".format(*pair.names)
    layers = selected_indices(layer, 1 + max(layer_index for layer_index, _ in pair.places), "layer", of_both)
    heads = selected_indices(head, 1 + max(head_index for _, head_index in pair.places), "head", of_both)
    chosen = tuple(
        (layer_index, head_index)
        for layer_index, head_index in pair.places
        if (layers is None or layer_index in layers) and (heads is None or head_index in heads)
    )
    if not chosen:
        places = ", ".join(f"{layer_index}.{head_index}" for layer_index, head_index in pair.places[:8])
        raise UsageError(f"no such layer and head in {of_both}: it has {places}{', …' * (len(pair.places) > 8)}")
    return chosen


def chosen_places(pair: Comparison, layer: Selection, head: Selection) -> Sequence[tuple[int, int]]:
    """Return each (layer, head) to show: those that the user names, or the most telling one.

    Raises UsageError for a layer or head that only one of the two has.
    """
    chosen = places_of_both(pair, layer, head)
    if layer is None and head is None:
        return [pair.telling_place()]
    # if only the layer or only the head is named, the other is chosen, unless it is "all"
    one_is_open = layer is None or head is None
    return [max(chosen, key=pair.gap_of_head)] if one_is_open and "all" not in (layer, head) else chosen
