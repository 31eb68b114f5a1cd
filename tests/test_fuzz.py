"""The fuzzer at work for a few seconds: its finds of before are mended, and a fixed seed finds nothing new."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import fuzz


def test_finds_of_before_and_a_fixed_seed() -> None:
    before = fuzz.FINDS.read_text(encoding="utf-8")
    command = [sys.executable, "-m", "tests.tools.fuzz", "--minutes", "0.04", "--seed", "0"]
    done = subprocess.run(command, capture_output=True, timeout=300, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert fuzz.FINDS.read_text(encoding="utf-8") == before


def test_the_fuzzer_finds_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"arguments": ["explain", "Alice", "-m", "\x1b[2J"], "files": {}, "stdin": ""}
    assert fuzz.played(case) is None
    monkeypatch.setattr("attnctl.errors.visible_text", lambda message: "\x1b[2J")
    assert "control characters" in str(fuzz.played(case))
