"""`attnctl explain`: every step of self-attention, from tokens to context."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnctl.cli import options as o
from attnctl.cli.output import lines, put, show
from attnctl.cli.sources import asked, is_file, otherwise
from attnctl.errors import DONE, FAILED, UsageError

if TYPE_CHECKING:
    from attnctl.readings.trace import Trace

WALKED_LAYERS = 2  # as many as are walked through when none are named


@o.with_model_options
def explain(
    text: o.Text = None,
    *,
    file: o.File = None,
    layer: o.LayerChoice = None,
    head: o.HeadChoice = None,
    query: o.Query = None,
    steps: Annotated[
        str | None, typer.Option("--steps", help="Only these steps: scores,weights,…", show_default=False)
    ] = None,
    precision: Annotated[int, typer.Option("--precision", help="Decimals.")] = 2,
    story: Annotated[bool, typer.Option("--story", help="Add the classroom reading of each step.")] = False,
    words: o.Words = False,
    measure: o.Measure = None,
    check: Annotated[bool, typer.Option("--check", help="Recompute the weights by other means: do they hold?")] = False,
    top: Annotated[
        int | None,
        typer.Option("--top", help="The strongest links only: so many a query.", show_default=False),
    ] = None,
    spans: o.Spans = None,
    json: Annotated[bool, typer.Option("--json", help="Write the trace as one line of JSON.")] = False,
    output: o.Output = None,
    **options: Any,
) -> None:
    """Show every step of self-attention on a text: tokens, queries and keys, scores, softmax, context."""
    names = None if steps is None else [name.strip() for name in steps.split(",")]
    form = _form(output, json)
    if names is not None:
        from attnctl.steps import check_names

        check_names(names)
    if check:
        if text is not None and is_file(text) and Path(text).exists():
            raise UsageError(f"--check runs a model: {text} has its numbers already")
        raise typer.Exit(_check(o.text_of(text, file), layer, head, options))
    if text is not None and file is None and is_file(text) and Path(text).exists():
        beside = {"--top": top, "--spans": spans}
        trace, at = _stored(text, layer, head, query, options, beside, words=words, measure=measure)
    elif words or measure is not None:
        trace, at = _read_otherwise(o.text_of(text, file), layer, head, query, options, words=words, measure=measure)
    else:
        said = o.text_of(text, file)
        model = o.model_of(options)
        if names is None and (len(said) > o.LONG or top is not None or spans is not None):
            from attnctl.cli.lengthy import Zoom, long_tokens
            from attnctl.cli.row import explain_long
            from attnctl.cli.sources import Asked

            long = long_tokens(Asked(model, said), Zoom(spans=spans), named=top is not None)
            if long is not None:
                explain_long(model, said, long, form, output, layer=layer, head=head, query=query, top=top, spans=spans)
                return
        trace, at = _trace(model, said, layer, head, query, narrow=form in ("json", "npz"))
    if names is not None and form not in ("json", "npz"):  # where the steps are picked, their heading is not shown
        o.say_unknown(trace.tokens, trace.keys_of)
        if trace.model.kind == "checkpoint":
            o.say(trace.notes)
    if form in ("json", "npz"):
        _write_trace(trace, names, output)
    else:
        _write_walk(trace, at, output, layer=layer, head=head, names=names, precision=precision, story=story)


def _stored(
    path: str,
    layer: str | None,
    head: str | None,
    query: str | None,
    options: dict[str, Any],
    beside: dict[str, Any],
    *,
    words: bool,
    measure: str | None,
) -> tuple[Trace, int | None]:
    """The trace, or the bare weights, of a file that is there already, and the index of the query token in it."""
    from attnctl.cli.view import narrowed
    from attnctl.readings.measures import check_measure
    from attnctl.tokens import find

    for option, value in beside.items():
        if value is not None:
            raise UsageError(f"{option} does not go with {path}: it is for a text and its model")
    check_measure(measure, head is not None)
    found = otherwise(asked(path, None, None, options), layer, head, words=words, measure=measure)
    trace = narrowed(found.trace, found.layers, found.heads)
    return trace, None if query is None else find(trace.tokens, query)


def _form(output: str | None, json: bool) -> str:
    """What is written: json, npz, txt, svg, or terminal. Raises UsageError for a suffix that means nothing here."""
    if output is None or output == "-":
        return "json" if json else "terminal"
    suffix = Path(output).suffix.lower()
    if suffix not in (".json", ".npz", ".txt", ".svg") or (json and suffix != ".json"):
        raise UsageError(f"-o {output}: explain writes .json, .npz, .txt or .svg (for the grid alone: attnctl heatmap)")
    from attnctl.files import check_writable

    check_writable(output)
    return suffix[1:]


def _trace(
    model: Any, text: str, layer: str | None, head: str | None, query: str | None, narrow: bool
) -> tuple[Trace, int | None]:
    """The trace that was asked for, and the index of the query token, if one was named."""
    from attnctl.sources import record
    from attnctl.tokens import checked, find

    info = model.info
    layers = o.selection(layer, info.n_layers or 1, "layer", info.name)
    heads = o.selection(head, info.n_heads or 1, "head", info.name)
    at = None if query is None else find(model.tokenize(checked(text)), query)
    if not narrow:  # the walk names what the other heads found
        heads = None
    return record(model, text, layers=layers, heads=heads, rows=[at] if narrow and at is not None else None), at


def _read_otherwise(
    text: str,
    layer: str | None,
    head: str | None,
    query: str | None,
    options: dict[str, Any],
    *,
    words: bool,
    measure: str | None,
) -> tuple[Trace, int | None]:
    """The trace by words or by another measure of the weights, and the index of the query token in it."""
    from attnctl.readings.measures import by_words, check_measure, measured
    from attnctl.sources import record
    from attnctl.tokens import find

    check_measure(measure, head is not None)
    model = o.model_of(options)
    info = model.info
    layers = o.selection(layer, info.n_layers or 1, "layer", info.name)
    heads = o.selection(head, info.n_heads or 1, "head", info.name)
    if measure == "rollout" and layer is None:  # what has come of it all
        layers = [(info.n_layers or 1) - 1]
    needed = range(max(layers) + 1) if layers is not None and measure == "rollout" else layers
    trace = measured(record(model, text, layers=needed, heads=heads), measure or "weights", layers)
    if words:
        trace = by_words(trace)
    return trace, None if query is None else find(trace.tokens, query)


def _check(text: str, layer: str | None, head: str | None, options: dict[str, Any]) -> int:
    """Print what was checked and found; the exit code is 1 where anything is off."""
    from attnctl.models.huggingface.check import check
    from attnctl.render.terminal.explanation import finding_lines

    model = o.model_of(options)
    info = model.info
    layers = o.selection(layer, info.n_layers or 1, "layer", info.name)
    findings = check(model, text, layers, o.selection(head, info.n_heads or 1, "head", info.name))
    lines(*finding_lines(findings))
    return FAILED if any(finding.holds is False for finding in findings) else DONE


def _write_trace(trace: Trace, names: list[str] | None, output: str | None) -> None:
    from attnctl.formats.storage import save
    from attnctl.formats.trace_json import trace_to_json
    from attnctl.steps import narrowed

    if names is not None:
        trace = narrowed(trace, names)
    if output is None or output == "-":
        put(trace_to_json(trace) + b"\n")
    else:
        save(trace, output)


def _write_walk(
    trace: Trace,
    query: int | None,
    output: str | None,
    *,
    layer: str | None,
    head: str | None,
    names: list[str] | None,
    precision: int,
    story: bool,
) -> None:
    from dataclasses import replace

    from attnctl.render.terminal.explanation import Explanation
    from attnctl.steps import focus, walk

    if names is not None and not any(walk(trace, None, names)):
        raise UsageError(f"--steps {','.join(names)}: this run has no such step")
    picked = o.selection(head, trace.model.n_heads or 1, "head", trace.model.name)
    best = focus(trace, head=picked[0] if picked and len(picked) == 1 else None, query=query)
    if layer is None and best is not None and len(trace.layers) > WALKED_LAYERS:
        trace = replace(trace, layers=(trace.layer(best.layer),))
    heads = {}
    for part in trace.layers:
        if head is not None:
            heads[part.layer] = tuple(picked) if picked is not None else part.heads
        else:
            own = focus(trace, layer=part.layer, query=best.query if best else None)
            heads[part.layer] = (own.head,) if own else part.heads[:1]
    page = Explanation(trace, best, heads=heads, only=names, precision=precision, story=story)
    if output is None or output == "-":
        show(page)
        return
    from attnctl.render.terminal.console import as_svg, as_text

    saved = as_svg(page, "attnctl explain") if output.lower().endswith(".svg") else as_text(page)
    put(saved.encode(), output)
