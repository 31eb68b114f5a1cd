"""Parsed sentences as the items of a batch: one or several CoNLL-U files, compressed or not, or a pipe."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from attnctl.batching.items import Item
from attnctl.batching.texts import _decompressed, _open_stream
from attnctl.errors import AttnctlError, in_one_line
from attnctl.files import said_plainly
from attnctl.formats.conllu import Block, comment_value, parsed_sentence, sentence_blocks
from attnctl.formats.entities import fields_of
from attnctl.readings.census.parsed_sentence import BadSentenceError, ParsedSentence, from_dict

PARSE = "parse"  # the option under which an item carries its parse


class Treebank:
    """The sentences of CoNLL-U files ("-": standard input), read as they are asked for.

    One that cannot be used is an item with an error, `reason: detail`. Raises AttnctlError where a file cannot be opened.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._sizes = [0 if path == "-" else _size_on_disk(path) for path in paths]
        self._done = 0  # bytes of the files that are read
        self._raw: IO[bytes] | None = None

    @property
    def corpus_name(self) -> str:
        """What the corpus is called in headings."""
        names = [Path(path).name if path != "-" else "standard input" for path in self.paths]
        return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} other files"

    def share_read_so_far(self) -> float | None:
        """How much has been read, 0 to 1; None where nobody knows."""
        if "-" in self.paths or not sum(self._sizes):
            return None
        inside = 0 if self._raw is None or self._raw.closed else self._raw.tell()
        return min(1.0, (self._done + inside) / sum(self._sizes))

    def __iter__(self) -> Iterator[Item]:
        number, self._done = 0, 0
        for path, size in zip(self.paths, self._sizes, strict=True):
            for item in self._sentences_of_file(path, number):
                yield item
                number = item.number + 1
            self._done, self._raw = self._done + size, None

    def _sentences_of_file(self, path: str, number: int) -> Iterator[Item]:
        name = "standard input" if path == "-" else path
        fields: tuple[str, ...] = ()
        with said_plainly("read", name), _open_stream(path) as raw:
            self._raw = None if path == "-" else raw
            try:
                for block in sentence_blocks(_decompressed(raw, name)):
                    said = comment_value(block.lines, "global.Entity")
                    fields = fields_of(said) if said is not None else fields
                    yield item_of(block, number, name, fields)
                    number += 1
            except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                yield Item(number, name, error=f"damaged: the file ends early ({in_one_line(error, 80)})")


def item_of(block: Block, number: int, name: str, fields: Sequence[str] = ()) -> Item:
    """The item of a sentence's lines."""
    where = f"{name}, line {block.line}"
    try:
        sentence = parsed_sentence(block, fields)
    except BadSentenceError as error:
        return Item(number, where, id=block.sentence_id, error=str(error))
    return Item(number, where, sentence.text, block.sentence_id, options={PARSE: sentence.as_dict()})


def sentence_of(item: Item) -> ParsedSentence:
    """The parse that an item carries. Raises BadSentenceError where it has none."""
    if item.error is not None:
        raise BadSentenceError(item.error)
    return from_dict(item.options[PARSE])


def _size_on_disk(path: str) -> int:
    if Path(path).is_dir():
        raise AttnctlError(f"{path} is a folder: name its CoNLL-U files, as {Path(path) / '*.conllu'}")
    with said_plainly("read", path):
        return Path(path).stat().st_size
