"""The picture of sources: bars with their numbers, nothing cut at an edge."""

from __future__ import annotations

import pytest

from attnctl.commands.sources.picture import sources_drawing
from attnctl.commands.sources.result import Answer, AnswerSources, AnswerToken, PartSource
from attnctl.trace.model_info import ModelInfo
from tests.tools.figures import texts_within


@pytest.mark.parametrize("writes", [None, 0.2])
def test_the_bars_of_sources_have_their_numbers_and_are_not_cut(writes: float | None) -> None:
    """With three sets of bars the name of the last was cut at the edge."""
    parts = tuple(
        PartSource(
            name=name, start=0, end=1, looks=0.3, matters=matters, alone=True, predicts_answer=at == 1, writes=writes
        )
        for at, (name, matters) in enumerate(
            {"a long name of a document that goes on and on": -1.5, "[b]": -0.5, "c": -0.001}.items()
        )
    )
    model = ModelInfo("tiny", "checkpoint")
    answer = Answer("yes", False, (AnswerToken(text="yes", log_probability=-0.5),), -0.5, 0.6065)
    found = AnswerSources(
        prompt="a b", model=model, answer=answer, parts=parts, apart={}, agreement={}, forwards=2, notes=()
    )
    words = texts_within(sources_drawing(found).figure)
    assert words >= {"matters (nats)", "-1.50", "-0.50", "0.00", "30.0"} and "-0.00" not in words
    assert any(word.startswith("What “[b]” does cannot be measured whole") for word in words)
