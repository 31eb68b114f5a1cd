"""What only some models can do is a member of a protocol: nothing outside attnctl/models asks for a model's kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attnctl
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import Model, open_model
from attnctl.source.model import (
    AlignsTexts,
    AnswersPrompts,
    BringsText,
    CallsNetwork,
    CanIntervene,
    Generates,
    HasVocabulary,
    HearsSpeech,
    SharesPasses,
    ShowsOutputs,
)
from attnctl.watched.measure import CanBeWatched, watched_text
from attnctl.watched.model import switch_heads_off
from tests.models.huggingface.conftest import Shelf

PACKAGE = Path(attnctl.__file__).parent
KINDS = {"Stack", "OpenedStack", "Checkpoint", "OpenedCheckpoint", "GivenQKV"}


def asked_kinds(path: Path) -> Iterator[str]:
    """Yield the places of a file that compare the kind of a model, or ask whether it is of a class of models."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            parts = [ast.unparse(part) for part in (node.left, *node.comparators)]
            is_asked = any(part.endswith(("info.kind", ".model.kind")) for part in parts)
        else:
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            names = {getattr(part, "id", getattr(part, "value", None)) for part in ast.walk(node)} if called else set()
            is_asked = called in ("isinstance", "cast") and any(
                name in KINDS for name in names if isinstance(name, str)
            )
        if is_asked:
            yield f"{path.name}:{node.lineno}"


def test_the_search_for_kinds_finds_them(tmp_path: Path) -> None:
    lines = 'if model.info.kind == "checkpoint" or isinstance(model, (Stack, int)): pass\nif trace.model.kind != "dot": pass\n'
    (tmp_path / "a.py").write_text(
        lines + 'if model.kind == "cross" or isinstance(model, CanIntervene): pass\nx = cast("Stack", model)\n'
    )
    assert sorted(asked_kinds(tmp_path / "a.py")) == ["a.py:1", "a.py:1", "a.py:2", "a.py:4"]


def test_no_kind_of_a_model_is_asked_outside_of_models() -> None:
    files = (path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "models")
    assert [place for path in files for place in asked_kinds(path)] == []


@pytest.fixture
def given(tmp_path: Path) -> Model:
    """Return Q, K and V of two tokens, which no model computed."""
    np.savez(tmp_path / "rows.npz", Q=np.eye(2), K=np.eye(2), V=np.eye(2))
    return open_model(qkv=str(tmp_path / "rows.npz"))


def test_what_each_model_can_do(given: Model, shelf: Shelf) -> None:
    both = (CanIntervene, CanBeWatched, HasVocabulary, SharesPasses)
    demo, checkpoint = open_model("demo"), open_model(shelf("llama"))
    assert all(isinstance(model, protocol) for model in (demo, checkpoint) for protocol in both)
    assert not any(isinstance(given, protocol) for protocol in both)
    assert [isinstance(model, BringsText) for model in (given, demo, checkpoint)] == [True, False, False]
    of_checkpoints = (Generates, CallsNetwork, AnswersPrompts, AlignsTexts, HearsSpeech, ShowsOutputs)
    for protocol in of_checkpoints:
        assert [isinstance(model, protocol) for model in (given, demo, checkpoint)] == [False, False, True]


def test_numbers_that_are_given_have_no_heads_to_switch_off(given: Model) -> None:
    with pytest.raises(AttnctlError, match="rows has no heads to switch off: its numbers are given"):
        watched_text(given, "0 1")
    with pytest.raises(UsageError, match="rows has no heads to switch off: its numbers are given"):
        switch_heads_off(given, "0")


def test_heads_off_are_named_and_come_back(shelf: Shelf) -> None:
    for name in ("demo", shelf("llama")):
        model = open_model(name)
        off = switch_heads_off(model, "0.1")
        assert off.info == replace(model.info, name=f"{model.info.name} without 0.1", off={0: (1,)})
        watched = watched_text(off, "Alice will eat")
        assert watched.info == model.info and watched.base.heads == {0: (1,)}
