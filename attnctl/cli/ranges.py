"""Numeric options read in one way: ASCII digits, within the range that `limits.RANGES` gives, before any work begins."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Parameter

NUMERIC = ("int", "int range", "float", "float range")  # what Typer calls the types of numbers


def numeric_parameters(command: ClickCommand) -> list[Parameter]:
    """The parameters of a Typer command that are numbers."""
    return [parameter for parameter in command.params if parameter.type.name in NUMERIC]


def with_ranges(command: ClickCommand, name: str) -> ClickCommand:
    """The command, its numbers read by `read_number`. Raises KeyError for an option without a range."""
    for parameter in numeric_parameters(command):
        limits.range_of(parameter.name or "", name)
        whole = parameter.type.name.startswith("int")
        parameter.type = copy.copy(parameter.type)
        parameter.type.convert = partial(_converted_number, name, whole)  # type: ignore[method-assign]
    return command


def _converted_number(command: str, whole: bool, value: str | float, parameter: Parameter, _: object) -> int | float:
    if not isinstance(value, str):  # the default
        number: int | float = value
        return number
    return read_number(value, parameter.name or "", parameter.opts[-1], command, whole)


def read_number(text: str, option: str, flag: str, command: str, whole: bool) -> int | float:
    """The number that `text` is. Raises UsageError where it is none, or not within the range of its option."""
    allowed = limits.range_of(option, command)
    try:
        number = limits.whole_number(text) if whole else limits.decimal_number(text)
    except (ValueError, OverflowError):
        wanted = "a whole number" if whole else "a number"
        raise UsageError(f"{flag} {limits.value_text(text)!r}: {wanted} in digits is wanted") from None
    if not allowed.holds_value(number):
        raise UsageError(f"{flag} {limits.value_text(number)}: {allowed.range_text()}")
    return number
