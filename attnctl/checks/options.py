"""Name the panels of a command's help, and read a number that is typed for an option.

An option is an `Annotated` type with Typer's `Option`. Those that several commands have are in `attnctl/cli/groups.py`; the
fields of `Look` in `attnctl/formats/pictures.py` are those of a picture.
"""

from __future__ import annotations

from collections.abc import Callable

from typer import BadParameter

from attnctl.checks import limits
from attnctl.checks.limits import Range
from attnctl.text import value_text

# the panels of a command's --help, in their order
LOOK, CHANGED, INPUT, SHOW = "What to look at", "What is changed", "What goes in", "How to show it"
MODEL, NUMBERS, PICTURE = "Model and text", "Numbers of your own", "Pictures only"
MATHEMATICS, MADE = "Mathematics", "Built-in models (random, dot)"
CHECKPOINT, WORK, OUTPUT = "Checkpoints only", "How the work is done", "Output"
PANELS = (LOOK, INPUT, SHOW, MODEL, CHANGED, PICTURE, NUMBERS, MATHEMATICS, MADE, CHECKPOINT, WORK, OUTPUT)

ONE_CALL = ""  # `envvar` of an option that takes no default of the user, because it belongs to one call


def whole(allowed: Range) -> Callable[[str | int], int]:
    """Return the `parser` of an option that is a whole number within a range."""

    def parse(text: str | int) -> int:
        try:
            number = limits.whole_number(text) if isinstance(text, str) else text
        except ValueError:
            raise BadParameter(f"{value_text(text, quoted=True)}: give a whole number in digits") from None
        _check_range(number, allowed)
        return number

    parse.__name__ = "int"  # the name of the type in Typer
    return parse


def decimal(allowed: Range) -> Callable[[str | float], float]:
    """Return the `parser` of an option that is a number within a range."""

    def parse(text: str | float) -> float:
        try:
            number = limits.decimal_number(text) if isinstance(text, str) else text
        except (ValueError, OverflowError):
            raise BadParameter(f"{value_text(text, quoted=True)}: give a number in digits") from None
        _check_range(number, allowed)
        return number

    parse.__name__ = "float"
    return parse


def _check_range(number: float, allowed: Range) -> None:
    """Raise BadParameter if a number is outside the range."""
    if not allowed.holds_value(number):
        raise BadParameter(f"{value_text(number)}: {allowed.range_text()}")
