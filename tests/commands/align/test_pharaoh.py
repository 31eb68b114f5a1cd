"""Word alignments in the Pharaoh format: links of words between blanks, and their score against a human's alignment."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer

import attnctl
from attnctl.commands.align.pharaoh import read_pharaoh
from attnctl.commands.align.texts import aligned_links, linked_words, words_at
from attnctl.errors import AttnctlError, UsageError
from attnctl.text.tokens import Token
from tests.commands.align.test_texts import HEADS, NAMED, close, eager_weights, mean_of_heads, start_of_decoder
from tests.conftest import Run, check_schema
from tests.tools import folders

# two pairs by hand: |A| = 5, |S| = 3, |A ∩ S| = 2, |A ∩ P| = 4
LINKS = "0-0 1-2 2-1\n0-0 1-0\n"
GOLD = "0-0 1-1 1p2\n0-0 1p0 2p1\n"
SCORE = {"pairs": 2, "links": 5, "sure": 3, "possible": 6, "precision": 4 / 5, "recall": 2 / 3, "aer": 1 - 6 / 8}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder-decoder "t5", and "llama", which reads one text and has no beginning token."""
    folder = tmp_path_factory.mktemp("pharaoh")
    for name, case in {"t5": "t5, bias", "llama": "llama"}.items():
        folders.write(folder / name, case, eos=name == "t5")
    return folder


def test_the_score_of_links_is_that_of_och_and_ney(tmp_path: Path, run: Run) -> None:
    (tmp_path / "links").write_text(LINKS)
    (tmp_path / "gold").write_bytes(GOLD.replace("\n", "\r\n").encode())
    (tmp_path / "gold1").write_text(re.sub(r"\d", lambda digit: str(int(digit[0]) + 1), GOLD))
    for name, first in (("gold", 0), ("gold1", 1)):
        made = attnctl.align(tmp_path / "links", gold=tmp_path / name, gold_from=first).score
        assert {name: getattr(made, name) for name in SCORE} == pytest.approx(SCORE)
    how = ("align", str(tmp_path / "links"), "--gold", str(tmp_path / "gold"))
    assert check_schema(document := run(*how, "--json").json) == "alignment-score"
    assert document["score"] == pytest.approx(SCORE)
    names, row = (line.split("\t") for line in run(*how).out.splitlines())
    assert dict(zip(names, map(float, row), strict=True)) == pytest.approx(SCORE, abs=1e-5)


def test_links_of_pieces_beside_a_translation_of_words_are_refused(tmp_path: Path) -> None:
    """Marian 1.12 with a vocabulary of SentencePiece: its last link is of </s>, so that a link after that is of no word."""
    (tmp_path / "gold").write_text("0-0 1-1\n")
    (tmp_path / "links").write_text("der Regen ||| 0-0 1-1 2-2\n")
    made = attnctl.align(tmp_path / "links", gold=tmp_path / "gold").score
    assert (made.links, made.precision) == (3, 2 / 3)
    (tmp_path / "links").write_text("der Regen ||| 0-0 1-1 1-2 2-3\n")
    with pytest.raises(AttnctlError, match=r"line 1: it links word 3 of a translation of 2 words: .*--no-spm-decode"):
        attnctl.align(tmp_path / "links", gold=tmp_path / "gold")


def test_pairs_without_links_count_and_have_no_shares(tmp_path: Path) -> None:
    (tmp_path / "links").write_text("\n0-0\n")
    (tmp_path / "gold").write_text("0-0\n\n")
    made = attnctl.align(tmp_path / "links", gold=tmp_path / "gold").score
    assert (made.links, made.sure, made.precision, made.recall, made.aer) == (1, 1, 0, 0, 1)
    (tmp_path / "none").write_text("\n\n")
    empty = attnctl.align(tmp_path / "none", gold=tmp_path / "none").score
    assert (empty.precision, empty.recall, empty.aer) == (None, None, None)


def test_a_gold_alignment_that_counts_from_one_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "links").write_text("1-1\n" * 3)
    assert "--gold-from 1" in attnctl.align(tmp_path / "links", gold=tmp_path / "links").notes[0].replace(
        "gold_from=1", "--gold-from 1"
    )
    with pytest.raises(AttnctlError, match="line 1: 0-0 is no link of words that are counted from 1"):
        (tmp_path / "zero").write_text("0-0\n")
        read_pharaoh(str(tmp_path / "zero"), 1)


