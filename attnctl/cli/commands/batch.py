"""`attnctl batch`: many texts in, traces and pictures out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import typer

from attnctl.argument_types import OptionValues, model_arguments
from attnctl.batching.engines import results_of_items
from attnctl.batching.groups import batch_folder
from attnctl.batching.items import Result
from attnctl.batching.texts import TextStream, opened_stream
from attnctl.batching.work import Work, open_work_model
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import put_bytes, say_unless_quiet
from attnctl.cli.progress import items_progress
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.formats.pictures import format_names

Do = Callable[..., Iterator[list[Result]]]  # called with items and flowing=, answers results in their order


def batch_command(
    *,
    source: str | None,
    output: str | None,
    strict: bool,
    drop: list[str] | None,
    renormalise: bool,
    jobs: int | None,
    **options: Any,
) -> None:
    """Run every text of a file through a model: a trace a line, a picture each."""
    asked, anew = _chosen_formats(options["format"], output), options["replace"]
    by = arguments.engine_of("batch", options)
    if options["steps"] is not None:
        options["steps"] = tuple(map(str.strip, options["steps"].split(",")))
        arguments.check_mode("batch", "--steps")
    arguments.check_mode("batch", *("a picture" if form in format_names() else f"--format {form}" for form in asked))
    any_scale = {"log": None} if options.get("log") is None else {}  # chosen for each text, then
    look = asdict(arguments.look_of(options, dpi=100)) | any_scale
    look |= {"drop": tuple(drop or ()), "renormalise": renormalise}
    chat = options.pop("chat", None)
    if (source is None) == (chat is None):
        raise UsageError("give a file or folder of texts, or --chat and a file of conversations, one a line")
    texts = opened_stream(str(chat if source is None else source), **o.arguments_of(opened_stream, options))
    prompts = _prompt_options(asked, options)
    given = model_arguments(o.model_options(options))
    work = Work(given, asked, look=look, prompts=prompts, **o.arguments_of(Work, options))
    model = open_work_model(work)  # raises what is wrong for every text alike
    if "sources" in asked or model.info.kind != "checkpoint":
        work = replace(work, batch_size=1)
    to_stdout = output is None or output == "-"
    do = partial(results_of_items, work, by=by, jobs=jobs, model=model, alone=to_stdout)
    if to_stdout and anew:
        raise UsageError("--replace is for a folder: name it with -o")
    failed = _write_lines(do, texts, strict) if to_stdout else _fill_folder(work, do, texts, str(output), strict, anew)
    raise typer.Exit(PARTIAL if failed else DONE)


def _prompt_options(formats: tuple[str, ...], options: OptionValues) -> OptionValues:
    """What is measured of prompts; nothing where --format is another. Raises UsageError where others are beside it."""
    if "sources" not in formats:
        return {}
    if len(formats) > 1:
        raise UsageError("--format sources goes alone: it answers each prompt, and keeps no traces of it")
    return {name: options[name] for name in ("spans", "budget", "remove")} | {"most": options.pop("generate", None)}


def _chosen_formats(asked: str, output: str | None) -> tuple[str, ...]:
    formats = tuple(dict.fromkeys(name.strip() for name in asked.split(",")))
    for name in formats:
        if name not in o.BATCH_FORMATS:
            raise UsageError(f"--format {name!r}: it is one or more of {', '.join(o.BATCH_FORMATS)}")
    if output in (None, "-") and formats != ("json",):
        raise UsageError(f"--format {asked} needs a folder to write: name it with -o (stdout takes json alone)")
    suffix = "" if output is None else output[output.rfind(".") :].lower()
    if suffix[1:] in ("json", "jsonl", "npz", "parquet", "csv", *format_names()):
        raise UsageError(
            f"-o {output}: a batch writes a folder; for lines in one file leave -o out, and write > {output}"
        )
    return formats


def _write_lines(do: Do, source: TextStream, strict: bool) -> int:
    """JSON lines to stdout, each as soon as it is there. → how many failed."""
    failed = count = 0
    for chunk in do(source, flowing=source.path == "-"):
        count += len(chunk)
        for result in chunk:
            failed += _report_result(result, strict)
            if result.error is None:
                put_bytes(result.made["json"])
        sys.stdout.flush()
    if not count:
        say_unless_quiet(f"note: there are no texts in {source.path}")
    if sys.stdout.isatty():
        say_unless_quiet(
            "note: these are traces as JSON, one a line, for a program to read: > runs.jsonl keeps them, and "
            "-o FOLDER --format png makes pictures"
        )
    return failed


def _fill_folder(work: Work, do: Do, source: TextStream, output: str, strict: bool, start_anew: bool) -> int:
    """A folder of files and their manifest. → how many failed, now or before."""
    opened = batch_folder(work, source, output, start_anew=start_anew)
    flowing = source.path == "-" and work.batch_size == 1  # texts that share a pass are the same in every run
    with opened as folder, items_progress(source.share_read) as tick:
        for chunk in do(folder.items_to_do(source), flowing=flowing):
            for at, result in enumerate(chunk):
                try:
                    _report_result(result, strict)
                except AttnctlError:
                    folder.write_results(chunk[:at])
                    raise
            folder.write_results(chunk)
            tick(len(chunk))
        folder.finish_run()
    (print_complaint if folder.failed_before else say_unless_quiet)(folder.summary_sentence())
    return folder.failed + folder.failed_before


_noted: set[str] = set()


def _report_result(result: Result, strict: bool) -> int:
    """Say what a user should know of a result. → 1 where it failed; with --strict that is the end."""
    for note in result.notes:
        if note not in _noted and len(_noted) < 100:
            _noted.add(note)
            say_unless_quiet(f"note: {note}")
    if result.error is None:
        return 0
    if strict:
        raise AttnctlError(f"{result.item}: {result.error}")
    print_complaint(f"{result.item}: {result.error}")
    return 1
