"""Where an answer came from, as a picture: for each part of the prompt how much it is looked at, and matters."""

from __future__ import annotations

from matplotlib.figure import Figure

from attnctl.readings.effects.answer_sources import AnswerSources
from attnctl.render.figure.heatmaps.labels import Labels
from attnctl.render.terminal.effects.answer_sources import probability_text

MOST = 30  # parts, unless told otherwise: more cannot be read
NAME = 36  # characters of a part's name
LOOKS, AGAINST, FOR = "#8fa8c8", "#b2182b", "#2166ac"


def source_bars(found: AnswerSources, top: int | None = None) -> Figure:
    """The parts, what matters most on top; bars to the left are losses of log-probability, in nats."""
    parts = found.parts[: top or MOST]
    names = Labels([one.part.name for one in parts])
    figure = Figure(figsize=(7.2, 1.5 + 0.28 * len(parts)), dpi=200, layout="constrained")
    written = [one.writes for one in parts if one.writes is not None]
    left, *between, right = figure.subplots(1, 3 if written else 2, sharey=True)
    rows = range(len(parts))
    left.barh(rows, [100 * one.looks for one in parts], color=LOOKS)
    left.set_xlabel("looks: % of the answer's attention")
    for axes in between:
        axes.barh(rows, written, color=[FOR if value > 0 else AGAINST for value in written])
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_xlabel("writes: to log p(answer), nats")
    left.set_yticks(rows, [names.axis_label(one.part.name, NAME) for one in parts])
    left.invert_yaxis()
    losses = [one.matters if one.alone else 0.0 for one in parts]
    right.barh(rows, losses, color=[FOR if one.matters < 0 else AGAINST for one in parts])
    right.axvline(0, color="black", linewidth=0.6)
    right.set_xlabel("matters: Δ log p(answer) without it, nats")
    for axes in (left, *between, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=7)
        axes.xaxis.label.set_size(7)
    answer = names.axis_label(" ".join(found.answer.split()), 60)
    figure.suptitle(
        f"{found.model.name}: “{answer}”, probability {probability_text(found.log_probability)}", fontsize=9
    )
    if len(parts) < len(found.parts):
        figure.supxlabel(f"{len(found.parts) - len(parts)} more parts are not drawn", fontsize=7)
    return figure
