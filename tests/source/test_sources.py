"""What stands between a source and a reading: the chosen layers in any order, their share of the work, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.readings.overview import Overview
from attnctl.readings.statistics_reading import HeadStatisticsReading
from attnctl.readings.trace_reading import TraceReading
from attnctl.source import Changes, OverviewSource, TextSource, TraceSource, prepare, record_trace

TEXT = "Alice will eat pizza"


@pytest.mark.parametrize("layers", [None, [0], [2, 1]])
def test_the_shares_of_the_layers_are_the_whole_work(layers: list[int] | None) -> None:
    heard: list[float] = []
    source = TextSource(open_model("random", n_layers=3), TEXT)
    prepare(source, layer=layers).read(HeadStatisticsReading(source.tokens), heard.append)
    assert sum(heard) == pytest.approx(1)
    count = len(layers or range(3))
    each = [sum(heard[2 * layer : 2 * layer + 2]) for layer in range(count)]  # the pass over the keys, and what follows
    assert len(heard) == 2 * count and each == pytest.approx([1 / count] * count)


def test_the_layers_of_a_trace_may_stand_in_any_order() -> None:
    trace = record_trace(open_model("random", n_layers=3), TEXT)
    source = TraceSource(replace(trace, layers=trace.layers[::-1]))
    for layers, wanted in ((None, [0, 1, 2]), ([2, 0], [0, 2])):
        again = prepare(source, layer=layers).read(
            TraceReading(predictions=False)
        )  # which needs no layer after the last
        assert [layer.layer for layer in again.layers] == wanted


def test_an_overview_has_no_layers_to_change() -> None:
    source = TextSource(open_model("random"), TEXT)
    overview = OverviewSource(Overview(source.subject), "cells.json")
    for changes in (Changes(renormalise=True), Changes("value-norm"), Changes(renormalise=True, drop=["first"])):
        with pytest.raises(AttnctlError, match="cells.json holds an overview of a long text, not its every weight"):
            prepare(overview, changes).read(HeadStatisticsReading(source.tokens))
