"""What a command was given: its arguments, which of them were typed, a user's own defaults, and what a shell keeps.

`ATTNCTL_MODEL=gpt2` stands for `--model gpt2` in every command that has it, and so for every option. The file is
`config.toml` in the user's configuration folder (see `attnctl config --path`): `model = "gpt2"`, or under `[heatmap]`
for one command alone.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup, TyperOption

from attnctl import limits
from attnctl.argument_types import model_arguments
from attnctl.cli import output
from attnctl.cli.command_table import ENTRIES
from attnctl.cli.groups import CheckpointOptions, PictureOptions, option_values
from attnctl.cli.options import LOOK_OPTIONS, MODEL_OPTIONS, OPTIONS, taken
from attnctl.cli.output import put_bytes, say_unless_quiet
from attnctl.cli.progress import cost_progress
from attnctl.cli.suggestions import suggest_choice
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import read_bytes, state_of_files
from attnctl.formats.pictures import figure_bytes
from attnctl.text import either, for_pasting

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context

    from attnctl.argument_types import OptionValues
    from attnctl.batching.engines import Engine
    from attnctl.formats.pictures import Look
    from attnctl.render.figure.layout import Drawing
    from attnctl.source import Model, OverviewSource, TextSource, TraceSource
    from attnctl.text import Document
    from attnctl.tokens import Token


left_over: list[str] = []  # words of the command line that belong to no option
typed: set[str] = set()  # names of the parameters that stand on the command line, not in the defaults of a user
defaulted: dict[str, tuple[str, object]] = {}  # those that the environment or the defaults file gave: which, and what
told: set[str] = set()  # notes that this command has given: each is given once


def begin_command(command: ClickCommand, ctx: Context) -> None:
    """Note which parameters of `command` were typed, and which came from a user's defaults; heed those of every command."""
    output.quiet = ctx.params.pop("quiet") or (current is not None and current.quiet)
    output.no_pager = ctx.params.pop("no_pager")
    sources = {name: ctx.get_parameter_source(name) for p in command.params if (name := p.name)}
    told.clear()
    left_over[:] = ctx.args
    typed.clear()
    typed.update(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")
    defaulted.clear()
    origins = {name: origin for name in sources if (origin := default_origin(ctx, name))}
    defaulted.update((name, (origin, ctx.params.get(name))) for name, origin in origins.items())


def default_origin(ctx: Context, name: str) -> str:
    """Where a parameter's value comes from, where it is a default of the user's own; else ""."""
    source = ctx.get_parameter_source(name)
    if source is None or source.name not in ("ENVIRONMENT", "DEFAULT_MAP"):
        return ""
    return f"$ATTNCTL_{name.upper()}" if source.name == "ENVIRONMENT" else "the defaults file, see attnctl config"


def with_origin(error: AttnctlError) -> str:
    """Return the message of an error, with where the wrong value comes from if that is a default of the user's own."""
    for name, (origin, value) in defaulted.items():
        several = value if isinstance(value, list | tuple) else [value]
        is_named = error.option is None and error.value is not None and str(error.value) in several
        if error.option == name or is_named:
            return f"{error} ({origin})"
    return str(error)


MOST_MODELS = 2  # opened at once: a comparison has two

# commands that read a text, where none is given the shell's own: command → the parameter that takes it
TEXT_PARAMETERS = {
    "explain": "source", "heatmap": "source", "heads": "source", "view": "source", "ablate": "text", "sources": "text",
    "quiz": "text",
}  # fmt: skip
PAIRS = {"compare": ("a", "b"), "view": ("source", "other")}  # of two models, which read the text in "text"
OTHER_TEXTS = ("file", "chat")  # options that give a text in another way


class Session:
    """A text or a conversation, and options for every command; and the models that were opened, by their arguments."""

    def __init__(
        self, text: str | None = None, options: OptionValues | None = None, *, chat: str | None = None
    ) -> None:
        self.text, self.chat, self.options = text, chat, dict(options or {})
        self.quiet = output.quiet  # every command is, as the session was begun
        self._models: dict[tuple[tuple[str, str], ...], tuple[object, Model]] = {}  # and the state of its files

    @property
    def model(self) -> str | None:
        """The name of the session's model; None for the default."""
        return self.options.get("model")

    def kept_model(self, arguments: OptionValues, opener: Callable[..., Model]) -> Model:
        """Return the model that `opener` makes of these arguments, or the one it made before of the same files."""
        key = tuple(sorted((name, repr(value)) for name, value in arguments.items()))
        state = [state_of_files(value) for value in arguments.values() if isinstance(value, str)]
        before, model = self._models.pop(key, (None, None))
        if model is None or before != state:
            while len(self._models) >= MOST_MODELS:
                del self._models[next(iter(self._models))]
            model = opener(**arguments)
        self._models[key] = state, model  # the last to be forgotten
        return model

    def fill_in(self, command: str, parameters: OptionValues) -> None:
        """Give a command the session's text and options where it was given none of its own."""
        from attnctl.models import names_model

        pair = [parameters.get(name) for name in PAIRS.get(command, ())]
        of_two = bool(pair) and all(name is not None and names_model(name) for name in pair)
        place = "text" if of_two else TEXT_PARAMETERS.get(command)
        if place is not None and not any(parameters.get(name) for name in (place, *OTHER_TEXTS)):
            parameters[place] = self.text
            if "chat" in parameters:
                parameters["chat"] = self.chat
        if of_two or typed & {"model", "qkv"}:  # options of the session's model are not those of another
            return
        kept = {name: value for name, value in self.options.items() if name in parameters and name not in typed}
        parameters.update(kept)


current: Session | None = None  # of the shell that runs; None outside one


PREFIX = "ATTNCTL_"
# what names the one thing that a call is about, or asks for another act than the command's own, is no default
NEVER = ("help", *(name for name, option in OPTIONS.items() if option.one_call))


def config_path() -> Path:
    """The defaults file: ATTNCTL_CONFIG, or config.toml in the user's configuration folder."""
    named = os.environ.get(f"{PREFIX}CONFIG")
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("attnctl") / "config.toml"


def read_text() -> str:
    """The text of the defaults file; "" where there is none. Raises AttnctlError where it cannot be read."""
    path = config_path()
    if not os.path.lexists(path):
        return ""
    try:
        return read_bytes(path, limits.DEFAULTS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise AttnctlError(f"{path} is no TOML: {error} (attnctl config --path prints where it is)") from error


def read_defaults() -> Document:
    """What the defaults file says; nothing where there is none. Raises AttnctlError where it is no TOML."""
    import tomllib

    try:
        return tomllib.loads(read_text())
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AttnctlError(f"{config_path()} is no TOML: {error} (attnctl config --path prints where it is)") from error


def apply_defaults(command: ClickCommand, ctx: Context) -> None:
    """Give a command's options the defaults of file and environment. Raises AttnctlError for a value of another type."""
    options = {p.name or "": p for p in command.params if isinstance(p, TyperOption) and p.envvar}
    if not _may_be_there():
        return
    said = read_defaults()
    if command.name != "config":  # which shows what the file holds, and takes out what is wrong
        _check_names(said, command.name or "", options, ctx)
    own = said.get(command.name or "", {})
    table = {k: v for k, v in said.items() if not isinstance(v, dict)} | (own if isinstance(own, dict) else {})
    given = {name.replace("-", "_"): value for name, value in table.items()}
    defaults: dict[str, object] = {}
    for name in given.keys() & options.keys():
        value, several = given[name], options[name].multiple
        values = value if several and isinstance(value, list) else [value]
        if not all(isinstance(each, (str, int, float, bool)) for each in values):
            one = "a list of values, or one value" if several else "one value"
            raise AttnctlError(f"{config_path()}: {name} is {one}: a text, a number, true or false")
        # numbers, and true and false, go the way of the command line, which checks them
        texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
        defaults[name] = texts if several else texts[0]
    ctx.default_map = defaults


def _check_names(said: Document, command: str, options: Collection[str], ctx: Context) -> None:
    """Raise AttnctlError for a name in the defaults file that is of no option, or of one that has no default.

    `options` are those of the `command` that runs: its own table holds no others.
    """
    group = ctx.find_root().command
    commands = group.list_commands(ctx) if isinstance(group, TyperGroup) else [command]
    known = options_of_all(ctx) if said else {}
    for name, value in said.items():
        table = value if isinstance(value, dict) else None
        if table and name not in commands:
            near = suggest_choice(name, commands)
            raise AttnctlError(f"{config_path()}: [{name}]: no command is called so{near}")
        for place in [name] if table is None else [f"{name}.{key}" for key in table]:
            lacking = name == command and place.rpartition(".")[2].replace("-", "_") not in options
            if wrong := why_no_default(place, known) or f"{command} has no such option" * lacking:
                raise AttnctlError(f"{config_path()}: {place}: {wrong} (attnctl config --unset {for_pasting(place)})")


def why_no_default(name: str, known: Mapping[str, bool]) -> str:
    """Return why no option takes a default of that NAME or COMMAND.NAME, or ""; `known` are `options_of_all`."""
    key = name.rpartition(".")[2].replace("-", "_")
    if known.get(key):
        return ""
    if key in known:
        return "it has no default, and is given where it is meant"
    return f"no option is called so{suggest_choice(key, known)}"


def options_of_all(ctx: Context) -> dict[str, bool]:
    """Return for each option of any command whether it may have a default."""
    group = ctx.find_root().command
    commands = (
        [group.get_command(ctx, name) for name in group.list_commands(ctx)] if isinstance(group, TyperGroup) else []
    )
    return {
        one.name or "": bool(one.envvar)
        for command in commands
        for one in (command.params if command else ())
        if isinstance(one, TyperOption)
    }


def unknown_variables(ctx: Context) -> list[str]:
    """A sentence on each variable of the environment that is named as a default is, and is none."""
    names = [name for name in sorted(os.environ) if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG"]
    known = options_of_all(ctx) if names else {}
    return [
        f"${name}: {wrong}" for name in names if (wrong := why_no_default(name.removeprefix(PREFIX).lower(), known))
    ]


def yield_to_typed(command: ClickCommand, ctx: Context) -> None:
    """Forget the defaults that belong to another model, where --model or --qkv was typed; not those of the machine."""
    if not typed & {"model", "qkv"}:
        return
    for parameter in command.params:
        if parameter.name in MODEL_OPTIONS and not (parameter.name in typed or OPTIONS[parameter.name].of_machine):
            ctx.params[parameter.name] = parameter.default


def _may_be_there() -> bool:
    """Whether to look for the file at all: a start without one pays for a look at one folder, no more."""
    if os.environ.get(f"{PREFIX}CONFIG"):
        return True
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    # that of os: in a home that may not be looked into (another user's, as a service has it) there are no defaults
    found = os.path.isdir(Path(home, "attnctl"))  # noqa: PTH112
    return os.name != "posix" or os.uname().sysname == "Darwin" or found


def engine_of(command: str, options: OptionValues) -> Engine:
    """Take the engine's options out of `options`. Raises UsageError for no engine's name, and for options of the other."""
    from attnctl.batching.engines import Engine

    by = taken(Engine, options)
    if by.engine not in ("local", "ray"):
        raise UsageError("it is local or ray", option="engine", value=by.engine)
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


def model_of(options: OptionValues | CheckpointOptions) -> Any:
    """Open the model that MODEL_OPTIONS ask for. Raises UsageError for options that exclude each other."""
    from attnctl.models import open_named_model  # NumPy, which --help and completion do without

    given = model_arguments(options if isinstance(options, dict) else option_values(options))
    return open_named_model(**given) if current is None else current.kept_model(given, open_named_model)


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
                raise UsageError(f"does not go with {where}: its numbers are computed already", option=name)

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


def say_note(note: str) -> None:
    """A note for the user, on stderr; what this command has said already is not said again."""
    if note not in told:
        say_unless_quiet(f"note: {note}")
    told.add(note)


def say_cost(told: str | None) -> None:
    """What long work takes, on stderr, where there is anything to tell."""
    if told is not None:
        say_unless_quiet(told)


def say_notes(notes: Sequence[str]) -> None:
    """Notes for the user, a line each."""
    for note in notes:
        say_note(note)


def page_notes() -> dict[str, Any]:
    """Who hears what `page_of_sources` has to tell: of large traces, of a long text's cost, of each trace."""
    from attnctl.source.cells import SURVEY_SWEEPS, cost_of_heads

    return {
        "say": say_notes,
        "check": lambda source, heads: say_cost(cost_of_heads(source, heads, SURVEY_SWEEPS)),
        "told": lambda trace: say_unknown(trace.tokens, trace.key_axis, notes=trace.notes),
    }


def write_drawing(drawing: Drawing, form: str, output: str | None) -> None:
    """A picture into its file, and on stderr what a user should know about it."""
    put_bytes(figure_bytes(drawing.figure, form), output)
    say_notes(drawing.notes)


def say_unknown(*texts: Sequence[Token], notes: Sequence[str] = (), every: bool = False) -> None:
    """What a user must know of words that a model does not, a line for each text that has such.

    Of the `notes` of what was read, `every` one is said too, or those that call a text too strange to be read well, a matrix
    no attention weights, and numbers doubtful.
    """
    from attnctl.readings.traces.trace import notes_of_kind
    from attnctl.tokens import unknown_words

    said = [note for tokens in dict.fromkeys(map(tuple, texts)) for note in unknown_words(tokens)]
    say_notes(
        [*said, *dict.fromkeys(notes if every else notes_of_kind(notes, "guess", "doubt", "no-weights", "input"))]
    )
