"""Runs that are kept: a second reading sees the same layers, and the model does not run again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnctl.cli.session import RunMemory
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.models import open_model
from attnctl.readings.heatmap import OverviewReading
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.readings.trace_reading import TraceReading
from attnctl.source import TextSource, prepare
from attnctl.source.model import TextModel
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
def counted() -> Counted:
    return Counted(open_model("demo-causal"))


@pytest.fixture
def memory() -> RunMemory:
    return RunMemory()


def remembered(memory: RunMemory, model: Any, text: str = TEXT) -> TextSource:
    """A text as a shell has it: its runs are kept."""
    source = TextSource(model, text)
    source.runner = memory.run
    return source


def test_the_second_question_needs_no_second_run(counted: Counted, memory: RunMemory) -> None:
    model = counted.model
    for layers, heads, predictions in (([0], [1], False), ([1], None, True), (None, [0, 2], True), (None, None, False)):
        kept = prepare(remembered(memory, counted), layer=layers, head=heads).read(
            TraceReading(predictions=predictions)
        )
        fresh = prepare(TextSource(model, TEXT), layer=layers, head=heads).read(TraceReading(predictions=predictions))
        assert kept.predictions == fresh.predictions and kept.notes == fresh.notes
        for ours, theirs in zip(kept.layers, fresh.layers, strict=True):
            assert ours.heads == theirs.heads and ours.layer == theirs.layer
            np.testing.assert_array_equal(ours.weights, theirs.weights)
    assert counted.runs == 1
    source = remembered(memory, counted)
    found = prepare(source).read(OverviewReading(statistics=HeadStatisticsReading(source.tokens)))
    assert len(found.head_statistics) == 12 and counted.runs == 1


def test_what_a_reading_had_computed_is_not_kept(counted: Counted, memory: RunMemory) -> None:
    counted.model = open_model("random", n_layers=3)
    seen: list[LayerAttention] = []
    for _ in range(2):  # of the model, and of the memory
        memory.run(counted, counted.tokenize(TEXT), lambda layer: seen.append(layer) or layer.all_weights())
        held = [vars(layer) | vars(layer.forward) for layer in seen if isinstance(layer, ComputedLayer)]
        assert len(held) == len(seen) and not any({"all_steps", "stored", "mask"} & one.keys() for one in held)


def test_another_text_or_model_is_another_run(counted: Counted, memory: RunMemory) -> None:
    for text in (TEXT, "Bob likes tea", TEXT, "Bob likes tea"):
        prepare(remembered(memory, counted, text)).read(TraceReading())
    assert counted.runs == 2
    other = Counted(counted.model)
    prepare(remembered(memory, other)).read(TraceReading())
    assert other.runs == 1
    prepare(remembered(RunMemory(), other)).read(TraceReading())
    assert other.runs == 2


def test_what_is_too_large_is_not_kept_and_ends_where_the_reading_does(counted: Counted) -> None:
    memory = RunMemory(most_bytes=10)
    for _ in range(2):
        trace = prepare(remembered(memory, counted), layer=[0]).read(TraceReading(predictions=False))
        assert [layer.layer for layer in trace.layers] == [0]
    assert counted.runs == 2
