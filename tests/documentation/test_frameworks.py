"""The page of frameworks has the cells that torch and attnctl give here; the others need packages that only its tool asks for."""

from __future__ import annotations

import pytest

from tests.tools import frameworks


@pytest.mark.parametrize(
    "name", [name for name, (package, _) in frameworks.FRAMEWORKS.items() if package in ("torch", "")]
)
def test_the_page_has_what_a_framework_gives(name: str) -> None:
    lines = [line for line in frameworks.PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = next(line.strip("| ").split(" | ") for line in lines if line.startswith(f"| {name} |"))
    assert cells[2:] == frameworks.cells_of(name)[2:]
    assert len(lines) == 2 + len(frameworks.FRAMEWORKS) and not any("|  |" in line for line in lines)
