"""Makes the pictures of the documentation, `attnctl/docs/pictures`; see `python -m tests.tools.documentation --help`."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.tools.documentation.examples import ROOT

FOLDER = ROOT / "attnctl/docs/pictures"
MARY, MAT = "Mary thanked Tom because he likes tea", "The cat sat on the mat because it is warm"
PRONOUN, BY_MEANING = "pronoun → antecedent", "it → its noun, by meaning"

# file → relation that the head was measured to find (None: attnctl chooses), arguments of attnctl
DRAWN: dict[str, tuple[str | None, list[str]]] = {
    "explain.svg": (None, ["explain", "Alice will eat pizza"]),
    "heatmap.png": (PRONOUN, ["heatmap", MARY]),
    "two-layers.png": (BY_MEANING, ["heatmap", MAT]),
}

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
CAT = "The cat that chased the dog ran"
SHOTS = {  # file: arguments of view, width, most height, colour scheme
    "page-light.png": (["Alice will eat pizza"], 1180, 1480, "light"),
    "page-dark.png": ([CAT], 1180, 1240, "dark"),
    "page-phone.png": (["Alice will eat pizza"], 390, 1700, "light"),
    "page-print.png": ([CAT], 794, 1123, "print"),
    "page-compare.png": (["demo", "random", "Alice will eat pizza"], 1180, 1110, "light"),
}


def make(what: str, run: str | None) -> None:
    """The pictures anew: all of them, or for "evolution" that of a training alone."""
    if what in ("pictures", "all"):
        for name, (relation, arguments) in DRAWN.items():
            attnctl(*arguments, *(() if relation is None else head_that_finds(relation)), "-o", str(FOLDER / name))
        batch = str(ROOT / "samples/packed.json")
        subprocess.run(
            [sys.executable, "-m", "attnctl", "leaks", batch, "--model", "smollm2", "-o", str(FOLDER / "leaks.png")],
            check=False,  # what leaks ends with 1
        )
        take_screenshots()
        take_photograph()
    if what in ("evolution", "all") or run is not None:
        draw_training(run)


def attnctl(*arguments: str) -> None:
    """Run the command line."""
    subprocess.run([sys.executable, "-m", "attnctl", *arguments], check=True, stdout=subprocess.DEVNULL)


def head_that_finds(relation: str) -> list[str]:
    """--layer and --head of what demo was measured to find."""
    from tests.tools.documentation.__main__ import heads_of_relations

    layer, head = heads_of_relations()[relation]
    return ["--layer", str(layer), "--head", str(head)]


def draw_training(run: str | None) -> None:
    """One head over the steps of a training: of the folder `run`, or of one that is made now."""
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            run = f"{folder}/run"
            attnctl("train", "-o", run)
        head = head_that_finds(PRONOUN)
        attnctl("film", run, MARY, *head, "-o", str(FOLDER / "evolution.png"))


def take_screenshots() -> None:
    """Every picture of the page."""
    with browser() as driver, tempfile.TemporaryDirectory() as folder:
        for name, (arguments, width, height, scheme) in SHOTS.items():
            page = Path(folder) / f"{name}.html"
            attnctl("view", *arguments, "--no-open", "-o", str(page))
            (FOLDER / name).write_bytes(shot(driver, page.as_uri(), width, height, scheme))


def take_photograph() -> None:
    """The photograph of the page with the words below it: where CLS of DINOv2-small looks."""
    from matplotlib import get_data_path

    from tests.tools import dinov2

    photograph = Path(get_data_path()) / "sample_data" / "grace_hopper.jpg"
    with browser() as driver, tempfile.TemporaryDirectory() as folder:
        model, page = str(dinov2.write_small(Path(folder) / "dinov2")), Path(folder) / "page.html"
        attnctl("view", str(photograph), "--model", model, "--layer", "11", "--no-open", "-o", str(page))
        (FOLDER / "photograph.png").write_bytes(shot(driver, page.as_uri(), 580, 10**4, "light", ".sentence"))


@contextmanager
def browser() -> Iterator[Any]:
    """A Chromium without a window."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as folder:
        for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def shot(driver: Any, address: str, width: int, height: int, scheme: str, part: str | None = None) -> bytes:
    """A PNG of the top of the page, or of the part that a selector names."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    look = [{"name": "prefers-color-scheme", "value": "dark" if scheme == "dark" else "light"}]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": look})
    driver.get(address)
    while not driver.execute_script("return document.documentElement.dataset.ready"):
        time.sleep(0.02)
    if scheme == "print":
        driver.execute_script("document.documentElement.style.padding = '12mm 14mm'; paper(true)")
    time.sleep(0.3)  # until colours have faded in
    tall = driver.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(tall, height), "scale": 1}
    if part is not None:
        box = driver.execute_script(
            "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", part
        )
        clip |= {"y": box["y"], "height": box["height"]}
    picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(picture["data"])
