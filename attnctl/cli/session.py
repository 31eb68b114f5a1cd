"""What `attnctl shell` keeps from one command to the next: a text, options for every command, and opened models.

A command that runs in a shell has it as the `obj` of its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from typer.core import TyperArgument

from attnctl.cli.command import TEXTS, was_typed
from attnctl.files import state_of_files

if TYPE_CHECKING:
    from typer import Context

    from attnctl.argument_types import OptionValues
    from attnctl.source import Model

MOST_MODELS = 2  # opened at the same time: a comparison has two

OTHER_TEXTS = ("file", "chat")  # options that give a text in another way


class Session:
    """The text or conversation of a shell, and the options of every command in it."""

    def __init__(
        self,
        text: str | None = None,
        options: OptionValues | None = None,
        *,
        chat: str | None = None,
        quiet: bool = False,
    ) -> None:
        self.text, self.chat, self.options, self.quiet = text, chat, dict(options or {}), quiet

    @property
    def model(self) -> str | None:
        """The name of the session's model; None for the default."""
        return self.options.get("model")

    def fill_in(self, context: Context) -> None:
        """Give a command the session's text and options if it was given none of its own."""
        from attnctl.models import names_model

        values = context.params
        typed = {name for name in values if was_typed(context, name)}
        # the text is the first argument of a command that reads a file in its place, or stands behind two models
        first, *others = [one.name or "" for one in context.command.params if isinstance(one, TyperArgument)] or [""]
        pair = [values.get(one) for one in (first, *others[:-1])] if others[1:] == ["text"] else []
        two_models = bool(pair) and all(one is not None and names_model(one) for one in pair)
        place = "text" if two_models else first if first in TEXTS and "file" in values else None
        if place is not None and not any(values.get(one) for one in (place, *OTHER_TEXTS)):
            values[place] = self.text
            if "chat" in values:
                values["chat"] = self.chat
        if not two_models and not typed & {"model", "qkv"}:  # the options of the session's model are not another's
            values.update({name: value for name, value in self.options.items() if name in values.keys() - typed})


class KeptModels:
    """The models that were opened last, by their options and the state of their files."""

    def __init__(self) -> None:
        self._models: dict[tuple[tuple[str, str], ...], tuple[object, Model]] = {}

    def open(self, options: OptionValues, opener: Callable[..., Model]) -> Model:
        """Return the model that `opener` makes of the options, or the one that it made before of the same files."""
        key = tuple(sorted((name, repr(value)) for name, value in options.items()))
        state = [state_of_files(value) for value in options.values() if isinstance(value, str)]
        before, model = self._models.pop(key, (None, None))
        if model is None or before != state:
            while len(self._models) >= MOST_MODELS:
                del self._models[next(iter(self._models))]
            model = opener(**options)
        self._models[key] = state, model  # the last to be forgotten
        return model


kept_models: ContextVar[KeptModels | None] = ContextVar("kept_models", default=None)


@contextmanager
def models_kept() -> Iterator[None]:
    """Within this, keep the models that commands open, for the commands that follow."""
    before = kept_models.set(KeptModels())
    try:
        yield
    finally:
        kept_models.reset(before)
