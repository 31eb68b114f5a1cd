"""A page is whole when its load event comes: what takes pictures and prints waits for nothing else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.render.page.conftest import BROWSER


def loaded(page: Path, profile: Path) -> str:
    """The document at its load event."""
    if BROWSER is None:
        pytest.skip("there is no browser")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--dump-dom"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["Alice will eat pizza"],
            '<b>eat</b> pays 100 % of its attention to <b>Alice</b>.<span class="certainty"> sure',
        ),
        (["Alice will ____ pizza"], '<span class="certainty"> unsure'),
        (["demo", "random", "Alice will eat pizza"], "pays"),
    ],
)
def test_a_page_is_drawn_at_its_load_event(arguments: list[str], says: str, run: Run, tmp_path: Path) -> None:
    """It said "Loading …" there."""
    assert run("view", *arguments, "--no-open", "-o", tmp_path / "page.html").code == 0
    document = loaded(tmp_path / "page.html", tmp_path / "profile")
    assert 'data-ready="true"' in document and says in document


def test_what_a_head_looks_like_stands_beside_its_number_and_the_text_above_its_effects(
    run: Run, tmp_path: Path
) -> None:
    """The names of heads were the last of twenty columns, and no page of effects said which text it was about."""
    run("heads", "Alice will eat pizza", "-o", tmp_path / "heads.html")
    page = (tmp_path / "heads.html").read_text()
    assert re.findall(r"<th[^>]*>([^<]+)", page[: page.index("<tbody>")])[:3] == ["layer", "head", "looks like"]
    run("ablate", "Alice will <eat>", "-o", tmp_path / "ablate.html")
    assert "<b>Alice will &lt;eat&gt;</b>" in (tmp_path / "ablate.html").read_text()
