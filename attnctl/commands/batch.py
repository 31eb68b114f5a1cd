"""`attnctl batch`: many texts in, traces and pictures out."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Context, Option

from attnctl.checks import limits
from attnctl.checks.model_options import OptionValues, model_arguments
from attnctl.cli import (
    CHANGED,
    CHECKPOINT,
    INPUT,
    LOOK,
    MADE,
    MATHEMATICS,
    NUMBERS,
    OUTPUT,
    SHOW,
    WORK,
    EngineOptions,
    HeadOption,
    LayerOption,
    ManyTextsModelOptions,
    PromptOptions,
    QueryOption,
    ReplaceOption,
    SpansOption,
    WeightOptions,
    command,
    completing,
    engine_of,
    items_progress,
    option_values,
    output_option,
    put_bytes,
    refuse_unused,
    say_unless_quiet,
    whole,
)
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError, option_name, print_complaint
from attnctl.formats import BatchLook, Look, format_names
from attnctl.registry import ALIGNED_FORMATS, BATCH_FORMATS, PROMPT_FORMATS
from attnctl.text import either

if TYPE_CHECKING:
    from attnctl.batching import Result, TextStream, Work
    from attnctl.source import Model

    Do = Callable[..., Iterator[list[Result]]]  # takes items and flowing=, yields lists of results in their order

PICTURES = format_names()
OF_WEIGHTS = ("json", "npz", "csv", "parquet", *PICTURES)
LINES = ("json", "csv", "pharaoh")  # formats that may go to standard output
FORMATS = (*OF_WEIGHTS, "statistics", *BATCH_FORMATS, *PROMPT_FORMATS, *ALIGNED_FORMATS)
OF_PROMPTS = f" ({', '.join(PROMPT_FORMATS)})" if PROMPT_FORMATS else ""  # in a help
NOTES = 100  # at most this many different notes are printed: each text may have its own
# names of options → the formats that use them
USED_BY: dict[tuple[str, ...], tuple[str, ...]] = {
    ("layer", "head"): (*OF_WEIGHTS, "statistics", *BATCH_FORMATS, *ALIGNED_FORMATS),
    ("query",): (*OF_WEIGHTS, "statistics"),
    ("words", "measure", "drop", "renormalise"): OF_WEIGHTS,
    ("steps",): ("json", "npz", "csv", "parquet"),
    ("predict",): ("json", "npz"),
    tuple(field.name for field in dataclasses.fields(Look)): PICTURES,
    ("spans", "budget", "remove"): tuple(PROMPT_FORMATS),
}


@command(
    example="attnctl batch sentences.txt -o out/ --format json,png",
    more=(SHOW, CHANGED, NUMBERS, MATHEMATICS, MADE, CHECKPOINT, WORK),
)
def batch_command(
    context: Context,
    source: Annotated[
        str | None,
        Argument(
            help='Texts: a file (.txt with a text a line, .jsonl, .csv, .tsv, .parquet; .gz, .zst), a folder, or "-".',
            metavar="FILE|FOLDER|-",
        ),
    ] = None,
    *,
    output: Annotated[
        str | None, output_option("Where to write: a folder [default: JSON lines, or the CSV, to stdout].", "FOLDER")
    ] = None,
    format: Annotated[
        str,
        Option(
            "--format",
            help=f"One or more of {', '.join(FORMATS)}{{attnctl.batch_formats}}: json,png.",
            metavar="FORMATS",
            autocompletion=completing(*FORMATS, "{attnctl.batch_formats}", joined=True),
            rich_help_panel=OUTPUT,
        ),
    ] = "json",
    input: Annotated[
        Literal["text", "jsonl", "csv", "tsv", "parquet"] | None,
        Option(
            "--input",
            help="Format of the texts: text, jsonl, csv, tsv or parquet [default: by the suffix].",
            rich_help_panel=INPUT,
        ),
    ] = None,
    column: Annotated[
        str | None,
        Option("--column", help="The column that holds the texts.", metavar="NAME", rich_help_panel=INPUT),
    ] = None,
    id_column: Annotated[
        str | None,
        Option(
            "--id-column", help="The column that holds the ids of the texts.", metavar="NAME", rich_help_panel=INPUT
        ),
    ] = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    query: QueryOption = None,
    steps: Annotated[
        str | None,
        Option(
            "--steps",
            help="Keep only these steps: weights (for csv and parquet: a row a weight), or scores,weights,…; with "
            "summary the headline. all: every step, with the model's matrices [default: all but these].",
            metavar="STEPS",
            autocompletion=completing("all", "attnctl.trace.steps:NAMES", joined=True),
            rich_help_panel=LOOK,
        ),
    ] = None,
    max_tokens: Annotated[
        int,
        Option(
            "--max-tokens",
            help="Tokens of the longest text that is read: a longer text is an error, and the others go on.",
            metavar="N",
            parser=whole(limits.MAX_TOKENS),
            rich_help_panel=INPUT,
        ),
    ] = 2048,
    engine: EngineOptions,
    jobs: Annotated[
        int | None,
        Option(
            "--jobs",
            "-j",
            help="Processes, each with a model of its own [default: one per core; 1 for stdout and checkpoints].",
            metavar="N",
            parser=whole(limits.JOBS),
            rich_help_panel=WORK,
        ),
    ] = None,
    batch_size: Annotated[
        int,
        Option(
            "--batch-size",
            help="How many share one pass: texts of about one length (checkpoints).",
            metavar="N",
            parser=whole(limits.BATCH_SIZE),
            rich_help_panel=WORK,
        ),
    ] = 32,
    spans: SpansOption = None,
    budget: Annotated[
        int,
        Option(
            "--budget",
            help=f"Forwards for a prompt{OF_PROMPTS}: if there are more parts, they are left out in groups.",
            metavar="N",
            parser=whole(limits.BUDGET),
            rich_help_panel=WORK,
        ),
    ] = 20,
    remove: Annotated[
        bool,
        Option(
            "--remove", help=f"Also measure the prompt rendered without each part{OF_PROMPTS}.", rich_help_panel=LOOK
        ),
    ] = False,
    strict: Annotated[
        bool,
        Option("--strict", help="Stop at the first text that fails.", rich_help_panel=WORK),
    ] = False,
    replace: ReplaceOption = False,
    weights: WeightOptions,
    look: BatchLook,
    model: ManyTextsModelOptions,
) -> int:
    """Run a model on every text of a file, and write a trace of each as a line of JSON, or pictures and tables.

    Run the same command again to do only what is missing. FOLDER/manifest.jsonl has the result of each text; if some
    failed, the exit code is 3. A line of JSON has "text", or "messages" (a conversation), and optionally "id", "text_pair",
    "tokens", "answer", "options".
    """
    asked = _chosen_formats(format, output)
    kept = _kept_steps(steps)
    by = engine_of(context, engine)
    _refuse_unused_beside_steps(context, asked, kept, steps)
    _refuse_unused_by_formats(context, asked)
    folder = None if output == "-" else output
    if replace and folder is None:
        raise UsageError("is for a folder: name it with -o", option="replace")
    if (source is None) == (model.chat is None):
        raise UsageError("give a file or folder of texts, or --chat and a file of conversations, one a line")

    from attnctl.batching import TextStream, Work, results_of_items
    from attnctl.source import Changes

    texts = TextStream(str(model.chat if source is None else source), input, column, id_column)
    of_model, prompts = dataclasses.replace(model, chat=None), OptionValues()
    if asked[0] in PROMPT_FORMATS:  # what is generated there is the answer, not a part of the text
        prompts = {"spans": spans, "budget": budget, "remove": remove, "most": model.generate}
        of_model = dataclasses.replace(of_model, generate=None)
    work = Work(
        model_arguments(option_values(of_model)),
        _forms_of_tables(asked, kept),
        layer=layer,
        head=head,
        query=query,
        look=dataclasses.asdict(look) | {"size": None if look.size is None else tuple(look.size)},  # as JSON has it
        max_tokens=max_tokens,
        batch_size=batch_size,
        changes=Changes(weights.measure, weights.words, weights.renormalise, tuple(weights.drop)),
        steps=kept,
        prompts=prompts,
    )
    opened, work = _open_model(work, texts)
    do = partial(results_of_items, work, by=by, jobs=jobs, model=opened, alone=folder is None)
    if folder is None:
        return PARTIAL if _write_lines(do, texts, work.formats[0], strict) else DONE
    return PARTIAL if _fill_folder(work, do, texts, folder, strict, replace) else DONE


def _open_model(work: Work, texts: TextStream) -> tuple[Model, Work]:
    """Return the opened model, and the work with the number of texts that share a pass; say in `texts` if they are sounds.

    Raises the errors that concern every text.
    """
    from attnctl.batching import format_named, most_together, open_work_model

    opened = open_work_model(work)
    texts.sounds = work.aligns and format_named(work.formats[0]).reads_sounds
    alone = work.answers_prompts or work.aligns
    return opened, dataclasses.replace(work, batch_size=1 if alone else most_together(opened, work.batch_size))


def _forms_of_tables(formats: tuple[str, ...], steps: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the formats, with the kind of each table: csv holds headlines, or with `--steps weights` the weights."""
    from attnctl.batching import TABLES

    return tuple(TABLES[name][steps == ("weights",)] if name in TABLES else name for name in formats)


