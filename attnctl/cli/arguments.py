"""What the arguments of a command stand for: a text, a model, a look, a selection; and notes for its user."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from attnctl import inputs
from attnctl.argument_types import model_arguments
from attnctl.cli import session
from attnctl.cli.command_table import COMMANDS
from attnctl.cli.options import LOOK_OPTIONS, taken
from attnctl.cli.output import say_unless_quiet
from attnctl.errors import UsageError
from attnctl.models import open_named_model

if TYPE_CHECKING:
    from attnctl.argument_types import OptionValues
    from attnctl.batching.engines import Engine
    from attnctl.render.figure.look import Look
    from attnctl.source import OverviewSource, TextSource, TraceSource
    from attnctl.tokens import Token


def engine_of(command: str, options: OptionValues) -> Engine:
    """Take the engine's options out of `options`. Raises UsageError for no engine's name, and for options of the other."""
    from attnctl.batching.engines import Engine

    by = taken(Engine, options)
    if by.engine not in ("local", "ray"):
        raise UsageError(f"--engine {by.engine}: it is local or ray")
    if by.engine == "local":
        check_mode(command, "--engine local")
    return by


def check_mode(command: str, *modes: str) -> None:
    """Raise UsageError for an option that was typed and means nothing in any of these modes of a command."""
    entry = COMMANDS[command]

    def honoured(mode: str) -> set[str]:
        said = ChainMap(*map(dict, entry.modes))[mode]
        names = set(said.removeprefix("all but ").split())
        return set(entry.options) - names if said.startswith("all") else {*names, "quiet"}

    allowed = set().union(*map(honoured, modes))
    for name, option in entry.options.items():
        if name in session.typed - allowed:  # a default of the user's own just does not apply
            flag = next((flag for flag in option.every_flag if flag.startswith("--")), name.upper())
            others = next(several for several in entry.modes if modes[0] in several)
            fits = " or ".join(mode for mode in others if mode != flag and name in honoured(mode))
            raise UsageError(f"{flag} does not go with {' and '.join(modes)}{fits and f': it goes with {fits}'}")


def look_of(options: OptionValues, dpi: int = 200) -> Look:
    """Take LOOK_OPTIONS out of `options`. Raises UsageError for one that cannot be."""
    from attnctl.render.figure.look import Look, size_in_inches

    chosen = {name: options.pop(name, None) for name in LOOK_OPTIONS}
    bar = not chosen.pop("no_colorbar")
    if chosen["size"] is not None:
        chosen["size"] = size_in_inches(chosen["size"])
    given = {name: value for name, value in chosen.items() if value is not None}
    return Look(**{"dpi": dpi, "colour_bar": bar} | given)


def model_of(options: OptionValues) -> Any:
    """Open the model that MODEL_OPTIONS ask for. Raises UsageError for options that exclude each other."""
    given = model_arguments(options)
    return open_named_model(**given) if session.current is None else session.current.kept_model(given, open_named_model)


def open_source(
    source: str | None, file: str | None, tokens: str | None, options: OptionValues
) -> TextSource | TraceSource | OverviewSource:
    """What the arguments of a command name. Raises UsageError for model options beside numbers computed already."""
    given = {name: value for name, value in options.items() if name != "chat"}

    def refuse_model_options(where: str) -> None:
        for name, value in options.items():
            if value is not None and name in session.typed:  # a default of the user's own just does not apply
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} does not go with {where}: its numbers are computed already")

    return inputs.open_input(
        source,
        file,
        tokens,
        partial(model_of, given),
        chat=options.get("chat"),
        has_rows=options.get("qkv") is not None,
        computed=refuse_model_options,
    )


def say_note(note: str) -> None:
    """A note for the user, on stderr; what this command has said already is not said again."""
    if note not in session.told:
        say_unless_quiet(f"note: {note}")
    session.told.add(note)


def say_cost(told: str | None) -> None:
    """What long work takes, on stderr, where there is anything to tell."""
    if told is not None:
        say_unless_quiet(told)


def say_notes(notes: Sequence[str]) -> None:
    """Notes for the user, a line each."""
    for note in notes:
        say_note(note)


def say_unknown(*texts: Sequence[Token], notes: Sequence[str] = (), every: bool = False) -> None:
    """What a user must know of words that a model does not, a line for each text that has such.

    Of the `notes` of what was read, `every` one is said too, or those that call a text too strange to be read well, a matrix
    no attention weights, and numbers doubtful.
    """
    from attnctl.readings.traces.trace import notes_of_kind
    from attnctl.tokens import unknown_words

    said = [note for tokens in dict.fromkeys(map(tuple, texts)) for note in unknown_words(tokens)]
    say_notes([*said, *dict.fromkeys(notes if every else notes_of_kind(notes, "guess", "doubt", "no-weights"))])
