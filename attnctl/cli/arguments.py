"""What a command of the old kind was given, until each is a function under `@command`."""

from __future__ import annotations

import re
from collections import ChainMap
from functools import partial
from typing import TYPE_CHECKING, Any

from attnctl.cli.command_table import ENTRIES
from attnctl.cli.defaults import PREFIX, default_origin
from attnctl.cli.groups import CheckpointOptions, PictureOptions, option_values
from attnctl.cli.opening import model_of
from attnctl.cli.options import LOOK_OPTIONS, OPTIONS, taken
from attnctl.cli.output import say_cost, say_note, say_notes, say_unknown, write_drawing
from attnctl.cli.progress import cost_progress
from attnctl.errors import UsageError
from attnctl.text import either

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context

    from attnctl.argument_types import OptionValues
    from attnctl.formats.pictures import Look
    from attnctl.source import OverviewSource, TextSource, TraceSource

__all__ = ["PREFIX", "model_of", "say_cost", "say_note", "say_notes", "say_unknown", "write_drawing"]

typed: set[str] = set()  # names of the parameters that stand on the command line, not in the defaults of a user
defaulted: dict[str, tuple[str, object]] = {}  # those that the environment or the defaults file gave: which, and what


def begin_command(command: ClickCommand, ctx: Context) -> None:
    """Note which parameters of `command` were typed, and which came from a user's defaults."""
    sources = {name: ctx.get_parameter_source(name) for p in command.params if (name := p.name)}
    typed.clear()
    typed.update(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")
    defaulted.clear()
    origins = {name: origin for name in sources if (origin := default_origin(ctx, name))}
    defaulted.update((name, (origin, ctx.params.get(name))) for name, origin in origins.items())


def with_origin(message: str) -> str:
    """An error message about an option, with where its value comes from, where that is not the command line."""
    named = re.findall(r"(?:--|^no )([a-z][a-z-]*)", message)  # "--layer 'x': …", "no model 'x': …"
    origins = [defaulted[name][0] for flag in named if (name := flag.replace("-", "_")) in defaulted]
    origins += [origin for origin, value in defaulted.values() if _is_named(value, message)]
    return f"{message} ({origins[0]})" if origins else message


def _is_named(value: object, message: str) -> bool:
    """Whether a message names a value that is a text, or one of several: "no token 'x' …", "cannot read x: …"."""
    several = value if isinstance(value, list | tuple) else (value,)
    words = [word for word in several if isinstance(word, str) and not word.isdecimal() and len(word) > 1]
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", message) for word in words)


# what names the one thing that a call is about, or asks for another act than the command's own, is no default
NEVER = ("help", *(name for name, option in OPTIONS.items() if option.one_call))


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
    entry = ENTRIES[command]

    def honoured(mode: str) -> set[str]:
        said = ChainMap(*map(dict, entry.modes))[mode]
        names = set(said.removeprefix("all but ").split())
        return set(entry.options) - names if said.startswith("all") else {*names, "quiet"}

    allowed = set().union(*map(honoured, modes))
    for name, option in entry.options.items():
        if name in typed - allowed:  # a default of the user's own just does not apply
            flag = next((flag for flag in option.every_flag if flag.startswith("--")), name.upper())
            others = next(several for several in entry.modes if modes[0] in several)
            fits = [mode for mode in others if mode != flag and name in honoured(mode)]
            fit = f": it goes with {either(fits)}" if fits else ""
            raise UsageError(f"{flag} does not go with {' and '.join(modes)}{fit}")


def picture_look(options: PictureOptions, dpi: int = 200) -> Look:
    """Return how a picture looks. Raises UsageError for a size that cannot be."""
    return look_of(option_values(options), dpi)


def look_of(options: OptionValues, dpi: int = 200) -> Look:
    """Take LOOK_OPTIONS out of `options`. Raises UsageError for one that cannot be."""
    from attnctl.formats.pictures import Look, size_in_inches

    chosen = {name: options.pop(name, None) for name in LOOK_OPTIONS}
    bar = not chosen.pop("no_colorbar")
    if chosen["size"] is not None:
        chosen["size"] = size_in_inches(chosen["size"])
    given = {name: value for name, value in chosen.items() if value is not None}
    return Look(**{"dpi": dpi, "colour_bar": bar} | given)


def open_source(
    source: str | None,
    file: str | None,
    tokens: str | None,
    options: OptionValues | CheckpointOptions,
    key_tokens: str | None = None,
) -> TextSource | TraceSource | OverviewSource:
    """What the arguments of a command name. Raises UsageError for model options beside numbers computed already."""
    from attnctl import inputs
    from attnctl.source import TextSource

    values: OptionValues = options if isinstance(options, dict) else option_values(options)
    given = {name: value for name, value in values.items() if name != "chat"}

    def refuse_model_options(where: str) -> None:
        for name, value in values.items():
            if value is not None and name in typed:  # a default of the user's own just does not apply
                option = "--" + name.replace("_", "-")
                raise UsageError(f"{option} does not go with {where}: its numbers are computed already")

    opened = inputs.open_input(
        source,
        file,
        tokens,
        partial(model_of, given),
        key_tokens=key_tokens,
        chat=values.get("chat"),
        has_rows=values.get("qkv") is not None,
        computed=refuse_model_options,
    )
    if isinstance(opened, TextSource):
        opened.progress = cost_progress
    return opened


def page_notes() -> dict[str, Any]:
    """Who hears what `page_of_sources` has to tell: of large traces, of a long text's cost, of each trace."""
    from attnctl.source.cells import SURVEY_SWEEPS, cost_of_heads

    return {
        "say": say_notes,
        "check": lambda source, heads: say_cost(cost_of_heads(source, heads, SURVEY_SWEEPS)),
        "told": lambda trace: say_unknown(trace.tokens, trace.key_axis, notes=trace.notes),
    }
