"""Texts of one length in one pass: each has the very numbers that it has alone."""

from __future__ import annotations

from typing import Any

import pytest

from attnctl.formats.documents.trace_json import trace_to_json
from attnctl.layer import StopForward
from attnctl.models import open_model
from attnctl.models.builtin.stack import can_run_together, run_together
from attnctl.readings.traces.trace import TraceReading
from attnctl.source import Pass, TextSource

WORDS = "Alice will eat the pizza that Tom made while Zara and her old dog were in town"


@pytest.mark.parametrize("length", [1, 2, 5, 12, 16])
@pytest.mark.parametrize(
    "options", [{"name": "demo"}, {"name": "demo-causal"}, {"name": "random", "n_heads": 2}], ids=str
)
def test_a_text_has_the_numbers_it_has_alone(options: dict[str, Any], length: int) -> None:
    model: Any = open_model(**options)
    texts = [" ".join(WORDS.split()[at : at + length]) for at in range(min(4, 17 - length))]
    together = [Pass(TextSource(model, text), TraceReading()) for text in texts]
    runs = run_together(model, [one.tokens for one in together], [one.visit for one in together])
    for text, one, ran in zip(texts, together, runs, strict=True):
        alone = TextSource(model, text).read(TraceReading())
        assert trace_to_json(one.value(ran)) == trace_to_json(alone)


def test_a_text_that_wants_no_more_leaves_the_others_running() -> None:
    model: Any = open_model("demo")
    seen: list[tuple[int, int]] = []

    def visits(at: int) -> Any:
        def visit(layer: Any) -> None:
            seen.append((at, layer.layer))
            if at == 0:
                raise StopForward

        return visit

    tokens = [model.tokenize(text) for text in ("Alice eats pizza", "Tom likes ____")]
    runs = run_together(model, tokens, [visits(0), visits(1)])
    assert seen == [(0, 0), (1, 0), (1, 1)]
    assert not runs[0].predictions and runs[1].predictions


def test_dropout_and_long_texts_run_alone() -> None:
    assert can_run_together(open_model("demo"), 5)
    assert not can_run_together(open_model("demo"), 5000)
    assert not can_run_together(open_model("random", dropout=0.1), 5)
    assert not can_run_together(object(), 5)