def test_words_between_blanks_are_linked_by_the_weights_of_their_tokens(place: Path) -> None:
    """Tokens are letters and pieces here; blanks, more than one at a time, are what counts."""
    source, target = " will  eat. at", "das eat at\u00a0will "
    tokenizer = Tokenizer.from_file(str(place / "t5" / "tokenizer.json"))
    read, written = (tokenizer.encode(text, add_special_tokens=False) for text in (source, target))
    weights = mean_of_heads(
        eager_weights(place / "t5", [*read.ids, 2], [start_of_decoder(place / "t5"), *written.ids])
    )[1:, :-1]

    def tokens_of(text: str, offsets: list[tuple[int, int]]) -> list[list[int]]:
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        inside = [
            [at for at, (start, end) in enumerate(offsets) if start < stop and end > first] for first, stop in spans
        ]
        return [[at for at in word if text[slice(*offsets[at])].strip()] for word in inside]

    rows, columns = tokens_of(target, written.offsets), tokens_of(source, read.offsets)
    assert (len(rows), len(columns)) == (len(target.split()), len(source.split())) == (4, 3)
    sums = np.array([[weights[np.ix_(row, column)].sum(1).mean() for column in columns] for row in rows])
    wanted = " ".join(f"{best}-{row}" for row, best in enumerate(sums.argmax(1).tolist()))
    assert attnctl.align(source, place / "t5", target=target, heads=NAMED).pharaoh == wanted
    written_by_the_model = attnctl.align("The house is small", place / "t5", generate=6)
    words = {int(link.split("-")[1]) for link in written_by_the_model.pharaoh.split()}
    assert words == set(range(len(written_by_the_model.target.split())))


def test_a_first_token_of_a_causal_model_is_no_source(place: Path) -> None:
    text = "will eat at >> das eat will at"
    tokenizer = Tokenizer.from_file(str(place / "llama" / "tokenizer.json"))
    encoded = tokenizer.encode(text)
    mark = text.index(">>")
    columns = [at for at, (start, end) in enumerate(encoded.offsets) if end <= mark and text[start:end].strip()]
    rows = [at for at, (start, end) in enumerate(encoded.offsets) if start >= mark + 2 and text[start:end].strip()]
    weights = mean_of_heads(eager_weights(place / "llama", encoded.ids))[np.ix_(rows, columns)]
    found = attnctl.align(text, place / "llama", heads=NAMED)
    assert found.sinks == (0,) and close(found.weights, weights) and columns[0] == 0
    assert [link.source for link in found.links] == (weights[:, 1:].argmax(1) + 1).tolist()
    assert any("No link is made to “w”" in note for note in found.notes)
    alone = attnctl.align("w >> eat", place / "llama", heads=NAMED)  # nothing else could be linked
    assert alone.sinks == () and {link.source for link in alone.links} == {0}
    assert attnctl.align("will eat", place / "t5", target="das eat at will").sinks == ()


def test_sinks_are_left_out_of_links_and_words() -> None:
    weights = np.array([[0.7, 0.1, 0.2], [0.6, 0.3, 0.1]], np.float32)
    targets, sources = (tuple(Token(text) for text in texts) for texts in (["a", "b"], ["The", "x", "y"]))
    assert [link.source for link in aligned_links(weights, targets, sources, [0])] == [2, 1]
    assert linked_words(weights, [0, 1], [0, 0, 1], [0]) == [(1, 0), (0, 1)]
    assert words_at([0, 1, None, 5], "ab  cd") == [0, 0, 0, 1]


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_an_opened_model_aligns_as_its_name_does(place: Path, kind: str) -> None:
    by_name = attnctl.align("will eat.", place / "t5", target="das eat")
    opened = attnctl.open_model(str(place / "t5"), attention=kind)
    for target in ("at will", "das eat"):
        again = attnctl.align("will eat.", opened, target=target)
    assert again.links == by_name.links and again.pharaoh == by_name.pharaoh and close(again.weights, by_name.weights)
    with pytest.raises(TypeError, match="dtype is for the name of a model"):
        attnctl.align("will eat.", opened, target="das", dtype="float32")


def test_a_network_with_its_tokenizer_aligns(place: Path) -> None:
    network = transformers.AutoModelForCausalLM.from_pretrained(place / "llama").eval()
    tokenizer = Tokenizer.from_file(str(place / "llama" / "tokenizer.json"))
    made = attnctl.align("will eat >> das eat", network, tokenizer=tokenizer, heads=NAMED)
    assert made.pharaoh == attnctl.align("will eat >> das eat", place / "llama", heads=NAMED).pharaoh
    with pytest.raises(TypeError, match="model is a checkpoint, or its name"):
        attnctl.align("a >> b", attnctl.open_model("demo"))
    assert len(HEADS) == 2


def test_links_are_written_and_scored(place: Path, tmp_path: Path, run: Run) -> None:
    how = ("align", "will eat.", "--model", str(place / "t5"), "--target", "das eat", "--heads", NAMED)
    assert run(*how, "-o", str(tmp_path / "links.pharaoh")).code == 0
    written = (tmp_path / "links.pharaoh").read_text()
    document = run(*how, "--json").json
    assert written == f"{document['pharaoh']}\n" and re.fullmatch(r"[01]-0 [01]-1\n", written)
    (tmp_path / "gold").write_text(written.replace("-0", "p0"))
    scored = run(*how, "--gold", str(tmp_path / "gold"), "--json").json
    assert check_schema(scored) == "text-alignment"
    assert scored["score"] == {"pairs": 1, "links": 2, "sure": 1, "possible": 2, "precision": 1, "recall": 1, "aer": 0}
    assert "alignment error rate 0.000" in run(*how, "--gold", str(tmp_path / "gold")).err
    (tmp_path / "gold").write_text("2-1\n")
    with pytest.raises(UsageError, match=r"it links word 2 of the source, which has 2 words \(does it count from 1\?"):
        attnctl.align("will eat.", place / "t5", target="das eat", gold=tmp_path / "gold")
