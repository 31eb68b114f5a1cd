"""The options that several commands share: declared once, meaning the same everywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnctl import limits
from attnctl.cli.option_values import with_options
from attnctl.cli.output import say_unless_quiet
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues
    from attnctl.render.figure.look import Look
    from attnctl.tokens import Token

LONG = 512  # tokens, beyond which a text has an overview instead of every weight

Text = Annotated[
    str | None, typer.Argument(help='The text, or "-" to read it from standard input.', show_default=False)
]
File = Annotated[str | None, typer.Option("--file", "-f", help="Read the text from this file.", show_default=False)]
Replace = Annotated[
    bool, typer.Option("--replace", help="Remove the results that the folder of -o holds, and begin anew.")
]
LayerChoice = Annotated[
    str | None, typer.Option("--layer", help="Layers: 3, 0-5, 1,4,7, -1 or all [default: all].", show_default=False)
]
HeadChoice = Annotated[
    str | None, typer.Option("--head", help="Heads: 3, 0-5, 1,4,7, -1 or all [default: all].", show_default=False)
]
# where one layer and head is shown at a time, that of the focus (readings.questions.focus)
ShownLayer = Annotated[
    str | None,
    typer.Option("--layer", help="Layers: 3, 0-5, 1,4,7, -1 or all [default: the most telling].", show_default=False),
]
ShownHead = Annotated[
    str | None,
    typer.Option("--head", help="Heads: 3, 0-5, 1,4,7, -1 or all [default: the most telling].", show_default=False),
]
Query = Annotated[
    str | None,
    typer.Option(
        "--query", "-q", help="Query token: its index, or its text (text:7 is the token “7”).", show_default=False
    ),
]
Queries = Annotated[
    str | None,
    typer.Option(
        "--query",
        "-q",
        help="Query token: its index, or its text (text:7 is the token “7”); several: eat,pizza or 2-4.",
        show_default=False,
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option("--drop", help="Leave out a key: first, special, a token or its index.", show_default=False),
]
Renormalise = Annotated[bool, typer.Option("--renormalise", help="Make each row sum to 1 again.")]
Words = Annotated[bool, typer.Option("--words", help="Merge the pieces of a tokenizer into words.")]
Measure = Annotated[
    str | None,
    typer.Option("--measure", help="Instead of the weights: value-norm, or rollout.", show_default=False),
]
Spans = Annotated[
    str | None,
    typer.Option(
        "--spans",
        help="Parts of the text: paragraphs, lines, headings, documents, or a file of name,start,end.",
        show_default=False,
    ),
]
Output = Annotated[str | None, typer.Option("-o", "--output", help="Where to write.", show_default=False)]


@dataclass(frozen=True)
class EngineOptions:
    """Who does the work on many texts: processes of this machine, or the workers of a Ray cluster."""

    engine: Annotated[str, typer.Option("--engine", help="local, or ray: the workers of a Ray cluster.")] = "local"
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="The Ray cluster: auto, or HOST:PORT; one of this machine without it.", show_default=False
        ),
    ] = None
    gpus_per_worker: Annotated[
        float, typer.Option("--gpus-per-worker", help="GPUs that each of Ray's workers takes.")
    ] = 0.0

    def check_engine(self) -> None:
        """Raise UsageError for no engine's name, and for options of the other one."""
        if self.engine not in ("local", "ray"):
            raise UsageError(f"--engine {self.engine}: it is local or ray")
        if self.engine == "local" and (self.address is not None or self.gpus_per_worker):
            raise UsageError("--address and --gpus-per-worker are for --engine ray")


def _shared_option(kind: Any, *names: str, **more: Any) -> Any:
    return Annotated[kind | None, typer.Option(*names, show_default=False, rich_help_panel=None, **more)]


