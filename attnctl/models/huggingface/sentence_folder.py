"""A folder of sentence-transformers: which folder in it is the transformer, and what that library does to a text.

The rules are those of sentence-transformers 6.2: the text is put after the default prompt, written in lower case by the
tokenizer, and cut to max_seq_length tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.checks import limits
from attnctl.errors import AttnctlError
from attnctl.runtime.files import parse_json, read_bytes
from attnctl.text import either, visible_text

if TYPE_CHECKING:
    from attnctl.text import Document

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
# the names of the transformer's settings, the newest first: the library reads the first that is not empty
SETTINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
APPLIED = {"max_seq_length", "do_lower_case"}
# settings of the transformer module that change no token of a text, or name what is opened anyway
HARMLESS = {
    "transformer_task", "modality_config", "module_output_name", "unpad_inputs", "model_args", "model_kwargs",
    "config_args", "config_kwargs", "query_length", "document_length",
    "processor_kwargs", "tokenizer_args", "processing_kwargs",
}  # fmt: skip
HARMLESS_CHANGES = {
    "padding", "padding_side", "pad_to_multiple_of", "truncation", "return_tensors", "trust_remote_code", "use_fast",
}  # fmt: skip


@dataclass(frozen=True)
class SentenceSettings:
    """What sentence-transformers does to each text that a folder's model reads."""

    prompt: str = ""  # put before each text
    prompt_name: str = ""
    limit: int | None = None  # tokens that a text is cut to; None: by the tokenizer and the network
    lower_case: bool = False
    notes: tuple[str, ...] = ()  # settings that are not applied

    def notes_of_text(self, text: str, name: str) -> tuple[str, ...]:
        """Return the notes about a text: its prompt, its letters in lower case, and settings that are not applied."""
        done = []
        if self.prompt:
            done.append(f"its prompt “{visible_text(self.prompt)}” ({self.prompt_name}) stands before the text")
        if self.lower_case and text != text.lower():
            done.append("the text is read in lower case (do_lower_case)")
        applied = f"As sentence-transformers reads {name}, {', and '.join(done)}."
        return (*((applied,) if done else ()), *self.notes)


def transformer_folder(path: Path) -> Path:
    """Return the folder of the transformer that modules.json names first; `path` if there is no modules.json.

    Raises AttnctlError if its first module has no attention, or chooses among several transformers.
    """
    if not (path / MODULES).is_file():
        return path
    modules = parse_json(read_bytes(path / MODULES, limits.SETTINGS_BYTES), f"{path}/{MODULES}")
    first = next((module for module in modules if isinstance(module, dict)), {}) if isinstance(modules, list) else {}
    kind, place = str(first.get("type", "")).rpartition(".")[2], str(first.get("path", ""))
    if (inner := _inside(path, place)) is None:
        return path
    if kind in ("Router", "Asym"):
        routes = sorted(folder.parent.relative_to(path).as_posix() for folder in inner.glob("*/config.json"))
        if routes := [route for route in routes if (path / route / "tokenizer_config.json").is_file()]:
            raise AttnctlError(f"the folder {path} holds a model for each kind of text: name {either(routes)}")
    if not (inner / "config.json").is_file():
        if (path / "config.json").is_file() or "Transformer" in kind or not kind:
            return path
        raise AttnctlError(
            f"the folder {path} is of sentence-transformers, and its first module is {kind}, which has no attention"
        )
    return inner


def _inside(folder: Path, place: str) -> Path | None:
    """Return the folder `place` in a folder; None if it is not inside."""
    inner = folder / place
    return inner if inner.is_dir() and inner.resolve().is_relative_to(folder.resolve()) else None


def sentence_settings(folder: Path) -> SentenceSettings | None:
    """Return what sentence-transformers does to texts for the transformer in `folder`; None for any other folder.

    Raises AttnctlError for damaged settings.
    """
    top = next((place for place in (folder, folder.parent) if (place / MODULES).is_file()), None)
    if top is None or transformer_folder(top) != folder:
        return None
    prompts, own = _settings_in(top, (PROMPTS,)), _settings_in(folder, SETTINGS)
    name, texts = prompts.get("default_prompt_name"), prompts.get("prompts")
    prompt = texts.get(name) if isinstance(texts, dict) and isinstance(name, str) else None
    notes = []
    if name and prompt is None and name not in ("query", "document"):  # the library has these two, empty
        notes.append(f"{PROMPTS} of {top.name} names the prompt {name}, which it does not have: none is read.")
    changes = {"max_length": own.get("max_seq_length"), **_tokenizer_changes(own)}
    limit = changes.pop("max_length")
    if "message" in (own.get("modality_config") or ()):
        changes["the chat template"] = True
    if other := sorted({*(own.keys() - APPLIED - HARMLESS), *changes}):
        notes.append(f"sentence-transformers reads {top.name} with {', '.join(other)}, which attnctl does not apply.")
    return SentenceSettings(
        prompt if isinstance(prompt, str) else "",
        name if isinstance(name, str) else "",
        limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else None,
        own.get("do_lower_case") is True,
        tuple(notes),
    )


def _tokenizer_changes(settings: Document) -> Document:
    """Return what settings change of a tokenizer and its calls, as far as the tokens of one text could change."""
    changes: Document = {}
    for name in ("processor_kwargs", "tokenizer_args"):  # how the tokenizer is opened
        opened = settings.get(name)
        changes |= opened if isinstance(opened, dict) else {}
    if "model_max_length" in changes:
        changes["max_length"] = changes.pop("model_max_length")
    called = settings.get("processing_kwargs")  # how it is called
    for part in ("text", "common"):
        changed = called.get(part) if isinstance(called, dict) else None
        changes |= changed if isinstance(changed, dict) else {}
    return {name: value for name, value in changes.items() if name not in HARMLESS_CHANGES}


def _settings_in(folder: Path, names: tuple[str, ...]) -> Document:
    """Return the first of these files of settings that is not empty; {} if there is none."""
    files = [folder / name for name in names if (folder / name).is_file()]
    stored = (parse_json(read_bytes(file, limits.SETTINGS_BYTES), str(file)) for file in files)
    return next((settings for settings in stored if settings and isinstance(settings, dict)), {})
