"""The console that every table is written through; and what it would show, as a file: plain text, or a picture of it."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment

from attnctl.text import harmless_line, harmless_text

SAVED_WIDTH = 100  # cells
NARROWEST = 20  # cells of a terminal that lines are laid out for; one that is narrower breaks them
WIDEST = 10_000  # cells that a line fills: no terminal has them, and $COLUMNS may be any number


class SafeConsole(Console):
    """A rich Console without markup of its own, which writes no control character but those that rich makes itself.

    It is NARROWEST cells wide at least, as what is laid out for fewer says nothing, and WIDEST at most.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**({"highlight": False, "markup": False, "emoji": False} | how))

    @property
    def size(self) -> ConsoleDimensions:
        """Cells across and down."""
        found = super().size
        return ConsoleDimensions(min(max(NARROWEST, found.width), WIDEST), found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, their text made harmless."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(harmless_line(segment.text), segment.style)


def as_text(content: RenderableType, width: int = SAVED_WIDTH) -> str:
    """The renderable as plain text, no line wider than `width` cells."""
    page = io.StringIO()
    SafeConsole(file=page, width=width, color_system=None).print(content)
    return page.getvalue()


def as_svg(content: RenderableType, title: str, cited: str = "") -> str:
    """The renderable as an SVG picture of a terminal, its fonts those of the reader's machine: nothing is fetched.

    `cited`, what the numbers come from, is its description.
    """
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.terminal_theme import SVG_EXPORT_THEME

    console = SafeConsole(
        file=io.StringIO(),
        width=SAVED_WIDTH,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(content)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace")
    if cited:
        said = html.escape(harmless_text(cited)).replace("{", "{{").replace("}", "}}")
        form = form.replace(">", f"><desc>{said}</desc>", 1)
    return console.export_svg(title=title, code_format=form, theme=SVG_EXPORT_THEME, unique_id="attnctl")
