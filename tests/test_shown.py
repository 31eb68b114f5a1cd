"""The screens that people know attnctl by: tests/shown holds them, and `python -m tests.tools.shown` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools import shown


@pytest.mark.parametrize("case", shown.CASES, ids=lambda case: case.stem)
def test_the_terminal_shows_what_is_stored(case: Path, room: Path) -> None:
    assert shown.shown(case, room) == case.read_text(encoding="utf-8")
