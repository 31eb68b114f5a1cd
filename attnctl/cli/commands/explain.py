"""`attnctl explain`: every step of self-attention, from tokens to context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.inputs.sources import is_long, open_source
from attnctl.cli.inputs.weights import (
    Chosen,
    WeightChoice,
    chosen_of,
    chosen_trace,
    dropped_keys,
    measured_source,
    renormalised_source,
    weight_choice,
    whole_trace,
)
from attnctl.cli.output import output_format, print_lines, put_bytes, safe_console, write_renderable
from attnctl.errors import DONE, FAILED, UsageError

if TYPE_CHECKING:
    from attnctl.readings.questions.focus import Focus
    from attnctl.readings.traces.trace import LayerTrace, Trace

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
    check: bool,
    json: bool,
    output: str | None,
    **options: object,
) -> None:
    """Show every step of self-attention on a text: tokens, queries and keys, scores, softmax, context."""
    wanted = o.taken(LongChoice, options)
    walk = o.taken(Walk, options)
    choice, form = weight_choice(options), _explain_format(output, json)
    if check:
        _refuse_beside_check(form, walk, (choice, wanted))
    elif form in ("json", "npz"):
        _refuse_beside("--json and -o .json, .npz", *_walk_options(walk))
    names = walk.step_names
    if names is not None and "contributions" in names:
        from attnctl.cli.commands.contributions import explain_contributions

        picked = ("--tokens", tokens), ("--layer", layer), ("--head", head), ("--spans", wanted.spans)
        shaped = ((f"--{name}", value) for name, value in choice._asdict().items())
        beside = (*picked, ("--predict", options.get("predict")), *shaped, *_walk_options(walk))
        _refuse_beside("--steps contributions, a sum over the whole model", *beside)
        explain_contributions(arguments.text_of(source, file), options, names, wanted, form, output)
        return
    if names is not None:
        from attnctl.steps import check_names

        check_names(names)
        _refuse_beside("--steps", ("--top", wanted.top), ("--spans", wanted.spans))
    opened = chosen_of(open_source(source, file, tokens, options), layer, head)
    if check:
        raise typer.Exit(_print_check(opened))
    if names is None and _is_told_as_long(opened, wanted):
        _refuse_beside("a long text, --top and --spans", *_walk_options(walk))
        from attnctl.cli.commands.row import explain_long

        explain_long(_reweighted_choice(choice, opened), form, output, wanted)
    elif form in ("json", "npz"):
        _write_trace(_narrow_trace(choice, opened, wanted.query), names, output)
    else:
        trace = _walked_trace(choice, opened, wanted.query)
        asked = ExplainRequest(layer is None, head is None, wanted.query)
        _write_walk(trace, opened.heads, walk, asked, form, output)


def _walk_options(walk: Walk) -> tuple[tuple[str, object], ...]:
    """The options that shape the walk and nothing else."""
    return ("--precision", walk.precision), ("--story", walk.story)


def _is_told_as_long(opened: Chosen, wanted: LongChoice) -> bool:
    """Whether rows and links are told instead of every step: of a long text, an overview, or where they are asked for."""
    is_overview = hasattr(opened.source, "overview")
    return is_overview or is_long(opened.source) or wanted.top is not None or wanted.spans is not None


class ExplainRequest(NamedTuple):
    """Whether the layer and the head are left open, and which query is asked for."""

    any_layer: bool
    any_head: bool
    query: str | None


def _refuse_beside(beside: str, *options: tuple[str, object]) -> None:
    """Raise UsageError for an option that is given and would mean nothing."""
    for name, value in options:
        if value not in (None, False, ()):
            raise UsageError(f"{name} does not go with {beside}")


def _refuse_beside_check(form: str, walk: Walk, given: tuple[WeightChoice, LongChoice]) -> None:
    shown = [(f"--{name}", value) for part in (walk, *given) for name, value in part._asdict().items()]
    _refuse_beside("--check, which prints findings", *shown)
    if form != "terminal":
        raise UsageError("--json and -o do not go with --check, which prints findings")


def _reweighted_choice(choice: WeightChoice, given: Chosen) -> Chosen:
    """What was chosen, its weights as `choice` has them, at any length."""
    if choice.drop and not choice.renormalise:
        raise UsageError("--drop goes with --renormalise where single rows and links are told")
    given = measured_source(choice, given)
    return given._replace(source=renormalised_source(choice, given.source, dropped_keys(choice, given.source)[0]))


def _narrow_trace(choice: WeightChoice, given: Chosen, query: str | None) -> Trace:
    """The trace that is written: of one query's row alone where one was named."""
    from attnctl.tokens import find_several

    given = measured_source(choice, given)
    rows = None if query is None else find_several(given.source.tokens, query)
    return chosen_trace(choice._replace(words=False, measure=None), given, rows)


def _walked_trace(choice: WeightChoice, given: Chosen, query: str | None) -> Trace:
    """The trace that is walked through: of every head, as the walk names what they found; of a long text what was chosen."""
    from attnctl.tokens import find_several

    if is_long(given.source):
        return chosen_trace(choice, given, None if query is None else find_several(given.source.tokens, query))
    return chosen_trace(choice, given if choice.measure == "rollout" else given._replace(heads=None))


def _explain_format(output: str | None, json: bool) -> str:
    """What is written: json, npz, txt, svg, or terminal. Raises UsageError for a suffix that means nothing here."""
    hint = " (for the grid alone: attnctl heatmap)"
    return output_format("explain", output, ("json", "npz", "txt", "svg"), "json" if json else "", hint)


def _print_check(given: Chosen) -> int:
    """Print what was checked and found; the exit code is 1 where anything is off."""
    from attnctl.models.huggingface.checks.check import check_attention
    from attnctl.readings.traces.consistency import findings_of_trace
    from attnctl.render.terminal.tables import finding_lines

    source: Any = given.source
    if hasattr(source, "overview"):
        raise UsageError(f"--check: {source.name} holds an overview, of which nothing can be recomputed: give the text")
    if hasattr(source, "trace"):
        findings = findings_of_trace(whole_trace(*given))
    else:
        findings = check_attention(source.model, source.text, given.layers, given.heads)
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
    trace: Trace, heads: list[int] | None, walk: Walk, asked: ExplainRequest, form: str, output: str | None
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


def _focuses(trace: Trace, heads: list[int] | None, query: str | None) -> list[Focus]:
    """The place to look at most closely; one for each query where several were asked for."""
    from attnctl.readings.questions.focus import focus
    from attnctl.tokens import find_several

    layer = trace.layers[0].layer if len(trace.layers) == 1 else None
    queries = [None] if query is None else find_several(trace.tokens, query)
    return [found for at in queries if (found := focus(trace, layer=layer, head=heads, query=at)) is not None]


def _shown_heads(
    trace: Trace, part: LayerTrace, heads: list[int] | None, focuses: list[Focus], asked: ExplainRequest
) -> tuple[int, ...]:
    """The heads of a layer that are walked through: those asked for, else those of its focuses, else its most telling."""
    from attnctl.readings.questions.focus import focus

    if not asked.any_head:
        return part.heads if heads is None else tuple(heads)
    if here := tuple(sorted({found.head for found in focuses if found.layer == part.layer})):
        return here
    own = focus(trace, layer=part.layer, query=focuses[0].query if focuses else None)
    return (own.head,) if own else part.heads[:1]
