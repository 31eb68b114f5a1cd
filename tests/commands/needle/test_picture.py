"""The picture of needles: shares in the cells, what was not answered hatched, nothing cut at an edge."""

from __future__ import annotations

from typing import Any

from attnctl.commands.needle.picture import needle_panels
from attnctl.commands.needle.result import NeedleCell, Needles
from attnctl.render.figure.heatmap import drawing_of
from attnctl.trace.model_info import ModelInfo
from tests.tools.figures import texts_within


def test_cells_say_shares_and_what_was_not_answered_is_hatched() -> None:
    run: dict[str, Any] = {
        "model": ModelInfo("tiny", "checkpoint"), "needle": "n", "question": "q", "expect": "e",
    }  # fmt: skip
    cells = [
        NeedleCell(**run, length=96, depth=0.0, tokens=96, answer="no", answered=False, found=0.17, scores={}),
        NeedleCell(**run, length=96, depth=1.0, tokens=96, answer="yes", answered=True, found=0.09, scores={}),
    ]
    found = Needles(**run, asked=2, answered=1, retrieval_heads=(), notes=())
    figure = drawing_of(needle_panels(found, cells)).figure
    texts = texts_within(figure)
    assert {"tiny: 1 of 2 needles answered", "asked", "answered", "0 %", "100 %", "not answered"} <= texts