def _kept_steps(listed: str | None) -> tuple[str, ...] | None:
    """Return the steps in the value of --steps. Raises UsageError for an unknown one."""
    if listed is None:
        return None
    from attnctl.trace.steps import listed_steps

    return listed_steps(listed)


def _chosen_formats(listed: str, output: str | None) -> tuple[str, ...]:
    """Return the formats in the value of --format.

    Raises UsageError for an unknown format or one that does not fit -o, AttnctlError for one that cannot be imported.
    """
    formats = tuple(dict.fromkeys(name.strip() for name in listed.split(",")))
    for name in formats:
        if name not in FORMATS:
            from attnctl.batching import format_named

            format_named(name)
    if output in (None, "-") and not (len(formats) == 1 and formats[0] in LINES):
        why = "it needs a folder to write: name it with -o (stdout takes json, csv or pharaoh, alone)"
        raise UsageError(why, option="format", value=listed)
    suffix = "" if output is None else output[output.rfind(".") :].lower()
    if suffix[1:] in ("json", "jsonl", "npz", "parquet", "csv", *PICTURES):
        asked = f" --format csv > {output}" if suffix == ".csv" else f" > {output}"
        raise UsageError(f"-o {output}: a batch writes a folder; for lines in one file leave -o out, and write{asked}")
    alone = next((name for name in formats if name in PROMPT_FORMATS), None)
    if alone is not None and len(formats) > 1:
        raise UsageError(
            "it cannot be combined with other formats: it answers each prompt, and keeps no traces",
            option="format",
            value=alone,
        )
    if not set(formats).isdisjoint(ALIGNED_FORMATS) and not set(formats) <= ALIGNED_FORMATS.keys():
        other = next(name for name in formats if name not in ALIGNED_FORMATS)
        why = f"it cannot be combined with {either(list(ALIGNED_FORMATS))}, which align, and keep no traces"
        raise UsageError(why, option="format", value=other)
    return formats


