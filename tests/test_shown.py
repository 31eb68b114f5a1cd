"""The terminal shows what it showed: tests/shown holds it, and `python -m tests.tools.shown` writes it anew."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tools import shown


@pytest.mark.parametrize("case", shown.CASES, ids=lambda case: case.stem)
def test_the_terminal_shows_what_is_stored(case: Path, room: Path) -> None:
    stored = case.read_text(encoding="utf-8")
    if any(f" {name}" in stored.splitlines()[0] for name in ("llama", "bert")) and find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    assert shown.shown(case, room) == stored
