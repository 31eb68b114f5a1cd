"""CoNLL-U: what is read of a sentence, and every way in which one can be none."""

from __future__ import annotations

import io
import re
import tracemalloc

import pytest

from attnctl.checks.limits import SENTENCE_LINES
from attnctl.errors import AttnctlError
from attnctl.formats.conllu import (
    BadSentenceError,
    Mention,
    ParsedSentence,
    comment_value,
    mentions_of,
    parsed_sentence,
    sentence_blocks,
)
from tests.conftest import SAMPLES

DOCUMENTS = SAMPLES / "documents.conllu"
GOOD = "\n".join(
    [
        "# sent_id = s1",
        "# text = It didn't rain.",
        "1\tIt\tit\tPRON\t_\t_\t4\tnsubj\t_\t_",
        "2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_",
        "2\tdid\tdo\tAUX\t_\t_\t4\taux\t_\t_",
        "3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t4:advmod\t_",
        "3.1\tever\tever\tADV\t_\t_\t_\t_\t4:advmod\t_",
        "4\train\train\tVERB\tVB\tVerbForm=Inf\t0\troot\t0:root\tSpaceAfter=No",
        "5\t.\t.\t_\tSENT\t_\t4\tpunct\t_\t_",
    ]
)


def line_of(number: int, form: str, tag: str, head: int, relation: str, misc: str = "_") -> str:
    """One word's line; `head` counts from 1, 0 is the root."""
    return "\t".join((str(number), form, "_", tag, "_", "_", str(head), relation, "_", misc))


def read(text: str | bytes) -> ParsedSentence:
    (block,) = sentence_blocks(io.BytesIO(text.encode() if isinstance(text, str) else text))
    return parsed_sentence(block)


def test_words_heads_and_places() -> None:
    sentence = read(GOOD)
    assert sentence.forms == ("It", "did", "n't", "rain", ".")
    assert sentence.heads == (3, 3, 3, -1, 3)
    assert sentence.tags == ("PRON", "AUX", "PART", "VERB", "SENT")
    assert [sentence.text[a:b] for a, b in sentence.spans] == list(sentence.forms)
    bare = "\n".join(line for line in GOOD.split("\n") if not line.startswith("#"))
    assert read(bare).text == "It didn't rain."  # the forms, joined
    text = f"# newdoc\n\n\n\n{GOOD}\n\n\r\n{GOOD}"
    assert [block.line for block in sentence_blocks(io.BytesIO(text.encode()))] == [5, 16]


def test_places_of_words_that_are_spelt_otherwise() -> None:
    lines = ["# text = Zum Zug.", "1-2\tZum\t_\t_\t_\t_\t_\t_\t_\t_", line_of(1, "zu", "ADP", 3, "case"),
             line_of(2, "dem", "DET", 3, "det"), line_of(3, "Zug", "NOUN", 0, "root", "SpaceAfter=No"),
             line_of(4, ".", "PUNCT", 3, "punct")]  # fmt: skip
    assert read("\n".join(lines)).spans == ((0, 3), (0, 3), (4, 7), (7, 8))  # the words of a token share its place
    lines = [
        "# text = 10\u00a0000  ans",
        line_of(1, "10 000", "NUM", 2, "nummod"),
        line_of(2, "ans", "NOUN", 0, "root"),
    ]
    assert read("\n".join(lines)).spans == ((0, 6), (8, 11))  # white space of any kind


def changed(*columns: tuple[int, int, str]) -> str:
    """GOOD with other columns: (line, column, value)."""
    lines = [line.split("\t") for line in GOOD.split("\n")]
    for line, column, value in columns:
        lines[line][column] = value
    return "\n".join("\t".join(line) for line in lines) + "\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("just a line of text\n", "no CoNLL-U: line 1 has 1 column instead"),
        (GOOD.replace("\tSpaceAfter=No", ""), "no CoNLL-U: line 8 has 9 columns"),
        (changed((2, 0, "x")), "no CoNLL-U: line 3: id cannot be 'x'"),
        (changed((2, 6, "9" * 5000)), "no CoNLL-U: line 3: Exceeds the limit"),
        (changed((2, 1, "")), "no CoNLL-U: line 3 has no form"),
        (changed((7, 0, "7")), "word numbers: 7 instead of 4"),
        (changed((3, 0, "2-9")), "word numbers: a range ends after"),
        (changed((2, 6, "99")), "head out of range: word 1 of 5 has the head 99"),
        (changed((2, 6, "-1")), "head out of range"),
        (changed((2, 6, "_")), "no tree: word 1 has no head"),
        (changed((2, 7, "_")), "no tree: word 1 has no relation"),
        (changed((2, 6, "0")), "several roots: 2"),
        (changed((7, 6, "1")), "no root"),
        (changed((2, 6, "2"), (4, 6, "1")), "cycle: word 1"),
        (changed((2, 6, "1")), "cycle: word 1"),
        (changed((2, 1, "She")), "not aligned: 'She'"),
        (changed((8, 1, ". ?")), "not aligned: '. ?'"),
        (GOOD.replace("rain.", "rain. Or did it?"), "not aligned: # text continues with 'Or did it?'"),
        ("# text = x\n1.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n", "no words"),
        (GOOD.encode("utf-16"), "not UTF-8: byte 0xff in line 1"),
        (GOOD.replace("It", "Ça", 2).encode("latin-1"), "not UTF-8: byte 0xc7 in line 2"),
    ],
)  # fmt: skip
def test_a_sentence_that_is_none_says_why(text: str | bytes, reason: str) -> None:
    with pytest.raises(BadSentenceError, match=f"^{re.escape(reason)}"):
        read(text)


