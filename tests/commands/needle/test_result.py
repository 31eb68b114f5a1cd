"""Needles: filler, scores, what a run of them says, and the file of an earlier run."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from attnctl.commands.needle.compute import NeedleAsker
from attnctl.commands.needle.haystack import NEEDLE, filler_sentences, sentences_of
from attnctl.commands.needle.result import (
    NeedleCell,
    NeedleRun,
    depth_grid,
    is_answered,
    known_needles,
    mean_scores,
    retrieval_scores,
)
from attnctl.errors import AttnctlError
from attnctl.trace.model_info import ModelInfo

RUN: dict[str, Any] = {
    "model": ModelInfo("m", "checkpoint"), "needle": "n", "question": "q", "expect": "e",
}  # fmt: skip


def test_filler_is_seeded_and_says_nothing_of_the_needle() -> None:
    one, other = (list(islice(filler_sentences(seed), 500)) for seed in (3, 3))
    assert one == other != list(islice(filler_sentences(4), 500))
    assert not any(word in sentence for sentence in one for word in ("key", "lighthouse", "flowerpot"))
    assert len(set(one)) > 300


def test_sentences_and_answers() -> None:
    assert sentences_of("A b. C d!  E\nf? g") == ["A b.", "C d!", "E f? g"]
    assert sentences_of("今天天气很好。我们去公园散步。") == ["今天天气很好。", "我们去公园散步。"]
    for unbroken in ("word " * 2000, "字" * 5000):  # no mark ends a sentence
        pieces = sentences_of(unbroken)
        assert max(map(len, pieces)) <= 200 and "".join(pieces).replace(" ", "") == unbroken.replace(" ", "")
    with pytest.raises(AttnctlError, match="no sentences"):
        sentences_of(" \n ")
    assert is_answered("Under the BLUE\n flowerpot.", NEEDLE[2]) and not is_answered("Under the pot.", NEEDLE[2])


def test_retrieval_scores() -> None:
    """Two heads, three answer tokens: head 0 looks at the very tokens in the needle, head 1 at one of them, once outside."""
    prompt, answer = [9, 5, 6, 7, 8, 5], [5, 6, 8]
    strongest = {2: np.array([[1, 2, 4], [5, 2, 3]])}
    scores = retrieval_scores(strongest, prompt, answer, (1, 5))
    np.testing.assert_allclose(scores[2], [1, 1 / 3])


def cell(length: int, depth: float, answered: bool, score: float) -> NeedleCell:
    scores = {"0": np.array([score, 0.05], np.float32)}
    return NeedleCell(
        **RUN, length=length, depth=depth, tokens=length, answer="x", answered=answered, found=0.25, scores=scores
    )


def test_what_needles_say_of_heads() -> None:
    cells = (cell(64, 0, True, 0.5), cell(64, 1, True, 0.1), cell(128, 1, False, 0.9))
    asker: Any = object.__new__(NeedleAsker)  # without a checkpoint, which nothing is asked
    asker.run = NeedleRun(**RUN)
    found = asker.needles_of(cells)
    assert (found.asked, found.answered) == (3, 2)
    assert [(one.layer, one.head, one.score) for one in found.retrieval_heads] == [(0, 0, pytest.approx(0.3))]
    assert list(mean_scores(cells)) == [(0, 0), (0, 1)]
    values, lengths, depths = depth_grid(cells, [cell.answered for cell in cells])
    assert (lengths, depths) == ([64, 128], [0, 1])
    np.testing.assert_array_equal(values, [[1, np.nan], [1, 0]])
    assert mean_scores((cell(64, 0, False, 0.5),)) == {}


@pytest.mark.parametrize("value", ["0.5", True, None])
def test_a_text_or_true_is_no_number(tmp_path: Path, value: object) -> None:
    """They were read as 0.5 and 1."""
    cell = {"length": 9, "depth": value, "tokens": 9, "answer": "a", "answered": True, "found": 1, "scores": {}}
    model = {"name": "m", "kind": "checkpoint"}
    said = {"schema": "attnctl.needle/1", "model": model, "needle": "n", "question": "q", "expect": "e", "seed": 0}
    (tmp_path / "x").write_text(json.dumps(said | cell) + "\n")
    with pytest.raises(AttnctlError, match="x, line 1 is damaged: depth is .*, not a number$"):
        known_needles(str(tmp_path / "x"), NeedleRun(**RUN))
