"""Write the bundled corpus again, byte for byte: the words, the sentences to train on, and those to measure heads on.

    python -m samples.english [FOLDER [COUNT]]

FOLDER is attnctl/text/english by default. COUNT is the number of sentences for each objective, 65,000 by default, which fit
into a package. The compressed files are the same bytes with the same version of liblzma; their text is always the same.
"""

from __future__ import annotations

import lzma
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from attnctl.text.english import HELD_OUT, SENTENCES, WORDS
from samples.english.grammar import KINDS, KINDS_CAUSAL, Kinds, sentences
from samples.english.language import word_lines
from samples.english.marked import marked_sentences
from samples.english.treebank import measured_block, trained_block
from samples.english.unseen import with_unseen_words

TRAINED, TRAINED_SEED = 65_000, 1  # sentences for each objective: most of them are for both
MEASURED = 1000  # sentences of each part that heads are measured on
CHOOSE_SEED, SCORE_SEED, UNSEEN_SEED = 991, 992, 993


def kinds_by_part() -> dict[str, Kinds]:
    """Return the kinds of sentences of each part of the corpus, with their shares of an objective's sentences.

    The share of a kind that both objectives have is in the part "both".
    """
    masked, causal = dict(KINDS), dict(KINDS_CAUSAL)
    both = {kind: min(share, causal[kind]) for kind, share in masked.items() if kind in causal}
    return {
        "both": tuple(both.items()),
        "masked-word": tuple((kind, share - both.get(kind, 0.0)) for kind, share in masked.items()),
        "next-word": tuple((kind, share - both.get(kind, 0.0)) for kind, share in causal.items()),
    }


def trained_parts(count: int = TRAINED) -> Iterator[tuple[str, Iterator[str]]]:
    """Return the parts of the training corpus, `count` sentences for each objective, each with its lines."""
    for seed, (part, kinds) in enumerate(kinds_by_part().items(), TRAINED_SEED):
        size = round(count * sum(share for _, share in kinds))
        yield part, map(trained_block, sentences(size, seed, kinds))


def measured_parts() -> Iterator[tuple[str, Iterator[str]]]:
    """Return the parts of the corpus that measures heads, each with its lines."""
    for objective, kinds in (("masked-word", KINDS), ("next-word", KINDS_CAUSAL)):
        yield f"choose {objective}", map(measured_block, sentences(MEASURED, CHOOSE_SEED, kinds))
        yield f"score {objective}", map(measured_block, sentences(MEASURED, SCORE_SEED, kinds, held_out_only=True))
        draw = random.Random(UNSEEN_SEED)
        unseen = sentences(MEASURED, UNSEEN_SEED, kinds, held_out_only=True)
        yield f"unseen {objective}", (measured_block(with_unseen_words(sentence, draw)) for sentence in unseen)
    yield "by hand", map(measured_block, marked_sentences())


def text_of(parts: Iterable[tuple[str, Iterator[str]]]) -> str:
    """Return the text of a file of these parts."""
    return "".join(f"# newdoc id = {part}\n" + "".join(f"{block}\n" for block in blocks) for part, blocks in parts)


def main() -> None:
    """Write the three files."""
    arguments = sys.argv[1:]
    folder = Path(arguments[0] if arguments else "attnctl/text/english")
    count = int(arguments[1]) if len(arguments) > 1 else TRAINED
    (folder / WORDS).write_text(word_lines(), encoding="utf-8")
    for name, parts in ((SENTENCES, trained_parts(count)), (HELD_OUT, measured_parts())):
        data = lzma.compress(text_of(parts).encode(), preset=9 | lzma.PRESET_EXTREME)
        (folder / name).write_bytes(data)
        print(f"{folder / name}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