# every option that says which numbers a text is run through; None means: as the model has it
MODEL_OPTIONS: dict[str, object] = {
    "chat": _shared_option(str, "--chat", help="Instead of a text a conversation: JSON, a list of role and content."),
    "model": _shared_option(
        str,
        "--model",
        "-m",
        help="demo, demo-causal, random, dot, a weights file, or a checkpoint: folder, .gguf, Hugging Face id.",
    ),
    "tokenizer": _shared_option(str, "--tokenizer", help="words, chars, or a tokenizer.json."),
    "embeddings": _shared_option(str, "--embeddings", help="Embeddings, one row a token (.npy, .npz, .csv)."),
    "qkv": _shared_option(
        str,
        "--qkv",
        help="Q, K and V given outright (.npz, .safetensors), for a text or none.",
    ),
    "d_model": _shared_option(int, "--d-model", help="Length of an embedding (random, dot)."),
    "d_k": _shared_option(int, "--d-k", help="Length of a query and a key (random)."),
    "heads": _shared_option(int, "--heads", help="Number of query heads in a layer."),
    "kv_heads": _shared_option(int, "--kv-heads", help="Number of key/value heads, shared by groups of query heads."),
    "layers": _shared_option(int, "--layers", help="Number of layers (random, dot)."),
    "output_projection": _shared_option(
        bool, "--output-projection/--no-output-projection", help="With or without W_O (random)."
    ),
    "predict": _shared_option(
        str, "--predict", help="The words expected after a token (masked models: at it), or all."
    ),
    "off": _shared_option(str, "--off", help="Heads that are off, layer.head: 23.3,0.5 (see attnctl ablate)."),
    "seed": _shared_option(int, "--seed", help="Seed of everything random; 0 unless told otherwise."),
    "causal": _shared_option(bool, "--causal/--no-causal", help="Hide the future from every query."),
    "window": _shared_option(int, "--window", help="Sliding window: hide keys this many tokens away, and more."),
    "scale": _shared_option(
        str, "--scale", help="Factor on the scores: auto (1/√d_k), none, or a number: 0.125 or 1/8."
    ),
    "no_scale": Annotated[bool, typer.Option("--no-scale", help="The same as --scale none.")],
    "temperature": _shared_option(float, "--temperature", help="Divide by this before the softmax."),
    "positions": _shared_option(str, "--positions", help="Add positions to the embeddings: sinusoidal."),
    "rope": Annotated[bool, typer.Option("--rope", help="Rotary positions on queries and keys.")],
    "rope_theta": _shared_option(float, "--rope-theta", help="Base of the rotary angles; 10000 unless told otherwise."),
    "rope_pairs": _shared_option(
        str, "--rope-pairs", help="Dimensions that turn together: half (as Llama) or interleaved."
    ),
    "dropout": _shared_option(float, "--dropout", help="Drop each weight with this probability (seeded)."),
    "attention": _shared_option(str, "--attention", help="Of an encoder-decoder: encoder, decoder or cross."),
    "target": _shared_option(
        str, "--target", help="What the model is to write: the decoder's text (encoder-decoders)."
    ),
    "generate": _shared_option(int, "--generate", help="Let a checkpoint add so many tokens, greedily."),
    "bos": _shared_option(bool, "--bos/--no-bos", help="With or without the token that begins a text (checkpoints)."),
    "truncate": _shared_option(bool, "--truncate", help="Cut a text that is longer than the checkpoint reads."),
    "dtype": _shared_option(str, "--dtype", help="auto, float32, bfloat16 or float16 (checkpoints)."),
    "device": _shared_option(str, "--device", help="Where to compute: auto, cpu, cuda, cuda:1 or mps."),
}


