"""`attnctl evaluate`: which words the heads of a model find, beside rules that need no learning."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from attnctl import limits
from attnctl.cli.command import command, refuse_unused
from attnctl.cli.engines import engine_of
from attnctl.cli.groups import (
    CHANGED,
    CHECKPOINT,
    INPUT,
    LOOK,
    MADE,
    MATHEMATICS,
    NUMBERS,
    OUTPUT,
    WORK,
    CorpusModelOptions,
    EngineOptions,
    MapOptions,
    ReplaceOption,
    option_values,
    output_option,
    whole,
)
from attnctl.cli.opening import model_of
from attnctl.cli.output import picture_look, put_bytes, say_note, say_notes, show_renderable
from attnctl.cli.progress import items_progress
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.files import check_writable, need_pyarrow
from attnctl.formats.pictures import format_names, picture_format, suffixes_listed
from attnctl.model_options import model_arguments

if TYPE_CHECKING:
    from attnctl.batching.engines import Engine
    from attnctl.batching.items import Result
    from attnctl.commands.evaluate.compute import CensusWork
    from attnctl.commands.evaluate.result import CensusTable
    from attnctl.commands.evaluate.treebank import Treebank

FILES = (".json", ".csv", ".parquet", ".html", *(f".{name}" for name in format_names()))
# options of the work of counting, and of what is counted
COUNTING = ("relations", "untrained", "max_tokens", "batch_size", "jobs", "replace", EngineOptions)
COUNTED = ("subtypes", "least", "output", MapOptions)


@command(
    example="attnctl evaluate corpus.conllu --model minilm", more=(NUMBERS, CHANGED, MATHEMATICS, MADE, CHECKPOINT)
)
def evaluate_command(
    context: Context,
    corpus: Annotated[
        list[str] | None,
        Argument(
            help='Parsed sentences as CoNLL-U (.gz, .zst), or "-"; or a census (.json). Default: the bundled corpus.',
            metavar="FILE…",
            show_default=False,
        ),
    ] = None,
    *,
    relations: Annotated[
        str | None,
        Option(
            "--relations",
            help="CSV of label,name: relations called otherwise, or left out.",
            metavar="FILE",
            envvar="ATTNCTL_RELATIONS",
            rich_help_panel=LOOK,
        ),
    ] = None,
    untrained: Annotated[
        bool,
        Option(
            "--untrained",
            help="Beside it the same model with parameters drawn anew.",
            envvar="ATTNCTL_UNTRAINED",
            rich_help_panel=LOOK,
        ),
    ] = False,
    subtypes: Annotated[
        bool,
        Option(
            "--subtypes",
            help="A line for each subtype, as nsubj:pass.",
            envvar="ATTNCTL_SUBTYPES",
            rich_help_panel=LOOK,
        ),
    ] = False,
    least: Annotated[
        int,
        Option(
            "--least",
            help="Scored cases that a line of the table has at least.",
            metavar="N",
            parser=whole(limits.CASES),
            envvar="ATTNCTL_LEAST",
            rich_help_panel=LOOK,
        ),
    ] = 20,
    max_tokens: Annotated[
        int,
        Option(
            "--max-tokens",
            help="Tokens of the longest text that is read: a sentence with more is left out.",
            metavar="N",
            parser=whole(limits.MAX_TOKENS),
            envvar="ATTNCTL_MAX_TOKENS",
            rich_help_panel=INPUT,
        ),
    ] = 512,
    batch_size: Annotated[
        int,
        Option(
            "--batch-size",
            help="How many share one pass: sentences of about one length (checkpoints).",
            metavar="N",
            parser=whole(limits.BATCH_SIZE),
            envvar="ATTNCTL_BATCH_SIZE",
            rich_help_panel=WORK,
        ),
    ] = 32,
    jobs: Annotated[
        int,
        Option(
            "--jobs",
            "-j",
            help="Processes, each with a model of its own.",
            metavar="N",
            parser=whole(limits.JOBS),
            envvar="ATTNCTL_JOBS",
            rich_help_panel=WORK,
        ),
    ] = 1,
    replace: ReplaceOption = False,
    work: EngineOptions,
    sentences: Annotated[
        int,
        Option(
            "--sentences",
            help="Of the bundled corpus: sentences in each of its parts.",
            metavar="N",
            parser=whole(limits.GRAMMAR_SENTENCES),
            envvar="ATTNCTL_SENTENCES",
            rich_help_panel=LOOK,
        ),
    ] = 1000,
    write_corpus: Annotated[
        str | None,
        Option(
            "--write-corpus",
            help="Write the corpus's held-out sentences as CoNLL-U.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: Annotated[
        bool,
        Option("--json", help="Write JSON: instead of the table.", envvar="ATTNCTL_JSON", rich_help_panel=OUTPUT),
    ] = False,
    output: Annotated[
        list[str] | None,
        output_option(
            f"Where to write: .json, .csv, .parquet, {suffixes_listed(last=', ')}, .html, "
            "or a folder to go on from; repeatable."
        ),
    ] = None,
    look: MapOptions,
    model: CorpusModelOptions,
) -> int:
    """Measure which word each head finds: in parsed sentences of any language, or of the bundled corpus.

    For every relation and direction the best head, chosen on one half of the sentences and scored on the other, beside
    rules that need no attention. Sentences that cannot be used are counted and named, and the exit code is 3. A census that
    -o wrote as .json is shown, or written in another format, without counting anew.
    """
    paths, options = corpus or [], option_values(model)
    if model.model is None and _is_model(paths):
        paths, options = [], options | {"model": paths[0]}
    if write_corpus is not None:
        others = [one.name for one in fields(CorpusModelOptions) if one.name not in ("model", "causal")]
        refuse_unused(context, *COUNTING, *COUNTED, "json", *others, because="--write-corpus writes sentences alone")
        if paths:
            raise UsageError(
                "writes the held-out sentences of the bundled corpus: it reads no corpus", option="write_corpus"
            )
        from attnctl.commands.evaluate.bundled import treebank_text

        put_bytes(treebank_text(sentences, bool(model_of(options).info.causal)).encode(), write_corpus)
        return DONE
    if not paths:
        refuse_unused(context, *COUNTING, *COUNTED, because="it goes with a corpus of your own")
        _evaluate_bundled(options, sentences, json)
        return DONE
    stored = len(paths) == 1 and paths[0].lower().endswith(".json")
    if stored:
        because = f"{paths[0]} was counted already"
        refuse_unused(context, *COUNTING, "sentences", CorpusModelOptions, because=because)
    refuse_unused(context, "sentences", because="it goes with the bundled corpus")
    if json:
        refuse_unused(context, "subtypes", "least", because="the output is JSON")
    if not any(map(picture_format, output or ())):
        refuse_unused(context, MapOptions, because="it goes with a picture")

    from attnctl.commands.evaluate.compute import CensusWork, renamed_relations
    from attnctl.commands.evaluate.result import read_census
    from attnctl.commands.evaluate.show import census_bytes, census_forms, left_out
    from attnctl.commands.evaluate.treebank import Treebank
    from attnctl.render.terminal.console import Shown

    drawn = picture_look(look)
    if any(map(picture_format, output or ())):
        from attnctl.render.figure.heatmap import colour_map

        colour_map(drawn.cmap)  # a name that is none is refused before long work
    files, folder = _output_files(output or [])
    if stored:
        if folder is not None:
            ends = ", ".join(FILES)
            raise UsageError(f"-o {folder}: {paths[0]} was counted already, and goes into files that end in {ends}")
        found = read_census(paths[0])
    else:
        if replace and folder is None:
            raise UsageError("is for a folder: name it with -o", option="replace")
        by, treebank = engine_of(context, work), Treebank(paths)
        counting = CensusWork(
            model_arguments(options),
            renamed_relations(relations),
            untrained=untrained,
            max_tokens=max_tokens,
            batch_size=batch_size,
        )
        found = _counted_census(treebank, counting, folder, by, jobs, start_anew=replace)
    for path in [*files, *([str(Path(folder) / "census.json")] if folder else [])]:
        put_bytes(census_bytes(found, Path(path).suffix.lower(), drawn, say_notes), path)
    if json:
        put_bytes(census_bytes(found, ".json"))
    else:
        show_renderable(Shown(census_forms(found, subtypes, least)), soft_wrap=True)
    if skipped := found.sentences.skipped:
        count = sum(skipped.values())
        were = "was" if count == 1 else "were"
        print_complaint(
            f"{count:,} of {found.sentences.used + count:,} sentences {were} left out: {', '.join(left_out(found))}"
        )
    return PARTIAL if skipped and not stored else DONE


def _evaluate_bundled(options: dict[str, object], count: int, json: bool) -> None:
    """Measure the heads of a model on the bundled corpus, and show the table."""
    from msgspec import structs

    from attnctl.commands.evaluate.bundled import measure_relations
    from attnctl.formats.documents.json_documents import write_json
    from attnctl.render.terminal.console import Shown
    from attnctl.render.told.relations import relations_forms

    table = measure_relations(model_of(options), count=count)
    if json:
        put_bytes(b"".join(write_json(measured, "relation") + b"\n" for measured in table))
    else:
        show_renderable(Shown(relations_forms([structs.asdict(measured) for measured in table])), soft_wrap=True)


def _counted_census(
    treebank: Treebank, work: CensusWork, folder: str | None, by: Engine, jobs: int, *, start_anew: bool
) -> CensusTable:
    """Return the census of a corpus. Raises AttnctlError if no sentence could be used."""
    from attnctl.commands.evaluate import compute, show

    model = compute.open_census_model(work)
    left_out = compute.LeftOut(folder is not None, print_complaint)
    with items_progress(treebank.share_read) as tick:

        def hear(chunk: list[Result]) -> None:
            left_out.hear(chunk)
            tick(len(chunk))

        found = compute.count_corpus(
            work,
            treebank,
            model,
            jobs=jobs,
            by=by,
            folder=folder,
            start_anew=start_anew,
            hear=hear,
            say=say_note,
        )
    left_out.end()
    if not found.sentences.used:
        raise AttnctlError(
            f"{found.corpus}: not one sentence could be used ({', '.join(show.left_out(found)) or 'it holds none'})"
        )
    return found


def _is_model(corpus: list[str]) -> bool:
    """Return whether a model is named in place of a corpus: `attnctl evaluate demo-causal`, `attnctl evaluate run/`."""
    from attnctl.models import REGISTRY

    if len(corpus) != 1 or corpus[0] == "-":
        return False
    path = Path(corpus[0])
    if len(os.fsencode(path.name)) > 255:
        raise UsageError("no model and no corpus has so long a name")
    if corpus[0] in REGISTRY or path.suffix in (".safetensors", ".npz") or (path / "weights.safetensors").is_file():
        return True
    if not path.exists():
        raise UsageError(f"no model and no corpus {corpus[0]!r}: give a CoNLL-U file and --model NAME")
    return False


def _output_files(outputs: list[str]) -> tuple[list[str], str | None]:
    """Return the files to be written, and the folder."""
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
