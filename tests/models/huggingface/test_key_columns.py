"""Every column stands for a key that has a name: a token of the text, of another text, or of both; other keys are refused."""

from __future__ import annotations

import pytest
import torch

import attnctl
from attnctl.errors import UsageError
from attnctl.models import open_model
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.source import TextSource, prepare
from attnctl.watched.measure import EffectRequest, measure_effects, watched_text
from tests.conftest import Refused, Run
from tests.models.huggingface.conftest import FamilyTrace, Shelf
from tests.tools.sweep.checkpoints import TEXT


@pytest.mark.parametrize("command", ["explain", "heads", "ablate", "heatmap"])
def test_keys_that_hold_several_tokens_are_refused(refused: Refused, shelf: Shelf, command: str) -> None:
    """DeepSeek-V4 compresses each whole window of tokens into one key more."""
    said = refused(command, TEXT, "--model", shelf("deepseek_v4 causal"))
    assert "layer 1 of deepseek_v4-causal has 13 keys for 11 tokens" in said
    assert "A shorter text may have no such keys" in said and "attnctl.capture records them" in said


def test_capture_records_keys_that_hold_several_tokens(shelf: Shelf) -> None:
    model = open_model(shelf("deepseek_v4 causal"))
    assert isinstance(model, Checkpoint)
    with attnctl.capture(model.network, layer=1) as traces, torch.no_grad():
        model.network(**model.read(TEXT, model.tokenize(TEXT)).inputs)
    assert traces[0].weights.shape[-2:] == (11, 13)


def test_a_text_shorter_than_a_window_has_no_other_keys(run: Run, shelf: Shelf) -> None:
    trace = run("explain", "w10 w33", "--model", shelf("deepseek_v4 causal"), "--json").json
    assert {len(row) for layer in trace["layers"] for head in layer["heads"] for row in head["weights"]} == {2}


def test_columns_of_cross_attention_are_the_source_tokens(shelf: Shelf, run: Run) -> None:
    where = ("-m", shelf("t5, bias"), "--attention", "cross", "--layer", "0", "--head", "0")
    shown = run("heatmap", "abcd efg", "--target", "xy", *where).out.splitlines()
    assert shown[0].split("\t")[4:] == ["0:a", "1:b", "2:c", "3:d", "4:e", "5:f", "6:g"]
    assert abs(sum(map(float, shown[1].split("\t")[4:])) - 1) < 1e-4


def test_no_distance_between_two_texts_of_one_length(shelf: Shelf) -> None:
    source = TextSource(open_model(shelf("t5, bias"), target="xy"), "abc")
    assert len(source.tokens) == len(source.key_tokens) and source.tokens != source.key_tokens
    for head in prepare(source).read(HeadStatisticsReading(source.tokens, source.key_tokens)):
        assert head["self"] is None and head["previous"] is None and head["distance"] is None
        assert head["entropy"] is not None and head["spread"] is not None


def test_a_decoder_that_merges_the_source_has_columns_for_both(family: FamilyTrace) -> None:
    merged, trace = family("t5gemma2", "seq2seq", attention="decoder")
    source = TextSource(merged, TEXT)
    assert [token.text for token in source.key_tokens] == [*(t.text for t in source.tokens), *TEXT.split()]
    assert trace.key_tokens == source.key_tokens
    watched = watched_text(merged, TEXT)
    assert {looks.shape[-1] for looks in watched.query_weights().values()} == {len(watched.key_tokens or ())}
    edge = len(watched.tokens) - 1, len(watched.tokens)
    with pytest.raises(UsageError, match="no edge to 'w.*': it is a token of another text"):
        measure_effects(watched, EffectRequest(edges=(edge,)))
