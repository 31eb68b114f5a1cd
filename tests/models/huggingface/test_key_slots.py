"""Compressed slots of DeepSeek-V4 by name, and keys that are another text's: every column stands for what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attnctl.errors import UsageError
from attnctl.models import open_model
from attnctl.models.huggingface.check import check_attention
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.key_slots import slot_spans
from attnctl.models.huggingface.watched import watch_network
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.source import TextSource, record_trace
from attnctl.watched.measure import EffectRequest, measure_effects
from tests.conftest import Run
from tests.models.huggingface.conftest import FamilyTrace, Shelf
from tests.tools.sweep.checkpoints import TEXT, opened
from tests.tools.sweep.families import Family, build, configuration
from tests.tools.sweep.modes import N
from tests.tools.sweep.reference import recorded

RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 3}


@pytest.fixture(scope="module")
def model() -> Checkpoint:
    torch.manual_seed(0)
    config = configuration("deepseek_v4")
    config.compress_rates = RATES
    network: Any = type(build(Family("deepseek_v4", "causal")))._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.2)
    return opened(Family("deepseek_v4", "causal"), network.eval(), "self")


def test_slots_are_the_whole_windows() -> None:
    assert slot_spans(11, 4, overlaps=True) == ((0, 3), (0, 7))
    assert slot_spans(11, 3, overlaps=False) == ((0, 2), (3, 5), (6, 8))
    assert slot_spans(3, 4, overlaps=False) == ()


def test_weights_on_compressed_slots_are_those_of_eager(model: Checkpoint) -> None:
    with recorded(model.network) as calls, torch.no_grad():
        model.network(input_ids=model.token_ids(model.tokenize(TEXT)), use_cache=False)
    trace = record_trace(model, TEXT)
    names = [token.text.removesuffix(" compressed") for token in trace.key_axis]
    assert names[N:] == ["0–2", "0–3", "0–7", "3–5", "6–8"]
    own = {0: ["0–2", "3–5", "6–8"], 1: ["0–3", "0–7"]}
    for layer, call in zip(trace.layers, calls, strict=True):
        columns = [*range(N), *(names.index(name) for name in own[layer.layer])]
        assert layer.weights is not None and layer.mask is not None and call.weights is not None
        np.testing.assert_allclose(layer.weights[..., columns], call.weights[0].numpy(), atol=1e-6)
        others = [at for at in range(len(names)) if at not in columns]
        assert not layer.weights[..., others].any() and not layer.mask[:, others].any()
        assert layer.weights[:, :, N:].max() > 0.05  # the slots are looked at
    assert any("“0–2 compressed” holds tokens 0–2" in note for note in trace.notes)
    assert all(finding.holds is not False for finding in check_attention(model, TEXT))
    short = record_trace(model, "w5 w6")  # less than a window
    assert short.key_tokens is None


def test_effects_beside_compressed_slots(model: Checkpoint) -> None:
    watched = watch_network(model, TEXT)
    found = measure_effects(watched, EffectRequest(every_edge=True, sweep_heads=True))
    assert {edge.key for edge in found.edges} <= set(range(N))  # slots are no tokens, and cannot be cut
    assert len(found.heads) == 8 and any("they stay" in note for note in found.notes)
    with pytest.raises(UsageError, match="it is no token, but several in one"):
        measure_effects(watched, EffectRequest(edges=((10, N),)))


def test_columns_of_cross_attention_are_the_source_tokens(shelf: Shelf, run: Run) -> None:
    where = ("-m", shelf("t5, bias"), "--attention", "cross", "--layer", "0", "--head", "0")
    shown = run("heatmap", "abcd efg", "--target", "xy", *where).out.splitlines()
    assert shown[0].split("\t")[4:] == ["0:a", "1:b", "2:c", "3:d", "4:e", "5:f", "6:g"]
    assert abs(sum(map(float, shown[1].split("\t")[4:])) - 1) < 1e-4


def test_no_distance_between_two_texts_of_one_length(shelf: Shelf) -> None:
    source = TextSource(open_model(shelf("t5, bias"), target="xy"), "abc")
    assert len(source.tokens) == len(source.key_tokens) and source.tokens != source.key_tokens
    for head in source.read(HeadStatisticsReading(source.tokens, source.key_tokens)):
        assert head["self"] is None and head["previous"] is None and head["distance"] is None
        assert head["entropy"] is not None and head["spread"] is not None


def test_a_decoder_that_merges_the_source_has_columns_for_both(family: FamilyTrace) -> None:
    merged, trace = family("t5gemma2", "seq2seq", attention="decoder")
    source = TextSource(merged, TEXT)
    assert [token.text for token in source.key_tokens] == [*(t.text for t in source.tokens), *TEXT.split()]
    assert trace.key_tokens == source.key_tokens
    watched = watch_network(merged, TEXT)
    assert {looks.shape[-1] for looks in watched.query_weights().values()} == {len(watched.key_tokens or ())}
