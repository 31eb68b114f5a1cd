"""The console that every table and page of the terminal is written through."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from attnctl.text import harmless


class SafeConsole(Console):
    """A rich Console without markup of its own, which writes no control character but those that rich makes itself."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**({"highlight": False, "markup": False, "emoji": False} | how))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, their text made harmless."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)