# how a picture looks: the fields of render.figure.look.Look; None means: as it comes
LOOK_OPTIONS: dict[str, object] = {
    "cmap": _shared_option(str, "--cmap", help="Colour map, by its name in matplotlib [default: viridis]."),
    "size": _shared_option(str, "--size", help="WIDTHxHEIGHT in inches: 6x4."),
    "dpi": _shared_option(int, "--dpi", help="Dots per inch, 30 to 1200 [default: 200; in a batch 100]."),
    "title": _shared_option(str, "--title", help="Title; '' for none."),
    "values": _shared_option(
        bool,
        "--values/--no-values",
        "--numbers/--no-numbers",
        help="Numbers in the cells; where they can be read unless told otherwise.",
    ),
    "log": _shared_option(
        bool,
        "--log/--no-log",
        help="Colours on a logarithmic scale; of a long text also where a few cells hold most, unless told otherwise.",
    ),
    "font_size": _shared_option(float, "--font-size", help="Points of the labels; other letters in proportion."),
    "vmin": _shared_option(float, "--vmin", help="The weight with the first colour [default: 0]."),
    "vmax": _shared_option(float, "--vmax", help="The weight with the last colour [default: the largest]."),
    "no_colorbar": Annotated[bool, typer.Option("--no-colorbar", help="Without the colour bar.")],
}
# what is shown in place of the weights: the fields of cli.weights.WeightChoice
WEIGHT_OPTIONS: dict[str, object] = {"drop": Drop, "renormalise": Renormalise, "words": Words, "measure": Measure}
PICTURE_ONLY = ("size", "dpi", "font_size", "vmin", "vmax", "no_colorbar")  # which a terminal has not


with_model_options = with_options(MODEL_OPTIONS)

# of a checkpoint that is asked a prompt: what its numbers are made of is its own
PROMPTED = ("chat", "model", "off", "seed", "generate", "bos", "truncate", "dtype", "device")
PROMPT_OPTIONS = {name: MODEL_OPTIONS[name] for name in PROMPTED}
with_look_options = with_options(LOOK_OPTIONS)
MAP_OPTIONS = ("cmap", "dpi", "title")  # those of a page of small maps
with_map_options = with_options({name: LOOK_OPTIONS[name] for name in MAP_OPTIONS})
with_weight_options = with_options(WEIGHT_OPTIONS)


def look_of(
    options: OptionValues, dpi: int = 200, picture: bool = True, picture_only: Collection[str] = PICTURE_ONLY
) -> Look:
    """Take LOOK_OPTIONS out of `options`. Raises UsageError for one that cannot be, or means nothing without a picture."""
    from attnctl.cli import session
    from attnctl.render.figure.look import Look

    chosen = {name: options.pop(name, None) for name in LOOK_OPTIONS}
    # a default of the user's own just does not apply
    typed = [name for name in picture_only if chosen[name] is not None and name in session.typed]
    lost = [f"--{name.replace('_', '-')}" for name in typed if chosen[name] is not False or name == "values"]
    if lost and not picture:
        raise UsageError(f"{lost[0]} is for a picture: name its file with -o")
    bar = not chosen.pop("no_colorbar")
    if chosen["size"] is not None:
        chosen["size"] = size_in_inches(chosen["size"])
    given = {name: value for name, value in chosen.items() if value is not None}
    return Look(**{"dpi": dpi, "colour_bar": bar} | given)


def map_look_of(options: OptionValues, picture: bool) -> Look:
    """Take MAP_OPTIONS out of `options`. Raises UsageError for one that cannot be, or means nothing without a picture."""
    from attnctl.cli import session
    from attnctl.render.figure.look import Look

    given = {name: value for name in MAP_OPTIONS if (value := options.pop(name, None)) is not None}
    lost = [name for name in given if name in session.typed]
    if lost and not picture:
        raise UsageError(f"--{lost[0]} is for a picture: name its file with -o")
    if "cmap" in given and picture:  # refused before long work
        from attnctl.render.figure.heatmaps.heatmap import colour_map

        colour_map(given["cmap"])
    return Look(**given)


def model_of(options: OptionValues) -> Any:
    """Open the model that MODEL_OPTIONS ask for. Raises UsageError for options that exclude each other."""
    from attnctl.cli import session
    from attnctl.models import open_named_model
    from attnctl.models.option_types import model_arguments

    given = model_arguments(options)
    return open_named_model(**given) if session.current is None else session.current.kept_model(given, open_named_model)


