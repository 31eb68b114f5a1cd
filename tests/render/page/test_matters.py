"""The page of `view --effects`: tokens shaded by weight and by effect, and what the chosen head does, in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

from tests.render.page.test_page import Tab, browser, in_browser, tab  # noqa: F401

TEXT = "Alice will eat"


@in_browser
def test_tokens_are_shaded_by_weight_and_by_effect(run: Callable[..., Any], tab: Tab, tmp_path: Path) -> None:  # noqa: F811
    target = tmp_path / "page.html"
    assert run("view", TEXT, "--effects", "-o", str(target), "--no-open").code == 0
    effects = run("ablate", TEXT, "--edges", "--json").json
    tab.go(target.as_uri())
    titles = tab.js(
        "return [...document.querySelectorAll('.matters-line[data-kind=effect] .token')].map((t) => t.title)"
    )
    for title, edge in zip(titles, effects["edges"], strict=True):
        assert float(title.replace("\u2212", "-")) == pytest.approx(edge["log_probability"], abs=6e-4)
    weights = tab.js(
        "return [...document.querySelectorAll('.matters-line[data-kind=weight] .token')].map((t) => t.title)"
    )
    assert sum(map(float, weights)) == pytest.approx(1, abs=1e-3)
    most = max(effects["edges"], key=lambda edge: abs(edge["log_probability"]))
    colours = tab.js(
        "return [...document.querySelectorAll('.matters-line[data-kind=effect] .token')]"
        ".map((t) => t.style.backgroundColor)"
    )
    assert colours[most["key"]] not in ("rgba(0, 0, 0, 0)", "transparent")
    said = tab.js("return document.getElementById('matters-head').innerText")
    assert "Without head" in said and effects["tokens"][most["key"]]["text"] in said


@in_browser
def test_without_effects_the_section_is_hidden(run: Callable[..., Any], tab: Tab, tmp_path: Path) -> None:  # noqa: F811
    target = tmp_path / "page.html"
    run("view", TEXT, "-o", str(target), "--no-open")
    tab.go(target.as_uri())
    assert tab.js("return document.getElementById('matters').hidden") is True


def test_effects_of_what_makes_no_prediction_are_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    page = str(tmp_path / "page.html")
    assert "makes none" in refused("view", TEXT, "--model", "random", "--effects", "-o", page, code=2)
    assert "it goes with one source" in refused("view", "demo", "random", TEXT, "--effects", "-o", page, code=2)
