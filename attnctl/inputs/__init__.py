"""Open what an argument of a command names: a text, or a file or pipe of text, numbers, an overview or a conversation."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError, about_value, option_name
from attnctl.formats.arrays import START_BYTES, begins_as_matrix, is_table
from attnctl.formats.validation import PICKLES, check_unpickled, schema_in
from attnctl.models import answering_model, names_model
from attnctl.models.gguf.files import begins_as_gguf
from attnctl.models.gguf.ollama import SCHEME
from attnctl.runtime import files
from attnctl.runtime.files import names_picture, names_sound
from attnctl.source import Model, OverviewSource, TextSource, TraceSource, listed_tokens
from attnctl.source.model import BringsText, NamesKeys
from attnctl.text import for_pasting
from attnctl.text.tokens import checked_text
from attnctl.trace import Trace

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.attention import Array
    from attnctl.formats.chat import Conversation, Prompt
    from attnctl.readings.overview import LongRow, Overview
    from attnctl.source.model import AnswersPrompts

MAPPED_BYTES = 64 << 20  # a larger .npy file is read in blocks of rows

TRACES, MATRICES = (".json", ".jsonl", ".npz"), (".npy", ".npz", ".csv", ".tsv", ".parquet")

# documents that stand in place of a text: what each is, and the command that reads it
READERS = {
    "trace": ("a trace", "attnctl explain {} reads it"),
    "overview": ("an overview", "attnctl heatmap {} reads it (of one query: explain)"),
}

UNREAD = (".h5", ".hdf5", ".keras", ".msgpack", ".onnx", ".mat", ".feather", ".arrow", ".xlsx")  # binary, of others

Opener = Callable[[], Model]  # opens the requested model when a text needs one


def open_input(
    source: str | None,
    file: str | None,
    tokens: str | None,
    open_model: Opener,
    *,
    key_tokens: str | None = None,
    chat: str | None = None,
    has_rows: bool = False,
    computed: Callable[[str], None] = lambda name: None,
) -> TextSource | TraceSource | OverviewSource:
    """Return the source that an argument, a text file or a conversation file names.

    `tokens` are those of the text, in place of the model's own, or name the rows of bare weights; `key_tokens` name the
    columns.

    `has_rows` says that the model brings its own text, as Q, K and V from files do. `computed` is called with the name of a
    file of numbers, which needs no model, before it is read. Raises AttnctlError for damaged or ambiguous input.
    """
    named = {"tokens": tokens, "key_tokens": key_tokens}
    typed = next((option for option, names in named.items() if names is not None), None)
    if has_rows and key_tokens is not None:
        open_model = partial(_with_key_names, open_model, token_names(key_tokens, "key_tokens"))
        named["key_tokens"] = None
        typed = None if tokens is None else "tokens"
    if chat is not None:
        if typed is not None:
            raise UsageError(
                "names the tokens of bare weights; a conversation is split by its checkpoint", option=typed
            )
        opened, prompt, _ = open_prompt(source, file, chat, open_model)
        return TextSource(opened, prompt.text, opened.prompt_tokens(prompt.text))
    if file is None and source is not None and is_large_matrix(source):
        computed(source)
        from attnctl.models.builtin.matrix import trace_of_mapped_matrix

        return TraceSource(trace_of_mapped_matrix(source, *_names_of_axes(named)), source)
    if source is None and file is None and not has_rows and files.standard_input_is_piped():
        source = "-"
    named_bytes = None if file is not None else _read_input(source)
    if named_bytes is None:
        if source is None and file is None and tokens is not None:
            return _source_of_text(" ".join(token_names(tokens)), named, open_model)
        if source is None and file is None and has_rows:
            rows = open_model()
            assert isinstance(rows, BringsText)
            return TextSource(rows, rows.own_text)
        return _source_of_text(text_of(source, file), named, open_model)
    where, data = named_bytes
    if _kind_of_input(where, data, typed is not None) == "text":
        files.check_size(len(data), limits.TEXT_BYTES, where)
        return _source_of_text(files.decode_text(data, where), named, open_model)
    computed(where)
    numbers = _computed_input(where, data, named, typed)
    return TraceSource(numbers, where) if isinstance(numbers, Trace) else OverviewSource(numbers, where)


def _source_of_text(text: str, named: Mapping[str, str | None], open_model: Opener) -> TextSource:
    """Return the source of a text: of the tokens that the user lists, or of those that the model makes."""
    if named["key_tokens"] is not None:
        option = option_name("qkv")
        raise UsageError(
            f"names the columns of bare weights, or the keys of {option}: a text has none", option="key_tokens"
        )
    names = None if named["tokens"] is None else token_names(named["tokens"])
    model = open_model()
    return TextSource(model, text, None if names is None else listed_tokens(model, text, names))


def _with_key_names(open_model: Opener, names: list[str]) -> Model:
    """Return the model of Q, K and V with names of its keys."""
    model = open_model()
    assert isinstance(model, NamesKeys)
    return model.with_key_names(names)


def text_of(text: str | None, file: str | None) -> str:
    """Return the text of an argument, of a file, or of standard input for "-". Raises AttnctlError if there is none."""
    if file is not None:
        if text is not None:
            raise UsageError(f"give the text, or {option_name('file')}, not both")
        return _text_in(file)
    if text is None and files.standard_input_is_piped():
        text = "-"
    if text is None:
        raise UsageError(f"there is no text: give it in quotes, as {option_name('file', 'FILE')}, or in a pipe")
    if text == "-":
        return _text_in("-")
    if names_picture(text) or names_sound(text):  # the model reads the file
        return text
    check_no_file(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise AttnctlError("the text is not UTF-8") from None
    return text


def _text_in(file: str) -> str:
    """Return the text in a file, or from standard input for "-". Raises UsageError if it is what attnctl itself wrote."""
    if file == "-":
        return files.decode_text(files.read_standard_input(partial(_check_is_text, "-")), "standard input")
    # the start alone, since a trace may be larger than any text
    with files.open_regular(file) as opened, files.said_plainly("read", file):
        if opened.seekable():  # what is read from a pipe is gone
            _check_is_text(file, opened.read(START_BYTES))
    data = files.read_bytes(file, limits.TEXT_BYTES)
    _check_is_text(file, data)
    return files.decode_text(data, file)


def _check_is_text(file: str, data: bytes) -> int:
    """Raise UsageError for numbers, or a document of attnctl; else return how many bytes a text may have."""
    schema = schema_in(data)
    where, name = ("standard input" if file == "-" else file), (schema or "").removeprefix("attnctl.").partition("/")[0]
    if schema is not None and name not in READERS:
        raise UsageError(f"{where} is a document of attnctl ({schema}), not a text: attnctl.load reads it in Python")
    # a .docx file is a zip archive too
    if name or data.startswith(b"\x93NUMPY") or (data.startswith(b"PK\x03\x04") and b".npy" in data[:200]):
        what, advice = READERS[name] if name else ("a file of numbers", READERS["trace"][1])
        raise UsageError(f"{where} is {what}, not a text: {advice.format(for_pasting(file))}")
    return limits.TEXT_BYTES


# suffixes by which a word without spaces is a file name, not a text
_FILE_NAME = re.compile(
    r"[^\s]+\.(txt|md|html?|json|jsonl|csv|tsv|npz|npy|png|jpe?g|webp|bmp|tiff?|svg|pdf|gif|safetensors|gguf|conllu|parquet|gz|zst|py|toml|wav|flac|mp3|aif[fc]?|caf|pth?|pkl|pickle|h5|hdf5|keras|msgpack|onnx|mat|feather|arrow|xlsx)",
    re.I,
)


def check_no_file(text: str) -> None:
    """Raise UsageError if a text is the name of a file, AttnctlError if it looks like the name of a missing file.

    A name with a suffix of no known form counts if there is such a file; a word without one, if a folder has this name, or
    if it begins like a path.
    """
    name = text.strip()
    if _FILE_NAME.fullmatch(name):
        if os.path.lexists(name):
            files.check_regular(name)
            _refuse_weights(name)
            if Path(name).suffix.lower() in (".parquet", ".pq"):
                raise UsageError(f"{name} is a table, not a text: attnctl batch {for_pasting(name)} reads texts in it")
            if Path(name).suffix.lower() in (".safetensors", *PICKLES) or _holds_numbers(name):
                raise UsageError(f"{name} is a file of numbers, without the model that this needs: give a text")
            if Path(name).suffix.lower() in UNREAD:
                from attnctl.formats.attention_files import FORMS

                raise UsageError(f"{name} is in a form that attnctl does not read: {FORMS}")
            raise UsageError(f"{name} is a file: a text in it is read with {option_name('file')} {for_pasting(name)}")
        raise AttnctlError(f"no file {name[:200]}: there is no such file here, and a text would have several words")
    if not name or "\0" in name or len(name) >= limits.NAME_BYTES or "\n" in name:
        return
    word = for_pasting(name)
    # a word without a suffix may well be a text; pathlib raises for a name that is too long
    if Path(name).suffix and os.path.isfile(name):  # noqa: PTH113
        raise UsageError(
            f"{name} is a file: a text in it is read with {option_name('file')} {word}; as a text: printf %s {word} | "
            "attnctl … -"
        )
    if re.search(r"\s", name):
        return
    if Path(name).is_dir():
        raise UsageError(
            f"{name} is a folder: attnctl batch {word} reads its texts; as a text: printf %s {word} | attnctl … -"
        )
    if re.match(r"\.{0,2}/\w|~/", name):
        if os.path.lexists(Path(name).expanduser()):
            raise UsageError(f"{name} is a file: a text in it is read with {option_name('file')} {for_pasting(name)}")
        raise AttnctlError(f"no file {name}: nothing is there; as a text: printf %s {word} | attnctl … -")


def conversation_in(file: str) -> Conversation:
    """Return the conversation in a file, or from standard input for "-"."""
    from attnctl.formats.chat import conversation_of

    with about_value(file):
        return conversation_of(files.read_bytes(file, limits.TEXT_BYTES), "standard input" if file == "-" else file)


def text_or_conversation(
    text: str | None, file: str | None, chat: str | None, open_model: Opener
) -> tuple[str, Model | None]:
    """Return the text of an argument or a file, and None; or a conversation's text, and the checkpoint that reads it."""
    if chat is None:
        return text_of(text, file), None
    model, prompt, _ = open_prompt(text, file, chat, open_model)
    tokens = model.tokenize(prompt.text)
    begins_twice = len(model.prompt_tokens(prompt.text)) < len(tokens)  # by the template and by the tokenizer
    return prompt.text[tokens[1].end or 0 :] if begins_twice else prompt.text, model


