"""Read the parsed sentences of treebanks as items: from CoNLL-U files, compressed or not, or from a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnctl.batching.items import Item
from attnctl.batching.texts import DAMAGE, InputFiles, numbered
from attnctl.errors import AttnctlError, in_one_line
from attnctl.formats.conllu import BadSentenceError, ParsedSentence, TreebankPart, treebank_parts
from attnctl.runtime.files import said_plainly

PARSE = "parse"  # the option of an item that holds its parse
DOCUMENT = "document"  # the option of an item that holds the sentences of a document, for coreference across them


class TreebankStream(InputFiles):
    """The sentences of CoNLL-U files ("-": standard input), read one after another.

    `sentence_of` returns the parsed sentence of an item. A sentence that cannot be used is an item with an error,
    `reason: detail`. If a document (`# newdoc`) mentions entities, an item with all its sentences follows them
    (`sentences_of_document`), and the single sentences carry no mentions.
    `half_comment` is the key of a comment that names the `half` of a sentence, if the corpus is in two parts. Raises
    AttnctlError if a file cannot be opened.
    """

    def __init__(self, paths: Sequence[str], half_comment: str | None = None) -> None:
        self.paths, self.half_comment = tuple(paths), half_comment
        self._sizes = [0 if path == "-" else _size_on_disk(path) for path in paths]
        super().__init__(0 if "-" in paths else sum(self._sizes))

    @property
    def corpus_name(self) -> str:
        """Return the name of the corpus in headings."""
        names = [Path(path).name if path != "-" else "standard input" for path in self.paths]
        return ", ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} other files"

    def __iter__(self) -> Iterator[Item]:
        return numbered(self._items())

    def _items(self) -> Iterator[Item]:
        self._done = 0
        for path, size in zip(self.paths, self._sizes, strict=True):
            yield from self._items_of_file(path)
            for sentence in self.unread:
                yield Item(0, path, error=f"damaged: the file ends early ({sentence})")
            self.unread.clear()
            self._done, self._raw = self._done + size, None

    def _items_of_file(self, path: str) -> Iterator[Item]:
        with self.open_file(path) as (file, name):
            try:
                for part in treebank_parts(file, self.half_comment):
                    yield _item_of_part(part, name)
            except (*DAMAGE, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                yield Item(0, name, error=f"damaged: the file ends early ({in_one_line(error, 80)})")


def sentence_of(item: Item) -> ParsedSentence:
    """Return the parsed sentence of an item. Raises BadSentenceError if it has none."""
    if item.error is not None:
        raise BadSentenceError(item.error)
    sentence: ParsedSentence = item.options[PARSE]
    return sentence


def sentences_of_document(item: Item) -> Sequence[ParsedSentence]:
    """Return the sentences of an item that is a whole document; none for a single sentence."""
    sentences: Sequence[ParsedSentence] = item.options.get(DOCUMENT, ())
    return sentences


def _item_of_part(part: TreebankPart, name: str) -> Item:
    """Return a part of the file `name` as an item."""
    position = f"{name}, line {part.line}"
    if part.error is not None:
        return Item(0, position, id=part.id, error=part.error)
    text = " ".join(sentence.text for sentence in part.sentences)
    options = {DOCUMENT: part.sentences} if part.is_document else {PARSE: part.sentences[0]}
    return Item(0, position, text, part.id, options=options)


def _size_on_disk(path: str) -> int:
    if Path(path).is_dir():
        raise AttnctlError(f"{path} is a folder: name its CoNLL-U files, as {Path(path) / '*.conllu'}")
    with said_plainly("read", path):
        return Path(path).stat().st_size
