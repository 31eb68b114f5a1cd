"""What the arguments of a command stand for: a text, a model, a look, a selection; and notes for its user."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl import limits
from attnctl.cli import session
from attnctl.cli.command_table import COMMANDS
from attnctl.cli.options import LOOK_OPTIONS, MAP_OPTIONS
from attnctl.cli.output import say_unless_quiet
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import check_regular, decode_text, read_bytes
from attnctl.models import open_named_model
from attnctl.models.option_types import model_arguments

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues
    from attnctl.render.figure.look import Look
    from attnctl.tokens import Token


class EngineOptions(NamedTuple):
    """Who does the work on many texts: processes of this machine, or the workers of a Ray cluster."""

    engine: str = "local"
    address: str | None = None
    gpus_per_worker: float = 0.0

    def check_engine(self, command: str) -> None:
        """Raise UsageError for no engine's name, and for options of the other one."""
        if self.engine not in ("local", "ray"):
            raise UsageError(f"--engine {self.engine}: it is local or ray")
        if self.engine == "local":
            check_mode(command, "--engine local")


def check_mode(command: str, *modes: str) -> None:
    """Raise UsageError for an option that was typed and means nothing in any of these modes of a command."""
    entry = COMMANDS[command]
    honoured = set().union(*map(entry.honoured, modes))
    for name, option in entry.options.items():
        if name in session.typed - honoured:  # a default of the user's own just does not apply
            flag = next((flag for flag in option.every_flag if flag.startswith("--")), name.upper())
            others = next(several for several in entry.modes if modes[0] in several)
            fits = " or ".join(mode for mode in others if mode != flag and name in entry.honoured(mode))
            raise UsageError(f"{flag} does not go with {' and '.join(modes)}{fits and f': it goes with {fits}'}")


def look_of(options: OptionValues, dpi: int = 200) -> Look:
    """Take LOOK_OPTIONS out of `options`. Raises UsageError for one that cannot be."""
    from attnctl.render.figure.look import Look

    chosen = {name: options.pop(name, None) for name in LOOK_OPTIONS}
    bar = not chosen.pop("no_colorbar")
    if chosen["size"] is not None:
        chosen["size"] = size_in_inches(chosen["size"])
    given = {name: value for name, value in chosen.items() if value is not None}
    return Look(**{"dpi": dpi, "colour_bar": bar} | given)


def map_look_of(options: OptionValues, picture: bool) -> Look:
    """Take MAP_OPTIONS out of `options`. Raises UsageError for one that cannot be, of a picture."""
    from attnctl.render.figure.look import Look

    given = {name: value for name in MAP_OPTIONS if (value := options.pop(name, None)) is not None}
    if "cmap" in given and picture:  # refused before long work
        from attnctl.render.figure.heatmap import colour_map

        colour_map(given["cmap"])
    return Look(**given)


def model_of(options: OptionValues) -> Any:
    """Open the model that MODEL_OPTIONS ask for. Raises UsageError for options that exclude each other."""
    given = model_arguments(options)
    return open_named_model(**given) if session.current is None else session.current.kept_model(given, open_named_model)


def text_of(text: str | None, file: str | None) -> str:
    """The text of an argument, of --file, or of standard input for "-". Raises AttnctlError where there is none."""
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
    """Raise where a text reads as the name of a file: AttnctlError where there is none, UsageError where there is one.

    Of a word without an ending, where it is a folder's name, or begins as a path.
    """
    name = text.strip()
    if _FILE_NAME.fullmatch(name):
        if os.path.lexists(name):
            check_regular(name)
            raise UsageError(f"{name} is a file: a text in it is read with --file {name}")
        raise AttnctlError(f"no file {name[:200]}: no such file is here, and for a text it has no words")
    if not name or re.search(r"\s|\0", name) or len(name) >= limits.NAME_BYTES:
        return
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
    for note in notes:
        if note not in session.told:
            say_unless_quiet(f"note: {note}")
        session.told.add(note)


def say_unknown(*texts: Sequence[Token], notes: Sequence[str] = (), every: bool = False) -> None:
    """What a user must know of words that a model does not, a line for each text that has such.

    Of the `notes` of what was read, `every` one is said too, or those that call a text too strange to be read well, a matrix
    no attention weights, and numbers doubtful.
    """
    from attnctl.readings.traces.trace import notes_of_kind
    from attnctl.tokens import unknown_words

    said = [note for tokens in dict.fromkeys(map(tuple, texts)) for note in unknown_words(tokens)]
    say_notes([*said, *dict.fromkeys(notes if every else notes_of_kind(notes, "guess", "doubt", "no-weights"))])


def size_in_inches(size: str) -> tuple[float, float]:
    """--size as (width, height)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*[x×,]\s*(\d+(?:\.\d+)?)", size.strip().lower())
    if not match:
        raise UsageError(f"--size {size!r}: it is WIDTHxHEIGHT in inches, like 6x4")
    width, height = float(match[1]), float(match[2])
    if not (1 <= width <= 60 and 1 <= height <= 60):
        raise UsageError(f"--size {size}: each side is 1 to 60 inches")
    return width, height
