"""Open the model, or the source of attention, that a command's arguments name."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from attnctl.checks.model_options import model_arguments
from attnctl.cli.command_form import refuse_unused
from attnctl.cli.groups import CheckpointOptions, option_values
from attnctl.cli.output import say_note, say_notes
from attnctl.cli.progress import WORKING, cost_progress, lines_in_pipe, say_stage, whole_command
from attnctl.cli.session import kept_models
from attnctl.errors import until_end

if TYPE_CHECKING:
    from typer import Context

    from attnctl.checks.model_options import OptionValues
    from attnctl.source import Model, OverviewSource, TextSource, TraceSource


def model_of(options: OptionValues | CheckpointOptions) -> Model:
    """Open the model that the options ask for. Raises UsageError for options that exclude each other."""
    session = kept_models.get()
    if session is None:  # a shell waits for its user
        whole_command.words, whole_command.begun = WORKING, monotonic()
        until_end.enter_context(lines_in_pipe(whole_command))
    from attnctl.models import open_named_model  # imports NumPy, which --help and completion do not need

    arguments = model_arguments(options if isinstance(options, dict) else option_values(options))
    return open_named_model(**arguments) if session is None else session.open(arguments, open_named_model)


def open_source(
    context: Context,
    source: str | None,
    file: str | None = None,
    model: object | None = None,
    *,
    tokens: str | None = None,
    key_tokens: str | None = None,
) -> TextSource | TraceSource | OverviewSource:
    """Return the source that the arguments of a command name. Raises UsageError for model options beside computed numbers.

    Without a `model` the options on the command line are not about this source.
    """
    from attnctl import inputs
    from attnctl.source import TextSource, notes_of_listed

    values = {} if model is None else option_values(model)
    chat = values.get("chat")
    opened = inputs.open_input(
        source,
        file,
        tokens,
        partial(model_of, {name: value for name, value in values.items() if name != "chat"}),
        key_tokens=key_tokens,
        chat=chat if isinstance(chat, str) else None,
        has_rows=values.get("qkv") is not None,
        computed=lambda name: refuse_unused(context, *values, because=f"the numbers of {name} are computed already"),
    )
    if not isinstance(opened, TextSource):
        return opened
    if tokens is not None:
        refuse_unused(context, "tokenizer", "source_language", because="--tokens lists the tokens of the text")
        say_notes(notes_of_listed(opened))
    elif chat is None and (file is not None or source in (None, "-")):
        _note_json(opened.input_text)
    return _with_session(opened)


def _note_json(text: str) -> None:
    """Print a note if a text from a file or a pipe is a line of JSON: it is read as it stands."""
    line = text.lstrip().partition("\n")[0]
    if line.startswith("{") and line.rstrip().endswith("}"):
        import json

        with suppress(ValueError, RecursionError):
            json.loads(line)
            say_note(
                "the input is JSON but no trace, and is read as a text as it stands: attnctl batch reads JSON lines"
            )


def text_source(options: OptionValues | CheckpointOptions, text: str) -> TextSource:
    """Return the source of a text through the model that the options ask for."""
    from attnctl.source import TextSource

    return _with_session(TextSource(model_of(options), text))


def _with_session(source: TextSource) -> TextSource:
    """Show the progress of the source's long work, and keep its runs in a shell."""
    say_stage("reading the text")
    source.progress = cost_progress
    if (session := kept_models.get()) is not None:
        source.runner = session.runs.run
    return source
