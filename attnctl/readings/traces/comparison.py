"""Two traces of the same length side by side: their weights, the difference, and where it is largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnctl.arrays import Bools, Floats
from attnctl.errors import AttnctlError
from attnctl.readings.traces.trace import Trace

SCHEMA = "attnctl.comparison/1"


@dataclass(frozen=True)
class Comparison:
    """Traces `a` and `b`, narrowed to the layers and heads that both hold; differences are b - a."""

    a: Trace
    b: Trace
    names: tuple[str, str]
    places: tuple[tuple[int, int], ...]  # (layer, head), in order

    def both_weights(self, layer: int, head: int) -> tuple[Floats, Floats]:
        """Both sides' weights at one place: (n_q, n_k) each."""
        sides = []
        for trace in (self.a, self.b):
            part = trace.layer(layer)
            assert part.weights is not None
            sides.append(part.weights[part.position_of(head)])
        return sides[0], sides[1]

    def both_masks(self, layer: int) -> tuple[Bools | None, Bools | None, Bools | None]:
        """True where a query may look in A, in B, and in both: (n_q, n_k) each; None where all is seen."""
        a, b = (trace.layer(layer).mask for trace in (self.a, self.b))
        return a, b, b if a is None else a if b is None else a & b

    def hidden_in_one(self, layer: int) -> Bools | None:
        """True where one trace alone hides a key: there is no weight to compare. None where there is no such place."""
        a, b, _ = self.both_masks(layer)
        if a is None or b is None:
            alone = b if a is None else a
            return None if alone is None or alone.all() else ~alone
        return (a ^ b) if (a ^ b).any() else None

    def largest_difference(self, layer: int | None = None, head: int | None = None) -> tuple[int, int, int, int]:
        """(layer, head, query, key) where the two differ most, within what is chosen."""
        best, where = -1.0, (0, 0, 0, 0)
        for at_layer, at_head in self.places:
            if layer not in (None, at_layer) or head not in (None, at_head):
                continue
            x, y = self.both_weights(at_layer, at_head)
            gap = np.abs(y - x)  # (n_q, n_k)
            if (hidden := self.hidden_in_one(at_layer)) is not None:
                gap = np.where(hidden, 0, gap)  # (n_q, n_k)
            i, j = (int(index) for index in np.unravel_index(int(np.argmax(gap)), gap.shape))
            if gap[i, j] > best:
                best, where = float(gap[i, j]), (at_layer, at_head, i, j)
        return where

    def axis_labels(self) -> tuple[list[str], list[str]]:
        """Labels of the rows and columns: the token, or both where the texts differ there."""
        pairs = (self.a.tokens, self.b.tokens), (self.a.keys_of, self.b.keys_of)
        rows, columns = (
            [x.text if x.text == y.text else f"{x.text}/{y.text}" for x, y in zip(*sides, strict=True)]
            for sides in pairs
        )
        return rows, columns

    def comparison_document(self) -> dict[str, object]:
        """The JSON document (schema attnctl.comparison/1), arrays as NumPy float32."""
        layer, head, i, j = self.largest_difference()
        x, y = self.both_weights(layer, head)
        layers: dict[int, list[dict[str, Any]]] = {}
        for at_layer, at_head in self.places:
            u, v = self.both_weights(at_layer, at_head)
            parts: dict[str, Any] = {
                name: np.ascontiguousarray(z, np.float32) for name, z in (("a", u), ("b", v), ("difference", v - u))
            }
            if (hidden := self.hidden_in_one(at_layer)) is not None:
                parts["hidden_in_one"] = hidden
            layers.setdefault(at_layer, []).append({"head": at_head} | parts)
        rows, columns = self.axis_labels()
        return {
            "schema": SCHEMA,
            "a": {"name": self.names[0], "text": self.a.text},
            "b": {"name": self.names[1], "text": self.b.text},
            "tokens": rows,
            "key_tokens": columns,
            "largest": {
                "layer": layer, "head": head, "query": i, "key": j,
                "a": float(x[i, j]), "b": float(y[i, j]), "difference": float(y[i, j]) - float(x[i, j]),
            },
            "layers": [{"layer": at, "heads": heads} for at, heads in layers.items()],
        }  # fmt: skip


def compare_traces(a: Trace, b: Trace, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Pair two traces. Raises AttnctlError where their tokens do not align or they share no layer and head."""
    for what, ours, theirs in (("tokens", a.tokens, b.tokens), ("key tokens", a.keys_of, b.keys_of)):
        if len(ours) != len(theirs):
            counts = f"{names[0]} has {len(ours)} {what} and {names[1]} {len(theirs)}"
            hint = "--words compares whole words" if a.text == b.text else "attnctl view shows the two side by side"
            raise AttnctlError(f"{counts}, which leaves no difference to take: {hint}")
    for name, trace in zip(names, (a, b), strict=True):
        if all(layer.weights is None for layer in trace.layers):
            raise AttnctlError(f"{name} holds no weights to compare")
        if any(layer.rows is not None for layer in trace.layers):
            raise AttnctlError(f"{name} holds some query rows only: compare whole traces")
    sides = [
        [(layer.layer, head) for layer in trace.layers if layer.weights is not None for head in layer.heads]
        for trace in (a, b)
    ]
    places = tuple(place for place in sides[0] if place in set(sides[1]))
    if not places:
        raise AttnctlError(f"{names[0]} and {names[1]} share no layer and head")
    return Comparison(a, b, names, places)