def photograph_named(source: str | None, image: str | None) -> Image | None:
    """Return the photograph of a command: the `image`, or the argument if it names one; else None."""
    path = image or (source if source is not None and names_picture(source) else None)
    if path is None:
        return None
    from attnctl.formats.photographs import read_photograph

    return read_photograph(path)


def open_prompt(
    text: str | None, file: str | None, chat: str | None, open_model: Opener
) -> tuple[AnswersPrompts, Prompt, Conversation | None]:
    """Return the opened model, the prompt that it reads, and the conversation that the prompt was made of.

    Raises UsageError for a model that answers no prompts, or for two prompts.
    """
    conversation = None if chat is None else conversation_in(chat)
    if conversation is not None and (text is not None or file is not None):
        raise UsageError(f"give the text, {option_name('file')}, or {option_name('chat')}: one of them")
    typed_text = "" if conversation is not None else text_of(text, file)
    from attnctl.formats.chat import Prompt

    model = answering_model(open_model(), "name a checkpoint (smollm2, a folder, a .gguf)")
    prompt = Prompt(checked_text(typed_text)) if conversation is None else model.prompt_of(conversation)
    return model, prompt, conversation


def sources_of_run(
    folder: str, text: str, open_model: Callable[[str], Model]
) -> tuple[Iterator[TextSource], dict[int, str]]:
    """Return the text's sources under the weights of every kept step of a training run, in order; and step → its label."""
    from attnctl.models.builtin.weights import reports_of, steps_of

    losses = {report["step"]: report["loss"] for report in reports_of(folder) if report.get("loss") is not None}
    steps = steps_of(folder)
    labels = {step: f"step {step:,}" + (f", loss {losses[step]:.2f}" if step in losses else "") for step in steps}
    return (TextSource(open_model(str(path)), text) for path in steps.values()), labels


