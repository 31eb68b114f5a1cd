"""`attnctl evaluate`: which words the heads of a model find, beside rules that need no learning."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from attnctl.checks import limits
from attnctl.checks.model_options import model_arguments
from attnctl.cli import (
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
    ReplaceOption,
    command,
    engine_of,
    items_progress,
    model_of,
    option_values,
    output_option,
    put_bytes,
    refuse_unused,
    say_note,
    say_notes,
    show_forms,
    whole,
)
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.formats import MapLook, format_names, picture_format, suffixes_listed
from attnctl.runtime.files import check_writable, need_pyarrow
from attnctl.text import for_pasting

if TYPE_CHECKING:
    from attnctl.batching import Engine, TreebankStream
    from attnctl.commands.evaluate.compute import CensusWork
    from attnctl.commands.evaluate.result import CensusTable

FILES = (".json", ".csv", ".parquet", ".html", *(f".{name}" for name in format_names()))
CORPUS = ".conllu"  # the bundled corpus itself
# options of the counting itself, and of the results
COUNTING = ("relations", "untrained", "max_tokens", "batch_size", "jobs", "replace", EngineOptions)
COUNTED = ("subtypes", "least", "output", MapLook)


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
            help="CSV with rows label,name: rename a relation, or leave it out (no name).",
            metavar="FILE",
            rich_help_panel=LOOK,
        ),
    ] = None,
    untrained: Annotated[
        bool,
        Option("--untrained", help="Measure the same model with new random parameters, too.", rich_help_panel=LOOK),
    ] = False,
    subtypes: Annotated[
        bool,
        Option("--subtypes", help="Add a row for each subtype, such as nsubj:pass.", rich_help_panel=LOOK),
    ] = False,
    least: Annotated[
        int,
        Option(
            "--least",
            help="Smallest number of scored cases for a row of the table.",
            metavar="N",
            parser=whole(limits.CASES),
            rich_help_panel=LOOK,
        ),
    ] = 20,
    max_tokens: Annotated[
        int,
        Option(
            "--max-tokens",
            help="Tokens of the longest text that is read: a longer sentence is left out.",
            metavar="N",
            parser=whole(limits.MAX_TOKENS),
            rich_help_panel=INPUT,
        ),
    ] = 512,
    batch_size: Annotated[
        int,
        Option(
            "--batch-size",
            help="How many share one pass: sentences of similar length (checkpoints).",
            metavar="N",
            parser=whole(limits.BATCH_SIZE),
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
            rich_help_panel=WORK,
        ),
    ] = 1,
    replace: ReplaceOption = False,
    work: EngineOptions,
    sentences: Annotated[
        int,
        Option(
            "--sentences",
            help="Sentences to read from each part of the bundled corpus.",
            metavar="N",
            parser=whole(limits.GRAMMAR_SENTENCES),
            rich_help_panel=LOOK,
        ),
    ] = 1000,
    json: Annotated[
        bool,
        Option("--json", help="Write JSON: the whole census.", rich_help_panel=OUTPUT),
    ] = False,
    output: Annotated[
        list[str] | None,
        output_option(
            f"Where to write: .json, .csv, .parquet, {suffixes_listed(last=', ')}, .html, "
            "or a folder, in which an interrupted run goes on; repeatable. Without a corpus .conllu, for its sentences."
        ),
    ] = None,
    look: MapLook,
    model: CorpusModelOptions,
) -> int:
    """Measure which word each head finds, in parsed sentences of any language or in the bundled corpus.

    For every relation and direction, the table shows the best head, chosen on one half of the sentences and scored on the
    other half, beside rules that need no attention. Sentences that cannot be used are counted and named; the exit code is
    then 3. A census that -o wrote as .json is shown, or written in another format, without counting again.
    """
    paths, options = corpus or [], option_values(model)
    if model.model is None and _is_model(paths):
        paths, options = [], options | {"model": paths[0]}
    if any(path.lower().endswith(CORPUS) for path in output or ()):
        _write_bundled_corpus(context, paths, output or [], options, sentences)
        return DONE
    if not paths:
        of_corpus = (
            "attnctl evaluate CORPUS.conllu -o FILE writes the census of a corpus; for these sentences: --json, and "
            "-o FILE.conllu writes them"
        )
        refuse_unused(context, "output", because=of_corpus)
        refuse_unused(context, *COUNTING, *COUNTED, because="use it with a corpus of your own")
        _evaluate_bundled(options, sentences, json)
        return DONE
    stored = len(paths) == 1 and paths[0].lower().endswith(".json")
    if stored:
        because = f"{paths[0]} was counted already"
        refuse_unused(context, *COUNTING, "sentences", CorpusModelOptions, because=because)
    refuse_unused(context, "sentences", because="use it with the bundled corpus")
    if json:
        refuse_unused(context, "subtypes", "least", because="the output is JSON")
    if not any(map(picture_format, output or ())):
        refuse_unused(context, MapLook, because="use it with a picture")

    from attnctl.batching import TreebankStream
    from attnctl.commands.evaluate.compute import CensusWork, renamed_relations
    from attnctl.commands.evaluate.result import read_census
    from attnctl.commands.evaluate.show import census_bytes, census_forms, left_out
    from attnctl.commands.evaluate.words import HALF

    if any(map(picture_format, output or ())):
        from attnctl.render import colour_map

        colour_map(look.cmap)  # refuses an unknown name before the long work
    files, folder = _output_files(output or [])
    if stored:
        if folder is not None:
            ends = ", ".join(FILES)
            raise UsageError(f"-o {folder}: {paths[0]} was counted already, and goes into files that end in {ends}")
        census = read_census(paths[0])
    else:
        if replace and folder is None:
            raise UsageError("is for a folder: name it with -o", option="replace")
        engine, treebank = engine_of(context, work), TreebankStream(paths, HALF)
        counting = CensusWork(
            model_arguments(options),
            renamed_relations(relations),
            untrained=untrained,
            max_tokens=max_tokens,
            batch_size=batch_size,
        )
        census = _counted_census(treebank, counting, folder, engine, jobs, start_anew=replace)
    for path in [*files, *([str(Path(folder) / "census.json")] if folder else [])]:
        put_bytes(census_bytes(census, Path(path).suffix.lower(), look.as_look(), say_notes), path)
    if json:
        put_bytes(census_bytes(census, ".json"))
    else:
        show_forms(census_forms(census, subtypes, least), soft_wrap=True)
    if skipped := census.sentences.skipped:
        count = sum(skipped.values())
        verb = "was" if count == 1 else "were"
        print_complaint(
            f"{count:,} of {census.sentences.used + count:,} sentences {verb} left out: {', '.join(left_out(census))}"
        )
    return PARTIAL if skipped and not stored else DONE


def _write_bundled_corpus(
    context: Context, paths: list[str], outputs: list[str], options: dict[str, object], count: int
) -> None:
    """Write the held-out sentences of the bundled corpus as CoNLL-U. Raises UsageError for what does not change them."""
    if paths or len(outputs) > 1:
        why = "give no corpus with it" if paths else "it is written alone"
        raise UsageError(f"-o {outputs[0]} writes the held-out sentences of the bundled corpus: {why}")
    of_model = [field.name for field in fields(CorpusModelOptions) if field.name not in ("model", "causal")]
    counted = [name for name in COUNTED if name != "output"]
    refuse_unused(context, *COUNTING, *counted, "json", *of_model, because=f"{outputs[0]} holds sentences alone")
    from attnctl.commands.evaluate.bundled import treebank_text

    put_bytes(treebank_text(count, bool(model_of(options).info.causal)).encode(), outputs[0])


def _evaluate_bundled(options: dict[str, object], count: int, json: bool) -> None:
    """Measure the heads of a model on the bundled corpus, and show the table."""
    from msgspec import structs

    from attnctl.commands.evaluate.bundled import measure_relations
    from attnctl.formats import write_json
    from attnctl.render import relations_forms

    table = measure_relations(model_of(options), count=count)
    if json:
        put_bytes(b"".join(write_json(measured, "relation") + b"\n" for measured in table))
    else:
        show_forms(relations_forms([structs.asdict(measured) for measured in table]), soft_wrap=True)


def _counted_census(
    treebank: TreebankStream, work: CensusWork, folder: str | None, engine: Engine, jobs: int, *, start_anew: bool
) -> CensusTable:
    """Return the census of a corpus. Raises AttnctlError if no sentence could be used."""
    from attnctl.commands.evaluate import compute, show

    model = compute.open_census_model(work)
    report = compute.SkipReport(folder is not None, print_complaint)
    with items_progress(treebank.share_done) as tick:
        census = compute.count_corpus(
            work,
            treebank,
            model,
            jobs=jobs,
            engine=engine,
            folder=folder,
            start_anew=start_anew,
            hear=report.hear,
            tick=tick,
            say=say_note,
        )
    report.end()
    if not census.sentences.used:
        raise AttnctlError(
            f"{census.corpus}: not one sentence could be used ({', '.join(show.left_out(census)) or 'it holds none'})"
        )
    return census


def _is_model(corpus: list[str]) -> bool:
    """Return whether the argument names a model, not a corpus: `attnctl evaluate demo-causal`, `attnctl evaluate run/`."""
    from attnctl.models import BUILT_IN, names_model

    if len(corpus) != 1 or corpus[0] == "-":
        return False
    path = Path(corpus[0])
    if len(os.fsencode(path.name)) > 255:
        raise UsageError("this name is too long for a model or a corpus")
    if corpus[0] in BUILT_IN or path.suffix in (".safetensors", ".npz") or (path / "weights.safetensors").is_file():
        return True
    if names_model(corpus[0]) and (not path.is_dir() or (path / "config.json").is_file()):
        advice = f"attnctl evaluate FILE.conllu --model {for_pasting(corpus[0])}"
        raise UsageError(f"{corpus[0]} is a checkpoint, and a treebank measures it: {advice}")
    if not path.exists():
        raise UsageError(f"no model and no corpus {corpus[0]!r}: give a CoNLL-U file and --model NAME")
    return False


def _output_files(outputs: list[str]) -> tuple[list[str], str | None]:
    """Return the files to write, and the folder (None: no folder)."""
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
