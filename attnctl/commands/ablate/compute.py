"""`attnctl.ablate`: what each head, edge or part of a text does for a prediction."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from attnctl.checks import limits
from attnctl.checks.argument_types import check_types, require_type
from attnctl.checks.model_options import ModelOptions, with_model_options
from attnctl.checks.selection import find_edge, selected_indices
from attnctl.errors import UsageError, option_name
from attnctl.layer.interventions import HOW, Intervention
from attnctl.models import DEFAULT, Selection, opened_model, selected_places
from attnctl.readings.spans import KINDS, named_parts
from attnctl.text.tokens import checked_text
from attnctl.watched import (
    EffectRequest,
    by_cross_attention,
    measure_effects,
    off_heads,
    reference_contexts,
    watched_text,
)

if TYPE_CHECKING:
    from attnctl.checks.selection import Selection as Chosen
    from attnctl.models import Model, ModelArgument
    from attnctl.watched import Effects, Watched


@with_model_options
def ablate(
    text: str,
    model: ModelArgument = DEFAULT,
    *,
    target: str | None = None,
    against: str | None = None,
    query: int | str | None = None,
    layer: Selection = None,
    head: Selection = None,
    how: str = "zero",
    reference: str | os.PathLike[str] | None = None,
    edges: bool = False,
    edge: str | list[str] | tuple[str, ...] | None = None,
    spans: str | None = None,
    off: str | None = None,
    approximate: bool = False,
    batch_size: int | None = None,
    **options: Any,
) -> Effects:
    """Return what each head, or with `edges` each key, does for a prediction: each is removed in turn, as the command does.

    With `edge` ("gave→Mary") or `spans`, these are cut instead. For a transformers model in your own code, see
    `attnctl.effects`.

    >>> from attnctl import ablate
    >>> len(ablate("Alice will eat", model="demo").heads) > 0
    True
    """
    check_types("ablate", str, text=text, how=how)
    check_types("ablate", str | None, target=target, against=against, spans=spans, off=off)
    check_types("ablate", int | str | None, query=query)
    check_types("ablate", str | os.PathLike | None, reference=reference)
    check_types("ablate", str | list | tuple | None, edge=edge)
    check_types("ablate", int | None, batch_size=batch_size)
    check_types("ablate", bool, edges=edges, approximate=approximate)
    checked_text(text)
    for edge_name in edge or ():
        require_type("ablate", "each of edge", edge_name, str)
    layers, heads = selected_places("ablate", layer, head)
    if batch_size is not None:
        limits.BATCH_SIZE.check_value("batch_size", batch_size)
    watched, ask = ablation_of_text(
        text,
        lambda: opened_model("ablate", model, cast(ModelOptions, options)),
        layer=layers,
        head=heads,
        query=None if query is None else str(query),
        how=how,
        reference=None if reference is None else os.fspath(reference),
        edges=edges,
        edge=[edge] if isinstance(edge, str) else edge,
        spans=spans,
        off=off,
        cross=options.get("attention") is None,
        target=target,
        against=against,
        approximate=approximate,
        batch_size=batch_size,
    )
    return measure_effects(watched, ask)


def ablation_of_text(
    text: str,
    open_model: Callable[[], Model],
    *,
    layer: Chosen = None,
    head: Chosen = None,
    query: str | None = None,
    how: str = "zero",
    reference: str | None = None,
    edges: bool = False,
    edge: Sequence[str] | None = None,
    spans: str | None = None,
    off: str | None = None,
    target: str | None = None,
    against: str | None = None,
    approximate: bool = False,
    batch_size: int | None = None,
    cross: bool = True,
) -> tuple[Watched, EffectRequest]:
    """Return a watched text, and what to measure of it, from the options of `attnctl ablate`.

    With `cross`, the attention of an encoder-decoder is its cross attention. Raises UsageError for options that conflict.
    """
    if how not in HOW:
        raise UsageError(f"it is {', '.join(HOW)}", option="how", value=how)
    if how == "resample" and reference is None:
        why = f"it takes each head's output from another text: name one with {option_name('reference')}"
        raise UsageError(why, option="how", value=how)
    model = open_model().model_for(checked_text(text))
    model = by_cross_attention(model) if cross else model
    info = model.info
    base = Intervention(how=how, reference=reference_contexts(model, text, how, reference))
    if off is not None:
        base = replace(base, heads=off_heads(info, off))
    layers = selected_indices(layer, info.n_layers or 1, "layer", info.name)
    heads = selected_indices(head, info.n_heads or 1, "head", info.name)
    watched = watched_text(model, text, query, base)
    keys = watched.tokens if watched.key_tokens is None else watched.key_tokens
    pairs = [find_edge(watched.tokens, keys, edge_name) for edge_name in edge or ()]
    cut = [
        (part.name, tuple(token_index for a, b in part.ranges for token_index in range(a, b)))
        for part in (() if spans is None else named_parts(spans, watched.text, keys))
    ]
    if spans is not None and not cut:
        raise UsageError("no token of the text is in such a part", option="spans", value=spans)
    return watched, EffectRequest(
        how=how,
        sweep_heads=not (edges or edge or spans),
        layers=layers,
        heads=heads,
        every_edge=edges,
        edges=pairs,
        spans=cut,
        parts=None if spans is None else spans if spans in KINDS else "file",
        target=target,
        against=against,
        approximate=approximate,
        batch_size=batch_size,
    )