def test_a_sentence_of_a_million_words_is_passed_over_in_little_memory() -> None:
    class Endless(io.RawIOBase):
        left = 60_000

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            line = b"1\tword\t_\t_\t_\t_\t0\troot\t_\t_\n"
            if not self.left:
                return 0
            self.left -= 1
            buffer[: len(line)] = line
            return len(line)

    tracemalloc.start()
    (block,) = sentence_blocks(io.BufferedReader(Endless()))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert block.error == f"too long: more than {SENTENCE_LINES:,} lines"
    assert most < 8 << 20
    after = list(sentence_blocks(io.BytesIO(b"1\t" + b"x" * (3 << 20) + b"\n\n" + GOOD.encode())))
    assert [one.error for one in after] == ["too long: line 1 has more than 1 MB", None]


def words_saying(*values: str) -> list[tuple[str, int | None]]:
    return [(value, word) for word, value in enumerate(values)]


def test_mentions_nest_and_what_is_torn_is_none() -> None:
    heads = [1, -1, 1, 2]
    values = words_saying("(e1-person-2-(e2-thing-1-)", "e1)", "(e3-x", "(e4[1/2]-x-1-)e9)")
    assert mentions_of(values, heads) == (Mention("e2", 0, 0, 0), Mention("e1", 0, 1, 1))
    assert mentions_of(words_saying("(e1-x", "", "e1)", ""), heads)[0].head == 1  # its own head lies outside
    assert mentions_of(words_saying("(7-1-a", "7)", "", ""), heads, "eid-head-type")[0].head == 0
    digits = "9" * 5000
    for name, head in ((f"e1[{digits}/{digits}]", "1"), ("e1", digits)):
        assert mentions_of(words_saying(f"({name}-x-{head}-)"), [-1]) == (Mention(name, 0, 0, 0),)


def test_mentions_in_pieces_and_over_empty_nodes() -> None:
    heads = [1, -1, 1, 2]
    pieces = words_saying("(e1[1/2]-x-2-)", "(e2-x-1-)", "", "(e1[2/2]-x-2-)")
    assert mentions_of(pieces, heads) == (Mention("e2", 1, 1, 1), Mention("e1", 0, 3, 3))  # the head counts over pieces
    assert mentions_of(words_saying("(e1[2/2]-x-1-)", "(e1[1/2]-x-1-)", "", ""), heads) == ()
    zero: list[tuple[str, int | None]] = [("(e1-x-1-)", None), ("(e2-x-1-", None), ("", 0), ("e2)", 1), ("(e3-x-2-", 2)]
    assert mentions_of([*zero, ("", 3), ("e3)", None)], heads) == (Mention("e3", 2, 3, 3),)  # two zeros
    assert mentions_of([("(e2-x", None), ("", 0), ("e2)", None)], [-1]) == (Mention("e2", 0, 0, 0),)


# as udapi 0.5.2 reads them: sentence → entity, words, head; of its 25 mentions the two zeros of mill-4 are left out
MENTIONS = {
    "mill-1": "e1 Anna-Novak Anna, e3 Anna-Novak-and-her-brother-Tom Anna, e1 her her, e2 her-brother-Tom brother, "
    "e4 the-old-mill-in-Brno mill, e5 Brno Brno",
    "mill-2": "e3 They They, e6 the-roof roof, e6 it it",
    "mill-3": "e4 The-mill-,-she-told-him-,-in-Brno mill, e1 she she, e2 him him, e5 Brno Brno, e7 a-bargain bargain",
    "mill-4": "e4 the-mill mill, e4 its its, e8 its-wheel wheel",
    "boat-1": "e1 Eva Eva, e2 a-boat boat",
    "boat-2": "e1 Her Her, e2 Her-boat boat, e1 she she, e2 it it",
}


def test_mentions_of_corefud() -> None:
    said = comment_value(DOCUMENTS.read_text(encoding="utf-8").splitlines(), "global.Entity")
    found = {}
    with DOCUMENTS.open("rb") as file:
        for block in sentence_blocks(file):
            own = parsed_sentence(block, said or "")
            told = [
                f"{one.entity} {'-'.join(own.forms[one.first : one.last + 1])} {own.forms[one.head]}"
                for one in own.mentions
            ]
            found[block.sentence_id] = ", ".join(told)
    assert found == MENTIONS


def test_a_line_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 40 GB is one line of null bytes: it is given up, not read for a minute."""
    monkeypatch.setattr("attnctl.checks.limits.ENDLESS_BYTES", 1 << 22)

    class Endless(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            return b"\0" * (size or 0)

    with pytest.raises(AttnctlError, match="line 1 does not end within 4.2 MB: this is not a treebank"):
        list(sentence_blocks(Endless()))
