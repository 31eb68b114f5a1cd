"""The tokens of a text as a user lists them, in every form, for models of every kind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attnctl import open_model
from attnctl.errors import AttnctlError
from attnctl.source import TextSource, notes_of_listed
from attnctl.text.tokens import Token, split_words
from tests.conftest import Refused, Run

TEXT = "Alice will eat pizza"
RANDOM = ("--model", "random", "--d-model", "8")


@pytest.mark.parametrize(
    "listed", ["Alice will eat pizza", "Alice,will,eat,pizza", '["Alice", "will", "eat", "pizza"]', "t.json"]
)
@pytest.mark.parametrize("command", ["heatmap", "heads", "explain"])
def test_the_models_tokens_listed_change_nothing(command: str, listed: str, run: Run) -> None:
    Path("t.json").write_text('["Alice", "will", "eat", "pizza"]\n')
    assert run(command, TEXT, "--tokens", listed) == run(command, TEXT)


def test_listed_tokens_are_the_tokens(run: Run) -> None:
    listed = '["New York", "is", "big"]'
    trace = run("explain", "New York is big", *RANDOM, "--tokens", listed, "--json").json
    assert [(t["text"], t["start"], t["end"]) for t in trace["tokens"]] == [
        ("New York", 0, 8),
        ("is", 9, 11),
        ("big", 12, 15),
    ]
    piped = run("explain", *RANDOM, "--tokens", listed, "--json", pipe=b"New York is big").json
    alone = run("explain", *RANDOM, "--tokens", listed, "--json").json
    assert piped["layers"] == alone["layers"] == trace["layers"]


def test_names_that_are_not_in_the_text_are_named(run: Run) -> None:
    done = run("heatmap", "Alice eats", *RANDOM, "--tokens", "Alice drinks")
    assert done.code == 0 and "Not in the text, in the order of the tokens: drinks." in done.err


def test_numbers_with_names_stay_numbers(run: Run) -> None:
    """A pipe with names is a text unless all of it is numbers."""
    assert "\t0.5\t0.5" in run("heatmap", "--tokens", "a b", pipe=b"1 0\n0.5 0.5\n").out


@pytest.mark.parametrize("name", ["llama", "bert", "t5"])
def test_a_checkpoints_own_tokens_listed_change_nothing(name: str, run: Run, room: Path) -> None:
    pytest.importorskip("transformers")
    model = ("--model", str(room / name), "--json")
    usual = run("explain", TEXT, *model).json
    listed = run("explain", TEXT, *model, "--tokens", json.dumps([token["text"] for token in usual["tokens"]])).json
    assert [token["id"] for token in listed["tokens"]] == [token["id"] for token in usual["tokens"]]
    assert listed["layers"] == usual["layers"]


@pytest.mark.parametrize(("text", "ids"), [("tea will", [0, 1]), ("teawill", [0, 2]), ("tea Ġwill", [0, 1])])
def test_a_piece_is_the_one_that_begins_a_word_behind_a_space(text: str, ids: list[int]) -> None:
    """A vocabulary of GPT-2's kind has a word twice: behind a space, and inside a word."""
    tokenizers = pytest.importorskip("tokenizers")
    from attnctl.models.huggingface.tokenizer import Pieces

    library = tokenizers.Tokenizer(tokenizers.models.BPE({"tea": 0, "Ġwill": 1, "will": 2}, []))
    names = ["tea", text.split()[-1].removeprefix("tea")]
    tokens = Pieces("small", library, {}).listed_tokens(text.replace("Ġ", ""), names)
    assert [token.id for token in tokens] == ids


def test_signs_and_endings_are_those_of_the_tokenizer() -> None:
    """BERT's vocabulary has a sign twice, as "." and as "##.": only letters inside a word are its continuation."""
    tokenizers = pytest.importorskip("tokenizers")
    from attnctl.models.huggingface.tokenizer import Pieces

    vocabulary = ["[UNK]", "don", "'", "##'", "t", "##t", "eat", "##s", "s", "5", "##5", ".", "##.", "30", "##30"]
    library = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: number for number, piece in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    text = "don't eats 5.30."
    made, pieces = library.encode(text), Pieces("small", library, {"unk_token": "[UNK]"})
    for names in (made.tokens, [name.removeprefix("##") for name in made.tokens]):
        assert [token.id for token in pieces.listed_tokens(text, names)] == made.ids
    with pytest.raises(AttnctlError, match="'zzz' is not one token of small"):
        pieces.listed_tokens("don't eats zzz", ["don", "'", "t", "eat", "s", "zzz"])
    alone = pieces.listed_tokens("eat s", ["eat", "##s"])  # the mark is the user's
    assert [token.id for token in alone] == [vocabulary.index("eat"), vocabulary.index("##s")]


def test_special_tokens_that_are_not_listed_are_named() -> None:
    model = replace(open_model("random"), tokenize=lambda text: (Token("[CLS]", 99, special=True), *split_words(text)))
    notes = notes_of_listed(TextSource(model, TEXT, split_words(TEXT)))
    assert notes == ("The tokens are read as they are listed, without [CLS], which random adds to a text.",)
    assert not notes_of_listed(TextSource(model, TEXT))


def test_a_token_outside_the_vocabulary_is_named(refused: Refused, room: Path) -> None:
    pytest.importorskip("transformers")
    assert "'wumblish' is not one token" in refused(
        "heatmap", TEXT, "--model", str(room / "bert"), "--tokens", "wumblish"
    )
