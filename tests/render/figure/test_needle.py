"""The picture of needles: shares in the cells, what was not answered hatched, nothing cut at an edge."""

from __future__ import annotations

from attnctl.readings.effects.needle import NeedleCell, NeedleRun, Needles
from attnctl.render.figure.charts import needle_drawing
from attnctl.trace.model_info import ModelInfo
from tests.tools.figures import texts_within


def test_cells_say_shares_and_what_was_not_answered_is_hatched() -> None:
    cells = [NeedleCell(96, 0.0, 96, "no", False, 0.17), NeedleCell(96, 1.0, 96, "yes", True, 0.09)]
    figure = needle_drawing(Needles(NeedleRun(ModelInfo("tiny", "checkpoint"), "n", "q", "e"), tuple(cells))).figure
    texts = texts_within(figure)
    assert {"tiny: 1 of 2 needles answered", "asked", "answered", "0 %", "100 %", "not answered"} <= texts
