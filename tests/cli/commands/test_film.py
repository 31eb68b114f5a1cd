"""`attnctl film`: a moving picture, a strip and a page of the same steps of a training run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from attnctl.models.builtin.weights import path_of
from tests.conftest import Refused, Result, Run

TEXT = "Alice will eat pizza"


@pytest.fixture
def training(_here: None) -> Path:
    """A run with three steps, of which two have their loss told."""
    Path("run").mkdir()
    for step in (0, 10, 100000):
        Path(f"run/step-{step:06d}.safetensors").write_bytes(path_of("demo").read_bytes())
    Path("run/metrics.jsonl").write_text('{"step": 10, "loss": 2.5}\n{"step": 0, "loss": null}\n')
    return Path("run")


def test_a_page_has_every_step_and_every_head(
    run: Run, refused: Refused, training: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNCTL_CMAP", "magma")  # a default of the user's own, which no page has
    assert run("film", "run", TEXT, "-o", "film.html", "--log", "--title", "Steps") == Result(0, "film.html\n", "")
    html = Path("film.html").read_text()
    page = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert page["mode"] == "steps" and page["start"]["colour"] == "log" and "<title>Steps</title>" in html
    assert [t["label"] for t in page["traces"]] == ["step 0", "step 10, loss 2.50", "step 100,000"]
    assert {t["model"]["name"] for t in page["traces"]} == {path.stem for path in training.glob("step-*")}
    assert {len(layer["heads"]) for t in page["traces"] for layer in t["layers"]} == {6}
    assert "a page has heat, viridis and cividis" in refused(
        "film", "run", TEXT, "-o", "a.html", "--cmap", "hot", code=2
    )
    assert run("film", "run", TEXT, "-o", "a.gif", "--cmap", "magma").code == 0


def test_an_unknown_word_is_noted_once_for_all_steps(run: Run, training: Path) -> None:
    """There was a line for each step, which named it."""
    noted = run("film", "run", "zqxj zqxk zqxl", "-o", "film.html").err
    assert noted.count("does not know") == 1
