"""What a terminal would show, as a file: plain text, or a picture of the terminal."""

from __future__ import annotations

import io
import re

from rich.console import RenderableType

from attnctl.render.terminal.console import SafeConsole

WIDTH = 100


def as_text(content: RenderableType, width: int = WIDTH) -> str:
    """The renderable as plain text, no line wider than `width` cells."""
    page = io.StringIO()
    SafeConsole(file=page, width=width, color_system=None).print(content)
    return page.getvalue()


def as_svg(content: RenderableType, title: str, width: int = WIDTH) -> str:
    """The renderable as an SVG picture of a terminal, its fonts those of the reader's machine: nothing is fetched."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.terminal_theme import SVG_EXPORT_THEME

    console = SafeConsole(
        file=io.StringIO(),
        width=width,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(content)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace")
    return console.export_svg(title=title, code_format=form, theme=SVG_EXPORT_THEME, unique_id="attnctl")
