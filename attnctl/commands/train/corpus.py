"""Text to train on: sentences as rows of word ids, and their vocabulary."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnctl.checks import limits
from attnctl.errors import AttnctlError
from attnctl.models.builtin import SHAPES, shape_of
from attnctl.runtime.arrays import Floats, Ids
from attnctl.runtime.files import check_size, decode_text, read_bytes, said_plainly
from attnctl.text.english import NOT_ASKED, QUESTION_OF, QUESTIONS, SENTENCES, links_of_word, read_sentences, words
from attnctl.text.tokens import split_words

UNKNOWN, MASK = "[UNK]", "[MASK]"
MAX_WORDS = 8192  # rarer words become [UNK]
MAX_LENGTH = 64  # a longer sentence is cut into pieces

# a new text rarely has other words in place of words with a larger share than this, such as "the"
COMMON = 0.002


@dataclass(frozen=True)
class Corpus:
    """Sentences as ids, and the meaning of the ids."""

    ids: Ids  # (sentences, length), -1 after a sentence's end
    vocabulary: tuple[str, ...]
    open: Floats  # (vocabulary,) from 0 to 1: how likely a new word is in this word's place
    shapes: Ids  # (vocabulary,) the id of the shape as which an unknown word is read
    # (sentences, length, questions) the place of the word that answers each question to a word: its own place if no other
    # word answers, -1 if the question is not asked
    answers: Ids | None = None
    asked: Floats | None = None  # (vocabulary,) how often a word is masked, and has to be predicted

    @property
    def length(self) -> int:
        """Return the number of words of the longest sentence."""
        return int(self.ids.shape[1])

    def first_sentence(self) -> str:
        """Return the first sentence of 3 to 12 words, or else the first of all."""
        lengths = (self.ids >= 0).sum(axis=1)  # (sentences,)
        row = self.ids[int(np.argmax((lengths >= 3) & (lengths <= 12)))]  # (length,)
        return " ".join(self.vocabulary[word] for word in row if word >= 0)


def encode_sentences(sentences: Iterable[Sequence[str]]) -> Corpus:
    """Return sentences of words as a Corpus; a rare word is an open one.

    Raises AttnctlError if there is nothing to learn from them.
    """
    pieces = [
        list(sentence[start : start + MAX_LENGTH])
        for sentence in sentences
        for start in range(0, len(sentence), MAX_LENGTH)
    ]
    pieces = [piece for piece in pieces if len(piece) > 1]  # one word alone predicts nothing
    counts = Counter(word for piece in pieces for word in piece if word not in (UNKNOWN, MASK))
    if len(counts) < 2:
        problem = f"only one word ({next(iter(counts))!r})" if counts else "no sentence of two words or more"
        raise AttnctlError(f"the corpus has {problem}: there is nothing to predict. Give it one sentence on each line")
    common = sorted(word for word, _ in counts.most_common(MAX_WORDS) if word not in SHAPES)
    total = counts.total()
    share = {word: min(1.0, COMMON * total / counts[word]) for word in common}
    return table_of(pieces, common, share)


def table_of(pieces: Sequence[Sequence[str]], words_of: Sequence[str], openness: Mapping[str, float]) -> Corpus:
    """Return pieces of text as a Corpus over a vocabulary of the special words and these words."""
    vocabulary = (UNKNOWN, MASK, *SHAPES, *words_of)
    ids = {word: index for index, word in enumerate(vocabulary)}
    table = np.full((len(pieces), max(map(len, pieces))), -1, dtype=np.int64)  # (sentences, length)
    for row, piece in zip(table, pieces, strict=True):
        row[: len(piece)] = [ids.get(word, 0) for word in piece]
    shapes = [ids.get(shape_of(word) or UNKNOWN, 0) for word in words_of]
    special = len(vocabulary) - len(words_of)
    return Corpus(
        table,
        vocabulary,
        np.array([0.0] * special + [openness.get(word, 0.0) for word in words_of], dtype=np.float32),
        np.array([0] * special + shapes, dtype=np.int64),
    )


def split_lines(lines: Iterable[str]) -> list[list[str]]:
    """Split each line into words; repeated words share one string."""
    shared: dict[str, str] = {}
    return [[shared.setdefault(token.text, token.text) for token in split_words(line)] for line in lines]


def _text_files(folder: str) -> Iterator[str]:
    """Return every .txt file of a folder and its subfolders. Raises AttnctlError for an unreadable folder."""

    def refuse_folder(error: OSError) -> None:
        with said_plainly("read", error.filename):
            raise error

    for where, _, names in os.walk(folder, onerror=refuse_folder):
        yield from (str(Path(where, name)) for name in names if name.endswith(".txt"))


def read_lines(source: str) -> list[str]:
    """Return the lines of a file, of standard input for "-", or of every .txt file of a folder.

    Raises AttnctlError if there is nothing to read, too much in all, or the text is not UTF-8.
    """
    if source != "-" and Path(source).is_dir():
        files = sorted(_text_files(source))
        if not files:
            raise AttnctlError(f"{source} holds no .txt file to train on")
    else:
        files = [source]
    lines: list[str] = []
    size = 0  # bytes
    for file in files:
        data = read_bytes(file, limits.CORPUS_BYTES)
        size += len(data)
        check_size(size, limits.CORPUS_BYTES, source)
        lines += _lines_of_text(decode_text(data, where := "standard input" if file == "-" else file), where)
    if not lines:
        raise AttnctlError(f"{'standard input' if source == '-' else source} is empty: give one sentence on each line")
    return lines


def _lines_of_text(text: str, where: str) -> list[str]:
    """Return the lines of a text that are not empty. Raises AttnctlError for a line that is too long for a sentence."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if len(line) > limits.CORPUS_LINE_CHARACTERS:
            raise AttnctlError(
                f"{where}, line {number:,} has {len(line):,} characters; a line may have {limits.CORPUS_LINE_CHARACTERS:,}: "
                "give one sentence on each line"
            )
    return [line for line in lines if line.strip()]


