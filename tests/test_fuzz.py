"""The fuzzer at work for a few seconds: its finds of before are mended, and a fixed seed finds nothing new."""

from __future__ import annotations

from itertools import chain, islice

import pytest

from attnctl.registry import COMMANDS
from tests.tools import fuzz


def test_finds_of_before_and_a_fixed_seed() -> None:
    finds: list[tuple[object, str]] = []
    kept = (case for case in fuzz.kept() if case["arguments"][:1] in [[], *([name] for name in COMMANDS)])
    cases = chain(kept, islice(fuzz.random_cases(seed=0), 30))
    assert fuzz.play_cases(cases, lambda case, found: finds.append((case["arguments"], found))) > 30
    assert not finds


def test_the_fuzzer_finds_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"arguments": ["explain", "Alice", "-m", "\x1b[2J"], "files": {}, "stdin": ""}
    assert fuzz.played(case) is None
    monkeypatch.setattr("attnctl.errors.visible_text", lambda message: "\x1b[2J")
    assert "control characters" in str(fuzz.played(case))
