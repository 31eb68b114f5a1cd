"""The pictures of needles and of sources: shares in the cells, what was not answered hatched, nothing cut at an edge."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnctl.readings.effects.answer_sources import AnswerSources, PartSource
from attnctl.readings.effects.needle import NeedleCell, NeedleRun, Needles
from attnctl.render.figure.charts import needle_drawing, sources_drawing
from attnctl.tokens import Token
from attnctl.trace.model_info import ModelInfo


def test_cells_say_shares_and_what_was_not_answered_is_hatched() -> None:
    cells = [NeedleCell(96, 0.0, 96, "no", False, 0.17), NeedleCell(96, 1.0, 96, "yes", True, 0.09)]
    figure = needle_drawing(Needles(NeedleRun(ModelInfo("tiny", "checkpoint"), "n", "q", "e"), tuple(cells))).figure
    texts = texts_within(figure)
    assert {"tiny: 1 of 2 needles answered", "asked", "answered", "0 %", "100 %", "not answered"} <= texts


def texts_within(figure: Figure) -> set[str]:
    """The texts of a figure, none of which is cut at an edge."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    for text in texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width, text.get_text()
    return {text.get_text() for text in texts}


@pytest.mark.parametrize("writes", [None, 0.2])
def test_the_bars_of_sources_have_their_numbers_and_are_not_cut(writes: float | None) -> None:
    """With three sets of bars the name of the last was cut at the edge."""
    tokens = np.array([-0.5, 0.1], np.float32)
    parts = tuple(
        PartSource(name=name, start=0, end=1, looks=0.3, matters=at - 1.5, alone=True, writes=writes)
        for at, name in enumerate(("a long name of a document that goes on and on", "[b]"))
    )
    model = ModelInfo("tiny", "checkpoint")
    found = AnswerSources("a b", model, "yes", (Token("yes"),), tokens[:1], parts, (tokens,) * 2, {}, 2)
    assert texts_within(sources_drawing(found).figure) >= {"matters (nats)", "-1.50", "-0.50", "30.0"}
