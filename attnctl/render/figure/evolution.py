"""One head over training: a strip of small grids, or the frames of a moving picture, all on one scale."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from attnctl.formats.pictures import PLAIN, Look
from attnctl.readings.heatmap import HeatmapGrid
from attnctl.readings.questions.focus import focus
from attnctl.render.figure.heatmap import draw_heatmap
from attnctl.render.figure.layout import Drawing
from attnctl.render.figure.saving import png_bytes
from attnctl.source import Changes, Say, Source, prepare, selected_indices
from attnctl.source.cells import read_heatmap

FRAME, LAST = 400, 2500  # milliseconds
FRAME_DPI = 120  # dots per inch of a frame, at most
MOST_PANELS = 8  # that a strip holds


class Evolution(NamedTuple):
    """One head over training: its weights at each kept step of a run, and what run and head are called."""

    readings: Sequence[HeatmapGrid]
    steps: Sequence[int]
    name: str


def evolution_of_run(
    steps: Iterable[Source],
    labels: Mapping[int, str],
    folder: str,
    changes: Changes,
    layer: str | None,
    head: str | None,
    say: Say | None = None,
) -> Evolution:
    """One head at every kept step of a run, the most telling one of those chosen. Raises UsageError for one not there."""
    traces = [prepare(step, changes, range(step.counts[0]), say=say).trace(predictions=False) for step in steps]
    info = traces[-1].model
    layers = selected_indices(layer, info.n_layers or 1, "layer", folder)
    heads = selected_indices(head, info.n_heads or 1, "head", folder)
    best = focus(traces[-1], layer=layers[0] if layers else None, head=heads[0] if heads else None)
    assert best is not None
    name = Path(os.path.realpath(folder)).name + (f", layer {best.layer}" if (info.n_layers or 1) > 1 else "")
    readings = [read_heatmap(trace, layers=[best.layer], heads=[best.head]) for trace in traces]
    return Evolution(readings, list(labels), f"{name}, head {best.head}")


def draw_strip(run: Evolution, look: Look = PLAIN) -> Drawing:
    """Up to eight of the steps, the first and the last among them, side by side, each named."""
    last = len(run.readings) - 1
    count = min(MOST_PANELS, len(run.readings))
    # more of the beginning than of the end: that is where most changes
    shown = sorted({round(last * (at / max(count - 1, 1)) ** 1.5) for at in range(count)})
    readings = [run.readings[at] for at in shown]
    together = replace(
        readings[0],
        heads=tuple(range(len(shown))),
        weights={
            (layer, at): weights for at, one in enumerate(readings) for (layer, _), weights in one.weights.items()
        },
        names=tuple(f"step {run.steps[at]:,}" for at in shown),
    )
    return draw_heatmap(together, _on_one_scale(look, f"{run.name}, over training"))


def moving_picture(run: Evolution, look: Look = PLAIN) -> tuple[bytes, tuple[str, ...]]:
    """A GIF, one frame a step, the last one held; and the notes of the drawing."""
    from PIL import Image

    frames = []
    notes: tuple[str, ...] = ()
    look = replace(look, dpi=min(look.dpi, FRAME_DPI))
    for reading, step in zip(run.readings, run.steps, strict=True):
        # a title as wide in every frame, so that all have the same size
        width = len(f"{run.steps[-1]:,}")
        drawing = draw_heatmap(reading, _on_one_scale(look, f"{run.name}, step {step:>{width},}"))
        notes = drawing.notes
        frames.append(Image.open(io.BytesIO(png_bytes(drawing.figure))).convert("RGB"))
    size = max(frame.width for frame in frames), max(frame.height for frame in frames)
    even = []
    for frame in frames:
        page = Image.new("RGB", size, "white")
        page.paste(frame, (0, 0))
        even.append(page)
    out = io.BytesIO()
    durations = [FRAME] * (len(even) - 1) + [LAST]
    even[0].save(out, format="GIF", save_all=True, append_images=even[1:], duration=durations, loop=0)
    return out.getvalue(), notes


def _on_one_scale(look: Look, title: str) -> Look:
    """The same colours at every step, from 0 to 1 unless told otherwise."""
    return replace(
        look,
        title=title if look.title is None else look.title,
        vmin=look.vmin if look.vmin is not None or look.log else 0.0,
        vmax=1.0 if look.vmax is None else look.vmax,
    )
