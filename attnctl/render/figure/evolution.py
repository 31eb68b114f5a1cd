"""One head over training: a strip of small grids, or the frames of a moving picture, all on one scale."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from matplotlib.colors import Normalize

from attnctl.readings.heatmap import Reading, read
from attnctl.readings.trace import Trace
from attnctl.render.figure.drawing import Sheet
from attnctl.render.figure.heatmap import CMAP, DPI, Drawing, colour_map, image, plain_settings
from attnctl.render.figure.labels import Labels

FRAME, LAST = 400, 2500  # milliseconds
MOST_PANELS = 8  # that a strip holds


def strip(traces: Sequence[Trace], steps: Sequence[int], layer: int, head: int, name: str, cmap: str = CMAP) -> Drawing:
    """Up to eight of the traces, the first and the last among them, side by side, each named by its training step."""
    last = len(traces) - 1
    count = min(MOST_PANELS, len(traces))
    # more of the beginning than of the end: that is where most changes
    shown = sorted({round(last * (at / max(count - 1, 1)) ** 1.5) for at in range(count)})
    readings = [_one(traces[at], layer, head) for at in shown]
    together = replace(
        readings[0],
        heads=tuple(range(len(shown))),
        weights={(layer, at): reading.weights[layer, head] for at, reading in enumerate(readings)},
        names=tuple(f"step {steps[at]:,}" for at in shown),
    )
    return _drawn(together, f"{_place(name, traces[last], layer, head)}, over training", cmap)


def moving(
    traces: Sequence[Trace], steps: Sequence[int], layer: int, head: int, name: str, cmap: str = CMAP
) -> tuple[bytes, tuple[str, ...]]:
    """A GIF, one frame a trace, the last one held; and the notes of the drawing."""
    from PIL import Image

    frames, notes = [], []
    for trace, step in zip(traces, steps, strict=True):
        # a title as wide in every frame, so that all have the same size
        width = len(f"{steps[-1]:,}")
        title = f"{_place(name, traces[-1], layer, head)}, step {step:>{width},}"
        drawing = _drawn(_one(trace, layer, head), title, cmap, dpi=120)
        notes.append(drawing.notes)
        frames.append(Image.open(io.BytesIO(image(drawing.figure, "png"))).convert("RGB"))
    size = max(frame.width for frame in frames), max(frame.height for frame in frames)
    even = []
    for frame in frames:
        page = Image.new("RGB", size, "white")
        page.paste(frame, (0, 0))
        even.append(page)
    out = io.BytesIO()
    durations = [FRAME] * (len(even) - 1) + [LAST]
    even[0].save(out, format="GIF", save_all=True, append_images=even[1:], duration=durations, loop=0)
    return out.getvalue(), notes[-1]


def _one(trace: Trace, layer: int, head: int) -> Reading:
    return read(trace, layers=[layer], heads=[head])


def _place(name: str, trace: Trace, layer: int, head: int) -> str:
    several = (trace.model.n_layers or 1) > 1
    return f"{name}, {f'layer {layer}, ' if several else ''}head {head}"


def _drawn(reading: Reading, title: str, cmap: str, dpi: float = DPI) -> Drawing:
    labels = Labels([title, *reading.names, *(token.text for token in (*reading.queries, *reading.keys))])
    how: dict[str, Any] = {"said": (), "size": None, "dpi": dpi}
    with plain_settings():
        sheet = Sheet(reading, labels, colour_map(cmap), Normalize(0, 1), title, **how)
        sheet.draw(None)
    return Drawing(sheet.figure, labels.notes)
