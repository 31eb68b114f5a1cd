"""`attnctl heatmap --run`: one head at every kept step of a training run, as a moving picture, a strip or a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnctl.cli import arguments
from attnctl.errors import UsageError
from attnctl.formats.pictures import figure_bytes, picture_format, suffixes_listed
from attnctl.source.changes import Changes, prepare, selected_indices

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.traces.trace import Trace
    from attnctl.render.figure.look import Look


class TrainingView(NamedTuple):
    """A text at the steps of a run, one layer and head, and what is shown in place of its weights."""

    text: str
    layer: str | None
    head: str | None
    changes: Changes

    def trace_of_text(self, options: OptionValues) -> Trace:
        """The text under one model, all heads."""
        from attnctl.source import TextSource

        source = TextSource(arguments.model_of(options), self.text)
        return prepare(source, self.changes, range(source.counts[0]), say=arguments.say_notes).trace(predictions=False)


def show_training(run: str, wanted: TrainingView, output: str | None, options: OptionValues) -> None:
    """One head at every kept step of a run: a .gif that moves, or a strip as .png, .svg or .pdf."""
    from attnctl.files import check_writable, write_whole

    suffix = "" if output is None else Path(output).suffix.lower()
    look = arguments.look_of(options)
    if output is None or picture_format(output, "figure", "frames", "page") is None:
        raise UsageError(
            f"--run draws into a file: -o evolution.gif, or a strip as {suffixes_listed('figure', 'page')}"
        )
    if options.get("model") is not None:
        raise UsageError("--run and --model exclude each other: the run is the model")
    check_writable(output)
    if suffix == ".html":
        _write_page_of_steps(run, wanted, output, look, options)
        return
    drawing = _drawn_evolution(run, wanted, suffix, look, options)
    write_whole(output, drawing[0])
    arguments.say_notes(drawing[1])


def _write_page_of_steps(run: str, wanted: TrainingView, output: str, look: Look, options: OptionValues) -> None:
    """A page of all steps, which leaves out and rescales by itself."""
    from attnctl.cli.commands.page import Choice, over_training, page_look, write_page

    if wanted.changes.words:
        raise UsageError("--words does not go with --run and .html: a page merges words by itself")
    choice = Choice(wanted.layer, wanted.head, wanted.changes.measure)
    content = over_training(run, wanted.text, choice, options)
    start = page_look(wanted.changes.drop or (), wanted.changes.renormalise, look.log, cmap=look.cmap)
    write_page(content, output, look=start, title=look.title)


def _drawn_evolution(
    run: str, wanted: TrainingView, suffix: str, look: Look, options: OptionValues
) -> tuple[bytes, tuple[str, ...]]:
    """The head that was asked for, or the most telling, at every step: a picture's bytes, and notes about it."""
    from attnctl.models.builtin.weights import steps_of
    from attnctl.readings.questions.focus import focus

    steps = steps_of(run)
    traces = [wanted.trace_of_text(options | {"model": str(path)}) for path in steps.values()]
    info = traces[-1].model
    layers = selected_indices(wanted.layer, info.n_layers or 1, "layer", run)
    heads = selected_indices(wanted.head, info.n_heads or 1, "head", run)
    best = focus(traces[-1], layer=layers[0] if layers else None, head=heads[0] if heads else None)
    assert best is not None
    from attnctl.render.figure.evolution import Evolution, draw_strip, moving_picture

    evolution = Evolution(traces, list(steps), best.layer, best.head, Path(os.path.realpath(run)).name)
    if suffix == ".gif":
        return moving_picture(evolution, look)
    figure, notes = draw_strip(evolution, look)
    return figure_bytes(figure, suffix[1:]), notes
