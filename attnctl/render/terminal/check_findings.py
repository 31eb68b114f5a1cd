"""Findings of a check, one a line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MARKS = {True: "✓", False: "✗", None: "·"}


def lines(findings: Iterable[Any]) -> list[str]:
    """A line for each finding: whether it holds (✓, ✗, or · where it could not be checked), what, and what was found."""
    found = list(findings)
    width = max((len(one.what) for one in found), default=0)
    return [f"{MARKS[one.holds]} {one.what:{width}}  {one.found}" for one in found]
