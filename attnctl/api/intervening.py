"""Define `attnctl.intervene`: ablate heads and cut edges in a user's model while it runs."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from attnctl.attention import Array
from attnctl.checks.argument_types import (
    check_module,
    check_types,
    checked_pairs,
    checked_selection,
    is_network,
    require_type,
)
from attnctl.checks.selection import chosen_indices, heads_by_layer, selected_heads
from attnctl.errors import UsageError
from attnctl.layer.interventions import Cut, Intervention
from attnctl.models.huggingface.attention_interface import architecture_name
from attnctl.models.huggingface.attention_sites import transformers_parts
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.models.huggingface.network import network_info
from attnctl.models.torch.intervention import apply_to_module, check_layer_numbers

if TYPE_CHECKING:
    from torch.nn import Module


@contextmanager
def intervene(
    model: Module,
    heads: Mapping[int, int | Sequence[int]] | None = None,
    edges: Sequence[tuple[int, int]] | None = None,
    *,
    how: str = "zero",
    reference: Mapping[int, Array] | None = None,
    layer: int | Sequence[int] | None = None,
    edge_heads: int | Sequence[int] | None = None,
    attention: str | None = None,
) -> Iterator[Intervention]:
    """Ablate heads and cut edges in every forward or generate call of `model` within the context.

    >>> with attnctl.intervene(model, heads={23: [3]}, edges=[(-1, 2)]):  # doctest: +SKIP
    ...     model.generate(**inputs)

    `heads` maps a layer to the heads whose context is replaced: by 0 (`how="zero"`), by its mean over positions
    ("mean": the mean in `reference`, layer → (heads, d_v); without it, the mean over the text itself, in generation
    over the prompt), or by the context in another text ("resample": `reference`, layer → (heads, n, d_v)). If a learned
    gate multiplies the context (Qwen3-Next), the context is taken after the gate, because that is what the head adds.
    Each of `edges` is (query, key), hidden before the softmax in `layer` and `edge_heads` (None: all, an empty list:
    none); a query that would lose its only key sees itself. Negative layers, heads and positions count from the end;
    positions from the end of the text in each forward. `attention` picks encoder, decoder or cross (None: all).
    Contexts nest, and `capture` shows the changed attention. Layers of a module that is no transformers model are those of
    `capture`, counted from 0; `attention` is self (the default) or cross. Raises UsageError for a layer or head that does
    not exist, AttnctlError as `capture` does.
    """
    check_module("intervene", model)
    check_types("intervene", Mapping | None, heads=heads, reference=reference)
    check_types("intervene", str, how=how)
    check_types("intervene", str | None, attention=attention)
    pairs = () if edges is None else checked_pairs("intervene", "edges", edges)
    some_layers = _selection_or_none("layer", layer)
    some_heads = _selection_or_none("edge_heads", edge_heads)
    name = architecture_name(model)
    parts = transformers_parts(model)
    if not (parts and is_network(model)):
        if parts:
            why = f"{name} holds a transformers model: give that part, .{next(iter(parts))}, to change its attention"
            raise UsageError(why)
        changes = _changes_of_module(heads or {}, pairs, some_layers, some_heads, how, reference)
        with apply_to_module(model, changes, attention or "self"):
            yield changes
        return
    info = network_info(model, name, attention or "self")
    n_layers = info.n_layers or 1
    off = heads_by_layer(selected_heads(_places_off(heads or {}), n_layers, info.n_heads or 1, name, "heads"))
    window = None if some_layers is None else frozenset(chosen_indices(some_layers, n_layers, "layer", name))
    several = None if some_heads is None else frozenset(some_heads)
    cuts = tuple(Cut((key,), (query,), window, several) for query, key in pairs)
    intervention = Intervention(off, cuts, how, reference)
    with apply_interventions(model, [intervention], attention):
        yield intervention


def _changes_of_module(
    heads: Mapping[int, int | Sequence[int]],
    pairs: Sequence[tuple[int, int]],
    layers: Sequence[int] | None,
    edge_heads: Sequence[int] | None,
    how: str,
    reference: Mapping[int, Array] | None,
) -> Intervention:
    """Return the intervention in a module, whose layers and heads are known once it has run."""
    places = _places_off(heads)
    check_layer_numbers([*(layer for layer, _ in places), *(layers or ())])
    off = {layer: tuple(head for other, head in places if other == layer) for layer, _ in places}
    several = None if edge_heads is None else frozenset(edge_heads)
    window = None if layers is None else frozenset(layers)
    return Intervention(off, tuple(Cut((key,), (query,), window, several) for query, key in pairs), how, reference)


def _places_off(heads: Mapping[int, int | Sequence[int]]) -> list[tuple[int, int]]:
    """Return (layer, head) of the argument `heads`. Raises TypeError, naming the argument, for anything but numbers."""
    places = []
    for layer, several in heads.items():
        require_type("intervene", "a layer of heads", layer, int)
        require_type("intervene", f"heads[{layer}]", several, int, Sequence)
        numbers = _selection_or_none(f"heads[{layer}]", several) or ()
        places += [(operator.index(layer), head) for head in numbers]
    return places


def _selection_or_none(name: str, value: object) -> tuple[int, ...] | None:
    """Return the selection as `checked_selection` does, but for an empty list return an empty selection.

    An intervention may be empty, so an empty list is not an error.
    """
    empty = isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and not value
    return () if empty else checked_selection("intervene", name, value)
