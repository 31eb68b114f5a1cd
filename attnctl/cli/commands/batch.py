"""`attnctl batch`: many texts in, traces and pictures out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from attnctl.argument_types import OptionValues, model_arguments
from attnctl.batching.corpus.prompt_sources import PromptSources, check_prompts
from attnctl.batching.engines import SHARED, chunks_of_items, items_at_a_time, run_engine, worker_of
from attnctl.batching.folder import Folder
from attnctl.batching.groups import Contacts, EffectMeans, Statistics, Tables
from attnctl.batching.items import Item
from attnctl.batching.manifest import input_paths
from attnctl.batching.texts import FORMS, TextStream, form_of_path
from attnctl.batching.work import Result, Work, open_work_model
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import print_complaint, put_bytes, say_unless_quiet
from attnctl.cli.progress import items_progress
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError
from attnctl.formats.pictures import format_names
from attnctl.models import DEFAULT, Model

Do = Callable[..., Iterator[list[Result]]]  # called with items and flowing=, answers results in their order


def batch_command(
    *,
    source: str | None,
    output: str | None,
    formats: str,
    strict: bool,
    drop: list[str] | None,
    renormalise: bool,
    jobs: int | None,
    replace_results: bool,
    **options: Any,
) -> None:
    """Run every text of a file through a model: a trace a line, a picture each."""
    by = o.taken(arguments.EngineOptions, options)
    asked = _chosen_formats(formats, output)
    by.check_engine("batch")
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
    texts = _text_stream(str(chat if source is None else source), **o.arguments_of(_text_stream, options))
    prompts = _prompt_options(asked, options)
    given = model_arguments(o.model_options(options))
    work = Work(given, asked, look=look, prompts=prompts, **o.arguments_of(Work, options))
    model = open_work_model(work)  # raises what is wrong for every text alike
    if "sources" in asked:
        check_prompts(model)
    if "sources" in asked or model.info.kind != "checkpoint":
        work = replace(work, batch_size=1)
    to_stdout = output is None or output == "-"
    do = _runner(by, jobs, work, model, to_stdout)
    if to_stdout and replace_results:
        raise UsageError("--replace is for a folder: name it with -o")
    failed = (
        _write_lines(do, texts, strict)
        if to_stdout
        else _fill_folder(work, do, texts, str(output), strict, replace_results)
    )
    raise typer.Exit(PARTIAL if failed else DONE)


def _text_stream(
    path: str, input_form: str | None = None, column: str | None = None, id_column: str | None = None
) -> TextStream:
    """The texts of a file, folder or pipe. Raises UsageError for no such form, AttnctlError where nothing is there."""
    if input_form is not None and input_form not in FORMS:
        raise UsageError(f"--input {input_form!r}: it is {', '.join(FORMS)}")
    if not path:
        raise UsageError("the source is empty: give a file or folder of texts, or - for standard input")
    if path != "-" and not Path(path).exists():
        raise AttnctlError(f"there is no file {path}: give a file or folder of texts, or - for standard input")
    if (input_form or form_of_path(path)) == "text" and (column or id_column) is not None:
        raise UsageError(f"--column and --id-column are of tables and JSON lines: {path} holds a text a line")
    return TextStream(path, input_form, column, id_column)


def _prompt_options(formats: tuple[str, ...], options: OptionValues) -> OptionValues:
    """What is measured of prompts; nothing where --format is another. Raises UsageError where others are beside it."""
    if "sources" not in formats:
        return {}
    if len(formats) > 1:
        raise UsageError("--format sources goes alone: it answers each prompt, and keeps no traces of it")
    return {name: options[name] for name in ("spans", "budget", "remove")} | {"most": options.pop("generate", None)}


def _runner(by: arguments.EngineOptions, jobs: int | None, work: Work, model: Model, to_stdout: bool) -> Do:
    """What is called with the items, and answers their results in order."""
    if by.engine == "ray":
        return _on_ray(work, by.address, jobs, by.gpus_per_worker)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # what flows line by line is seldom worth more processes; a checkpoint has threads, and may fill the memory
    alone = to_stdout or model.info.kind == "checkpoint"
    return partial(run_engine, work, jobs=jobs or (1 if alone else processors), model=model)


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


def _on_ray(work: Work, address: str | None, workers: int | None, gpus: float) -> Do:
    from attnctl.batching.engines import run_on_cluster

    def run_items(items: Iterable[Item], *, flowing: bool) -> Iterator[list[Result]]:
        return run_on_cluster(
            work,
            chunks_of_items(items, items_at_a_time(work)),
            worker=worker_of(work),
            address=address,
            workers=workers,
            gpus=gpus,
        )

    return run_items


def _write_lines(do: Do, source: TextStream, strict: bool) -> int:
    """JSON lines to stdout, each as soon as it is there. → how many failed."""
    failed = 0
    for chunk in do(source, flowing=source.path == "-"):
        for result in chunk:
            failed += _report_result(result, strict)
            if result.error is None:
                put_bytes(result.made["json"])
        sys.stdout.flush()
    if sys.stdout.isatty():
        say_unless_quiet(
            "note: these are traces as JSON, one a line, for a program to read: > runs.jsonl keeps them, and "
            "-o FOLDER --format png makes pictures"
        )
    return failed


def _fill_folder(work: Work, do: Do, source: TextStream, output: str, strict: bool, start_anew: bool) -> int:
    """A folder of files and their manifest. → how many failed, now or before."""
    said: dict[str, Any] = {"input": input_paths([source.path], output), "input_form": source.form}
    said |= {"column": source.column, "id_column": source.id_column}
    said |= work.said()
    heading = (
        f"{'standard input' if source.path == '-' else Path(source.path).name}, {work.options.get('name', DEFAULT)}"
    )
    made: dict[str, Callable[[], Any]] = {
        "parquet": Tables,
        "contact-sheet": partial(Contacts, heading),
        "statistics": Statistics,
        "effects": EffectMeans,
        "sources": PromptSources,
    }
    writers: list[Any] = [made[form]() for form in work.formats if form in made]
    together = SHARED if work.batch_size > 1 else 1
    flowing = source.path == "-" and together == 1  # texts that share a pass are the same in every run
    opened = Folder(output, said, work.formats, writers, together, start_anew=start_anew)
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
    _batch_summary(folder)
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


def _batch_summary(folder: Folder) -> None:
    """One line on stderr: what was done, what is there, where to read more."""
    parts = [f"{folder.done:,} done"] + ([f"{folder.failed:,} failed"] if folder.failed else [])
    failed = f" ({folder.failed_before:,} of them failed)" if folder.failed_before else ""
    parts += [f"{folder.kept_before:,} there before{failed}"] if folder.kept_before else []
    parts += [f"{folder.gone:,} there of texts that are not in it now"] if folder.gone else []
    parts += [damage] if (damage := folder.damage_sentence()) else []
    say_unless_quiet(f"{', '.join(parts)}: see {folder.path}/manifest.jsonl")
