"""What may be changed in a model's attention while it runs: heads ablated, edges cut. Values only; models apply them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnctl.errors import UsageError
from attnctl.text import spoken_heads, spoken_range, visible_text

if TYPE_CHECKING:
    from attnctl.attention import Array

HOW = ("zero", "mean", "resample")
TOLD = {
    "zero": "each head's output is set to 0",
    "mean": "each head's output is replaced by its mean over positions",
    "resample": "each head's output is replaced by the one it has on another text of the same length",
}


@dataclass(frozen=True)
class Cut:
    """Keys hidden from queries before the softmax, so that the rest of each row shares its weight.

    Indices are positions in the text; negative ones count from the end of the text as it is at each forward call.
    `queries` None: every query after the last of the keys. `layers` or `heads` None: all of them. A query never loses
    the last key that it sees: where all would be cut, it keeps itself.
    """

    keys: tuple[int, ...]
    queries: tuple[int, ...] | None = None
    layers: frozenset[int] | None = None
    heads: frozenset[int] | None = None

    def in_layer(self, layer: int) -> bool:
        """Whether anything is cut in this layer."""
        return self.layers is None or layer in self.layers


@dataclass(frozen=True, eq=False)
class Intervention:
    """Heads ablated and edges cut, together; with neither, nothing is changed.

    `heads` maps a layer to the heads whose context (as the output projection reads it) is replaced: by 0, by its mean over
    positions, or by another text's context. `reference` holds what replaces it, layer → (heads, d_v) for mean, or
    (heads, n, d_v) for resample; without one, the mean is that over the positions of the text itself.
    """

    heads: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    cuts: tuple[Cut, ...] = ()
    how: str = "zero"
    reference: Mapping[int, Array] | None = None

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise UsageError(f"--how {visible_text(self.how)}: it is {', '.join(HOW)}")
        if self.how == "resample" and self.reference is None and self.heads:
            raise UsageError("resample takes each head's output from another text: name one as reference")

    @property
    def changes_nothing(self) -> bool:
        """Whether nothing is changed."""
        return not self.heads and not self.cuts

    def in_layer(self, layer: int) -> bool:
        """Whether anything is changed in this layer."""
        return bool(self.heads.get(layer)) or any(cut.in_layer(layer) for cut in self.cuts)

    def first_layer(self) -> int:
        """The lowest layer where something is changed; 0 where nothing is."""
        cut = [min(cut.layers) if cut.layers else 0 for cut in self.cuts]
        return min([*(layer for layer, heads in self.heads.items() if heads), *cut], default=0)

    def with_head(self, layer: int, head: int) -> Intervention:
        """The same with one more head ablated."""
        off = dict(self.heads)
        off[layer] = tuple(sorted({*off.get(layer, ()), head}))
        return Intervention(off, self.cuts, self.how, self.reference)

    @property
    def note(self) -> str:
        """What a reader of a trace must know of it."""
        return f"Off (layer.head): {spoken_heads(self.heads)}. What these heads compute is shown, and goes nowhere."

    def with_cuts(self, *cuts: Cut) -> Intervention:
        """The same with more edges cut."""
        return Intervention(self.heads, (*self.cuts, *cuts), self.how, self.reference)


def heads_off(spec: str) -> dict[int, tuple[int, ...]]:
    """Layer → heads of `23.3,0.5`; `23.0-3` is several heads, `23.*` all of a layer (an empty tuple until it is counted).

    Raises UsageError where it reads otherwise.
    """
    found: dict[int, set[int]] = {}
    whole: set[int] = set()
    for part in spec.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\.(?:(\d{1,6})(?:-(\d{1,6}))?|(\*|all))\s*", part)
        if not match:
            raise UsageError(f"--off {visible_text(spec)!r}: it reads LAYER.HEAD, several with commas: 23.3,0.5")
        layer, first, last = int(match[1]), match[2], match[3]
        if first is None:
            whole.add(layer)
            continue
        if last is not None and int(last) < int(first):
            raise UsageError(f"--off {part.strip()}: from {first} down to {last} is no range")
        found.setdefault(layer, set()).update(range(int(first), int(last or first) + 1))
    return {layer: () if layer in whole else tuple(sorted(found[layer])) for layer in sorted({*found, *whole})}


def checked_heads(
    heads: Mapping[int, Sequence[int]],
    n_layers: int,
    count: int | Callable[[int], int],
    of: str,
    *,
    every_is_empty: bool = False,
) -> dict[int, tuple[int, ...]]:
    """The heads with negative indices resolved; `count` is their number, or a function of the layer that answers it.

    Raises UsageError for a layer or a head that is not there, naming what there is.
    """
    found: dict[int, tuple[int, ...]] = {}
    for layer, several in heads.items():
        if not -n_layers <= layer < n_layers:
            raise UsageError(f"no layer {layer} in {of}: it has {spoken_range('layer', n_layers)}")
        at = layer % n_layers
        total = count(at) if callable(count) else count
        if not several and every_is_empty:
            several = range(total)
        for head in several:
            if not -total <= head < total:
                raise UsageError(f"no head {head} in layer {at} of {of}: it has {spoken_range('head', total)}")
        found[at] = tuple(sorted({head % total for head in several} | set(found.get(at, ()))))
    return found