def is_large_matrix(source: str) -> bool:
    """Return whether an argument names a .npy file that is large, and so is read in parts."""
    try:
        path = Path(source)
        return path.suffix.lower() == ".npy" and path.is_file() and path.stat().st_size > MAPPED_BYTES
    except (OSError, ValueError):
        return False


def names_numbers(source: str) -> bool:
    """Return whether an argument is the name of a file of numbers, and not a text."""
    if any(char.isspace() for char in source.strip()):
        return False
    return Path(source).suffix.lower() in {*TRACES, *MATRICES, *PICKLES}


def refuse_models(command: str, a: str, b: str) -> None:
    """Raise UsageError if an argument for a text is a model: the text is missing."""
    models = [name for name in (a, b) if names_model(name)]
    if len(models) == 2:
        both = f"{for_pasting(a)} {for_pasting(b)}"
        raise UsageError(f'{a} and {b} are models: give the text that both read: attnctl {command} {both} "…"')
    if models:
        raise UsageError(f'{models[0]} is a model: name the other one and a text: attnctl {command} A B "…"')


def _read_input(source: str | None) -> tuple[str, bytes] | None:
    """Return name and bytes of a file or of standard input; None if the argument is a text."""
    if source is None or names_picture(source) or names_sound(source):
        return None
    if source == "-":
        return "standard input", files.read_standard_input(_most_bytes)
    if source.startswith(SCHEME) and re.fullmatch(r"\S+", source.removeprefix(SCHEME)):
        raise UsageError(f"{source} is a model: give a text, and {option_name('model')} {for_pasting(source)}")
    if names_numbers(source):
        if Path(source).suffix.lower() in PICKLES:
            with files.open_regular(source) as file:
                check_unpickled(file.read(1000), source)
        # a name with such a suffix is no sentence, even if there is no such file
        return source, files.read_bytes(source)
    try:
        is_file = Path(source).is_file()
    except (OSError, ValueError):  # too long for a file name, or with a NUL in it
        is_file = False
    if is_file and Path(source).suffix.lower() in UNREAD:
        return None  # `check_no_file` refuses it
    if is_file and re.fullmatch(r"\S+\.[A-Za-z]\w*", source) and _holds_links(source):
        raise UsageError(
            f"{source} holds links of words (0-0 1-2), which have no weights: marian-decoder --alignment soft writes "
            "them, and attnctl align scores links"
        )
    if is_file and Path(source).suffix.lower() == ".txt" and not _holds_numbers(source):
        raise UsageError(f"{source} is a file of text: read it with {option_name('file')} {for_pasting(source)}")
    if is_file:
        _refuse_weights(source)
    if is_file and Path(source).suffix.lower() == ".safetensors":
        return source, files.read_bytes(source)
    if is_file and (any(char in source for char in "/\\") or _holds_numbers(source)):
        return source, files.read_bytes(source)
    return None


