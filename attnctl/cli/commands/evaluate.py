"""`attnctl evaluate`: which words the heads of a model find, beside rules that need no learning."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl import __version__
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.commands.census import CensusRequest, CorpusRun, run_census, show_stored_census
from attnctl.cli.output import put_bytes, put_json, safe_console
from attnctl.errors import UsageError
from attnctl.formats.pictures import picture_format

if TYPE_CHECKING:
    from attnctl.training.relations import Measured


def evaluate_command(
    *,
    corpus: list[str] | None,
    sentences: int,
    write_corpus: str | None,
    json: bool,
    output: list[str] | None,
    **options: object,
) -> None:
    """Measure which word each head finds: in parsed sentences of any language, or of the built-in grammar."""
    asked = o.taken(CensusRequest, options)
    by = o.taken(arguments.EngineOptions, options)
    corpus, options = _model_named_first(corpus or [], options)
    outputs = tuple(output or ())
    stored = len(corpus) == 1 and corpus[0].lower().endswith(".json")
    mode = "a stored census" if stored else "a corpus" if corpus else "the built-in grammar"
    arguments.check_mode("evaluate", mode if write_corpus is None else "--write-corpus")
    pictures = ("a picture",) if any(map(picture_format, outputs)) else ()
    arguments.check_mode("evaluate", "JSON" if json else "the table", *pictures)
    look = arguments.map_look_of(options, bool(pictures))
    if write_corpus is not None:
        _write_corpus(write_corpus, sentences, corpus, options)
    elif stored:
        show_stored_census(corpus[0], asked, outputs, json, look)
    elif corpus:
        run_census(CorpusRun(tuple(corpus), asked, by), options, outputs, json, look)
    else:
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


def _write_corpus(path: str, sentences: int, corpus: list[str], options: dict[str, object]) -> None:
    if corpus:
        raise UsageError("--write-corpus writes the built-in grammar's sentences: it reads no corpus")
    from attnctl.training.english.treebank import treebank_text

    causal = bool(arguments.model_of(options).info.causal)
    put_bytes(treebank_text(sentences, causal).encode(), path)


def _built_in(options: dict[str, object], sentences: int, json: bool) -> None:
    """The table of the built-in grammar."""
    from attnctl.training.relations import measure_relations as measure

    opened = arguments.model_of(options)
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
