"""Show a page in the user's browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from attnctl.cli.output import say_notes


def show_in_browser(page: str) -> None:
    """Open a page in a browser, or write a note that there is none. A browser that would use the terminal is not opened."""
    windows = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")
    )
    if not (windows and webbrowser.open(Path(os.path.realpath(page)).as_uri())):
        say_notes([f"no browser was found: open {page} in a browser"])