def _refuse_weights(path: str) -> None:
    """Raise UsageError for an existing file that holds a model's weights, by its suffix or its first bytes."""
    is_safetensors = Path(path).suffix.lower() == ".safetensors"
    if not (is_safetensors or Path(path).suffix.lower() == ".gguf" or begins_as_gguf(Path(path))):
        return
    from attnctl.formats.attention_files import holds_attention

    if not (is_safetensors and holds_attention(path)):
        raise UsageError(
            f"{path} holds a model's weights: give a text, and {option_name('model')} {for_pasting(path)} (attention has a "
            "tensor named weights or attention, or rows that sum to 1)"
        )


def _holds_numbers(path: str) -> bool:
    """Return whether a file is a trace, an overview or an array by its first bytes, whatever its name."""
    with files.open_regular(path) as file, files.said_plainly("read", path):
        return _begins_as_numbers(file.read(START_BYTES))


def _holds_links(path: str) -> bool:
    """Return whether a file holds a hard alignment of words by its first bytes."""
    from attnctl.formats.soft_alignments import begins_as_hard_alignment

    with files.open_regular(path) as file, files.said_plainly("read", path):
        return begins_as_hard_alignment(file.read(START_BYTES))


def _begins_as_numbers(start: bytes) -> bool:
    from attnctl.formats.soft_alignments import begins_as_soft_alignment
    from attnctl.formats.weight_tables import PARQUET, is_weight_table

    known = (b"\x93NUMPY", b"PK\x03\x04", PARQUET)
    is_trace = start[:1] == b"{" and b'"schema"' in start
    is_text = is_weight_table(start) or begins_as_soft_alignment(start) or begins_as_matrix(start)
    return start.startswith(known) or is_trace or is_text


