"""Measuring relations: heads made by hand must come out right, and the bundled models must hold what their cards say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnctl.attention import Call
from attnctl.commands.evaluate.bundled import measure_relations
from attnctl.errors import AttnctlError
from attnctl.layer.computed import ComputedLayer
from attnctl.models import open_model
from attnctl.models.builtin.weights import path_of
from attnctl.registry import COMMANDS
from attnctl.source.model import TextModel
from attnctl.text import english
from attnctl.text.tokens import Token, split_words
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Run as TraceRun
from attnctl.trace.subject import Subject
from tests.conftest import Run
from tests.training.test_bundled_models import figures


class Made(TextModel):
    """A model whose two heads look at the previous and at the first token, whatever the text."""

    info = ModelInfo(name="made", kind="dot", n_heads=2, n_layers=1, causal=True)
    tokenize = staticmethod(split_words)

    def run(self, tokens: Any, visit: Any, text: str = "") -> TraceRun:
        n = len(tokens)
        keys = np.eye(n, dtype=np.float32)[None].repeat(2, 0)
        at = np.arange(n)
        queries = 50 * np.stack([np.eye(n)[np.maximum(at - 1, 0)], np.eye(n)[at * 0]]).astype(np.float32)
        visit(ComputedLayer.of_call(0, Call(queries, keys, keys, scale=1.0, causal=True)))
        return TraceRun(Subject(text, tuple(tokens), self.info))


def test_made_heads_score_what_the_rules_score() -> None:
    measured = {m.relation: m for m in measure_relations(Made(), count=400)}
    assert measured[english.PRONOUN].untrained is None
    preposition = measured[english.PREPOSITION]  # the previous-token head is the rule "one to the left"
    assert (preposition.offset, preposition.head) == (-1, 0)
    assert preposition.held_out == pytest.approx(preposition.by_offset)
    assert english.MEANING not in measured  # a causal model has not seen the word that tells
    assert measured[english.PAST_OTHERS].by_nearest < 0.3 < measured[english.PAST_OTHERS].by_first
    assert all(m.links_by_hand and 0 <= m.by_hand <= 1 for m in measured.values() if m.by_hand is not None)


def test_a_model_that_joins_words_is_refused() -> None:
    class Pairs(Made):
        @staticmethod
        def tokenize(text: str) -> tuple[Token, ...]:
            words = split_words(text)
            return (replace(words[0], end=words[1].end), *words[2:])

    with pytest.raises(AttnctlError, match="made does not split text at words: it cannot be measured on them"):
        measure_relations(Pairs(), count=20)


@pytest.mark.parametrize(
    ("name", "page"),
    [("demo", "README.md"), ("demo", "attnctl/docs/models.md"), ("demo-causal", "attnctl/docs/models.md")],
)
def test_a_card_says_what_evaluate_prints(name: str, page: str) -> None:
    """The tables of the pages are what `attnctl evaluate` prints, which another test holds them to."""
    printed = (
        (Path(__file__).parents[3] / page).read_text(encoding="utf-8").partition(f"$ attnctl evaluate {name}\n")[2]
    )
    rows = [line for line in printed.partition("left out for width")[0].splitlines() if "%" in line]
    card, model = figures(name), open_model(name)
    assert path_of(name).stat().st_size < 4_000_000 and len(model.vocabulary) > 8000  # type: ignore[attr-defined]
    assert len(rows) == len(card) >= 8
    for row, known in zip(rows, card.values(), strict=True):
        assert known["untrained"] < known["held_out"] + 0.1
        shares = [known[key] for key in ("held_out", "unseen", "by_hand", "goal", "untrained", "by_nearest")]
        assert f"{known['layer']}.{known['head']}" in row
        assert [float(share) for share in re.findall(r"([\d.]+) %", row)] == pytest.approx(
            [100 * share for share in shares], abs=0.0501
        ), row


def test_a_finished_run_keeps_what_its_heads_learned(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its weights, for its card; without this command a training ends without it."""
    monkeypatch.setattr("attnctl.commands.train.run.MEASURED_FROM", 1)
    monkeypatch.setitem(measure_relations.__kwdefaults__, "count", 20)
    small = ("--max-steps", "1", "--d-model", "12", "--heads", "6", "--layers", "1")
    assert run("train", "-o", "run", *small).code == 0
    learned = json.loads(run("evaluate", "run", "--sentences", "20", "--json").out.splitlines()[0])
    kept = run("model", "run", "--json").json["metadata"]["figures"][learned["relation"]]
    assert {name: learned[name] for name in ("layer", "head", "held_out")} == {
        name: kept[name] for name in ("layer", "head", "held_out")
    }
    monkeypatch.delitem(COMMANDS, "evaluate")
    assert run("train", "-o", "without", *small).code == 0
    assert "figures" not in run("model", "without", "--json").json["metadata"]
