"""Pages: one of 12 layers × 12 heads × 512 tokens: how large the file is, and how long Chromium takes to open it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.tools.benchmarks.measuring import Row, benchmark, seconds_of


@benchmark(quick=False)
def page() -> Iterator[Row]:
    """Yield pages of dense random scores of several spreads: the hardest to pack."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    from attnctl.render.page.trace_page import page_html
    from tests.render.page.conftest import FLAGS, Tab
    from tests.render.page.test_page import large

    for spread in (0.5, 4.0):
        trace = large(512, 12, 12, spread)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "page.html")
            made = seconds_of(lambda trace=trace, file=file: file.write_text(page_html([trace])))
            options = webdriver.ChromeOptions()
            options.binary_location = shutil.which("chromium") or ""
            for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
                options.add_argument(flag)
            driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
            tab = Tab(driver, Path(folder), lambda *_: None)
            tab.go(file.as_uri())
            opened = tab.js("return performance.now()") / 1000
            driver.quit()
            size = file.stat().st_size / 1e6
        what = f"page of 144 heads × 512 tokens, spread {spread}"
        yield Row(f"{what}: size", "", size, "MB", most=45, ours=f"made in {made:.1f} s")
        yield Row(f"{what}: opening", "Chromium", opened, "s", most=3)