def _most_bytes(start: bytes) -> int:
    """Return how many bytes a pipe with this beginning may have: many for numbers, for text the limit of a text file."""
    numbers = _begins_as_numbers(start) or is_table(start[: start.rfind(b"\n") + 1])
    return limits.DATA_BYTES if numbers else limits.TEXT_BYTES


def _kind_of_input(where: str, data: bytes, named: bool) -> str:
    """Return what the bytes are: trace, matrix, npz or text; `named` says that the user names the tokens, as of a number."""
    from attnctl.formats.attention_files import begins_as_lists, is_safetensors
    from attnctl.formats.soft_alignments import begins_as_soft_alignment
    from attnctl.formats.weight_tables import is_weight_table

    check_unpickled(data, where)
    start = data[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()
    if data[:6] == b"\x93NUMPY":
        return "matrix"
    if data[:2] == b"PK":
        return "npz"
    if is_weight_table(data) or is_safetensors(data) or begins_as_soft_alignment(data):
        return "matrix"
    suffix = Path(where).suffix.lower() if where != "standard input" else ""
    if schema_in(data) is not None:  # before the lists, which a trace has too: its keys may be sorted
        return "trace"
    if begins_as_lists(data, suffix == ".json"):
        return "matrix"
    if start[:1] == b"{" and (suffix in TRACES or b'"schema"' in start[:200]):
        return "trace"
    if where.lower().endswith(".npz") and not is_table(data):
        raise AttnctlError(f"{where} is not a sound .npz file (nothing is ever unpickled)")
    if suffix in TRACES and not (suffix == ".npz" and is_table(data)):
        return "trace"  # the reader reports what is wrong with it
    if suffix in MATRICES or is_table(data) or (named and re.fullmatch(rb"[-+\d.,;eE\s]+", data)):
        return "matrix"
    return "text"


def _computed_input(
    where: str, data: bytes, named: dict[str, str | None], typed: str | None
) -> Trace | Overview | LongRow:
    """Return a trace, bare weights as one, or an overview.

    `named` holds the names of a matrix by option, `typed` is an option among them that was given.
    """
    form = _kind_of_input(where, data, typed is not None)
    if form == "npz":
        from attnctl.formats.storage import trace_from_npz
        from attnctl.formats.validation import names_in_npz

        if "trace" in names_in_npz(data):
            form = "trace"
    if form != "trace":
        from attnctl.models.builtin.matrix import trace_of_matrix

        return trace_of_matrix(where, *_names_of_axes(named), data=data)
    if typed is not None:
        raise UsageError(f"cannot be combined with {where}: a trace has its own tokens", option=typed)
    if data[:2] == b"PK":
        return trace_from_npz(data, where)
    lines = data.count(b"\n", 0, len(data.rstrip())) + 1
    first = data.split(b"\n", 1)[0].rstrip()
    if lines > 1 and first.endswith(b"}"):
        if b'"schema"' not in first:
            raise AttnctlError(f"{where} holds {lines} lines of JSON that are not traces: attnctl batch reads texts so")
        name = "traces.jsonl" if where == "standard input" else for_pasting(where)
        raise AttnctlError(f"{where} holds {lines} traces, one a line; choose one: sed -n 1p {name} | attnctl … -")
    from attnctl.formats.storage import from_json

    return from_json(data, where)


def _names_of_axes(named: dict[str, str | None]) -> tuple[list[str] | None, list[str] | None]:
    """Return the names of rows and columns that the two options give; None for an option that was not given."""
    rows, columns = (None if names is None else token_names(names, option) for option, names in named.items())
    return rows, columns


def token_names(tokens: str, option: str = "tokens") -> list[str]:
    """Return the names in the value of an option: a JSON list of strings, or words with white space or commas between them.

    The list may be in a .json file. Commas are between words if there is no white space.
    """
    if re.fullmatch(r"\S+\.json", tokens):
        tokens = files.decode_text(files.read_bytes(tokens, limits.TEXT_BYTES), tokens).strip()
        if not tokens.startswith("["):
            raise UsageError("holds no JSON list of strings", option=option)
    if tokens.lstrip().startswith("["):
        try:
            names = json.loads(tokens)
        except (ValueError, RecursionError):
            names = None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
        if isinstance(names, list) or tokens.lstrip().startswith(('["', "['")):
            advice = 'write ["Alice", "will"], or words: "Alice will"'
            raise UsageError(f"is not a JSON list of strings: {advice}", option=option)
    if not tokens.split():
        raise UsageError("is empty: name the tokens", option=option)
    words = tokens.split()
    return words[0].split(",") if len(words) == 1 and re.fullmatch(r"[^,]+(,[^,]+)+", words[0]) else words


# --- numbers for a model: a batch, a table ---


def read_batch(path: str, *, needs_ids: bool = True) -> Mapping[str, Array]:
    """Return the tensors of a batch by name, from .safetensors, .npz or JSON.

    Raises AttnctlError without input_ids, if it `needs_ids`, or for anything but names with numbers.
    """
    from attnctl.formats.arrays import readable_tensors
    from attnctl.formats.validation import read_npz, telling_unsound

    data, suffix = files.read_bytes(path), Path(path).suffix.lower()
    check_unpickled(data, path, named=True)
    if data[:2] == b"PK" or suffix == ".npz":
        batch: object = read_npz(data, path)
    elif suffix == ".safetensors":
        from safetensors.torch import load

        readable_tensors(path)
        with telling_unsound(path, ".safetensors"):
            batch = load(data)
    else:
        batch = files.parse_json(data, path)
    if isinstance(batch, Mapping) and batch and not needs_ids:
        return batch
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        raise AttnctlError(f"{path} is not a batch: it has no input_ids")
    return batch


def names_table(name: str) -> bool:
    """Return whether an argument is the name of a file: one that exists, or has a suffix ("e.txt", not "window 2.5")."""
    return Path(name).exists() or Path(name).suffix[1:].isalpha()


def read_table(path: str) -> object:
    """Return a table of numbers: lists in JSON, .npy or .csv. Raises AttnctlError if the file is damaged."""
    if Path(path).suffix.lower() == ".json":
        return files.parse_json(files.read_bytes(path), path)
    from attnctl.formats.arrays import read_array

    return read_array(path).array
