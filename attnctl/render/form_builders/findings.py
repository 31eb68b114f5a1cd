"""What a check of the weights found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.render.forms import Column, Table

if TYPE_CHECKING:
    from attnctl.trace.consistency import CheckFinding

MARKS = {True: "✓", False: "✗", None: "·"}  # of a check: it holds, it does not, it could not be checked


def findings_table(findings: Sequence[CheckFinding]) -> Table:
    """What a check recomputed, a line a finding: whether it holds, what it is of, and what was found."""
    what = Column("", [f"{MARKS[one.holds]} {one.what}" for one in findings], "text", cut="below")
    return Table([what, Column("", [one.found for one in findings], "text", cut="below")], in_full=True)
