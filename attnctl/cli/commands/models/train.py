"""`attnctl train`: train a small attention model to predict words, and watch its heads learn where to look."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnctl.cli import options as o
from attnctl.cli.output import complain, console, lines, put_json, show
from attnctl.errors import INTERRUPTED, UsageError

if TYPE_CHECKING:
    from attnctl.training.lesson import Lesson
    from attnctl.training.run import Recipe, Run
    from attnctl.training.train import Training
    from attnctl.training.watch import Watch

MEASURED_FROM = 1000  # a run of fewer steps has learned nothing worth measuring
WATCHED = "Alice will eat pizza"


def _option(kind: Any, *names: str, help: str) -> Any:  # noqa: A002
    return Annotated[kind | None, typer.Option(*names, help=help, show_default=False)]


RECIPE_OPTIONS: dict[str, Any] = {
    "objective": _option(
        str, "--objective", help="masked-word (for the grammar the default), next-word (for your text)."
    ),
    "layers": _option(int, "--layers", help="Layers: 2 for the grammar, 1 for your text, unless told otherwise."),
    "heads": _option(int, "--heads", help="Heads a layer: 6 for the grammar, 4 for your text, unless told otherwise."),
    "d_model": _option(int, "--d-model", help="Length of an embedding: 64, for the next words of your text 32."),
    "steps": _option(int, "--steps", help="Steps: as the bundled models for the grammar; 8000 for your text."),
    "batch_size": _option(int, "--batch-size", help="Sentences a step: 112 for the grammar, 128 for your text."),
    "lr": _option(float, "--lr", help="Learning rate at its highest: 0.005 unless told otherwise."),
    "seed": _option(int, "--seed", help="Seed of everything random; 0 unless told otherwise."),
    "device": _option(str, "--device", help="auto (the CPU for a network this small), cpu, cuda, cuda:1 or mps."),
}
Corpus = Annotated[
    str | None,
    typer.Argument(
        help='Text, one sentence a line: a file, a folder of .txt files, or "-". Default: the grammar of the demo.',
        show_default=False,
    ),
]


@o.with_options(RECIPE_OPTIONS)
def train(
    corpus: Corpus = None,
    *,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help="The folder to make for the run.", show_default=False)
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option("--watch", help="A sentence whose attention is shown as it changes.", show_default=False),
    ] = None,
    query: o.Query = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder of -o.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="With --steps 1: print one gradient step, number by number.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One line of JSON a report, on a terminal too.")] = False,
    **options: Any,
) -> None:
    """Train a small attention model to predict words: the next word, or masked ones.

    A terminal shows it live; a pipe gets one line of JSON a report. The folder holds weights.safetensors (for --model), the
    weights of earlier steps, and metrics.jsonl. Ctrl-C saves; --resume goes on.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if explain:
        if resume or output is not None or given.get("steps", 1) != 1:
            raise UsageError("--explain shows one step of a fresh network: give it --steps 1, no -o and no --resume")
        _explain(corpus, given, watch, query, json)
        return
    if output is None:
        raise UsageError("name the folder of the run: -o RUN")
    start = _resumed if resume else _begun
    training, run, eye = start(output, corpus, given, watch, query)
    if training.step >= training.recipe.steps:
        complain(f"{output} has made all its {training.step} steps: --steps asks for more")
        return
    show = _in_lines if json or not sys.stdout.isatty() else _live
    show(training, run, eye)
    if training.step < training.recipe.steps:
        complain(f"step {training.step} is saved; to go on: attnctl train -o {output} --resume")
        raise typer.Exit(INTERRUPTED)
    _finish(training, run, eye)


def _recipe(corpus: str | None, given: dict[str, Any]) -> tuple[Recipe, list[str] | None]:
    from attnctl.training.corpus import read_lines
    from attnctl.training.run import DEFAULTS, OWN_TEXT, check

    objective = given.get("objective", "next-word" if corpus else "masked-word")
    base = (OWN_TEXT if corpus else DEFAULTS).get(objective, OWN_TEXT["next-word"])
    recipe = check(replace(base, corpus=_source(corpus), **given))
    return recipe, None if corpus is None else read_lines(corpus)


def _source(corpus: str | None) -> str:
    """What the recipe calls the corpus."""
    from attnctl.training.run import GRAMMAR

    if corpus is None:
        return GRAMMAR
    return corpus if corpus == "-" else os.path.realpath(corpus)


