"""The page of `view --effects`: tokens shaded by weight and by effect, and what the chosen head does, in a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.render.page.conftest import Tab

TEXT = "Alice will eat"


def test_tokens_are_shaded_by_weight_and_by_effect(tab: Tab) -> None:
    tab.view(TEXT, "--effects")
    effects = tab.run("ablate", TEXT, "--edges", "--json").json
    tokens = "[...document.querySelectorAll(`.matters-line[data-kind=${arguments[0]}] .token`)]"
    titles = f"return {tokens}.map((token) => token.title)"
    for title, edge in zip(tab.js(titles, "effect"), effects["edges"], strict=True):
        assert float(title.replace("\u2212", "-")) == pytest.approx(edge["log_probability"], abs=6e-4)
    assert sum(map(float, tab.js(titles, "weight"))) == pytest.approx(1, abs=1e-3)
    most = max(effects["edges"], key=lambda edge: abs(edge["log_probability"]))["key"]
    colours = tab.js(f"return {tokens}.map((token) => token.style.backgroundColor)", "effect")
    assert colours[most] not in ("rgba(0, 0, 0, 0)", "transparent")
    said = tab.text("#matters-head")
    assert "Without head" in said and effects["tokens"][most]["text"] in said
    tab.view(TEXT)
    assert tab.js("return document.getElementById('matters').hidden") is True


def test_a_page_of_effects_shades_the_text(tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "effects.html"
    assert tab.run("ablate", TEXT, "--edges", "-o", path).code == 0
    tab.driver.get(path.as_uri())
    shown = "[...document.querySelectorAll('span[data-map]')].map((n) => [n.textContent, getComputedStyle(n).backgroundColor])"
    texts, colours = zip(*tab.js(f"return {shown}"), strict=True)
    assert list(texts) == TEXT.split()
    for edge in tab.run("ablate", TEXT, "--edges", "--json").json["edges"]:
        red, _, blue = map(int, re.findall(r"\d+", colours[edge["key"]])[:3])
        size = edge["log_probability"]
        assert (red < blue if size < 0 else red > blue) or abs(size) < 0.05  # less is blue, more is red
