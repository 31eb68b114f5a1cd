"""Draw a grid of heads: a row for each layer, a column for each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnctl.render.figure.layout import Panel


def layers_by_heads(values: Mapping[tuple[int, int], float | None]) -> dict[str, Any]:
    """The panel and the labels of a grid of (layer, head) → value, masked where there is none."""
    layers, heads = (sorted(set(numbers)) for numbers in zip(*values, strict=True))
    known = {place: value for place, value in values.items() if value is not None}
    array = np.array([[known.get((layer, head), np.nan) for head in heads] for layer in layers], dtype=np.float32)
    there = np.isfinite(array)  # (layers, heads)
    panel = Panel(0, 0, "", np.where(there, array, 0), there)
    labels = {"rows": tuple(map(str, layers)), "columns": tuple(map(str, heads))}
    return {"panels": (panel,), "axes": ("layer", "head"), **labels}
