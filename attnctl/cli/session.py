"""Keep what `attnctl shell` remembers between commands: a text, options for every command, models and their runs.

A command in a shell has the session as the `obj` of its context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from typer.core import TyperArgument

from attnctl.cli.command_form import TEXTS, was_typed
from attnctl.runtime.files import state_of_files

if TYPE_CHECKING:
    from typer import Context

    from attnctl.checks.model_options import OptionValues
    from attnctl.layer import LayerAttention
    from attnctl.source import Model, Visit
    from attnctl.text.tokens import Token
    from attnctl.trace.run import Run

MOST_MODELS = 2  # open at the same time: a comparison has two
MOST_TEXTS = 3
MOST_BYTES = 3 << 30  # of queries, keys and values: 24,000 tokens through SmolLM2

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
        """Return the name of the session's model; None for the default."""
        return self.options.get("model")

    def fill_in(self, context: Context) -> None:
        """Give a command the session's text and options if the user typed none."""
        from attnctl.models import names_model

        values = context.params
        typed = {name for name in values if was_typed(context, name)}
        # the text is the first argument of a command that may read a file instead, or the third after two models
        names = [parameter.name or "" for parameter in context.command.params if isinstance(parameter, TyperArgument)]
        first, *later = names or [""]
        pair = [values.get(name) for name in (first, *later[:-1])] if later[1:] == ["text"] else []
        two_models = bool(pair) and all(value is not None and names_model(value) for value in pair)
        place = "text" if two_models else first if first in TEXTS and "file" in values else None
        if place is not None and not any(values.get(name) for name in (place, *OTHER_TEXTS)):
            values[place] = self.text
            if "chat" in values:
                values["chat"] = self.chat
        if not two_models and not typed & {
            "model",
            "qkv",
        }:  # the options of the session's model do not apply to another model
            values.update({name: value for name, value in self.options.items() if name in values.keys() - typed})


@dataclass
class KeptRun:
    """One text's run through one model: its layers in order, and the other results of the model."""

    model: Model
    tokens: tuple[Token, ...]
    text: str
    layers: list[LayerAttention]
    run: Run


class RunMemory:
    """The last few runs of models: `run` replaces `model.run`.

    The first run of a text goes through all layers, even if a reading needs only some: the next question may be about the
    others. Runs of more than `most_bytes` are not kept, and stop when the reading stops.
    """

    def __init__(self, most_bytes: float = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._kept: list[KeptRun] = []

    def run(self, model: Model, tokens: Sequence[Token], visit: Visit, text: str = "") -> Run:
        """Return what `model.run` would; `visit` sees the same layers. A run that was stopped has no predictions."""
        from attnctl.trace.run import StopForward

        tokens, stopped, size = tuple(tokens), False, 0.0
        same = (run for run in self._kept if run.model is model and run.tokens == tokens and run.text == text)
        earlier = next(same, None)
        layers: list[LayerAttention] = []

        def show(layer: LayerAttention) -> None:
            nonlocal stopped
            if not stopped:
                try:
                    visit(layer)
                except StopForward:
                    stopped = True

        def take(layer: LayerAttention) -> None:
            nonlocal size
            if layers:
                layers[-1].forget_steps()  # the model has passed it
            show(layer)
            size += layer.memory_bytes
            if size <= self.most_bytes:
                layers.append(layer)
            elif stopped:
                raise StopForward

        if earlier is None:
            run = model.run(tokens, take, text)
            if layers:
                layers[-1].forget_steps()
            if size <= self.most_bytes:
                self._kept = [*self._kept, KeptRun(model, tokens, text, layers, replace(run))][-MOST_TEXTS:]
        else:
            run = earlier.run
            self._kept.remove(earlier)
            self._kept.append(earlier)  # the last to be forgotten
            for layer in earlier.layers:
                show(layer)
                layer.forget_steps()
        return replace(run, predictions=() if stopped else run.predictions)  # a copy, which a reading completes


class KeptModels:
    """The models that were opened last, by their options and the state of their files, with their runs."""

    def __init__(self) -> None:
        self.runs = RunMemory()
        self._models: dict[tuple[tuple[str, str], ...], tuple[object, Model]] = {}

    def open(self, options: OptionValues, opener: Callable[..., Model]) -> Model:
        """Return the model that `opener` makes of the options, or the earlier one if its files have not changed."""
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
    """Within this context, keep the models that commands open and their runs, for the next commands."""
    from attnctl.models import networks_kept

    before = kept_models.set(KeptModels())
    try:
        with networks_kept():
            yield
    finally:
        kept_models.reset(before)
