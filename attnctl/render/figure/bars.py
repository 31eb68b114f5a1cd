"""Draw named bars: one set of bars, or several sets beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from attnctl.formats.pictures import DPI
from attnctl.render.figure.drawing import INK, QUIET
from attnctl.render.figure.labels import LONGEST_LABEL, Labels
from attnctl.render.figure.layout import LEAST_EXTENT, Drawing
from attnctl.render.figure.saving import plain_settings
from attnctl.text import without_sign_of_zero

BAR, GAP = 0.26, 0.35  # inches from bar to bar, and between two sets of them


class Bars(NamedTuple):
    """A set of bars, one below the other: its heading, the values, their colours, and the format of the numbers."""

    heading: str
    values: Sequence[float | None]  # None: there is no bar
    colours: Sequence[str]
    number_format: str = "+.2f"


def bar_drawing(title: str, sentence: str, names: Sequence[str], sets: Sequence[Bars], cited: str) -> Drawing:
    """Draw sets of named bars beside each other: a bar goes to the left below 0 and to the right above 0.

    The lines of `sentence` stand below the title.
    """
    labels, lines = Labels([title, sentence, *names]), sentence.split("\n")
    names = [labels.axis_label(name, LONGEST_LABEL + 12) for name in names]
    left = 0.35 + max(labels.text_width(name, 9) for name in names)
    wide, high = 3.6 if len(sets) == 1 else 2.4, BAR * len(names)
    width, height = max(left + (wide + GAP) * len(sets) + 0.4, 5.0), high + 1.15 + 0.2 * len(lines)
    with plain_settings():
        figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", label=cited)
        FigureCanvasAgg(figure)
        for index, bars in enumerate(sets):
            place = (left + index * (wide + GAP)) / width, 0.55 / height, wide / width, high / height
            axes = figure.add_axes(place)
            values = [value or 0.0 for value in bars.values]
            lowest, largest = min(0.0, *values), max(LEAST_EXTENT, *values)
            room = 0.25 * (largest - lowest)  # for the numbers
            rectangles = axes.barh(range(len(values)), values, height=0.72, color=bars.colours)
            numbers = [
                "" if value is None else without_sign_of_zero(f"{value:{bars.number_format}}") for value in bars.values
            ]
            axes.bar_label(rectangles, numbers, padding=2.7, fontsize=8, color=INK)
            axes.set(xlim=(lowest - room * (lowest < 0), largest + room), ylim=(len(values) - 0.5, -0.5))
            axes.axvline(0, color=QUIET, linewidth=0.8)
            axes.set_yticks(range(len(names)), names if index == 0 else [""] * len(names))
            for text in axes.get_yticklabels():
                text.set(parse_math=False, family=labels.family, fontsize=9)
            axes.tick_params(length=0)
            axes.tick_params(axis="x", labelsize=8, colors=QUIET)
            axes.set_xlabel(bars.heading, fontsize=9, color=QUIET)
            axes.spines[:].set_visible(False)
        head = labels.cut_to_width(labels.drawable(title), 11.5, width - 0.3)
        labels.write_line(figure, (0.15 / width, 1 - 0.25 / height), head, 11.5, INK)
        for number, line in enumerate(lines):
            shown = labels.cut_to_width(labels.drawable(line), 9, width - 0.3)
            labels.write_line(figure, (0.15 / width, 1 - (0.5 + 0.2 * number) / height), shown, 9, QUIET)
    return Drawing(figure, labels.missing_characters)
