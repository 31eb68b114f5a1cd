"""The one source that a command's arguments name: a text for a model, a trace, an overview, or bare weights."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnctl import limits
from attnctl.cli import arguments, session
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import check_size, decode_text, open_regular, read_bytes, read_standard_input, said_plainly
from attnctl.formats.arrays import is_table
from attnctl.formats.chat import Conversation, conversation_of
from attnctl.models import names_model
from attnctl.models.option_types import OptionValues
from attnctl.source import OverviewSource, TextSource, TraceSource
from attnctl.tokens import checked_text

MAPPED_BYTES = 64 << 20  # of a .npy file, from which on it is read a block of rows at a time

TRACES, MATRICES = (".json", ".jsonl", ".npz"), (".npy", ".npz", ".csv", ".tsv")


def open_source(
    source: str | None, file: str | None, tokens: str | None, options: OptionValues
) -> TextSource | TraceSource | OverviewSource:
    """What the arguments of a command name; no model is imported for numbers that have been computed already.

    Raises AttnctlError for a source that is damaged or ambiguous, UsageError for model options beside computed numbers.
    """
    if options.get("chat") is not None:
        if tokens is not None:
            raise UsageError("--tokens names the tokens of bare weights; a conversation is split by its checkpoint")
        rest = {name: value for name, value in options.items() if name != "chat"}
        opened, prompt, _ = prompt_of(source, file, options["chat"], rest)
        from attnctl.models.huggingface.prompts import prompt_tokens

        model: Any = opened
        return TextSource(model, prompt.text, prompt_tokens(opened, prompt.text))
    if file is None and source is not None and is_large_matrix(source):
        _refuse_model_options(options, source)
        from attnctl.models.builtin.matrix import trace_of_mapped_matrix

        return TraceSource(trace_of_mapped_matrix(source, None if tokens is None else token_names(tokens)), source)
    given = None if file is not None else _read_input(source)
    if given is None:
        if tokens is not None:
            raise UsageError("--tokens names the tokens of bare weights; a text is split by --tokenizer")
        if source is None and file is None and options.get("qkv") is not None:
            rows = arguments.model_of(options)
            return TextSource(rows, rows.indices_text)
        text = arguments.text_of(source, file)
        return TextSource(arguments.model_of(options), text)
    where, data = given
    if _kind_of_input(where, data, tokens) == "text":
        check_size(len(data), limits.TEXT_BYTES, where)
        text = decode_text(data, where)
        return TextSource(arguments.model_of(options), text)
    _refuse_model_options(options, where)
    found = _computed_input(where, data, tokens)
    return TraceSource(found, where) if hasattr(found, "layers") else OverviewSource(found, where)


def conversation_in(file: str) -> Conversation:
    """The conversation in the file of --chat, or of standard input for "-"."""
    return conversation_of(read_bytes(file, limits.TEXT_BYTES), "standard input" if file == "-" else file)


def text_or_conversation(text: str | None, file: str | None, options: OptionValues) -> tuple[str, Any]:
    """The text of an argument or a file; or that of --chat, taken out of `options`, and the checkpoint that reads it."""
    chat = options.pop("chat", None)
    if chat is None:
        return arguments.text_of(text, file), None
    from attnctl.models.huggingface.prompts import begun_once

    model, prompt, _ = prompt_of(text, file, chat, options)
    return begun_once(model, prompt.text), model


def prompt_of(
    text: str | None, file: str | None, chat: str | None, options: OptionValues
) -> tuple[Any, Any, Conversation | None]:
    """The opened checkpoint, the prompt that it reads, and the conversation that the prompt was made of.

    Raises UsageError for a model that is no checkpoint, or for two prompts.
    """
    conversation = None if chat is None else conversation_in(chat)
    if conversation is not None and (text is not None or file is not None):
        raise UsageError("give the text, --file, or --chat: one of them")
    said = "" if conversation is not None else arguments.text_of(text, file)
    from attnctl.models.huggingface.prompts import Prompt, chat_prompt  # torch

    model = arguments.model_of(options)
    if model.info.kind != "checkpoint":
        raise UsageError(
            f"{model.info.name} answers no prompts: name a checkpoint with --model (smollm2, a folder, a .gguf)"
        )
    return (
        model,
        Prompt(checked_text(said), ()) if conversation is None else chat_prompt(model, conversation),
        conversation,
    )


def sources_of_run(folder: str, text: str, options: OptionValues) -> tuple[Iterator[TextSource], dict[int, str]]:
    """The text under the weights of every kept step of a training run, one after another; step → its label."""
    from attnctl.models.builtin.weights import steps_of
    from attnctl.training.run import TrainingRun

    reports = TrainingRun(folder).reports()
    losses = {report["step"]: report["loss"] for report in reports if report.get("loss") is not None}
    steps = steps_of(folder)
    labels = {step: f"step {step:,}" + (f", loss {losses[step]:.2f}" if step in losses else "") for step in steps}
    models = (arguments.model_of(options | {"model": str(path)}) for path in steps.values())
    return (TextSource(model, text) for model in models), labels


def is_large_matrix(source: str) -> bool:
    """Whether an argument names a .npy file that is better read a part at a time."""
    try:
        path = Path(source)
        return path.suffix.lower() == ".npy" and path.is_file() and path.stat().st_size > MAPPED_BYTES
    except (OSError, ValueError):
        return False


def is_file(source: str) -> bool:
    """Whether an argument names a file of numbers, rather than being a text."""
    return Path(source).suffix.lower() in {*TRACES, *MATRICES} and not any(char.isspace() for char in source.strip())


def refuse_models(command: str, a: str, b: str) -> None:
    """Raise UsageError where models stand for texts: the text that they read is lacking."""
    models = [name for name in (a, b) if names_model(name)]
    if len(models) == 2:
        raise UsageError(f'{a} and {b} are models: give the text that both read: attnctl {command} {a} {b} "…"')
    if models:
        raise UsageError(f'{models[0]} is a model: name the other one and a text: attnctl {command} A B "…"')


def _read_input(source: str | None) -> tuple[str, bytes] | None:
    """Name and bytes of a file or of standard input; None where the argument is a text itself."""
    if source is None:
        return None
    if source == "-":
        return "standard input", read_standard_input(_most_bytes)
    if is_file(source):
        return source, read_bytes(source)  # a name with such an ending is no sentence, also where no such file is there
    try:
        there = Path(source).is_file()
    except (OSError, ValueError):  # too long for a name, or with a null in it
        there = False
    if there and Path(source).suffix.lower() == ".txt" and not _holds_numbers(source):
        raise UsageError(f"{source} is a file of text: read it with --file {source}")
    if there and Path(source).suffix.lower() in (".safetensors", ".gguf"):
        raise UsageError(f"{source} holds a model's weights: give a text, and --model {source}")
    if there and (any(char in source for char in "/\\") or _holds_numbers(source)):
        return source, read_bytes(source)
    return None


def _holds_numbers(path: str) -> bool:
    """Whether a file is a trace, an overview or an array by what it begins with, whatever it is called."""
    with open_regular(path) as file, said_plainly("read", path):
        return _begins_as_numbers(file.read(400))


def _begins_as_numbers(start: bytes) -> bool:
    return start[:6] == b"\x93NUMPY" or start[:4] == b"PK\x03\x04" or (start[:1] == b"{" and b'"schema"' in start)


def _most_bytes(start: bytes) -> int:
    """How much is read of a pipe that begins so: of numbers much, of a text no more than of its file."""
    numbers = _begins_as_numbers(start) or is_table(start[: start.rfind(b"\n") + 1])
    return limits.DATA_BYTES if numbers else limits.TEXT_BYTES


def _kind_of_input(where: str, data: bytes, tokens: str | None) -> str:
    """What the bytes are: trace, matrix, or text."""
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if data[:6] == b"\x93NUMPY":
        return "matrix"
    if data[:2] == b"PK":
        return "npz"
    suffix = Path(where).suffix.lower() if where != "standard input" else ""
    if start[:1] == b"{" and (suffix in TRACES or b'"schema"' in start[:200]):
        return "trace"
    if where.lower().endswith(".npz") and not is_table(data):
        raise AttnctlError(f"{where} is not a sound .npz file (nothing is ever unpickled)")
    if suffix in TRACES and not (suffix == ".npz" and is_table(data)):
        return "trace"  # whose reader says what is wrong with it
    if suffix in MATRICES or tokens is not None:
        return "matrix"
    return "matrix" if is_table(data) else "text"


def _computed_input(where: str, data: bytes, tokens: str | None) -> Any:
    """A trace, bare weights as one, or an overview."""
    form = _kind_of_input(where, data, tokens)
    if form == "npz":
        from attnctl.formats.storage import trace_from_npz
        from attnctl.formats.validation import read_npz

        if "trace" in read_npz(data, where):
            form = "trace"
    if form != "trace":
        from attnctl.models.builtin.matrix import trace_of_matrix

        return trace_of_matrix(where, None if tokens is None else token_names(tokens), data)
    if tokens is not None:
        raise UsageError(f"--tokens does not go with {where}: a trace has its own tokens")
    if data[:2] == b"PK":
        return trace_from_npz(data, where)
    lines = data.count(b"\n", 0, len(data.rstrip())) + 1
    first = data.split(b"\n", 1)[0].rstrip()
    if lines > 1 and first.endswith(b"}"):
        if b'"schema"' not in first:
            raise AttnctlError(f"{where} holds {lines} lines of JSON that are no traces: attnctl batch reads texts so")
        name = "traces.jsonl" if where == "standard input" else shlex.quote(where)
        raise AttnctlError(f"{where} holds {lines} traces, one a line; choose one: sed -n 1p {name} | attnctl … -")
    from attnctl.formats.storage import from_json

    return from_json(data, where)


def token_names(tokens: str) -> list[str]:
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


def _refuse_model_options(options: OptionValues, where: str) -> None:
    for name, value in options.items():
        if value is not None and name in session.typed:  # a default of the user's own just does not apply
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} does not go with {where}: its numbers are computed already")
