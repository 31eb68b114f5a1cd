"""`attnctl train`: train a small attention model to predict words, and watch its heads learn where to look."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from time import monotonic
from typing import Any

import typer

from attnctl import interrupts
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments
from attnctl.cli.arguments import say_notes
from attnctl.cli.output import (
    print_complaint,
    print_lines,
    put_json,
    safe_console,
    say_unless_quiet,
    show_renderable,
)
from attnctl.cli.progress import SAID, duration_text
from attnctl.errors import INTERRUPTED, UsageError
from attnctl.models import open_named_model
from attnctl.render.terminal.training import lesson_view, live_view
from attnctl.training.corpus import read_lines
from attnctl.training.relations import measure_relations
from attnctl.training.run import (
    DEFAULTS,
    GRAMMAR,
    OWN_TEXT,
    Recipe,
    TrainingRun,
    checked_recipe,
    initial_arrays,
    read_corpus,
)
from attnctl.training.watch import Watch

# Imports inside functions are of torch, which a mistake in the options need not wait for.
Training = Any  # attnctl.training.train.Training

MEASURED_SECONDS = 3.0  # of steps, after which the time that all of them take is known
MEASURED_FROM = 1000  # a run of fewer steps has learned nothing worth measuring
WATCHED = "Alice will eat pizza"
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
        training, eye = _opened_training(run, resume, corpus, given, watch, query, held)
        if training.step >= training.recipe.steps:
            print_complaint(f"{output} has made all its {training.step} steps: --max-steps asks for more")
            return
        show = _in_lines if json or not sys.stdout.isatty() else _show_live
        show(training, run, eye)
        if training.step < training.recipe.steps:
            print_complaint(f"step {training.step} is saved; to go on: attnctl train -o {output} --resume")
            raise typer.Exit(INTERRUPTED)
        _finish_run(training, run, eye)


def _recipe_of(corpus: str | None, given: OptionValues) -> tuple[Recipe, list[str] | None]:
    objective = given.get("objective", "next-word" if corpus else "masked-word")
    base = (OWN_TEXT if corpus else DEFAULTS).get(objective, OWN_TEXT["next-word"])
    name = GRAMMAR if corpus is None else corpus if corpus == "-" else os.path.realpath(corpus)
    recipe = checked_recipe(replace(base, corpus=name, **given))
    return recipe, None if corpus is None else read_lines(corpus)


def _opened_training(
    run: TrainingRun,
    resume: bool,
    corpus: str | None,
    given: OptionValues,
    watch: str | None,
    query: str | None,
    held: contextlib.ExitStack,
) -> tuple[Training, Watch]:
    """A fresh training, or the one that the folder holds, and what watches it; the folder is locked until `held` ends."""
    from attnctl.training.train import begin_training

    if resume:
        given = {name: value for name, value in given.items() if name in ("steps", "device")}
        recipe, lines = run.recipe()
        held.enter_context(run.held())
        recipe = checked_recipe(replace(recipe, **given))
    else:
        recipe, lines = _recipe_of(corpus, given)
        run.check_free()  # before the corpus, which may take a while
    if recipe.corpus == GRAMMAR:
        say_notes([f"making the {recipe.sentences:,} sentences of the built-in grammar comes first"])
    training = begin_training(recipe, read_corpus(recipe, lines))
    eye = Watch(
        _watched_sentence(training, watch),
        training.corpus.vocabulary,
        training.causal,
        query,
        training.recipe.rope_theta,
    )
    eye.start(initial_arrays(training.recipe, training.corpus))
    if not resume:
        held.enter_context(run.held())
        run.create(recipe, lines)
    else:
        run.restore(training)
        if given and recipe.steps > training.step:
            run.write_recipe(recipe)
    return training, eye


def _telling_time(training: Training, stop: Callable[[], bool]) -> Callable[[], bool]:
    """`stop`, which is asked before each step, and says on stderr how long the steps take, once that is known and long."""
    first, start, told = training.step, monotonic(), False

    def stop_or_tell() -> bool:
        nonlocal told
        elapsed = monotonic() - start
        if not told and elapsed > MEASURED_SECONDS and training.step > first:
            told = True
            left = training.recipe.steps - training.step
            if (seconds := elapsed / (training.step - first) * left) > SAID:
                goes_on = "Ctrl-C saves and --resume goes on; --max-steps takes fewer"
                say_notes([f"{left:,} steps to go: about {duration_text(seconds)} ({goes_on})"])
        return stop()

    return stop_or_tell


def _watched_sentence(training: Training, sentence: str | None) -> str:
    """The sentence to watch; without one, the demo's for the grammar, and for a text its first of a handy length."""
    if sentence is None:
        return WATCHED if training.recipe.corpus == GRAMMAR else training.corpus.first_sentence()
    return sentence


@contextlib.contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or a request to end, or the terminal's end) came: the step in progress is finished first.

    A second one stops at once.
    """
    came = False

    def note_progress(number: int, _: object) -> None:
        nonlocal came
        came = True
        signal.signal(number, interrupts.take_interrupt if number == signal.SIGINT else signal.SIG_DFL)

    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # else nohup has it ignored
        asked.append(signal.SIGHUP)
    before = {number: signal.signal(number, note_progress) for number in asked}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_lines(training: Training, run: TrainingRun, eye: Watch) -> None:
    from attnctl.training.train import train_network as steps_of

    with _ctrl_c() as stop, contextlib.closing(steps_of(training, run, eye, _telling_time(training, stop))) as reports:
        for report in reports:
            put_json(report)
            sys.stdout.flush()


def _show_live(training: Training, run: TrainingRun, eye: Watch) -> None:
    from rich.live import Live

    from attnctl.training.train import train_network as steps_of

    page = safe_console()
    seen = run.reports()
    with (
        _ctrl_c() as stop,
        Live(console=page, auto_refresh=False) as view,
        contextlib.closing(steps_of(training, run, eye, _telling_time(training, stop))) as reports,
    ):
        for report in reports:
            seen.append(report)
            view.update(live_view(seen, training.recipe.steps, page.width), refresh=True)


def _finish_run(training: Training, run: TrainingRun, eye: Watch) -> None:
    """Say where the weights are; of the grammar, also measure what the heads learned, and write it into the weights."""
    weights = run.path / "weights.safetensors"
    if training.recipe.corpus == GRAMMAR and training.step >= MEASURED_FROM:
        model = open_named_model(str(weights))
        table = measure_relations(model, untrained_seed=training.recipe.seed)
        run.write_findings(training, table)
        if sys.stdout.isatty():
            from attnctl.cli.commands.evaluate import show_table

            print_lines("")
            show_table(table)
    say_unless_quiet(f'trained {training.step} steps: attnctl explain "{eye.sentence}" --model {run.path}')


def _explain_step(corpus: str | None, given: OptionValues, sentence: str | None, query: str | None, json: bool) -> None:
    from attnctl.training.lesson import one_step
    from attnctl.training.train import begin_training

    recipe, lines = _recipe_of(corpus, given)
    recipe = replace(recipe, sentences=5000)  # enough for every word of the grammar
    training = begin_training(recipe, read_corpus(recipe, lines))
    step = one_step(training, _watched_sentence(training, sentence), query, given.get("lr"))
    if json:
        put_json({field.name: getattr(step, field.name) for field in fields(step)}, schema="lesson")
        return
    show_renderable(lesson_view(step, safe_console().width))
