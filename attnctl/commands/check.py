"""`attnctl check`: recompute the weights of a text, a trace or a matrix by other means, and tell whether they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer import Context

from attnctl.checks.options import CHANGED, CHECKPOINT, MADE, MATHEMATICS, NUMBERS
from attnctl.cli.command import command
from attnctl.cli.groups import FileOption, HeadOption, LayerOption, SourceArgument, WeightsModelOptions
from attnctl.cli.opening import open_source
from attnctl.cli.output import show_forms
from attnctl.errors import DONE, FINDING, UsageError

if TYPE_CHECKING:
    from attnctl.source import Prepared
    from attnctl.trace.consistency import CheckFinding


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
    from attnctl.render.form_builders.findings import findings_table
    from attnctl.source import prepare

    prepared = prepare(open_source(context, source, file, model), layer=layer, head=head)
    findings = findings_of(prepared)
    show_forms([findings_table(findings)], soft_wrap=True)
    return FINDING if any(finding.holds is False for finding in findings) else DONE


def findings_of(prepared: Prepared) -> list[CheckFinding]:
    """Return the results of the checks that recompute the weights of a text, a trace or a matrix by other means.

    Raises UsageError for an overview.
    """
    from attnctl.models.check import check_attention
    from attnctl.source import OverviewSource
    from attnctl.trace.consistency import findings_of_trace

    if isinstance(prepared.source, OverviewSource):
        name = prepared.source.name
        why = f"{name} holds an overview, from which nothing can be recomputed: give the text"
        raise UsageError(f"a check needs every weight: {why}")
    if prepared.model is None:
        return list(findings_of_trace(prepared.trace(predictions=False)))
    return list(check_attention(prepared.model, prepared.source.input_text, prepared.layers, prepared.heads))