def _refuse_unused_beside_steps(
    context: Context, formats: tuple[str, ...], steps: tuple[str, ...] | None, listed: str | None
) -> None:
    """Refuse what the steps of --steps leave out. Raises UsageError for steps that a table does not hold."""
    if steps is None:
        return
    if "prediction" not in steps:
        refuse_unused(context, "predict", because="--steps leaves the prediction out")
    if "csv" in formats and steps != ("weights",):
        why = f"with {option_name('format', 'csv')} it is weights; without it the table holds the headline of each text"
        raise UsageError(why, option="steps", value=listed)
    if "matrices" in steps and listed != "all" and not {"json", "npz"} & set(formats):
        raise UsageError("a table holds no matrices: add --format json or npz", option="steps", value=listed)


def _refuse_unused_by_formats(context: Context, formats: tuple[str, ...]) -> None:
    """Refuse options that the formats do not use; a format of a package uses the options of parquet, except the steps."""
    used = {name if name in FORMATS else "parquet" for name in formats}
    for names, users in USED_BY.items():
        if not (set(formats) if names == ("steps",) else used) & set(users):
            kinds = [f"--format {name}" for name in users if name not in PICTURES]
            kinds += ["a picture"] if PICTURES[0] in users else []
            refuse_unused(context, *names, because=f"use it with {either(kinds)}" if kinds else "no format uses it")
    if formats[0] in PROMPT_FORMATS:
        of_prompts = {field.name for field in dataclasses.fields(PromptOptions)}
        of_texts = {field.name for field in dataclasses.fields(ManyTextsModelOptions)} - of_prompts
        because = f"--format {formats[0]} asks a checkpoint, one prompt after the other"
        refuse_unused(context, "batch_size", *sorted(of_texts), because=because)
    if formats[0] in ALIGNED_FORMATS:
        because = f"--format {formats[0]} aligns one text after the other"
        refuse_unused(context, "batch_size", "max_tokens", "chat", because=because)


