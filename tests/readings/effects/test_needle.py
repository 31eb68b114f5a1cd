"""Needles: filler, scores, and what a run of them says."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.readings.effects.needle import (
    NEEDLE,
    NeedleCell,
    NeedleRun,
    Needles,
    filler_sentences,
    retrieval_scores,
    sentences_of,
)
from attnctl.trace.model_info import ModelInfo

INFO = ModelInfo("m", "checkpoint")


def test_filler_is_seeded_and_says_nothing_of_the_needle() -> None:
    one, other = (list(islice(filler_sentences(seed), 500)) for seed in (3, 3))
    assert one == other != list(islice(filler_sentences(4), 500))
    assert not any(word in sentence for sentence in one for word in ("key", "lighthouse", "flowerpot"))
    assert len(set(one)) > 300


def test_sentences_and_answers() -> None:
    assert sentences_of("A b. C d!  E\nf? g") == ["A b.", "C d!", "E\nf?", "g"]
    with pytest.raises(AttnctlError, match="no sentences"):
        sentences_of(" \n ")
    run = NeedleRun(INFO, *NEEDLE)
    assert run.is_answered("Under the BLUE\n flowerpot.") and not run.is_answered("Under the pot.")


def test_retrieval_scores() -> None:
    """Two heads, three answer tokens: head 0 looks at the very tokens in the needle, head 1 at one of them, once outside."""
    prompt, answer = [9, 5, 6, 7, 8, 5], [5, 6, 8]
    strongest = {2: np.array([[1, 2, 4], [5, 2, 3]])}
    scores = retrieval_scores(strongest, prompt, answer, (1, 5))
    np.testing.assert_allclose(scores[2], [1, 1 / 3])


def cell(length: int, depth: float, answered: bool, score: float) -> NeedleCell:
    return NeedleCell(length, depth, length, "x", answered, 0.25, {0: np.array([score, 0.05], np.float32)})


def test_what_needles_say_of_heads() -> None:
    found = Needles(
        NeedleRun(INFO, "n", "q", "e"), (cell(64, 0, True, 0.5), cell(64, 1, True, 0.1), cell(128, 1, False, 0.9))
    )
    assert found.answered_count == 2
    assert found.retrieval_heads() == {(0, 0): pytest.approx(0.3)}
    assert list(found.retrieval_scores()) == [(0, 0), (0, 1)]
    values, lengths, depths = found.depth_grid("answered")
    assert (lengths, depths) == ([64, 128], [0, 1])
    np.testing.assert_array_equal(values, [[1, np.nan], [1, 0]])
    assert Needles(NeedleRun(INFO, "n", "q", "e"), (cell(64, 0, False, 0.5),)).retrieval_scores() == {}
