"""Runs that are kept: a second reading sees the same layers, and the model does not run again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.models import open_model
from attnctl.readings.heatmap import OverviewReading
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.source import TextSource
from attnctl.source.model import TextModel
from attnctl.source.run_memory import RunMemory
from attnctl.trace import TraceReading
from attnctl.trace.run import Run

TEXT = "Alice will eat pizza"


class Counted(TextModel):
    """A model, and how often it ran."""

    def __init__(self, model: Any) -> None:
        self.model, self.info, self.runs = model, model.info, 0

    def tokenize(self, text: str) -> Any:
        return self.model.tokenize(text)

    def run(self, *arguments: Any) -> Run:
        self.runs += 1
        return self.model.run(*arguments)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(TextSource, "memory", RunMemory())
    return Counted(open_model("demo-causal"))


def test_the_second_question_needs_no_second_run(counted: Counted) -> None:
    model = counted.model
    for layers, heads, predictions in (([0], [1], False), ([1], None, True), (None, [0, 2], True), (None, None, False)):
        kept = TextSource(counted, TEXT).read(TraceReading(predictions=predictions), layers, heads)
        memory, TextSource.memory = TextSource.memory, None
        fresh = TextSource(model, TEXT).read(TraceReading(predictions=predictions), layers, heads)
        TextSource.memory = memory
        assert kept.predictions == fresh.predictions and kept.notes == fresh.notes
        for ours, theirs in zip(kept.layers, fresh.layers, strict=True):
            assert ours.heads == theirs.heads and ours.layer == theirs.layer
            np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert counted.runs == 1
    source = TextSource(counted, TEXT)
    found = source.read(OverviewReading(statistics=HeadStatisticsReading(source.tokens)))
    assert len(found.head_statistics) == 12 and counted.runs == 1


def test_what_a_reading_had_computed_is_not_kept(counted: Counted) -> None:
    counted.model = open_model("random", n_layers=3)
    seen: list[LayerAttention] = []
    for _ in range(2):  # of the model, and of the memory
        TextSource.memory.run(counted, counted.tokenize(TEXT), lambda layer: seen.append(layer) or layer.all_weights())
        held = [vars(layer) | vars(layer.forward) for layer in seen if isinstance(layer, ComputedLayer)]
        assert len(held) == len(seen) and not any({"all_steps", "stored", "mask"} & one.keys() for one in held)


def test_another_text_or_model_is_another_run(counted: Counted) -> None:
    for text in (TEXT, "Bob likes tea", TEXT, "Bob likes tea"):
        TextSource(counted, text).read(TraceReading())
    assert counted.runs == 2
    other = Counted(counted.model)
    TextSource(other, TEXT).read(TraceReading())
    assert other.runs == 1
    assert TextSource.memory is not None
    TextSource.memory = RunMemory()
    TextSource(other, TEXT).read(TraceReading())
    assert other.runs == 2


def test_what_is_too_large_is_not_kept_and_ends_where_the_reading_does(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextSource, "memory", RunMemory(most_bytes=10))
    for _ in range(2):
        trace = TextSource(counted, TEXT).read(TraceReading(predictions=False), [0])
        assert [layer.layer for layer in trace.layers] == [0]
    assert counted.runs == 2
