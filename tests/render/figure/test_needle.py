"""The picture of a run of needles: shares in the cells, what was not answered hatched, nothing cut at an edge."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg

from attnctl.readings.effects.needle import Needle, NeedleCell, NeedleRun, Needles
from attnctl.readings.traces.trace import ModelInfo
from attnctl.render.figure.charts import needle_drawing


def test_cells_say_shares_and_what_was_not_answered_is_hatched() -> None:
    cells = [NeedleCell(96, 0.0, 96, "no", False, 0.17), NeedleCell(96, 1.0, 96, "yes", True, 0.09)]
    figure = needle_drawing(Needles(NeedleRun(ModelInfo("tiny", "checkpoint"), Needle()), tuple(cells))).figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = {
        text.get_text(): text for text in figure.findobj(lambda part: hasattr(part, "get_text")) if text.get_text()
    }
    assert {"tiny: 1 of 2 needles answered", "asked", "answered", "0 %", "100 %", "not answered"} <= set(texts)
    for text in texts.values():
        box = text.get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width, text.get_text()