def _write_lines(do: Do, texts: TextStream, form: str, strict: bool) -> int:
    """Write each text's lines of `form` to stdout when it is finished; return how many failed, and files were cut off."""
    from attnctl.batching import format_named

    heading = b"" if form == "json" else format_named(form).heading()
    failed = count = 0
    noted: set[str] = set()
    for chunk in do(texts, flowing=texts.path == "-"):
        count += len(chunk)
        for result in chunk:
            failed += _report_result(result, strict, noted)
            put_bytes(heading + result.outputs.get(form, b""))
            heading = b""
        sys.stdout.flush()
    put_bytes(heading)  # of a table without a text
    for sentence in texts.unread:
        print_complaint(sentence)
    if not count:
        say_unless_quiet(f"note: there are no texts in {texts.path}")
    if form == "json" and sys.stdout.isatty():
        say_unless_quiet(
            "note: these are traces as JSON, one a line, for a program to read: > runs.jsonl keeps them, and "
            "-o FOLDER --format png makes pictures"
        )
    return failed + len(texts.unread)


def _fill_folder(work: Work, do: Do, texts: TextStream, output: str, strict: bool, start_anew: bool) -> int:
    """Write a folder of files with its manifest; return the number of texts that failed, in this run or before."""
    from attnctl.batching import FILES, SHARED, Folder, format_named

    noted: set[str] = set()
    settings = {"input": [texts.path], "input_form": texts.form}
    settings |= {"column": texts.column, "id_column": texts.id_column} | work.request()
    shared = [format_named(form)() for form in work.formats if form not in ("json", *FILES)]
    together = SHARED if work.batch_size > 1 else 1
    opened = Folder(output, settings, work.formats, shared, together, start_anew=start_anew)
    flowing = texts.path == "-" and work.batch_size == 1  # the same texts share a pass in every run
    with opened as folder, items_progress(texts.share_done) as tick:
        folder.fill(texts, partial(do, flowing=flowing), lambda result: _report_result(result, strict, noted), tick)
    incomplete = folder.failed_before + len(texts.unread)
    summary = "; ".join([*texts.unread, folder.summary_sentence()])
    (print_complaint if incomplete else say_unless_quiet)(summary)
    return folder.failed + incomplete


def _report_result(result: Result, strict: bool, noted: set[str]) -> int:
    """Print the notes of a result; return 1 if it failed, else 0. Raises AttnctlError for a failure with --strict."""
    for note in result.notes:
        if note not in noted and len(noted) < NOTES:
            noted.add(note)
            say_unless_quiet(f"note: {note}")
    if result.error is None:
        return 0
    if strict:
        raise AttnctlError(f"{result.item}: {result.error}")
    print_complaint(f"{result.item}: {result.error}")
    return 1
