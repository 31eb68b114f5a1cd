"""What a map says of its sinks: which columns they are, how much goes there, and how they are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnctl.errors import options_as_flags
from attnctl.layer import LayerTrace
from attnctl.readings.sinks import Cells, sinks_of_cells, sinks_of_heads
from attnctl.source.zoom import read_heatmap
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import SINK_NOTE
from attnctl.trace.subject import Subject

WORDS = ("The", "cat", "chased", "the", "dog", ".")


def trace_of(*columns: list[float], kind: Any = "checkpoint", tokens: Any = WORDS, **layer: Any) -> Trace:
    """A head for each of `columns`: what every query gives to each key; no query is masked."""
    named = tuple(token if isinstance(token, Token) else Token(token) for token in tokens)
    weights = np.stack([np.tile(np.array(row, np.float32), (len(named), 1)) for row in columns])  # (heads, n, n)
    heads = tuple(range(len(columns)))
    info = ModelInfo("mine", kind, n_heads=len(heads), n_layers=1)
    return Trace(
        Subject("The cat chased the dog .", named, info), (LayerTrace(0, heads, heads, weights=weights, **layer),)
    )


def caption(trace: Trace, log: bool = False, **how: Any) -> str:
    sinks = read_heatmap(trace, **how).sinks
    return "" if sinks is None else sinks.caption(log)


FIRST, EVEN, LAST = [0.75, 0.05, 0.05, 0.05, 0.05, 0.05], [1 / 6] * 6, [0.1, 0.05, 0.05, 0.1, 0.1, 0.6]


def test_the_first_token() -> None:
    said = caption(trace_of(FIRST))
    assert said.startswith("The first column, which stands out, is a sink: ")
    assert "Of the attention of layer 0, head 0, 75 % goes to the first token, “The”." in said
    assert said.endswith("To see past it: drop='first' or log=True.")
    assert caption(trace_of(FIRST), log=True).endswith("To see past it: drop='first'.")
    with options_as_flags({}):  # on the command line
        assert caption(trace_of(FIRST)).endswith("To see past it: --drop first or --log.")
    assert caption(trace_of(FIRST), drop=("first",)) == ""


def test_several_heads_are_counted_and_averaged() -> None:
    said = caption(trace_of(FIRST, EVEN))
    assert "is a sink in 1 of 2 heads" in said
    assert "of 2 heads, 46 % goes to the first token" in said  # (0.75 + 1/6) / 2


def test_special_tokens_and_marks() -> None:
    assert "60 % goes to the mark “.” (5)." in caption(trace_of(LAST))
    assert "drop='5' or log=True" in caption(trace_of(LAST))
    ended = (Token("[CLS]", special=True), *WORDS[1:5], Token("[SEP]", special=True))
    assert "60 % goes to the special tokens ([SEP]). To see past it: drop='special'" in caption(
        trace_of(LAST, tokens=ended)
    )
    both = caption(trace_of([0.5, 0, 0, 0, 0, 0.5], tokens=ended))
    assert "50 % goes to the first token, “[CLS]”, 50 % to the other special ones ([SEP]). To see past them" in both
    assert "drop='special' or" in both
    left = caption(trace_of([0.5, 0, 0, 0, 0, 0.5], tokens=ended), drop=("first",), renormalise=True)
    assert "Of what is left of the attention of layer 0, head 0, 100 % goes to the special tokens ([SEP])" in left


@pytest.mark.parametrize(
    "trace",
    [
        trace_of([0.29, 0.15, 0.14, 0.14, 0.14, 0.14]),  # less than `heads` calls a sink
        trace_of([0.1, 0.6, 0.1, 0.1, 0.05, 0.05]),  # a word
        trace_of([0.6, 0.4], tokens=("Mei", "sings")),  # of two keys one always has half
        trace_of(FIRST, kind="demo"),
        trace_of(FIRST, kind="random"),
        trace_of(FIRST).about(measure="value-norm"),
        trace_of([0.8, 0.1, 0.1], kind="matrix", tokens=("a", "b", "c")),  # of few bare numbers
    ],
    ids=["below", "word", "two", "demo", "random", "measure", "numbers"],
)
def test_what_is_no_sink(trace: Trace) -> None:
    assert caption(trace) == ""
    assert sinks_of_heads(trace, trace.layers[0]) == [None]


def test_a_causal_row_with_few_keys_gives_much_to_the_first() -> None:
    seen = np.tri(4, dtype=bool)
    trace = trace_of([0.25] * 4, tokens=WORDS[:4], mask=seen)

    def of(weights: Any) -> str:
        return caption(
            replace(trace, layers=(replace(trace.layers[0], weights=np.asarray(weights, np.float32)[None]),))
        )

    assert of(seen / seen.sum(1, keepdims=True)) == ""  # 36 % without the first row, of rows that look everywhere alike
    assert "90 % goes to" in of([[1, 0, 0, 0], [0.9, 0.1, 0, 0], [0.9, 0, 0.1, 0], [0.9, 0, 0, 0.1]])


def test_a_learned_sink_has_no_column() -> None:
    taken = np.full((1, 6), 0.4, np.float32)
    trace = trace_of([0.1] * 6, sink_weights=taken).about(notes=(SINK_NOTE,))
    said = "A learned sink, which has no column, takes 40 % of the attention of layer 0, head 0."
    assert caption(trace) == f"{said} renormalise=True shares it among the keys."
    assert caption(trace, renormalise=True) == ""
    (sinks,) = sinks_of_heads(trace, trace.layers[0])
    assert sinks is not None and sinks.sentence == said


def test_rows_that_see_nothing_have_no_share_of_a_sink() -> None:
    """A learned sink took all of each row of padding."""
    weights, mask = np.full((6, 6), 0.05, np.float32), np.ones((6, 6), bool)
    weights[:3], mask[:3] = 0, False
    cells = Cells({(0, 0): weights}, {0: mask}, [Token(str(n)) for n in range(6)], range(6), [1] * 6, learned=True)
    sinks = sinks_of_cells(cells)
    assert sinks is not None and "70%" in sinks.sentence.replace(" %", "%")