def _begun(
    output: str, corpus: str | None, given: dict[str, Any], sentence: str | None, query: str | None
) -> tuple[Training, Run, Watch]:
    from attnctl.training.run import Run, read_corpus
    from attnctl.training.train import begin

    recipe, lines = _recipe(corpus, given)
    run = Run(output)
    run.check_free()  # before the corpus, which may take a while
    training = begin(recipe, read_corpus(recipe, lines))
    eye = _watch(training, sentence, query)
    run.create(recipe, lines)
    return training, run, eye


def _resumed(
    output: str, corpus: str | None, given: dict[str, Any], sentence: str | None, query: str | None
) -> tuple[Training, Run, Watch]:
    from attnctl.training.run import Run, check, read_corpus
    from attnctl.training.train import begin

    if corpus is not None or set(given) - {"steps", "device"}:
        raise UsageError("--resume goes on with the corpus and the recipe of its folder: only --steps may be more")
    run = Run(output)
    recipe, lines = run.recipe()
    recipe = check(replace(recipe, **given))
    training = begin(recipe, read_corpus(recipe, lines))
    eye = _watch(training, sentence, query)
    run.restore(training)
    if given and recipe.steps > training.step:
        run.write_recipe(recipe)
    return training, run, eye


def _watched(training: Training, sentence: str | None) -> str:
    """The sentence to watch; without one, the demo's for the grammar, and for a text its first of a handy length."""
    from attnctl.training.run import GRAMMAR

    if sentence is None:
        return WATCHED if training.recipe.corpus == GRAMMAR else training.corpus.first_sentence()
    return sentence


def _watch(training: Training, sentence: str | None, query: str | None) -> Watch:
    from attnctl.training.run import initial_arrays
    from attnctl.training.watch import Watch

    eye = Watch(
        _watched(training, sentence), training.corpus.vocabulary, training.causal, query, training.recipe.rope_theta
    )
    eye.start(initial_arrays(training.recipe, training.corpus))
    return eye


@contextlib.contextmanager
def _ctrl_c() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or a request to end) came: the step in progress is finished first. A second one stops at once."""
    came = False

    def note(number: int, _: Any) -> None:
        nonlocal came
        came = True
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_lines(training: Training, run: Run, eye: Watch) -> None:
    from attnctl.training.train import train as steps_of

    with _ctrl_c() as stop, contextlib.closing(steps_of(training, run, eye, stop)) as reports:
        for report in reports:
            put_json(report)
            sys.stdout.flush()


def _live(training: Training, run: Run, eye: Watch) -> None:
    from rich.live import Live

    from attnctl.render.terminal.models.training import live
    from attnctl.training.train import train as steps_of

    page = console()
    seen = run.reports()
    with (
        _ctrl_c() as stop,
        Live(console=page, auto_refresh=False) as view,
        contextlib.closing(steps_of(training, run, eye, stop)) as reports,
    ):
        for report in reports:
            seen.append(report)
            view.update(live(seen, training.recipe.steps, page.width), refresh=True)


def _finish(training: Training, run: Run, eye: Watch) -> None:
    """Say where the weights are; of the grammar, also measure what the heads learned, and write it into the weights."""
    from attnctl.training.run import GRAMMAR

    weights = run.path / "weights.safetensors"
    if training.recipe.corpus == GRAMMAR and training.step >= MEASURED_FROM:
        from attnctl.models import open_model
        from attnctl.training.relations import evaluate

        model = open_model(str(weights))
        table = evaluate(model, untrained_seed=training.recipe.seed)
        run.finish(training, table)
        if sys.stdout.isatty():
            from attnctl.cli.commands.models.evaluate import show_table

            lines("")
            show_table(table, model.info)
    complain(f'trained {training.step} steps: attnctl explain "{eye.sentence}" --model {run.path}')


def _explain(corpus: str | None, given: dict[str, Any], sentence: str | None, query: str | None, json: bool) -> None:
    from attnctl.training.lesson import one_step
    from attnctl.training.run import read_corpus
    from attnctl.training.train import begin

    recipe, lines = _recipe(corpus, given)
    recipe = replace(recipe, sentences=5000)  # enough for every word of the grammar
    training = begin(recipe, read_corpus(recipe, lines))
    step = one_step(training, _watched(training, sentence), query, given.get("lr"))
    if json:
        _lesson_json(step)
        return
    from attnctl.render.terminal.models.training import lesson

    show(lesson(step))


def _lesson_json(step: Lesson) -> None:
    told = {field.name: getattr(step, field.name) for field in fields(step)}
    put_json(told)