# --- the bundled corpus -------------------------------------------------------------------------------------------

_HEADS = [question.head for question in QUESTIONS]
_FIRST = np.array([_HEADS.index(head) for head in _HEADS])  # (questions,), the first question of the same head


def bundled_corpus(objective: str) -> Corpus:
    """Return the bundled sentences to train on, in the proportions of this objective.

    The questions to a word are those that its links answer. If a head has no question to a word, the word itself answers the
    head's first question, unless some links of the word are not noted.
    """
    pieces: list[list[str]] = []
    deps: list[str] = []  # for every word of every sentence
    misc: list[str] = []
    for block in read_sentences(SENTENCES, "both", objective):
        columns = block.split()
        pieces.append(columns[1::10])
        deps += columns[8::10]
        misc += columns[9::10]
    vocabulary = words()
    corpus = table_of(pieces, [word.text for word in vocabulary], {word.text: word.open for word in vocabulary})
    real = corpus.ids >= 0  # (sentences, length)
    places = np.nonzero(real)[1]  # (words,), the place of each word
    distinct = {text: number for number, text in enumerate(dict.fromkeys(deps))}
    place_of = np.full((len(distinct), len(QUESTIONS)), -1, np.int8)  # (distinct, questions)
    for text, number in distinct.items():
        for relation, place in links_of_word(text):
            place_of[number, QUESTION_OF[relation]] = place
    asked_places = place_of[[distinct[text] for text in deps]]  # (words, questions)
    unlinked = np.array([text == NOT_ASKED for text in misc])  # (words,)
    for first in np.unique(_FIRST):
        idle = (asked_places[:, first == _FIRST] < 0).all(1) & ~unlinked  # (words,)
        asked_places[idle, first] = places[idle]
    answers = np.full((*corpus.ids.shape, len(QUESTIONS)), -1, np.int8)  # (sentences, length, questions)
    answers[real] = asked_places
    special = len(corpus.vocabulary) - len(vocabulary)
    how_often = np.array([0.0] * special + [word.asked for word in vocabulary], dtype=np.float32)  # (vocabulary,)
    return replace(corpus, answers=answers, asked=how_often)
