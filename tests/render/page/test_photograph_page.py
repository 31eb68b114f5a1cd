"""The page of a photograph: its patches are buttons over it, which are shaded, told, chosen, and reached by the keyboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attnctl.checks import limits
from attnctl.models import open_model
from attnctl.source import record_trace
from tests.models.huggingface.test_photographs import saved
from tests.render.page.conftest import Tab

BOXES = """return [...document.querySelectorAll('.patch')].map((node) => {
  const [a, b] = [node, document.querySelector('.photograph img')].map((one) => one.getBoundingClientRect());
  return [(a.left - b.left) / b.width, (a.top - b.top) / b.height, a.width / b.width, a.height / b.height]; })"""


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    """Noise, 900 × 450 pixels."""
    pixels = np.random.default_rng(0).integers(0, 255, (450, 900, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


@pytest.mark.parametrize("width", [1200, 380])
def test_patches_lie_over_the_photograph_and_tell_their_weights(
    tab: Tab, tmp_path: Path, photograph: Path, width: int
) -> None:
    model = str(saved(tmp_path / "model", "Dinov2WithRegisters"))
    trace = record_trace(open_model(model), str(photograph))
    tab.device(width)
    tab.view(photograph, "--model", model)
    assert tab.picked()[0] == "0 [CLS]" and tab.texts(".token.special") == ["[CLS]", "[REG0]", "[REG1]"]
    patches = [token for token in trace.tokens if token.box is not None]
    boxes = np.array([token.box for token in patches]) / [900, 450, 900, 450]  # left, top, right, bottom
    asked = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
    np.testing.assert_allclose(tab.js(BOXES), asked, atol=0.003)
    assert tab.js("return document.documentElement.scrollWidth <= innerWidth")
    layer, head = (int(one.split()[0]) for one in tab.picked()[2:])
    weights: Any = trace.layers[layer].weights
    titles = tab.js("return [...document.querySelectorAll('.patch')].map((node) => node.title)")
    np.testing.assert_allclose([float(one) for one in titles], weights[head, 0, 3:], atol=6e-5)
    tab.point(".patch", 6)
    tab.says(".photograph p", f"r1c2: {titles[6]}")
    tab.point(".patch", 1, click=True)
    tab.until(lambda: tab.picked()[0] == "4 r0c1")
    for key, chosen in (("\ue015", "r1c1"), ("\ue014", "r1c2"), ("\ue013", "r0c2"), ("\ue013", "[REG0]")):
        tab.driver.switch_to.active_element.send_keys(key)
        tab.until(lambda chosen=chosen: tab.picked()[0].endswith(f" {chosen}"), chosen)


def test_two_photographs_stand_side_by_side(tab: Tab, tmp_path: Path, photograph: Path) -> None:
    Image.new("RGB", (300, 300), "red").save(tmp_path / "red.png")
    tab.view(photograph, tmp_path / "red.png", "--model", saved(tmp_path / "model", "ViT"))
    sizes = tab.js("return [...document.querySelectorAll('img')].map((one) => [one.naturalWidth, one.naturalHeight])")
    assert sizes == [[560, 280], [300, 300]]


def test_of_more_weights_than_a_page_holds_the_last_layers_are_shown(
    tab: Tab, tmp_path: Path, photograph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "model", "ViT")
    monkeypatch.setattr(limits, "PAGE_WEIGHTS", 17 * 17 * 4)
    said = tab.run("view", photograph, "--model", model, "-o", tmp_path / "page.html").err
    assert "the page holds the last 1 layer of 2: choose other layers, or heads" in said
    tab.go((tmp_path / "page.html").as_uri())
    assert "layer 1 of 2" in tab.text("#facts").replace("\u00a0", " ") and len(tab.js(BOXES)) == 16
