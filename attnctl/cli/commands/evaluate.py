"""`attnctl evaluate`: which words the heads of a model find, beside rules that need no learning."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from msgspec import structs

from attnctl.api import census_bytes
from attnctl.argument_types import OptionValues, model_arguments
from attnctl.batching import census_work
from attnctl.batching.treebank import Treebank
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import put_bytes, show_renderable
from attnctl.cli.progress import items_progress
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.files import check_writable, need_pyarrow
from attnctl.formats.census_table import read_census
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.model_documents import RelationDocument
from attnctl.formats.pictures import format_names, picture_format
from attnctl.models import REGISTRY
from attnctl.readings.census.census_table import CensusTable
from attnctl.render.terminal.console import Shown
from attnctl.render.told.census import census_forms
from attnctl.render.told.training import NOTE, relations_table
from attnctl.training.english import treebank_text
from attnctl.training.relations import measure_relations

FILES = (".json", ".csv", ".parquet", ".html", *(f".{name}" for name in format_names()))


def evaluate_command(
    *,
    corpus: list[str] | None,
    sentences: int,
    write_corpus: str | None,
    json: bool,
    output: list[str] | None,
    **options: Any,
) -> None:
    """Measure which word each head finds: in parsed sentences of any language, or of the bundled corpus."""
    model = o.model_options(options)
    corpus, model = _model_named_first(corpus or [], model)
    stored = len(corpus) == 1 and corpus[0].lower().endswith(".json")
    mode = "a stored census" if stored else "a corpus" if corpus else "the bundled corpus"
    arguments.check_mode("evaluate", mode if write_corpus is None else "--write-corpus")
    pictures = ("a picture",) if any(map(picture_format, output or ())) else ()
    arguments.check_mode("evaluate", "JSON" if json else "the table", *pictures)
    look = arguments.look_of(options)
    if pictures:
        from attnctl.render.figure.heatmap import colour_map

        colour_map(look.cmap)  # a name that is none is refused before long work
    if write_corpus is not None:
        if corpus:
            raise UsageError("--write-corpus writes the held-out sentences of the bundled corpus: it reads no corpus")
        causal = bool(arguments.model_of(model).info.causal)
        put_bytes(treebank_text(sentences, causal).encode(), write_corpus)
        return
    if not corpus:
        table = measure_relations(arguments.model_of(model), count=sentences)
        if json:
            put_bytes(b"".join(write_json(measured, "relation") + b"\n" for measured in table))
        else:
            show_table(table)
        return
    files, folder = _output_files(output or [])
    if stored and folder is not None:
        ends = ", ".join(FILES)
        raise UsageError(f"-o {folder}: {corpus[0]} was counted already, and goes into files that end in {ends}")
    found = read_census(corpus[0]) if stored else _counted_census(corpus, folder, model, options)
    for path in [*files, *([str(Path(folder) / "census.json")] if folder else [])]:
        put_bytes(census_bytes(found, Path(path).suffix.lower(), look, arguments.say_notes), path)
    if json:
        put_bytes(census_bytes(found, ".json"))
    else:
        show_renderable(Shown(census_forms(found, options["subtypes"], options["least"])), soft_wrap=True)
    if found.skipped:
        count = found.sentences_read - found.used
        were = "was" if count == 1 else "were"
        print_complaint(f"{count:,} of {found.sentences_read:,} sentences {were} left out: {_reasons(found)}")
    if not stored:
        raise typer.Exit(PARTIAL if found.skipped else DONE)


def _counted_census(corpus: list[str], folder: str | None, given: OptionValues, options: OptionValues) -> CensusTable:
    """The census of a corpus, counted by the model that is `given`. Raises AttnctlError where no sentence could be used."""
    jobs, anew = options["jobs"], options["replace"]
    if anew and folder is None:
        raise UsageError("--replace is for a folder: name it with -o")
    by = arguments.engine_of("evaluate", options)
    treebank = Treebank(corpus)
    relations = census_work.renamed_relations(options.pop("relations"))
    work = census_work.CensusWork(model_arguments(given), relations, **o.arguments_of(census_work.CensusWork, options))
    model = census_work.open_census_model(work)
    if model.info.kind != "checkpoint":
        work = replace(work, batch_size=1)
    with items_progress(treebank.share_read) as tick:
        alone = by.engine == "local" and jobs == 1
        told = census_work.CensusProgress(
            treebank, folder is not None, alone, tick, arguments.say_note, print_complaint
        )
        how = {"jobs": jobs, "by": by, "folder": folder, "start_anew": anew}
        found = census_work.count_corpus(work, treebank, model, hear=told.chunk_done, say=arguments.say_note, **how)
    told.end()
    if not found.used:
        raise AttnctlError(f"{found.corpus}: not one sentence could be used ({_reasons(found) or 'it holds none'})")
    return found


def _reasons(found: CensusTable) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in found.skipped.items())


def _model_named_first(corpus: list[str], options: OptionValues) -> tuple[list[str], OptionValues]:
    """A model's name where a corpus could stand: `attnctl evaluate demo-causal`, `attnctl evaluate run/`."""
    if len(corpus) != 1 or corpus[0] == "-" or options.get("model") is not None:
        return corpus, options
    name = corpus[0]
    path = Path(name)
    if len(os.fsencode(path.name)) > 255:
        raise UsageError("no model and no corpus has so long a name")
    is_model = name in REGISTRY or path.suffix in (".safetensors", ".npz") or (path / "weights.safetensors").is_file()
    if not is_model and not path.exists():
        raise UsageError(f"no model and no corpus {name!r}: give a CoNLL-U file and --model NAME")
    return ([], options | {"model": name}) if is_model else (corpus, options)


def _output_files(outputs: list[str]) -> tuple[list[str], str | None]:
    """The files to be written, and the folder."""
    files = [path for path in outputs if Path(path).suffix.lower() in FILES]
    folders = [path for path in outputs if path not in files]
    if len(folders) > 1:
        raise UsageError(f"-o {folders[1]}: one folder is enough, and files end in {', '.join(FILES)}")
    if folders and (folders[0] == "-" or Path(folders[0]).is_file()):
        raise UsageError(f"-o {folders[0]}: it is a folder, or a file that ends in {', '.join(FILES)}")
    for path in files:
        check_writable(path)
        if path.lower().endswith(".parquet"):
            need_pyarrow(f"{path}: Parquet")
    return files, folders[0] if folders else None


def show_table(table: list[RelationDocument]) -> None:
    """Print the table of relations and how to read it."""
    relations = relations_table([structs.asdict(measured) for measured in table])
    show_renderable(Shown([relations, "", (NOTE, "dim")]), soft_wrap=True)
