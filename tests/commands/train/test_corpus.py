"""The bundled corpus as a training reads it: sentences that the grammar of samples/english wrote, and their links."""

from __future__ import annotations

import numpy as np
import pytest

from attnctl.commands.train import run
from attnctl.text import english
from samples.english import __main__ as command
from samples.english.grammar import sentences


@pytest.mark.parametrize("objective", ["masked-word", "next-word"])
def test_what_is_read_is_what_was_written(objective: str) -> None:
    corpus = run.bundled_corpus(objective)  # which is read once for all tests
    assert len(corpus.ids) == command.TRAINED and corpus.answers is not None and not (corpus.ids == 0).any()
    made = sentences(300, command.TRAINED_SEED, command.kinds_by_part()["both"])
    for s, ids, answers in zip(made, corpus.ids, corpus.answers, strict=False):
        n = len(s.words)
        assert [corpus.vocabulary[at] for at in ids[:n]] == s.words and (ids[n:] == -1).all()
        assert (answers[:n] < n).all() and (answers[n:] == -1).all()
        told = {(link.query, english.QUESTION_OF[link.relation]): link.key for link in s.answers()}
        for (at, question), place in np.ndenumerate(answers[:n]):
            assert told.get((at, question), at if place == at else -1) == place
            assert place == -1 or (at, question) in told or at not in s.loose
