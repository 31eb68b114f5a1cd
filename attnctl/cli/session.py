"""What is known beside a command's own options: which were typed, whether notes are wanted, and what a shell keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context, Parameter

    from attnctl.models.option_types import OptionValues
    from attnctl.source import Model


left_over: list[str] = []  # words of the command line that belong to no option
typed: set[str] = set()  # names of the parameters that stand on the command line, not in the defaults of a user
defaulted: dict[str, tuple[str, object]] = {}  # those that the environment or the defaults file gave: which, and what
quiet = False  # neither notes nor progress
no_pager = False  # long output goes to the terminal as it is
told: set[str] = set()  # notes that this command has given: each is given once


def begin_command(command: ClickCommand, ctx: Context) -> None:
    """Note which parameters of `command` were typed, and which came from a user's defaults."""
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


def set_quiet(_ctx: Context, _param: Parameter, wanted: bool) -> None:
    """The callback of --quiet."""
    global quiet
    quiet = bool(wanted) or (current is not None and current.quiet)


def set_no_pager(_ctx: Context, _param: Parameter, wanted: bool) -> None:
    """The callback of --no-pager."""
    global no_pager
    no_pager = bool(wanted)


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
        self.quiet = quiet  # every command is, as the session was begun
        self._models: dict[tuple[tuple[str, str], ...], Model] = {}

    @property
    def model(self) -> str | None:
        """The name of the session's model; None for the default."""
        return self.options.get("model")

    def kept_model(self, arguments: OptionValues, opener: Callable[..., Model]) -> Model:
        """The model that `opener` makes of these arguments, or the one that it made before."""
        key = tuple(sorted((name, repr(value)) for name, value in arguments.items()))
        if key not in self._models:
            while len(self._models) >= MOST_MODELS:
                del self._models[next(iter(self._models))]
            self._models[key] = opener(**arguments)
        self._models[key] = self._models.pop(key)  # the last to be forgotten
        return self._models[key]

    def fill_in(self, command: str, parameters: OptionValues) -> None:
        """Give a command the session's text and options where it was given none of its own."""
        of_two = self._of_two(command, parameters)
        place = "text" if of_two else TEXT_PARAMETERS.get(command)
        if place is not None and not any(parameters.get(name) for name in (place, *OTHER_TEXTS)):
            parameters[place] = self.text
            if "chat" in parameters:
                parameters["chat"] = self.chat
        if of_two or typed & {"model", "qkv"}:  # options of the session's model are not those of another
            return
        for name, value in self.options.items():
            if name in parameters and name not in typed:
                parameters[name] = value

    def _of_two(self, command: str, parameters: OptionValues) -> bool:
        """Whether two models are to read a text."""
        from attnctl.models import names_model

        names = [parameters.get(name) for name in PAIRS.get(command, ())]
        return bool(names) and all(name is not None and names_model(name) for name in names)


current: Session | None = None  # of the shell that runs; None outside one
