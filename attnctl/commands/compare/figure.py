"""Two traces compared as a figure: the weights of A and B at one place, and their difference."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import CenteredNorm

from attnctl.formats import PLAIN, Look
from attnctl.readings import Comparison
from attnctl.render import CHANGE, LEAST_EXTENT, Panel, Panels, Scale, colour_map, colour_norm
from attnctl.text import shortened

TITLE = 120  # letters of a panel's title, which takes as many lines as it needs


def comparison_panels(pair: Comparison, layer: int, head: int, look: Look = PLAIN) -> Panels:
    """Return a picture of one head: the weights of A, the weights of B, and their difference."""
    a, b = pair.both_weights(layer, head)  # (n_q, n_k) each
    rows, columns = pair.axis_labels()
    masks = pair.both_masks(layer)
    hidden = pair.hidden_in_one(layer)
    change_of = b - a if hidden is None else np.where(hidden, 0, b - a)  # (n_q, n_k)
    top = max(float(a.max()), float(b.max()), LEAST_EXTENT) if look.vmax is None else look.vmax
    weights = Scale(colour_norm(look.vmin or 0.0, top), colour_map(look.cmap), pair.unit)
    furthest = max(float(np.abs(change_of).max()), LEAST_EXTENT)
    change = Scale(CenteredNorm(halfrange=furthest), colour_map(CHANGE), "difference")
    names = *(shortened(pair.side_name(side), TITLE, close=True) for side in (0, 1)), "B - A"
    arrays = zip(names, (a, b, change_of), (0, 0, 1), masks, strict=True)
    return Panels(
        panels=tuple(
            Panel(0, index, name, array, mask, scale, breaks=True)
            for index, (name, array, scale, mask) in enumerate(arrays)
        ),
        rows=tuple(rows),
        columns=tuple(columns),
        scales=(weights, change),
        notes=(note,) if (note := pair.unmatched_tokens()) else (),
        title=f"layer {layer}, {pair.head_text(head)}" if look.title is None else look.title,
        cited=f"A {pair.a.model.citation}; B {pair.b.model.citation}",
    )
