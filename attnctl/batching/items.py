"""Define one text of a batch, with its options, and its result."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.errors import UsageError
from attnctl.models import Model, answering_model
from attnctl.text import as_json
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnctl.checks.model_options import OptionValues
    from attnctl.text import Document
    from attnctl.trace import Trace


SLUG = 48  # characters of an id or a text in a file's name


@dataclass
class Item:
    """One text: its number from 0, its place in the input, and the other fields of its line.

    `error` says why there is no text. `trace` is a JSON document if the input holds traces. `messages` is the conversation
    that the item is, as JSON; `text` is then its last message. `answer` is the answer to a prompt, if the line has one.
    """

    number: int
    where: str
    text: str = ""
    id: str | int | None = None
    tokens: tuple[str, ...] | None = None
    options: OptionValues = field(default_factory=dict)
    trace: Document | None = None
    error: str | None = None
    messages: Any = None
    answer: str | None = None
    text_pair: str | None = None  # the second text, which the model reads after `text`
    target: str | None = None  # the word whose prediction is watched, and the word that it is compared with
    against: str | None = None

    @cached_property
    def content_fingerprint(self) -> str:
        """Return 64 bits of SHA-256 over everything that decides the result."""
        import orjson

        content = [self.text, self.id, self.tokens, self.options, self.trace, self.error]
        content += [self.messages, self.answer] if (self.messages, self.answer) != (None, None) else []
        named = {"text_pair": self.text_pair, "target": self.target, "against": self.against}
        content += [{name: value} for name, value in named.items() if value is not None]
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]

    @property
    def file_stem(self) -> str:
        """Return the name of its files without suffix: the number, which is unique, and a slug to read."""
        slug = slug_of(self.text if self.id is None else str(self.id))
        name = f"{self.number:07d}-{slug}" if slug else f"{self.number:07d}"
        # a folder of a million files is slow to list, and too large for some file systems
        return name if self.number < 10_000 else f"{self.number // 10_000 * 10_000:07d}/{name}"

    def __str__(self) -> str:
        name = "" if self.id is None else f" {self.id}"
        return f"item {self.number}{name} ({self.where})"


@dataclass
class Result:
    """The result of one item: for each format the bytes of its file or its part of a shared file; or why it failed."""

    item: Item
    outputs: dict[str, Any] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0
    error: str | None = None
    notes: tuple[str, ...] = ()
    trace: Trace | None = None  # if no format is requested


class Pending(NamedTuple):
    """An item that is ready for its pass through the model, and what to read from the pass."""

    item: Item
    tokens: Sequence[Token]
    reading: Any


def failed_line(item: Item, why: str) -> bytes:
    """Return the line of JSON of an item that failed, with the reason."""
    from attnctl.formats.documents.json_documents import write_json
    from attnctl.formats.documents.model_documents import FailedText

    return write_json(FailedText(number=item.number, id=item.id, error=why), "failed text") + b"\n"


def slug_of(text: str) -> str:
    """Return lower-case ASCII letters and digits of a text with - between: safe on every file system, or ""."""
    plain = unicodedata.normalize("NFKD", text[: 4 * SLUG]).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return slug if len(slug) <= SLUG else slug[:SLUG].rpartition("-")[0] or slug[:SLUG]


def read_conversation(model: Model, item: Item) -> tuple[Item, tuple[Token, ...]]:
    """Return a conversation as its checkpoint reads it: the item with that text, and its tokens. Raises AttnctlError."""
    from attnctl.formats.chat import conversation_of

    conversation = conversation_of(as_json(item.messages), "it")
    answering = answering_model(model, "name a checkpoint (smollm2, …)", "reads no conversations")
    prompt = answering.prompt_of(conversation)
    return replace(item, text=prompt.text), answering.prompt_tokens(prompt.text)


NUMBER = (int, float)
CHOICES = {"layer": (str, int, list), "head": (str, int, list), "query": (str, int), "title": (str,)}
WORDS = {"word": (str,), "against": (str,)}  # the watched prediction
# model options of a single item: how it attends, but not which files to read
OWN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("d_model", "d_k", "n_heads", "n_kv_heads", "n_layers", "seed", "window"), (int,)),
    **dict.fromkeys(("causal", "output_projection"), (bool,)),
    **dict.fromkeys(("temperature", "dropout", "rope_theta"), NUMBER),
    **dict.fromkeys(("positions", "target"), (str,)),
    "scale": (str, *NUMBER),
}


def item_options(item: Item) -> OptionValues:
    """Return the model options of an item. Raises UsageError for an option it cannot have, or a value of another type."""
    options = {}
    for name, value in item.options.items():
        python_name = name.replace("-", "_")
        kinds = OWN.get(python_name) or CHOICES.get(python_name) or WORDS.get(python_name)
        if kinds is None:
            raise UsageError(f"one text has no option {name!r}: it is {', '.join((*CHOICES, *WORDS, *OWN))}")
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UsageError(f"option {name!r} cannot be {str(value)[:40]!r}")
        if isinstance(value, list) and not all(isinstance(index, int) for index in value):
            raise UsageError(f'"{name}" is a number, a list of numbers, or a selection like "0-5"')
        if python_name in OWN:
            options[python_name] = value
    return options
