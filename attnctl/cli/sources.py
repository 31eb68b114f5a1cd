"""What a command is given to look at: a text for a model, a trace, or bare weights; as an argument, a file, or a pipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attnctl.cli import invocation
from attnctl.cli import options as o
from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from attnctl.readings.overview import Overview
    from attnctl.readings.trace import Trace

TRACES, MATRICES = (".json", ".jsonl", ".npz"), (".npy", ".npz", ".csv", ".tsv")

Source = Annotated[
    str | None,
    typer.Argument(
        help='The text, a trace (.json, .npz), bare weights (.npy, .npz, .csv), or "-" for standard input.',
        show_default=False,
        metavar="[TEXT|FILE|-]",
    ),
]
TokenNames = Annotated[
    str | None,
    typer.Option("--tokens", help="The tokens of bare weights: a JSON list, or words.", show_default=False),
]


class Asked(NamedTuple):
    """A text, and the model that it is for: not run yet."""

    model: Any
    text: str


class Given(NamedTuple):
    """Numbers that have been computed already, and where they are from."""

    found: Trace | Overview
    where: str

    @property
    def trace(self) -> Trace:
        """The trace. Raises UsageError where the file holds an overview."""
        from attnctl.readings.trace import Trace

        if not isinstance(self.found, Trace):
            raise UsageError(f"{self.where} is an overview: attnctl view shows it")
        return self.found

    @property
    def overview(self) -> Overview | None:
        """The overview, where the file holds one."""
        from attnctl.readings.overview import Overview

        return self.found if isinstance(self.found, Overview) else None


class Chosen(NamedTuple):
    """A trace, and the layers and heads of it that were asked for (None: all that it holds)."""

    trace: Trace
    layers: list[int] | None
    heads: list[int] | None


def trace_of(
    source: str | None,
    file: str | None,
    tokens: str | None,
    options: dict[str, Any],
    layer: str | None = None,
    head: str | None = None,
) -> Chosen:
    """The trace that the arguments of a command name, and what was chosen of it.

    No model is imported for a trace or for bare weights. Raises AttnctlError for a source that is damaged or ambiguous,
    UsageError for model options beside numbers that have been computed already.
    """
    return chosen(asked(source, file, tokens, options), layer, head)


def asked(source: str | None, file: str | None, tokens: str | None, options: dict[str, Any]) -> Asked | Given:
    """What the arguments of a command name: a text with its model, or numbers that have been computed already."""
    given = None if file is not None else _read(source)
    if given is None:
        if tokens is not None:
            raise UsageError("--tokens names the tokens of bare weights; a text is split by --tokenizer")
        text = o.text_of(source, file)
        return Asked(o.model_of(options), text)
    where, data = given
    if _form(where, data, tokens) == "text":
        from attnctl.files import decode

        text = decode(data, where)
        return Asked(o.model_of(options), text)
    _refuse(options, where)
    return Given(_found(where, data, tokens), where)


def chosen(given: Asked | Given, layer: str | None, head: str | None, *, predictions: bool = True) -> Chosen:
    """The trace of what was asked for, the model run for a text, and the layers and heads selected."""
    if isinstance(given, Asked):
        from attnctl.sources import record

        info, name = given.model.info, given.model.info.name
        layers, heads = (
            o.selection(layer, info.n_layers or 1, "layer", name),
            o.selection(head, info.n_heads or 1, "head", name),
        )
        trace = record(given.model, given.text, layers=layers, heads=heads, predictions=predictions)
        o.say_unknown(trace.tokens, trace.keys_of)
        return Chosen(trace, layers, heads)
    trace, where = given.trace, given.where
    o.say_unknown(trace.tokens, trace.keys_of)
    n_layers = max((trace.model.n_layers or 0, *(part.layer + 1 for part in trace.layers)))
    n_heads = max((trace.model.n_heads or 0, *(index + 1 for part in trace.layers for index in part.heads)))
    return Chosen(trace, o.selection(layer, n_layers, "layer", where), o.selection(head, n_heads, "head", where))


def otherwise(
    given: Asked | Given,
    layer: str | None,
    head: str | None,
    *,
    words: bool = False,
    measure: str | None = None,
    predictions: bool = False,
) -> Chosen:
    """As `chosen`, the weights read by words, or by another measure.

    Raises UsageError where arrays are lacking.
    """
    if not words and measure is None:
        return chosen(given, layer, head, predictions=predictions)
    from attnctl.readings.measures import by_words, measured

    rolled = measure == "rollout"  # which needs every layer, whichever is shown
    trace, layers, heads = chosen(given, None if rolled else layer, head, predictions=False)
    if rolled:  # shown is what has come of it all, unless layers are named
        layers = o.selection("-1" if layer is None else layer, len(trace.layers), "layer", trace.model.name)
    trace = measured(trace, measure or "weights")
    return Chosen(by_words(trace) if words else trace, layers, heads)


def is_file(source: str) -> bool:
    """Whether an argument names a file of numbers, rather than being a text."""
    return Path(source).suffix.lower() in {*TRACES, *MATRICES} and not any(char.isspace() for char in source.strip())


def _read(source: str | None) -> tuple[str, bytes] | None:
    """Name and bytes of a file or of standard input; None where the argument is a text itself."""
    from attnctl.files import read_bytes

    if source is None:
        return None
    if source == "-":
        return "standard input", read_bytes("-")
    if is_file(source):
        return source, read_bytes(source)  # a name with such an ending is no sentence, also where no such file is there
    try:
        there = Path(source).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null in it
        there = False
    if there and Path(source).suffix.lower() == ".txt":
        raise UsageError(f"{source} is a file of text: read it with --file {source}")
    if there and Path(source).suffix.lower() in (".safetensors", ".gguf"):
        raise UsageError(f"{source} holds a model's weights: give a text, and --model {source}")
    if there and any(char in source for char in "/\\"):
        return source, read_bytes(source)
    return None


def _form(where: str, data: bytes, tokens: str | None) -> str:
    """What the bytes are: trace, matrix, or text."""
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if data[:6] == b"\x93NUMPY":
        return "matrix"
    if data[:2] == b"PK":
        return "npz"
    if where.lower().endswith(".npz"):
        raise AttnctlError(f"{where} is not a sound .npz file (nothing is ever unpickled)")
    suffix = Path(where).suffix.lower() if where != "standard input" else ""
    if start[:1] == b"{" and (suffix in TRACES or b'"schema"' in start[:200]):
        return "trace"
    if suffix in TRACES:
        return "trace"  # whose reader says what is wrong with it
    if suffix in MATRICES or tokens is not None:
        return "matrix"
    return "matrix" if _is_table(data) else "text"


def _is_table(data: bytes) -> bool:
    """Whether the lines of a pipe are the rows of a matrix of numbers, at least two by two."""
    lines = [line for line in data.splitlines() if line.strip()]
    mark = next((mark for mark in (b"\t", b";", b",") if lines and mark in lines[-1]), None)
    if mark is None or len(lines) < 2:
        return False
    cells = lines[-1].split(mark)[1:]  # the first may be a label
    try:
        return bool([float(cell) for cell in cells])
    except ValueError:
        return False


def _found(where: str, data: bytes, tokens: str | None) -> Trace | Overview:
    """A trace, bare weights as one, or an overview. Raises AttnctlError for the row of one query."""
    form = _form(where, data, tokens)
    if form == "npz":
        from attnctl.formats.trace_npz import trace_from_npz
        from attnctl.formats.validation import read_npz

        if "trace" in read_npz(data, where):
            form = "trace"
    if form != "trace":
        from attnctl.models.builtin.matrix import trace_of_matrix

        return trace_of_matrix(where, None if tokens is None else names_of(tokens), data)
    if tokens is not None:
        raise UsageError(f"--tokens does not go with {where}: a trace has its own tokens")
    if data[:2] == b"PK":
        return trace_from_npz(data, where)
    from attnctl.formats.storage import from_json
    from attnctl.readings.overview import LongRow

    lines = data.count(b"\n", 0, len(data.rstrip())) + 1
    if lines > 1 and data.split(b"\n", 1)[0].rstrip().endswith(b"}"):
        raise AttnctlError(
            f"{where} holds {lines} traces, one a line; choose one: sed -n 1p {_quoted(where)} | attnctl … -"
        )
    found = from_json(data, where)
    if isinstance(found, LongRow):
        raise AttnctlError(f"{where} holds the row of query {found.query} alone: there is no grid to show")
    return found


def _quoted(where: str) -> str:
    import shlex

    return "traces.jsonl" if where == "standard input" else shlex.quote(where)


def names_of(tokens: str) -> list[str]:
    """The tokens of --tokens: a JSON list of strings, or words with white space between them."""
    if tokens.lstrip().startswith("["):
        try:
            names = json.loads(tokens)
        except (ValueError, RecursionError):
            names = None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
        if tokens.lstrip().startswith('["'):
            raise UsageError('--tokens is no JSON list of strings: write ["Alice", "will"], or words: "Alice will"')
    if not tokens.split():
        raise UsageError("--tokens is empty: name the tokens")
    return tokens.split()


def _refuse(options: dict[str, Any], where: str) -> None:
    for name, value in options.items():
        if value not in (None, False) and name in invocation.typed:  # a default of the user's own just does not apply
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} does not go with {where}: its numbers are computed already")


def recorded(text: str, options: dict[str, Any], layer: str | None, head: str | None) -> Chosen:
    """A text through a model, only the layers and heads asked for."""
    return chosen(Asked(o.model_of(options), text), layer, head)
