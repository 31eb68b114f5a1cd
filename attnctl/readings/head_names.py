"""Names of heads, taken from a measurement over many texts."""

from __future__ import annotations

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Protocol, runtime_checkable

from attnctl.errors import UsageError
from attnctl.registry import COMMANDS

Names = dict[tuple[int, int], tuple[str, ...]]  # (layer, head) →


@dataclass(frozen=True)
class HeadNames:
    """Names for the heads of `model`; `head_grid` holds its numbers of layers and heads, `legend` explains the names."""

    model: str
    head_grid: tuple[int, int]
    by_head: Names
    legend: str


@runtime_checkable
class NamesHeads(Protocol):
    """A table of measurements that gives names to heads."""

    def head_names(self) -> HeadNames:
        """Return the names of the heads, with the model that they belong to."""


def names_in_file(path: str) -> HeadNames:
    """Return the names of heads in a file that another command wrote.

    Raises UsageError if that command is not installed, and its errors for a damaged file.
    """
    reader = next((package.names_heads for package in COMMANDS.values() if package.names_heads), None)
    if reader is None:
        raise UsageError("this attnctl has no command that writes such a file", option="census", value=path)
    table: NamesHeads = resolve_name(reader)(path)
    return table.head_names()
