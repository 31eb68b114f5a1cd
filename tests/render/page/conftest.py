"""A page in a real browser, and what a reader does there: choose, point, press keys, copy, and read what is shown."""

from __future__ import annotations

import csv
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest

from attnctl.render.page.trace_page import page_html
from attnctl.trace import Trace
from tests.conftest import Run

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900",
)  # fmt: skip


class Tab:
    """A tab of the browser, which the command line may write a page for."""

    def __init__(self, driver: Any, folder: Path, run: Run) -> None:
        self.driver, self.folder, self.run, self.count = driver, folder, run, 0

    def open(self, *traces: Trace, fragment: str = "", **options: Any) -> None:
        self.show(page_html(traces, **options), fragment)

    def show(self, html: str, fragment: str = "") -> None:
        self.count += 1
        path = self.folder / f"page-{self.count}.html"
        path.write_bytes(html.encode())
        self.go(path.as_uri() + fragment)

    def view(self, *args: Any) -> None:
        """What `attnctl view ARGS…` makes."""
        path = self.folder / "viewed.html"
        result = self.run("view", *args, "-o", path)
        assert result.code == 0, result.err
        self.go(path.as_uri())

    def go(self, address: str) -> None:
        self.driver.get(address)
        self.wait("return document.documentElement.dataset.ready === 'true'")

    def choose(self, **what: object) -> None:
        """Follow the page's link with these choices in it."""
        address, _, chosen = self.driver.current_url.partition("#")
        self.driver.get("about:blank")
        self.go(f"{address}#{urlencode(dict(parse_qsl(chosen)) | what)}")

    def pick(self, name: str, value: int) -> None:
        """Choose from one of the lists beside the grid."""
        from selenium.webdriver.support.ui import Select

        Select(self.driver.find_element("id", f"choose-{name}")).select_by_value(str(value))

    def picked(self) -> list[str]:
        """What the lists say is chosen: query, key, layer, head."""
        named = "name => document.getElementById('choose-' + name).selectedOptions[0]?.label"
        return self.js(f"return ['query', 'key', 'layer', 'head'].map({named})")

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str, seconds: float = 10) -> None:
        self.until(lambda: self.js(condition), condition, seconds)

    def until(self, met: Callable[[], Any], told: str = "", seconds: float = 10) -> None:
        end = time.monotonic() + seconds
        while not met():
            assert time.monotonic() < end, f"not within {seconds} s: {told}\n{self.driver.get_log('browser')}"
            time.sleep(0.01)

    def says(self, selector: str, *parts: str) -> None:
        """Wait until an element holds these texts."""
        self.until(lambda: all(part in self.text(selector) for part in parts), f"{selector}: {parts}")

    def text(self, selector: str) -> str:
        return self.js("return document.querySelector(arguments[0]).textContent", selector)

    def texts(self, selector: str) -> list[str]:
        return self.js("return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector)

    def click(self, selector: str, at: int = 0) -> None:
        self.js("document.querySelectorAll(arguments[0])[arguments[1]].click()", selector, at)

    def press(self, selector: str, key: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(key)

    def slide(self, selector: str, value: float, at: int = 0) -> None:
        script = "const s = document.querySelectorAll(arguments[0])[arguments[1]]; s.value = arguments[2];"
        self.js(f"{script} s.dispatchEvent(new Event('input', {{ bubbles: true }}))", selector, at, value)

    def point(self, selector: str, at: int = 0, across: float = 0.5, down: float = 0.5, click: bool = False) -> None:
        """Move the pointer to a place within an element, and click there."""
        from selenium.webdriver import ActionChains

        node = self.driver.find_elements("css selector", selector)[at]
        # where its middle would lie outside the window, the pointer does not get there
        self.js("arguments[0].scrollIntoView({ block: 'center' })", node)
        wide, high = self.js(
            "const { width, height } = arguments[0].getBoundingClientRect(); return [width, height]", node
        )
        place = int((across - 0.5) * wide), int((down - 0.5) * high)
        chain = ActionChains(self.driver).move_to_element_with_offset(node, *place)
        (chain.click() if click else chain).perform()

    def drawing(self) -> str:
        """The picture of the grid, as SVG."""
        return self.js("return document.getElementById('canvas').outerHTML")

    def copied(self) -> tuple[list[str], list[str], Any]:
        """The rows, columns and numbers that "Copy CSV" puts onto the clipboard; NaN for what is masked."""
        self.click("#copy-csv")
        self.says("#copied", "Numbers copied")
        text = self.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
        (_, *columns), *rows = csv.reader(io.StringIO(text))
        numbers = [[float(cell or "nan") for cell in row[1:]] for row in rows]
        return [row[0] for row in rows], columns, np.array(numbers, np.float32)

    def numbers(self) -> Any:
        return self.copied()[2]

    def device(self, width: int, scheme: str = "light", **more: Any) -> None:
        """Another window: its width, light or dark."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False} | more
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        dark = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)

    def asked(self) -> list[str]:
        """The addresses that were asked for since this was asked."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent]

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (BROWSER and DRIVER):
        pytest.skip("no Chromium and chromedriver on this machine")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.execute_cdp_cmd("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]})
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})  # or the clipboard is not read
    yield driver
    driver.quit()


@pytest.fixture
def tab(browser: Any, tmp_path: Path, run: Run) -> Iterator[Tab]:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    browser.get_log("browser")
    tab = Tab(browser, tmp_path, run)
    yield tab
    assert tab.complaints() == []
