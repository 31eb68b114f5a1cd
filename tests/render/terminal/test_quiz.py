"""A question of the quiz on terminals of several widths."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.text import Text

from attnctl.render.terminal.learning import Beside


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_choice_is_cut_from_its_letter(width: int) -> None:
    words = ("My", "sister", "bought", "fresh", "bread", "because", "she", "was", "hungry")
    choices = tuple(f"{chr(ord('a') + at)}) {word}" for at, word in enumerate(words))
    console = Console(width=width)
    with console.capture() as captured:
        console.print(Beside(Text("1/5"), choices))
    lines = [line.strip() for line in captured.get().splitlines()]
    assert max(map(len, captured.get().splitlines())) <= width
    found = [part for line in lines for part in line.removeprefix("1/5").strip().split("   ") if part]
    assert found == list(choices)
