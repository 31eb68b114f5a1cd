"""Know which places of a tensor a function takes by an index, so that tokens in another order are not taken for the text.

A model may sort tokens, cluster them, or keep the best of them. Places that follow each other are a part of the tensor; any
others are noted, until a second index puts the tokens back in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from attnctl.attention import Array

TAKES = frozenset(["gather", "take_along_dim", "index_select", "__getitem__", "flip"])
PUTS = frozenset(["scatter", "scatter_add", "index_add", "index_copy"])


def taken(
    name: str, args: Sequence[Any], keywords: Mapping[str, Any], source: Array, out: Array
) -> Iterator[tuple[int, Array]]:
    """Yield each axis of `source` that a function reads by an index, with the places that it takes: (…, n) or (n,)."""
    if out.ndim != source.ndim:
        return
    if name == "__getitem__":
        yield from _indexed(args[1], source)
        return
    if name == "flip":
        dims = keywords.get("dims", args[1:])
        for dim in dims[0] if dims and isinstance(dims[0], (tuple, list)) else dims:
            yield dim % source.ndim, torch.arange(source.shape[dim]).flip(0)
        return
    if (given := axis_and_places(name, args, keywords, source.ndim)) is not None:
        yield given


def axis_and_places(name: str, args: Sequence[Any], keywords: Mapping[str, Any], ndim: int) -> tuple[int, Array] | None:
    """Return the axis of a tensor of `ndim` axes that a function reads or writes by an index, and its places."""
    order = ("input", "indices", "dim") if name == "take_along_dim" else ("input", "dim", "index")
    given = dict(zip(order, args, strict=False)) | dict(keywords)
    dim, index = given.get("dim"), given.get("indices", given.get("index"))
    if not isinstance(dim, int) or not isinstance(index, torch.Tensor):
        return None
    return dim % ndim, places_in(index, dim if index.ndim == ndim else 0)


def places_in(index: Array, dim: int) -> Array:
    """Return the places of an index, those along `dim` last; an axis along which they do not change is left out."""
    places = index.detach().movedim(dim, -1)
    for axis in range(places.ndim - 1):
        first = places.narrow(axis, 0, 1)
        if places.shape[axis] > 1 and (places.stride(axis) == 0 or bool((places == first).all())):
            places = first
    return places if places.numel() > places.shape[-1] else places.reshape(-1)


def _indexed(index: Any, source: Array) -> Iterator[tuple[int, Array]]:
    """Yield axes and places of `source[index]`: numbers, slices, lists and tensors."""
    parts = list(index) if isinstance(index, tuple) else [index]
    dots = [place for place, part in enumerate(parts) if part is Ellipsis]
    used = sum(part is not None and part is not Ellipsis for part in parts)
    parts[slice(dots[0], dots[0] + 1) if dots else slice(len(parts), None)] = [slice(None)] * (source.ndim - used)
    lists = {
        place: _as_places(part).to(source.device)
        for place, part in enumerate(parts)
        if part is not None and not isinstance(part, (int, slice))
    }
    shape: tuple[int, ...] = torch.broadcast_shapes(*(part.shape for part in lists.values()))  # type: ignore[no-untyped-call]
    spread = {place: part.expand(shape) for place, part in lists.items()}
    axis = of_result = 0
    for place, part in enumerate(parts):
        if part is None:
            of_result += place == 0 or not isinstance(parts[place - 1], int)
            continue
        places = None
        if place in spread and spread[place].ndim == len(spread):
            places = places_in(spread[place], list(spread).index(place))
        elif isinstance(part, slice) and part != slice(None):
            places = torch.arange(source.shape[axis])[part]
        elif isinstance(part, int) and parts[place + 1 : place + 2] == [None]:
            places = torch.tensor([part])
        if places is not None and axis == of_result:
            yield axis, places % source.shape[axis]
        axis += 1
        of_result += not isinstance(part, int) or parts[place + 1 : place + 2] == [None]


def _as_places(part: Any) -> Array:
    """Return an index of numbers, or of true and false, as the places that it takes."""
    places = torch.as_tensor(part)
    return places.nonzero()[:, 0] if places.dtype == torch.bool and places.ndim == 1 else places


def composed(before: Array | None, places: Array, size: int) -> Array:
    """Return places in the first tensor, of which `before` are the places in the second, that has `size` of them."""
    if before is None or before.shape[-1] != size:
        return places
    places = places.to(before.device)
    if places.ndim == 1:
        return before[..., places]
    if before.ndim == 1:
        return before[places]
    if before.numel() // size == places.numel() // places.shape[-1]:
        return before.reshape(*places.shape[:-1], size).gather(-1, places)
    return places


def in_order(places: Array, count: int) -> bool:
    """Return whether each run of `count` places counts up from 0."""
    return (
        count > 0
        and places.numel() % count == 0
        and bool((places.reshape(-1, count) == torch.arange(count, device=places.device)).all())
    )


def start_of_part(places: Array) -> int | None:
    """Return the first of places that follow each other; None for any others."""
    if places.ndim > 1 or not places.numel():
        return None
    return int(places[0]) if in_order(places - places[0], places.numel()) else None
