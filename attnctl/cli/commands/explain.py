"""`attnctl explain`: every step of self-attention, from tokens to context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer

from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.inputs.sources import open_source
from attnctl.cli.output import output_format, print_lines, put_bytes, safe_console, write_renderable
from attnctl.errors import DONE, FAILED, UsageError
from attnctl.source.changes import Changes, Prepared, prepare
from attnctl.source.zoom import is_long

if TYPE_CHECKING:
    from attnctl.readings.questions.focus import Focus
    from attnctl.readings.traces.trace import LayerTrace, Trace
    from attnctl.source import Source

WALKED_LAYERS = 2  # as many as are walked through when none are named


class Walk(NamedTuple):
    """How the steps are walked through."""

    steps: str | None = None
    precision: int | None = None
    story: bool = False

    @property
    def step_names(self) -> list[str] | None:
        """The steps that are named; None for all."""
        return None if self.steps is None else [name.strip() for name in self.steps.split(",")]


class LongChoice(NamedTuple):
    """What is told of a long text, or of a short one as of a long one."""

    query: str | None = None
    top: int | None = None
    spans: str | None = None


def explain_command(
    *,
    source: str | None,
    file: str | None,
    tokens: str | None,
    layer: str | None,
    head: str | None,
    against: str | None,
    check: bool,
    json: bool,
    output: str | None,
    **options: object,
) -> None:
    """Show every step of self-attention on a text: tokens, queries and keys, scores, softmax, context."""
    wanted = o.taken(LongChoice, options)
    walk = o.taken(Walk, options)
    changes, form = o.taken(Changes, options), _explain_format(output, json)
    if check:
        arguments.check_mode("explain", "--check")
    names = walk.step_names
    if names is not None and "contributions" in names:
        from attnctl.cli.commands.contributions import explain_contributions

        arguments.check_mode("explain", f"--steps contributions{' as JSON' * (form == 'json')}")
        explain_contributions(arguments.text_of(source, file), options, names, wanted, against, form, output)
        return
    if names is not None:
        from attnctl.steps import check_names

        check_names(names)
    opened = open_source(source, file, tokens, options)
    if check:
        raise typer.Exit(_print_check(prepare(opened, layer=layer, head=head)))
    if names is None and _is_told_as_long(opened, wanted):
        arguments.check_mode("explain", "a long text, --top and --spans")
        from attnctl.cli.commands.row import explain_long

        explain_long(prepare(opened, changes, layer, head, say=arguments.say_notes), form, output, wanted)
        return
    written = form in ("json", "npz")
    arguments.check_mode("explain", "a trace in a file or pipe" if written else "the steps")
    narrow = written or is_long(opened)  # of a short text every head and row is read: the walk names what heads found
    some = head if narrow or changes.measure == "rollout" else None
    given = prepare(opened, changes, layer, some, wanted.query, say=arguments.say_notes)
    heads = arguments.select_indices(head, opened.counts[1], "head", opened.name)
    trace = (given if narrow else given._replace(rows=None)).trace()
    if written:
        _write_trace(trace, names, output)
    else:
        _write_walk(trace, heads, walk, ExplainRequest(layer is None, head is None, wanted.query), form, output)


def _is_told_as_long(source: Source, wanted: LongChoice) -> bool:
    """Whether rows and links are told instead of every step: of a long text, an overview, or where they are asked for."""
    return hasattr(source, "overview") or is_long(source) or wanted.top is not None or wanted.spans is not None


class ExplainRequest(NamedTuple):
    """Whether the layer and the head are left open, and which query is asked for."""

    any_layer: bool
    any_head: bool
    query: str | None


def _explain_format(output: str | None, json: bool) -> str:
    """What is written: json, npz, txt, svg, or terminal. Raises UsageError for a suffix that means nothing here."""
    hint = " (for the grid alone: attnctl heatmap)"
    return output_format("explain", output, ("json", "npz", "txt", "svg"), "json" if json else "", hint)


def _print_check(given: Prepared) -> int:
    """Print what was checked and found; the exit code is 1 where anything is off."""
    from attnctl.models.huggingface.checks.check import check_attention
    from attnctl.readings.traces.consistency import findings_of_trace
    from attnctl.render.terminal.tables import finding_lines
    from attnctl.source.stored import OverviewSource

    if isinstance(given.source, OverviewSource):
        name = given.source.name
        raise UsageError(f"--check: {name} holds an overview, of which nothing can be recomputed: give the text")
    if given.model is None:
        findings = findings_of_trace(given.trace(predictions=False))
    else:
        findings = check_attention(given.model, given.source.text, given.layers, given.heads)
    page = safe_console()
    print_lines(*finding_lines(findings, page.width if page.is_terminal else None))
    return FAILED if any(finding.holds is False for finding in findings) else DONE


def _write_trace(trace: Trace, names: list[str] | None, output: str | None) -> None:
    from attnctl.formats.documents.trace_json import trace_to_json
    from attnctl.formats.storage import save_value
    from attnctl.steps import narrow_trace

    if names is not None:
        trace = narrow_trace(trace, names)
    if output is None or output == "-":
        put_bytes(trace_to_json(trace) + b"\n")
    else:
        save_value(trace, output)


def _write_walk(
    trace: Trace, heads: Sequence[int] | None, walk: Walk, asked: ExplainRequest, form: str, output: str | None
) -> None:
    from dataclasses import replace

    from attnctl.render.terminal.explanation import Explanation
    from attnctl.steps import check_steps

    names = walk.step_names
    if names is not None:  # where the steps are picked, their heading is not shown
        every = trace.model.kind in ("checkpoint", "matrix")
        arguments.say_unknown(trace.tokens, trace.key_axis, notes=trace.notes, every=every)
        arguments.say_notes(check_steps(trace, names))
    focuses = _focuses(trace, heads, asked.query)
    if asked.any_layer and focuses and len(trace.layers) > WALKED_LAYERS:
        trace = replace(trace, layers=tuple(trace.layer(at) for at in sorted({focus.layer for focus in focuses})))
    shown = {part.layer: _shown_heads(trace, part, heads, focuses, asked) for part in trace.layers}
    precision = 2 if walk.precision is None else walk.precision
    page = Explanation(trace, *focuses, heads=shown, only=names, precision=precision, story=walk.story)
    write_renderable(page, form, output, "attnctl explain", trace.cited)


def _focuses(trace: Trace, heads: Sequence[int] | None, query: str | None) -> list[Focus]:
    """The place to look at most closely; one for each query where several were asked for."""
    from attnctl.readings.questions.focus import focus
    from attnctl.tokens import find_several

    layer = trace.layers[0].layer if len(trace.layers) == 1 else None
    queries = [None] if query is None else find_several(trace.tokens, query)
    return [found for at in queries if (found := focus(trace, layer=layer, head=heads, query=at)) is not None]


def _shown_heads(
    trace: Trace, part: LayerTrace, heads: Sequence[int] | None, focuses: list[Focus], asked: ExplainRequest
) -> tuple[int, ...]:
    """The heads of a layer that are walked through: those asked for, else those of its focuses, else its most telling."""
    from attnctl.readings.questions.focus import focus

    if not asked.any_head:
        return part.heads if heads is None else tuple(heads)
    if here := tuple(sorted({found.head for found in focuses if found.layer == part.layer})):
        return here
    own = focus(trace, layer=part.layer, query=focuses[0].query if focuses else None)
    return (own.head,) if own else part.heads[:1]
