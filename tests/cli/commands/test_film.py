"""`attnctl film`: a moving picture, a strip and a page of the same steps of a training run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from attnctl import render
from attnctl.models.builtin.weights import path_of
from attnctl.readings import Evolution
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


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Evolution]:
    """What the strips of this test show."""
    shown: list[Evolution] = []
    draw = render.draw_strip
    monkeypatch.setattr(render, "draw_strip", lambda film, look: shown.append(film) or draw(film, look))
    return shown


@pytest.mark.parametrize("chosen", ["0", "1,2", "0-3"])
def test_of_the_chosen_heads_the_most_telling_is_drawn(
    run: Run, _here: None, chosen: str, drawn: list[Evolution]
) -> None:
    """The head with the largest weight on another token, by NumPy; the first of the chosen ones was drawn."""
    rng = np.random.default_rng(9)
    words, (queries, keys, values) = ["a", "b", "c", "d", "e"], rng.standard_normal((3, 4, 6, 3)).astype(np.float32)
    embedding = rng.standard_normal((5, 6)).astype(np.float32)
    tensors = {"W_Q": queries, "W_K": keys, "W_V": values, "embedding": embedding}
    Path("run").mkdir()
    for step in (0, 10):
        save_file(tensors, f"run/step-{step:06d}.safetensors", metadata={"tokens": json.dumps(words)})
    scores = (embedding @ queries) @ (embedding @ keys).swapaxes(-1, -2) / np.sqrt(3)  # (heads, n, n)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    is_sink = (weights.sum(1) - weights.diagonal(0, 1, 2)) / 4 > 0.5  # (heads, n)
    on_others = (weights * (1 - np.eye(5)) * ~is_sink[:, None]).max((1, 2))  # (heads,)
    heads = {"0": [0], "1,2": [1, 2], "0-3": [0, 1, 2, 3]}[chosen]
    best = max(heads, key=lambda head: on_others[head])
    assert run("film", "run", " ".join(words), "--head", chosen, "-o", "film.png").code == 0
    assert drawn[0].name == f"run, head {best}"
    for grid in drawn[0].grids:
        np.testing.assert_allclose(grid.weights[0, best], weights[best], atol=1e-6)


def test_the_title_names_a_measure_and_heads_that_are_off(
    run: Run, refused: Refused, training: Path, drawn: list[Evolution]
) -> None:
    asked = ("film", "run", TEXT, "--measure")
    for measure in ("rollout", "value-norm", "weights"):
        assert run(*asked, measure, "-o", "film.png").code == 0
    names = [re.sub(r"\d", "N", film.name) for film in drawn]
    assert run("film", "run", TEXT, "--off", "1.2,0.3", "-o", "film.png").code == 0
    assert drawn[-1].name.startswith("run without 0.3, 1.2, layer ")
    assert names == ["run, layer N, rollout of all heads", "run, layer N, head N, value norms", "run, layer N, head N"]
    assert "it is of all heads together" in refused(*asked, "rollout", "--head", "2", "-o", "a.png", code=2)
