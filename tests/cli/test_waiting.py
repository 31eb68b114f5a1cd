"""A command that has said nothing for a second says on a terminal that it works, and nothing of that in a pipe."""

from __future__ import annotations

import io
import sys
import time

import pytest

from attnctl.cli import output, progress


@pytest.mark.parametrize(("quiet", "wait"), [(False, 0.2), (True, 0.2), (False, 0.0)])
def test_the_line_stands_until_anything_is_written(quiet: bool, wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    page, screen = io.StringIO(), io.StringIO()
    monkeypatch.setattr(progress, "SILENT", 0.05)
    monkeypatch.setattr(output, "quiet", quiet)
    monkeypatch.setattr(sys, "stdout", page)
    monkeypatch.setattr(sys, "stderr", screen)
    with progress.waiting_told():
        time.sleep(wait)
        print("a result")
        time.sleep(0.1)
        print("a note", file=sys.stderr)
    line = "attnctl: working …\r\x1b[K" if wait and not quiet else ""
    assert (page.getvalue(), screen.getvalue()) == ("a result\n", f"{line}a note\n")
    assert sys.stdout is page and sys.stderr is screen
