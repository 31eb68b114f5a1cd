"""`attnctl train`: train a small attention model to predict words, and watch its heads learn where to look."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Context, Option

from attnctl.checks import limits
from attnctl.cli import (
    INPUT,
    LOOK,
    MADE,
    MODEL,
    OUTPUT,
    TEXT_WORDS,
    WORK,
    QueryOption,
    SeedOption,
    command,
    completing,
    decimal,
    output_option,
    print_lines,
    put_bytes,
    put_report,
    refuse_unused,
    safe_console,
    say_note,
    say_unless_quiet,
    show_forms,
    whole,
)
from attnctl.errors import DONE, INTERRUPTED, UsageError, print_complaint
from attnctl.registry import COMMANDS
from attnctl.runtime import interrupts
from attnctl.text import Document, as_json, for_pasting

if TYPE_CHECKING:  # these import torch; errors in options and the first line need not wait for it
    from attnctl.commands.train.compute import Watch
    from attnctl.commands.train.result import Lesson
    from attnctl.commands.train.run import TrainingRun
    from attnctl.commands.train.state import Training


@command(example="attnctl train mytext.txt -o run")
def train_command(
    context: Context,
    corpus: Annotated[
        str | None,
        Argument(
            help='Text, one sentence on each line: a file, a folder of .txt files, or "-". Default: the bundled corpus.',
            show_default=False,
        ),
    ] = None,
    *,
    output: Annotated[str | None, output_option("Where to write: the folder of the run.")] = None,
    watch: Annotated[
        str | None,
        Option(
            "--watch",
            help="Show how the attention of this sentence changes.",
            metavar="TEXT",
            autocompletion=completing(TEXT_WORDS),
            rich_help_panel=LOOK,
        ),
    ] = None,
    query: QueryOption = None,
    resume: Annotated[
        bool,
        Option("--resume", help="Go on with the run in the folder of -o.", rich_help_panel=INPUT),
    ] = False,
    explain: Annotated[
        bool,
        Option("--explain", help="Print one gradient step of a fresh network, number by number.", rich_help_panel=LOOK),
    ] = False,
    json: Annotated[
        bool,
        Option("--json", help="Write JSON: a line for each report, on a terminal too.", rich_help_panel=OUTPUT),
    ] = False,
    objective: Annotated[
        Literal["next-word", "masked-word"] | None,
        Option(
            "--objective",
            help="masked-word (the default for the grammar) or next-word (the default for your text).",
            rich_help_panel=INPUT,
        ),
    ] = None,
    n_layers: Annotated[
        int | None,
        Option(
            "--n-layers",
            "--layers",
            help="Number of layers [default: 2 for the grammar, 1 for your text].",
            metavar="N",
            parser=whole(limits.LAYERS),
            rich_help_panel=MADE,
        ),
    ] = None,
    n_heads: Annotated[
        int | None,
        Option(
            "--n-heads",
            "--heads",
            help="Number of query heads in a layer [default: 6 for the grammar, 4 for your text].",
            metavar="N",
            parser=whole(limits.HEADS),
            rich_help_panel=MADE,
        ),
    ] = None,
    d_model: Annotated[
        int | None,
        Option(
            "--d-model",
            help="Length of an embedding [default: 64; 32 for the next words of your text].",
            metavar="N",
            parser=whole(limits.SIZE),
            rich_help_panel=MADE,
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        Option(
            "--max-steps",
            help="Gradient steps in all [default: as in the bundled models for the grammar; 8000 for the next words, "
            "4000 for masked words of your text].",
            metavar="N",
            parser=whole(limits.STEPS),
            rich_help_panel=LOOK,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        Option(
            "--batch-size",
            help="How many share one pass: sentences in a step [default: 112 for the grammar, 128 for your text].",
            metavar="N",
            parser=whole(limits.BATCH_SIZE),
            rich_help_panel=WORK,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        Option(
            "--lr",
            help="Highest learning rate [default: 0.005].",
            metavar="X",
            parser=decimal(limits.LEARNING_RATE),
            rich_help_panel=INPUT,
        ),
    ] = None,
    seed: SeedOption = None,
    device: Annotated[
        str | None,
        Option(
            "--device",
            help="Where to compute: auto (the CPU for a network this small), cpu, cuda, cuda:1 or mps.",
            metavar="DEVICE",
            autocompletion=completing("auto", "cpu", "cuda", "mps"),
            rich_help_panel=MODEL,
        ),
    ] = None,
) -> int:
    """Train a small attention model to predict words: the next word, or masked ones.

    A terminal shows the training live; a pipe gets a line of JSON for each report. The folder holds weights.safetensors (for
    --model), the weights of earlier steps, and metrics.jsonl. Ctrl-C saves the run; --resume goes on with it.
    """
    settings: dict[str, object] = {"steps": max_steps, "device": device}  # named as in recipe.json
    if not resume or explain:
        settings |= {"objective": objective, "layers": n_layers, "heads": n_heads, "d_model": d_model}
        settings |= {"batch_size": batch_size, "lr": lr, "seed": seed}
    settings = {name: value for name, value in settings.items() if value is not None}
    if explain:
        refuse_unused(context, "output", "resume", "max_steps", "batch_size", because="--explain makes one step")
        from attnctl.commands.train.lesson import first_step

        settings.pop("steps", None)
        _show_lesson(first_step(corpus, settings, watch, query), json)
        return DONE
    if output is None:
        raise UsageError("name the folder of the run: -o RUN")
    if resume:
        recipe_options = ("corpus", "objective", "n_layers", "n_heads", "d_model", "batch_size", "lr", "seed")
        refuse_unused(context, *recipe_options, because="--resume goes on with the recipe of the run")
    from attnctl.commands.train.run import TrainingRun, recipe_to_train

    run = TrainingRun(output)
    with contextlib.ExitStack() as stack:
        recipe, lines = recipe_to_train(run, resume, corpus, settings, stack)
        if lines is None:
            say_note("reading the sentences of the bundled corpus")
        from attnctl.commands.train.compute import open_training

        training, watched = open_training(run, recipe, lines, watch, query, stack, resume=resume)
        if training.step >= training.recipe.steps:
            print_complaint(f"{output} has made all its {training.step} steps: ask for more with --max-steps")
            return DONE
        if json or not sys.stdout.isatty():
            with contextlib.closing(_reports(training, run, watched)) as reports:
                for report in reports:
                    put_report(as_json(report) + b"\n", f"the training goes on, and its reports are in {output}")
        else:
            _show_live(training, run, watched)
        if training.step < training.recipe.steps:
            print_complaint(f"step {training.step} is saved; to go on: attnctl train -o {for_pasting(output)} --resume")
            return INTERRUPTED
        _finish_run(training, run, watched)
    return DONE


def _reports(training: Training, run: TrainingRun, watched: Watch) -> Generator[Document, None, None]:
    """Yield the reports of a training; Ctrl-C ends it after the current step."""
    from attnctl.commands.train.compute import announce_time, train_network

    with interrupts.asked_to_end() as stop:
        should_stop = announce_time(training, stop, say_note)
        with contextlib.closing(train_network(training, run, watched, should_stop)) as reports:
            yield from reports


def _show_live(training: Training, run: TrainingRun, watched: Watch) -> None:
    """Show the state of a training while it runs."""
    from rich.live import Live

    from attnctl.cli import Shown
    from attnctl.commands.train.show import live_forms
    from attnctl.models.builtin import reports_of

    console = safe_console()
    earlier = reports_of(run.path)
    with (
        Live(console=console, auto_refresh=False) as view,
        contextlib.closing(_reports(training, run, watched)) as reports,
    ):
        for report in reports:
            earlier.append(report)
            view.update(Shown(live_forms(earlier, training.recipe.steps, console.width)), refresh=True)


def _finish_run(training: Training, run: TrainingRun, watched: Watch) -> None:
    """Say where the weights are and, for the grammar, what the heads learned."""
    from attnctl.commands.train.run import measure_run

    measure = next((entry.measures_training for entry in COMMANDS.values() if entry.measures_training), None)
    table = None if measure is None else measure_run(training, run, resolve_name(measure))
    if table is not None and sys.stdout.isatty():
        from attnctl.render import relations_forms

        print_lines("")
        show_forms(relations_forms(table), soft_wrap=True)
    line = f"attnctl explain {for_pasting(watched.sentence)} --model {for_pasting(str(run.path))}"
    say_unless_quiet(f"trained {training.step} steps: {line}")


def _show_lesson(step: Lesson, json: bool) -> None:
    """Show one gradient step, as text or as JSON."""
    if json:
        from attnctl.formats import write_json

        put_bytes(write_json(step, "lesson") + b"\n")
        return
    from attnctl.commands.train.show import lesson_forms

    show_forms(lesson_forms(step))
