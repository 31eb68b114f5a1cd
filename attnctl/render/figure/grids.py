"""What every picture of numbers is made of: grids side by side, their labels, and a colour bar for each scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from matplotlib.colors import CenteredNorm, Colormap, LogNorm, Normalize
from matplotlib.figure import Figure

from attnctl.arrays import Bools, Floats
from attnctl.tokens import Token

UNKNOWN = "† not among the words the model knows"


@dataclass(frozen=True)
class Scale:
    """Colours for numbers, and what the numbers are."""

    norm: Normalize
    colours: Colormap
    unit: str

    def cell_number(self, value: float) -> str:
        """A number as it stands in a cell: two decimals; on a logarithmic scale one digit and its power of ten."""
        if isinstance(self.norm, LogNorm) and 0 < value < 0.1:
            return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")
        text = f"{value:+.2f}" if isinstance(self.norm, CenteredNorm) else f"{value:.2f}"
        return text[1:] if text in ("-0.00", "+0.00") else text


class Panel(NamedTuple):
    """One grid: where it stands, its name, its numbers, and which scale gives their colours."""

    row: int
    column: int
    name: str
    array: Floats  # (rows, columns)
    mask: Bools | None = None  # (rows, columns), false where there is no number to show
    scale: int = 0


@dataclass(frozen=True)
class Grids:
    """A picture: panels in rows and columns, all with the same labels."""

    panels: tuple[Panel, ...]
    rows: tuple[str, ...]  # labels at the left
    columns: tuple[str, ...]  # labels above
    scales: tuple[Scale, ...]
    title: str = ""
    said: tuple[str, ...] = ()  # what was done to the numbers
    axes: tuple[str, str] = ("query", "key")  # what goes down, what goes across
    row_names: tuple[str, ...] = ()  # of the rows of panels, where these are named
    hidden: str = "masked"  # what a hatched cell is
    cited: str = ""  # what the numbers come from, for the metadata

    @property
    def panel_counts(self) -> tuple[int, int]:
        """Rows and columns of panels."""
        return 1 + max(panel.row for panel in self.panels), 1 + max(panel.column for panel in self.panels)

    @property
    def is_masked(self) -> bool:
        """Whether a cell is hatched."""
        return any(panel.mask is not None and not panel.mask.all() for panel in self.panels)


class TextSetting(TypedDict, total=False):
    """How a text is set, in the words of matplotlib."""

    color: str
    ha: str
    va: str
    rotation: float
    rotation_mode: str


class Drawing(NamedTuple):
    """A picture, and what a user should know about it, in sentences."""

    figure: Figure
    notes: tuple[str, ...]


def token_labels(tokens: Sequence[Token]) -> tuple[str, ...]:
    """Tokens as labels, marked † where the model does not know them."""
    return tuple(token.text + "†" * token.unknown for token in tokens)