def text_of(text: str | None, file: str | None) -> str:
    """The text of an argument, of --file, or of standard input for "-". Raises AttnctlError where there is none."""
    from attnctl.errors import AttnctlError
    from attnctl.files import decode_text, read_bytes

    if file is not None:
        if text is not None:
            raise UsageError("give the text, or --file, not both")
        return decode_text(read_bytes(file, limits.TEXT_BYTES), "standard input" if file == "-" else file)
    if text is None:
        raise UsageError('there is no text: give it in quotes, as --file FILE, or "-" for standard input')
    if text == "-":
        return decode_text(read_bytes("-", limits.TEXT_BYTES), "standard input")
    check_no_file(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AttnctlError("the text is not UTF-8") from None
    return text


# endings by which a word without spaces is the name of a file, not a text
_FILE_NAME = re.compile(
    r"[^\s]+\.(txt|md|html?|json|jsonl|csv|tsv|npz|npy|png|svg|pdf|gif|safetensors|gguf|conllu|parquet|gz|zst|py|toml)",
    re.I,
)


def check_no_file(text: str) -> None:
    """Raise where a text reads as the name of a file: AttnctlError where there is none, UsageError where there is one."""
    from attnctl.errors import AttnctlError

    name = text.strip()
    if not _FILE_NAME.fullmatch(name):
        if name and not re.search(r"\s|\0", name) and len(name) < limits.NAME_BYTES:
            _check_no_path(name)
        return
    if os.path.lexists(text.strip()):
        from attnctl.files import check_regular

        check_regular(text.strip())
        raise UsageError(f"{text.strip()} is a file: a text in it is read with --file {text.strip()}")
    raise AttnctlError(f"no file {text.strip()[:200]}: no such file is here, and for a text it has no words")


def _check_no_path(name: str) -> None:
    """Raise UsageError where a word is a folder's name, and AttnctlError where it begins as a path and nothing is there."""
    from attnctl.errors import AttnctlError

    if Path(name).is_dir():
        raise UsageError(
            f"{name} is a folder: attnctl batch {name} reads its texts; as a text: printf {name} | attnctl … -"
        )
    if re.match(r"\.{0,2}/\w|~/", name):
        if os.path.lexists(Path(name).expanduser()):
            raise UsageError(f"{name} is a file: a text in it is read with --file {name}")
        raise AttnctlError(f"no file {name}: nothing is there; as a text: printf {name} | attnctl … -")


def say_notes(notes: Sequence[str]) -> None:
    """Notes for the user, on stderr, a line each; what this command has said already is not said again."""
    from attnctl.cli import session

    for note in notes:
        if note not in session.told:
            say_unless_quiet(f"note: {note}")
        session.told.add(note)


def say_unknown(*texts: Sequence[Token], notes: Sequence[str] = (), every: bool = False) -> None:
    """What a user must know of words that a model does not, a line for each text that has such.

    Of the `notes` of what was read, `every` one is said too, or those that call a text too strange to be read well, a matrix
    no attention weights, and numbers doubtful.
    """
    from attnctl.readings.traces.trace import is_doubt
    from attnctl.tokens import GUESS, unknown_words

    said = [note for tokens in dict.fromkeys(map(tuple, texts)) for note in unknown_words(tokens)]
    say_notes([*said, *(note for note in dict.fromkeys(notes) if every or note.endswith(GUESS) or is_doubt(note))])


def select_indices(spec: str | None, count: int, what: str, of: str) -> list[int] | None:
    """Indices that `3`, `0-5`, `1,4,7`, `-1` or `all` select from `count`; None for None and for all.

    Raises UsageError where it is no selection or one is not there.
    """
    if spec is None or spec == "all":
        return None
    from attnctl.selection import parse_selection

    return parse_selection(spec, count, what, of)


def size_in_inches(size: str) -> tuple[float, float]:
    """--size as (width, height)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*[x×,]\s*(\d+(?:\.\d+)?)", size.strip().lower())
    if not match:
        raise UsageError(f"--size {size!r}: it is WIDTHxHEIGHT in inches, like 6x4")
    width, height = float(match[1]), float(match[2])
    if not (1 <= width <= 60 and 1 <= height <= 60):
        raise UsageError(f"--size {size}: each side is 1 to 60 inches")
    return width, height
