"""One text of a batch: what it is, where it came from, and the names that its files bear."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues
    from attnctl.text import Document

SLUG = 48  # characters of an id or a text in a file's name


@dataclass(frozen=True)
class Item:
    """One text: its number from 0, where it stood, and what its line says of it beside.

    `error` says why there is no text. `trace` is the JSON document where the input holds traces already; `messages` the
    conversation that the item is, as JSON, of which `text` is the last message; `answer` that to a prompt, where given.
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

    @cached_property
    def content_fingerprint(self) -> str:
        """64 bits of SHA-256 over everything that decides what comes out."""
        import orjson

        said = [self.text, self.id, self.tokens, self.options, self.trace, self.error]
        said += [self.messages, self.answer] if (self.messages, self.answer) != (None, None) else []
        return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]

    @property
    def file_stem(self) -> str:
        """The name of its files, without the suffix: the number, so that no two are the same, and a slug to read."""
        slug = slug_of(self.text if self.id is None else str(self.id))
        name = f"{self.number:07d}-{slug}" if slug else f"{self.number:07d}"
        # a folder of a million files is slow to list, and too much for some file systems
        return name if self.number < 10_000 else f"{self.number // 10_000 * 10_000:07d}/{name}"

    def __str__(self) -> str:
        name = "" if self.id is None else f" {self.id}"
        return f"item {self.number}{name} ({self.where})"


def slug_of(text: str) -> str:
    """Lower-case ASCII letters and digits of a text with - between them: safe on every file system, "" where none is."""
    plain = unicodedata.normalize("NFKD", text[: 4 * SLUG]).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return slug if len(slug) <= SLUG else slug[:SLUG].rpartition("-")[0] or slug[:SLUG]
