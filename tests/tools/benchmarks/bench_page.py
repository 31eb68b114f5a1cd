"""The page of 12 layers × 12 heads × 512 tokens: `python tests/tools/benchmarks/bench_page.py`.

Prints how large the file is, how long it takes to make, and how long Chromium takes to open it and to change the head.
Budget: 45 MB, 3 s. Asserts nothing. Dense random scores of several spreads: the hardest to pack.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from attnctl.render.page import page_html
from tests.render.page.conftest import FLAGS, Tab
from tests.render.page.test_page import large


def main() -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    for spread in (0.5, 1.0, 2.0, 4.0):
        trace = large(512, 12, 12, spread)
        start = time.perf_counter()
        html = page_html([trace])
        made = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as folder:
            options = webdriver.ChromeOptions()
            options.binary_location = shutil.which("chromium") or ""
            for flag in (*FLAGS, f"--user-data-dir={folder}/profile"):
                options.add_argument(flag)
            driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
            tab = Tab(driver, Path(folder), lambda *_: None)
            (Path(folder) / "page.html").write_text(html)
            tab.go((Path(folder) / "page.html").as_uri())
            opened = tab.js("return performance.now()") / 1000
            start = time.perf_counter()
            tab.js("return choose({ layer: 7, head: 5 })")
            changed = time.perf_counter() - start
            levels = tab.js("return TRACES[0].levels")
            driver.quit()
        print(
            f"spread {spread}: {len(html) / 1e6:5.1f} MB, {levels} steps   made {made:.1f} s   "
            f"opened {opened:.2f} s   another head {changed:.2f} s"
        )


if __name__ == "__main__":
    main()
