"""`attnctl train`: train a small attention model to predict words, and watch its heads learn where to look."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import typer

from attnctl import interrupts
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments
from attnctl.cli.arguments import say_note
from attnctl.cli.output import print_lines, put_bytes, put_json, safe_console, say_unless_quiet, show_renderable
from attnctl.errors import INTERRUPTED, UsageError, print_complaint
from attnctl.render.terminal.console import Shown
from attnctl.render.told.training import lesson_forms, live_forms, relations_forms
from attnctl.text import Document, for_pasting
from attnctl.training.relations import measure_run
from attnctl.training.run import TrainingRun, recipe_to_train

if TYPE_CHECKING:  # it imports torch, which neither a mistake in the options nor the first line need wait for
    from attnctl.training.train import Training, Watch

IN_RECIPE = {"n_layers": "layers", "n_heads": "heads", "max_steps": "steps"}  # option → what recipe.json calls it


def train_command(
    *,
    corpus: str | None,
    output: str | None,
    watch: str | None,
    query: str | None,
    resume: bool,
    explain: bool,
    json: bool,
    **options: object,
) -> None:
    """Train a small attention model to predict words: the next word, or masked ones."""
    given = {IN_RECIPE.get(name, name): value for name, value in options.items() if value is not None}
    if explain:
        arguments.check_mode("train", "--explain")
        given.pop("steps", None)
        _explain_step(corpus, given, watch, query, json)
        return
    if output is None:
        raise UsageError("name the folder of the run: -o RUN")
    arguments.check_mode("train", "--resume" if resume else "a new run")
    run = TrainingRun(output)
    with contextlib.ExitStack() as held:
        recipe, lines = recipe_to_train(run, resume, corpus, given, held)
        if lines is None:
            say_note("reading the sentences of the bundled corpus")
        from attnctl.training.train import open_training

        training, eye = open_training(run, recipe, lines, watch, query, held, resume=resume)
        if training.step >= training.recipe.steps:
            print_complaint(f"{output} has made all its {training.step} steps: --max-steps asks for more")
            return
        if json or not sys.stdout.isatty():
            with contextlib.closing(_reports(training, run, eye)) as reports:
                for report in reports:
                    put_json(report)
                    sys.stdout.flush()
        else:
            _show_live(training, run, eye)
        if training.step < training.recipe.steps:
            print_complaint(f"step {training.step} is saved; to go on: attnctl train -o {for_pasting(output)} --resume")
            raise typer.Exit(INTERRUPTED)
        _finish_run(training, run, eye)


def _reports(training: Training, run: TrainingRun, eye: Watch) -> Generator[Document, None, None]:
    """The reports of a training as it goes on; Ctrl-C ends it after the step in progress."""
    from attnctl.training.train import announce_time, train_network

    with interrupts.asked_to_end() as stop:
        asked = announce_time(training, stop, say_note)
        with contextlib.closing(train_network(training, run, eye, asked)) as reports:
            yield from reports


def _show_live(training: Training, run: TrainingRun, eye: Watch) -> None:
    from rich.live import Live

    page = safe_console()
    seen = run.reports()
    with Live(console=page, auto_refresh=False) as view, contextlib.closing(_reports(training, run, eye)) as reports:
        for report in reports:
            seen.append(report)
            view.update(Shown(live_forms(seen, training.recipe.steps, page.width)), refresh=True)


def _finish_run(training: Training, run: TrainingRun, eye: Watch) -> None:
    """Say where the weights are; of the grammar, also what the heads learned."""
    table = measure_run(training, run)
    if table is not None and sys.stdout.isatty():
        print_lines("")
        show_renderable(Shown(relations_forms(table)), soft_wrap=True)
    command = f"attnctl explain {for_pasting(eye.sentence)} --model {for_pasting(str(run.path))}"
    say_unless_quiet(f"trained {training.step} steps: {command}")


def _explain_step(corpus: str | None, given: OptionValues, sentence: str | None, query: str | None, json: bool) -> None:
    from attnctl.training.lesson import first_step

    step = first_step(corpus, given, sentence, query)
    if json:
        from attnctl.formats.documents.json_documents import write_json

        put_bytes(write_json(step, "lesson") + b"\n")
        return
    show_renderable(Shown(lesson_forms(step)))
