"""How a picture is to look, whatever it shows: one value for every command, batch and notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnctl import limits
from attnctl.errors import UsageError

CMAP = "viridis"  # perceptually uniform, safe for colour-blind eyes, and in order when printed in grey
DPI = 200


@dataclass(frozen=True)
class Look:
    """Colours, size and letters of a picture. Raises UsageError for a value that cannot be."""

    cmap: str = CMAP  # a colour map of matplotlib
    size: tuple[float, float] | None = None  # (width, height) in inches; None: as large as the cells need
    dpi: float = DPI
    title: str | None = None  # None: one that says what is shown; "": none
    values: bool | None = None  # whether the numbers stand in the cells; None: where they fit and can be read
    log: bool = False  # colours on a logarithmic scale
    font_size: float | None = None  # points of the labels, and all other letters in proportion
    vmin: float | None = None  # the ends of the colour scale; None: 0 or less, and the largest weight
    vmax: float | None = None
    colour_bar: bool = True

    def __post_init__(self) -> None:
        limits.DPI.check_value("dpi", self.dpi)
        if self.font_size is not None:
            limits.FONT_SIZE.check_value("font_size", self.font_size)
        if self.vmin is not None and self.vmax is not None and self.vmin >= self.vmax:
            raise UsageError(f"--vmin {self.vmin:g} is not below --vmax {self.vmax:g}")
        if self.log and self.vmin is not None and self.vmin <= 0:
            raise UsageError(f"--vmin {self.vmin:g} has no place on a logarithmic scale: above 0, or without --log")


PLAIN = Look()


def size_in_inches(size: str) -> tuple[float, float]:
    """--size as (width, height)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*[x×,]\s*(\d+(?:\.\d+)?)", size.strip().lower())
    if not match:
        raise UsageError(f"--size {size!r}: it is WIDTHxHEIGHT in inches, like 6x4")
    width, height = float(match[1]), float(match[2])
    if not (1 <= width <= 60 and 1 <= height <= 60):
        raise UsageError(f"--size {size}: each side is 1 to 60 inches")
    return width, height
