"""The forms of a check of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.render.forms import Column, Table

if TYPE_CHECKING:
    from attnctl.trace.consistency import CheckFinding

MARKS = {True: "✓", False: "✗", None: "·"}  # the check holds, it does not, it could not be made


def findings_table(findings: Sequence[CheckFinding]) -> Table:
    """Return a table with a row for each finding: whether the check holds, its subject, and the numbers found."""
    checks = Column("", [f"{MARKS[finding.holds]} {finding.sentence}" for finding in findings], "text", cut="below")
    return Table([checks, Column("", [finding.result for finding in findings], "text", cut="below")], in_full=True)
