"""`attnctl evaluate`: which words the heads of a model find, beside rules that need no learning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnctl import __version__
from attnctl.cli import options as o
from attnctl.cli.output import put_bytes, put_json, safe_console
from attnctl.errors import UsageError
from attnctl.formats.pictures import picture_format

if TYPE_CHECKING:
    from attnctl.training.relations import Measured


@o.with_model_options
@o.with_map_options
def evaluate_command(
    corpus: Annotated[
        list[str] | None,
        typer.Argument(
            help='Parsed sentences as CoNLL-U (.gz, .zst), or "-"; without them, the built-in grammar.',
            metavar="FILE…",
            show_default=False,
        ),
    ] = None,
    *,
    relations: Annotated[
        str | None,
        typer.Option(
            "--relations", help="CSV of label,name: relations called otherwise, or left out.", show_default=False
        ),
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Beside it the same model with parameters drawn anew.")
    ] = False,
    subtypes: Annotated[bool, typer.Option("--subtypes", help="A line for each subtype, as nsubj:pass.")] = False,
    least: Annotated[int, typer.Option("--least", help="Scored cases that a line of the table has at least.")] = 20,
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", help="Tokens of the longest text that is read: a sentence with more is left out."),
    ] = 512,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="How many share one pass: sentences of about one length (checkpoints).")
    ] = 32,
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Processes, each with a model of its own.")] = 1,
    engine: o.EngineName = "local",
    address: o.RayAddress = None,
    gpus_per_worker: o.GpusPerWorker = 0.0,
    sentences: Annotated[
        int, typer.Option("--sentences", help="Of the built-in grammar: sentences in each of its sets.")
    ] = 1000,
    write_corpus: Annotated[
        str | None,
        typer.Option("--write-corpus", help="Write the built-in grammar's sentences as CoNLL-U.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON: instead of the table.")] = False,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to write: .json, .csv, .parquet, .png, .svg, .pdf, .html, or a folder to go on from; repeatable.",
            show_default=False,
        ),
    ] = None,
    **options: object,
) -> None:
    """Measure which word each head finds: in parsed sentences of any language, or of the built-in grammar.

    For every relation and direction the best head, chosen on one half of the sentences and scored on the other, beside
    rules that need no attention. Sentences that cannot be used are counted and named, and the exit code is 3.
    """
    corpus, options = _model_named_first(corpus or [], options)
    if write_corpus is not None:
        o.map_look_of(options, picture=False)
        _write_corpus(write_corpus, sentences, corpus, options)
    elif corpus:
        from attnctl.cli.commands.models.census import CensusRequest, run_census

        asked = CensusRequest(
            tuple(corpus), relations, untrained, max_tokens, batch_size, jobs, engine, address, gpus_per_worker
        )
        outputs = tuple(output or ())
        look = o.map_look_of(options, any(picture_format(path) for path in outputs))
        run_census(asked, options, outputs, json, subtypes, least, look)
    else:
        o.map_look_of(options, picture=False)
        _refuse_options({"--relations": relations, "--untrained": untrained, "-o": output, "--subtypes": subtypes})
        _built_in(options, sentences, json)


def _model_named_first(corpus: list[str], options: dict[str, object]) -> tuple[list[str], dict[str, object]]:
    """A model's name where a corpus could stand: `attnctl evaluate demo-causal`, `attnctl evaluate run/`."""
    if len(corpus) != 1 or corpus[0] == "-" or options.get("model") is not None:
        return corpus, options
    from attnctl.models import REGISTRY

    name = corpus[0]
    path = Path(name)
    if len(os.fsencode(path.name)) > 255:
        raise UsageError("no model and no corpus has so long a name")
    is_model = name in REGISTRY or path.suffix in (".safetensors", ".npz") or (path / "weights.safetensors").is_file()
    if not is_model and not path.exists():
        raise UsageError(f"no model and no corpus {name!r}: give a CoNLL-U file and --model NAME")
    return ([], options | {"model": name}) if is_model else (corpus, options)


def _refuse_options(given: dict[str, object]) -> None:
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} is for a corpus: name its CoNLL-U files")


def _write_corpus(path: str, sentences: int, corpus: list[str], options: dict[str, object]) -> None:
    if corpus:
        raise UsageError("--write-corpus writes the built-in grammar's sentences: it reads no corpus")
    from attnctl.training.english.treebank import treebank_text

    causal = bool(o.model_of(options).info.causal)
    put_bytes(treebank_text(sentences, causal).encode(), path)


def _built_in(options: dict[str, object], sentences: int, json: bool) -> None:
    """The table of the built-in grammar."""
    from attnctl.training.relations import measure_relations as measure

    opened = o.model_of(options)
    table = measure(opened, count=sentences)
    if json:
        for measured in table:
            opening = {"schema": "attnctl.relation/1", "attnctl": __version__, "model": opened.info.name}
            put_json(opening | measured._asdict())
    else:
        show_table(table)


def show_table(table: list[Measured]) -> None:
    """Print the table of relations and how to read it."""
    from shutil import get_terminal_size

    from attnctl.render.terminal.models.model_card import NOTE, relations_lines

    page = safe_console()
    wide = get_terminal_size((120, 24)).columns
    page.print(*relations_lines([measured._asdict() for measured in table], wide), sep="\n", soft_wrap=True)
    page.print()
    page.print(NOTE, style="bright_black", width=min(wide, 80))
