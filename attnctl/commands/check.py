"""`attnctl check`: recompute the weights of a text, a trace or a matrix by other means, and tell whether they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from typer import Context

from attnctl.cli import (
    CHANGED,
    CHECKPOINT,
    MADE,
    MATHEMATICS,
    NUMBERS,
    FileOption,
    HeadOption,
    LayerOption,
    SourceArgument,
    WeightsModelOptions,
    command,
    open_source,
    show_forms,
)
from attnctl.errors import DONE, FINDING

if TYPE_CHECKING:
    from attnctl.render import Table
    from attnctl.trace import CheckFinding


MARKS = {True: "✓", False: "✗", None: "·"}  # the check holds, it does not, it could not be made


@command(
    example='attnctl check "Alice will eat pizza" --model smollm2',
    more=(CHANGED, NUMBERS, MATHEMATICS, MADE, CHECKPOINT),
)
def check_command(
    context: Context,
    source: SourceArgument = None,
    *,
    file: FileOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    model: WeightsModelOptions,
) -> int:
    """Recompute the attention of a text, a trace or a matrix by other means, and compare it with what attnctl shows.

    A line for each step says whether it holds, and how far the numbers lie apart; a dot marks what could not be checked.
    The exit code is 4 if a step does not hold.
    """
    from attnctl.models import findings_of
    from attnctl.source import prepare

    prepared = prepare(open_source(context, source, file, model), layer=layer, head=head)
    findings = findings_of(prepared)
    show_forms([findings_table(findings)], soft_wrap=True)
    return FINDING if any(finding.holds is False for finding in findings) else DONE


def findings_table(findings: Sequence[CheckFinding]) -> Table:
    """Return a table with a row for each finding: whether the check holds, its subject, and the numbers found."""
    from attnctl.render import Column, Table

    checks = Column("", [f"{MARKS[finding.holds]} {finding.sentence}" for finding in findings], "text", cut="below")
    return Table([checks, Column("", [finding.result for finding in findings], "text", cut="below")], in_full=True)
