"""Parsed sentences as the items of a batch: one or several CoNLL-U files, compressed or not, or a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attnctl import limits
from attnctl.batching.items import Item
from attnctl.batching.texts import DAMAGE, InputFiles, numbered
from attnctl.commands.evaluate.words import HALVES
from attnctl.errors import AttnctlError, in_one_line
from attnctl.files import said_plainly
from attnctl.formats.conllu import (
    BadSentenceError,
    Block,
    ParsedSentence,
    comment_value,
    document_begun,
    parsed_sentence,
    sentence_blocks,
)

HALF = "census"  # the comment that tells in which of HALVES a sentence is
PARSE = "parse"  # the option under which an item carries its parse
DOCUMENT = "document"  # the option under which an item carries the sentences of a document, for what spans them


class Treebank(InputFiles):
    """The sentences of CoNLL-U files ("-": standard input), read as they are asked for.

    One that cannot be used is an item with an error, `reason: detail`. Behind the sentences of a document (`# newdoc`) that
    mentions entities stands an item of them all, and they themselves carry no mentions. Raises AttnctlError where a file
    cannot be opened.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._sizes = [0 if path == "-" else _size_on_disk(path) for path in paths]
        super().__init__(0 if "-" in paths else sum(self._sizes))

    @property
    def corpus_name(self) -> str:
        """What the corpus is called in headings."""
        names = [Path(path).name if path != "-" else "standard input" for path in self.paths]
        return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} other files"

    def __iter__(self) -> Iterator[Item]:
        return numbered(self._items())

    def _items(self) -> Iterator[Item]:
        self._done = 0
        for path, size in zip(self.paths, self._sizes, strict=True):
            yield from self._items_of_file(path)
            self._done, self._raw = self._done + size, None

    def _items_of_file(self, path: str) -> Iterator[Item]:
        with self.open_file(path) as (file, name):
            parts = ""
            document = _Document(name)
            try:
                for block in sentence_blocks(file):
                    said = comment_value(block.lines, "global.Entity")
                    parts = parts if said is None else said
                    begun = document_begun(block.lines)
                    if begun is not None or document.words >= limits.DOCUMENT_WORDS:
                        yield from document.close_document(begun)
                    yield item_of(block, name, parts, document)
                yield from document.close_document(None)
            except (*DAMAGE, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                yield Item(0, name, error=f"damaged: the file ends early ({in_one_line(error, 80)})")


class _Document:
    """The sentences of a document as they are read; `id` is None before the first document of a file begins."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id: str | None = None
        self.words = 0
        self._sentences: list[ParsedSentence] = []
        self._line = 0

    def append_sentence(self, sentence: ParsedSentence, line: int) -> None:
        """Take a sentence in."""
        self._line = line if not self._sentences else self._line
        self._sentences.append(sentence)
        self.words += len(sentence.forms)

    def close_document(self, begun: str | None) -> Iterator[Item]:
        """The item of what was taken in, where it mentions entities; then a document `begun` begins, or this goes on."""
        if any(sentence.mentions for sentence in self._sentences):
            text = " ".join(sentence.text for sentence in self._sentences)
            options = {DOCUMENT: self._sentences}
            yield Item(0, f"{self.name}, line {self._line}", text, self.id or None, options=options)
        self.id = self.id if begun is None else begun
        self.words, self._sentences = 0, []


def item_of(block: Block, name: str, entity_parts: str = "", document: _Document | None = None) -> Item:
    """The item of a sentence's lines; within a document its mentions are the document's."""
    where = f"{name}, line {block.line}"
    try:
        sentence = parsed_sentence(block, entity_parts)
    except BadSentenceError as error:
        return Item(0, where, id=block.sentence_id, error=str(error))
    half = comment_value(block.lines, HALF)
    sentence = replace(sentence, half=half if half in HALVES else None)
    if document is not None and document.id is not None:
        document.append_sentence(sentence, block.line)
        sentence = replace(sentence, mentions=())
    return Item(0, where, sentence.text, block.sentence_id, options={PARSE: sentence})


def sentence_of(item: Item) -> ParsedSentence:
    """The parse that an item carries. Raises BadSentenceError where it has none."""
    if item.error is not None:
        raise BadSentenceError(item.error)
    found: ParsedSentence = item.options[PARSE]
    return found


def _size_on_disk(path: str) -> int:
    if Path(path).is_dir():
        raise AttnctlError(f"{path} is a folder: name its CoNLL-U files, as {Path(path) / '*.conllu'}")
    with said_plainly("read", path):
        return Path(path).stat().st_size
