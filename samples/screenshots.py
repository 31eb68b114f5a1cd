"""Makes the pictures of the page: python samples/screenshots.py (needs Chromium, chromedriver and selenium)."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

HERE = Path(__file__).parent
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
CAT = "The cat that chased the dog ran"
SHOTS = {  # name: arguments of view, width, most height, colour scheme
    "page-light": (["Alice will eat pizza"], 1180, 1480, "light"),
    "page-dark": ([CAT], 1180, 1240, "dark"),
    "page-phone": (["Alice will eat pizza"], 390, 1700, "light"),
    "page-print": ([CAT], 794, 1123, "print"),
    "page-compare": (["demo", "random", "Alice will eat pizza"], 1180, 1110, "light"),
}


def main() -> None:
    """Every picture anew."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as folder:
        for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            for name, (arguments, width, height, scheme) in SHOTS.items():
                page = Path(folder) / f"{name}.html"
                command = [sys.executable, "-m", "attnctl", "view", *arguments, "--no-open", "-o", str(page)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                (HERE / f"{name}.png").write_bytes(shot(driver, page.as_uri(), width, height, scheme))
        finally:
            driver.quit()


def shot(driver: Any, address: str, width: int, height: int, scheme: str) -> bytes:
    """A PNG of the top of the page."""
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
    picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(picture["data"])


if __name__ == "__main__":
    main()
