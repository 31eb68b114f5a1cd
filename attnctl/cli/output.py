"""The one door to standard output, standard error, and the file that -o names: nothing passes it that steers a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from attnctl.errors import complain
from attnctl.text import harmless

if TYPE_CHECKING:
    from attnctl.render.terminal.console import SafeConsole

__all__ = ["complain", "console", "lines", "put", "put_json", "show"]


def lines(*texts: str) -> None:
    """Lines of plain text on standard output."""
    sys.stdout.write("".join(f"{harmless(text)}\n" for text in texts))


def console(*, stderr: bool = False, **how: Any) -> SafeConsole:
    """A console of rich for standard output, or standard error."""
    from attnctl.render.terminal.console import SafeConsole

    return SafeConsole(stderr=stderr, **how)


def show(renderable: Any, **how: Any) -> None:
    """A renderable of rich on standard output."""
    console(**how).print(renderable)


def put(data: bytes, output: str | None = None) -> None:
    """Bytes to the file that `output` names, whole or not at all; to standard output for None and "-"."""
    if output is None or output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    from attnctl.files import write_whole

    write_whole(output, data)


def put_json(document: Any, output: str | None = None) -> None:
    """A document as one line of JSON, to a file or to standard output."""
    from attnctl.text import as_json

    put(as_json(document) + b"\n", output)
