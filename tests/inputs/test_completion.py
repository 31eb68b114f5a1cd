"""Completion: what an option takes, in a user's own shell and at the prompt of attnctl shell."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import matplotlib
import pytest

from attnctl.cli.session import Session
from attnctl.commands.shell import _completer
from attnctl.models import open_model


def completed(line: str, text: str = "Alice will eat pizza") -> set[str]:
    """Return what the last word of a line at the shell's prompt may become."""
    asked = _completer(Session(text), lambda: line, lambda: line.rfind(" ") + 1)
    return set(itertools.takewhile(bool, (asked(line.rpartition(" ")[2], at) for at in itertools.count())))


def test_values_are_what_the_commands_take() -> None:
    assert {"demo", "random", "smollm2"} <= completed("explain --model ")
    assert completed("heatmap --cmap ") <= {*matplotlib.colormaps, "heat"}  # the map of the pages
    for name in ("demo", "random", "dot"):
        assert open_model(name)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("expl", {"explain"}),
        ("explain --que", {"--query"}),
        ("explain --query e", {"eat"}),
        ('explain "Bob likes tea" --query l', {"likes"}),
        ("heatmap --cmap mag", {"magma"}),
        ("heads --by indu", {"induction"}),
        ("use smol", {"smollm2"}),
        ("model gpt2-m", {"gpt2-medium"}),
        ("compare demo ran", {"random"}),
        ("batch lines.txt --format png,js", {"png,json"}),
        ("explain --steps queries,ke", {"queries,keys"}),
        ("explain --query Alice,p", {"Alice,pizza"}),
        ("explain --drop first,sp", {"first,special"}),
        ("explain --dtype bf", {"bfloat16"}),
        ("explain --model random,de", set()),
        ("nothing here", set()),
    ],
)
def test_at_the_prompt(line: str, wanted: set[str]) -> None:
    assert completed(line) == wanted


def test_in_a_users_own_shell() -> None:
    line = "attnctl explain 'Alice will eat' --query e"
    asked = {"_ATTNCTL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "4"}
    code = "import sys; sys.argv = ['attnctl']; from attnctl.cli.app import run_command_line; run_command_line()"
    told = subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True)
    assert told.stdout.split() == ["eat"] and told.stderr == ""
