"""A question of the quiz on terminals of several widths."""

from __future__ import annotations

import pytest
from rich.console import Console

from attnctl.readings.questions.quiz import QuizQuestion
from attnctl.render.terminal.console import Shown
from attnctl.render.told.quiz import question_forms


@pytest.mark.parametrize("width", [40, 80, 160])
def test_no_choice_is_cut_from_its_letter(width: int) -> None:
    words = ("My", "sister", "bought", "fresh", "bread", "because", "she", "was", "hungry")
    console = Console(width=width)
    with console.capture() as captured:
        console.print(Shown(question_forms(QuizQuestion("", "Who?", "My", "", choices=words), 1, 5)))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width and lines[1].split() == ["1/5", "Who?"]
    found = [part for line in lines[2:] for part in line.strip().split("   ") if part]
    assert found == [f"{chr(ord('a') + at)}) {word}" for at, word in enumerate(words)]
