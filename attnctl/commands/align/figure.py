"""Figures of an alignment: the words of a speech along its sound, and the links of two texts."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnctl.commands.align.result import FRAME_SECONDS, AlignedSpeech, AlignedText, AlignedWindow, heads_listed
from attnctl.formats import CMAP, DPI
from attnctl.render import (
    INK,
    LONGEST_LABEL,
    QUIET,
    Drawing,
    Labels,
    Panel,
    Panels,
    Scale,
    colour_map,
    drawing_of,
    plain_settings,
    token_labels,
)

INCHES_A_SECOND, INCHES_A_TOKEN = 1.4, 0.17
ALIGNED = "weight, standardised over the tokens; mean of the heads"


def speech_drawing(aligned: AlignedSpeech, windows: Sequence[AlignedWindow]) -> Drawing:
    """Draw the tokens against the seconds, one panel for each part of the sound, with the path that gives the times."""
    heads = f"heads {heads_listed(aligned.heads)}"
    labels = Labels([aligned.audio, heads, *(name for window in windows for name in window.tokens)])
    names = [[labels.axis_label(name, LONGEST_LABEL) for name in window.tokens] for window in windows]
    margin = 0.35 + max(labels.text_width(name, 7.5) for texts in names for name in texts)
    axes_width = max(5.0, INCHES_A_SECOND * max(window.weights.shape[1] for window in windows) * FRAME_SECONDS)
    axes_width, highs = min(axes_width, 30.0), [INCHES_A_TOKEN * len(texts) for texts in names]
    width, height = margin + axes_width + 1.1, 0.9 + sum(highs) + 0.75 * len(highs)
    dpi = min(DPI, 8000 / max(width, height))
    with plain_settings():
        figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white", label=aligned.model.citation)
        FigureCanvasAgg(figure)
        top = height - 0.75
        for window, texts, high in zip(windows, names, highs, strict=True):
            axes = figure.add_axes((margin / width, (top - high) / height, axes_width / width, high / height))
            top -= high + 0.75
            array, seconds = window.weights[:-1], window.weights.shape[1] * FRAME_SECONDS
            extent = (window.start, window.start + seconds, len(texts) - 0.5, -0.5)
            image = axes.imshow(array, cmap=colour_map(CMAP), aspect="auto", extent=extent, interpolation="nearest")
            rows, frames = window.path
            on_tokens = rows < len(texts)
            times = window.start + (frames[on_tokens] + 0.5) * FRAME_SECONDS
            axes.plot(times, rows[on_tokens], color="white", linewidth=1.2)
            axes.set_yticks(range(len(texts)), texts)
            for text in axes.get_yticklabels():
                text.set(parse_math=False, family=labels.family, fontsize=7.5)
            axes.tick_params(length=0, labelsize=7.5)
            axes.set_xlabel("seconds", fontsize=8, color=QUIET)
            place = ((margin + axes_width + 0.15) / width, (axes.get_position().y0), 0.12 / width, high / height)
            bar = figure.colorbar(image, cax=figure.add_axes(place))
            bar.ax.tick_params(labelsize=7)
            bar.set_label(ALIGNED if high > 3.2 else "standardised weight", fontsize=7.5)
        head = labels.cut_to_width(labels.drawable(f"{aligned.audio}, {aligned.model.name}"), 11.5, width - 0.3)
        for line, size, colour, down in ((head, 11.5, INK, 0.25), (heads, 9, QUIET, 0.5)):
            labels.write_line(figure, (0.15 / width, 1 - down / height), line, size, colour)
    return Drawing(figure, labels.missing_characters)


def links_drawing(aligned: AlignedText) -> Drawing:
    """Draw one row for each target token and one column for each source token."""
    picture = Panels(
        panels=(Panel(0, 0, "", aligned.weights),),
        rows=tuple(link.text for link in aligned.links),
        columns=token_labels(aligned.sources),
        scales=(Scale(Normalize(0, max(float(aligned.weights.max()), 1e-6)), colour_map(CMAP), "weight"),),
        title=aligned.model.name,
        notes=(f"mean of heads {heads_listed(aligned.heads)}",),
        axes=("target", "source"),
        cited=aligned.model.citation,
    )
    return drawing_of(picture)
