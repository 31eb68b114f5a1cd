"""Unusual families, as users have them: which heads are counted, and what is no word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import attnctl
from attnctl.commands.evaluate import compute
from attnctl.commands.evaluate.result import read_census
from attnctl.commands.evaluate.words import align_words
from attnctl.errors import UsageError
from attnctl.formats.conllu import ParsedSentence
from attnctl.models import open_model
from attnctl.models.huggingface import padded_batch
from tests.conftest import Run
from tests.models.huggingface.conftest import Shelf
from tests.models.huggingface.test_word_pieces import tokens_of, unigram

ROWS = """1 w10 w10 PRON _ _ 2 nsubj _ _
2 w33 w33 VERB _ _ 0 root _ _
3 w71 w71 DET _ _ 4 det _ _
4 w20 w20 NOUN _ _ 2 obj _ _

"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A treebank of one sentence, twice."""
    (tmp_path / "corpus.conllu").write_text(ROWS.replace(" ", "\t") * 2)
    return tmp_path / "corpus.conllu"


@pytest.mark.parametrize(
    ("family", "causal"), [("bigbird_pegasus causal", True), ("bloom base", True), ("roformer causal", False)]
)
def test_who_looks_ahead_is_read_off_a_run(run: Run, shelf: Shelf, corpus: Path, family: str, causal: bool) -> None:
    """Their modules and configurations do not say so, or say otherwise than their masks are: a census asks beforehand."""
    census = run("evaluate", corpus, "--model", shelf(family), "--json").json
    assert census["causal"] is causal
    told = next(one for one in census["relations"] if (one["relation"], one["direction"]) == ("all", "dependent→head"))
    assert (told["cases"], told["ahead"]) == ((2, 4) if causal else (6, 0))


def test_a_census_has_no_heads_in_layers_without_attention(
    run: Run, shelf: Shelf, corpus: Path, tmp_path: Path
) -> None:
    """Jamba attends in layers 1 and 3: of the others there are no shares of 0 %."""
    told = run("evaluate", corpus, "--model", shelf("jamba causal")).out
    assert "Layers 0, 2 have no attention (·)." in told and "entropy by layer, nats: ·, 0." in told
    result = run("evaluate", corpus, "--model", shelf("jamba causal"), "--json")
    found = result.json
    assert {head["layer"] for head in found["heads"]} == {layer["layer"] for layer in found["layers"]} == {1, 3}
    assert all(relation.get("best", {"layer": 1})["layer"] in (1, 3) for relation in found["relations"])
    (tmp_path / "census.json").write_text(result.out)
    again = read_census(str(tmp_path / "census.json"))
    assert [row.layer for row in again.layers] == [1, 3] and again.attends.any(axis=1).tolist() == [False, True] * 2


def test_heads_are_as_many_as_attend(run: Run, shelf: Shelf, corpus: Path) -> None:
    """Laguna says how many for each layer."""
    model = ("--model", shelf("laguna causal", num_attention_heads_per_layer=[4, 8]))
    census = run("evaluate", corpus, *model, "--json").json
    assert len(census["heads"]) == 12
    entropy = np.mean([head["entropy"] for head in census["heads"] if head["layer"] == 0])
    assert census["layers"][0]["entropy"] == pytest.approx(entropy)


def test_a_census_tries_padding_behind_sentences_of_one_length(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compute, "FIRST_TOGETHER", 2)
    tried: list[int] = []
    monkeypatch.setattr(padded_batch, "padding_changes_weights", lambda _, short, long: not tried.append(len(long)))
    sentence = "1\tBob\tBob\tNOUN\t_\t_\t0\troot\t_\t_\n"
    longer = sentence + "2\teats\teat\tVERB\t_\t_\t1\tdep\t_\t_\n"
    (tmp_path / "some.conllu").write_text("\n".join([sentence, sentence, sentence, longer, ""]))
    attnctl.evaluate(tmp_path / "some.conllu", open_model(shelf("llama")))
    assert len(tried) == 1


def test_a_census_counts_a_space_marker_with_the_word_that_it_begins() -> None:
    text = "我 爱"
    sentence = ParsedSentence(text, ((0, 1), (2, 3)), ("我", "爱"), ("PRON", "VERB"), (1, -1), ("nsubj", "root"))
    pool = align_words(sentence, tokens_of(unigram(), text)).pool
    assert pool.T.tolist() == [[True, True, False, False], [False, False, True, True]]


def test_a_corpus_is_read_without_pairs(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match="cannot be combined with a corpus"):
        attnctl.evaluate("corpus.conllu", shelf("llama"), text_pair="b")
