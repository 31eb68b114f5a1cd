"""`attnctl explain`: every step of self-attention, from tokens to context; of a long text its rows and strongest links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import typer

from attnctl import limits
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import output_format, print_lines, put_bytes, safe_console, write_renderable
from attnctl.cli.progress import check_cost, cost_progress, heads_over_tokens
from attnctl.cli.sources import open_source
from attnctl.errors import DONE, FAILED, AttnctlError, UsageError
from attnctl.models.option_types import OptionValues
from attnctl.readings.head_statistics import HeadStatisticsReading
from attnctl.readings.heatmap import OverviewReading
from attnctl.readings.overview import LongRow, Overview
from attnctl.readings.questions.focus import Focus, focus
from attnctl.readings.rows import LinksReading, RowReading
from attnctl.readings.spans import parts_of, stand_in_text
from attnctl.readings.traces.trace import Trace
from attnctl.source import OverviewSource, Source
from attnctl.source.changes import NO_CHANGES, Changes, Prepared, is_long, prepare, selected_indices
from attnctl.steps import check_names, check_steps, narrow_trace
from attnctl.tokens import find_several

WALKED_LAYERS = 2  # as many as are walked through when none are named
TOP = 10  # links of a query of a long text, unless told otherwise

# Imports inside functions are of what one mode needs: `explain --json` imports no rich, and a start is counted in ms.


def explain_command(
    *,
    source: str | None,
    file: str | None,
    tokens: str | None,
    steps: str | None,
    check: bool,
    json: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Show every step of self-attention on a text: tokens, queries and keys, scores, softmax, context."""
    changes, model = o.taken(Changes, options), o.model_options(options)
    hint = " (for the grid alone: attnctl heatmap)"
    form = output_format("explain", output, ("json", "npz", "txt", "svg"), "json" if json else "", hint)
    if check:
        arguments.check_mode("explain", "--check")
    names = None if steps is None else [name.strip() for name in steps.split(",")]
    if names is not None and "contributions" in names:
        arguments.check_mode("explain", f"--steps contributions{' as JSON' * (form == 'json')}")
        text = arguments.text_of(source, file)
        if names != ["contributions"]:
            raise UsageError("--steps contributions stands by itself: it is a sum over the whole model")
        _explain_contributions(text, model, form, output, options)
        return
    check_names(names or ())
    opened, chosen = open_source(source, file, tokens, model), (options["layer"], options["head"])
    if check:
        raise typer.Exit(_print_check(prepare(opened, NO_CHANGES, *chosen)))
    pooled = isinstance(opened, OverviewSource) or is_long(opened)
    if names is None and (pooled or options["top"] is not None or options["spans"] is not None):
        arguments.check_mode("explain", "a long text, --top and --spans")
        _explain_long(prepare(opened, changes, *chosen, say=arguments.say_notes), form, output, options)
    elif form in ("json", "npz"):
        arguments.check_mode("explain", "a trace in a file or pipe")
        given = prepare(opened, changes, *chosen, options["query"], say=arguments.say_notes)
        _write_trace(given.trace(), names, output)
    else:
        arguments.check_mode("explain", "the steps")
        _explain_steps(opened, changes, names, form, output, options)


def _explain_steps(
    opened: Source, changes: Changes, names: list[str] | None, form: str, output: str | None, options: OptionValues
) -> None:
    """Walk through the steps, those of `names` or every one, of the heads that were chosen or that tell most."""
    layer, head, query = options["layer"], options["head"], options["query"]
    narrow = is_long(opened)  # of a short text every head and row is read: the walk names what heads found
    some = head if narrow or changes.measure == "rollout" else None
    given = prepare(opened, changes, layer, some, query, say=arguments.say_notes)
    heads = selected_indices(head, opened.counts[1], "head", opened.name)
    trace = (given if narrow else given._replace(rows=None)).trace()
    if names is not None:  # where the steps are picked, their heading is not shown
        every = trace.model.kind in ("checkpoint", "matrix")
        arguments.say_unknown(trace.tokens, trace.key_axis, notes=trace.notes, every=every)
        arguments.say_notes(check_steps(trace, names))
    from attnctl.render.terminal.explanation import Explanation

    trace, focuses, shown = _walked_heads(trace, layer is None, head is None, heads, query)
    page = Explanation(trace, *focuses, heads=shown, only=names, **o.arguments_of(Explanation, options))
    write_renderable(page, form, output, "attnctl explain", trace.cited)


def _walked_heads(
    trace: Trace, any_layer: bool, any_head: bool, heads: Sequence[int] | None, query: str | None
) -> tuple[Trace, list[Focus], dict[int, tuple[int, ...]]]:
    """The layers to walk through, each query's focus, and layer → heads: those asked for, else the most telling ones."""
    only = trace.layers[0].layer if len(trace.layers) == 1 else None
    queries = [None] if query is None else find_several(trace.tokens, query)
    focuses = [found for at in queries if (found := focus(trace, layer=only, head=heads, query=at)) is not None]
    if any_layer and focuses and len(trace.layers) > WALKED_LAYERS:
        trace = replace(trace, layers=tuple(trace.layer(at) for at in sorted({found.layer for found in focuses})))
    shown: dict[int, tuple[int, ...]] = {}
    for part in trace.layers:
        if not any_head:
            shown[part.layer] = part.heads if heads is None else tuple(heads)
        elif here := tuple(sorted({found.head for found in focuses if found.layer == part.layer})):
            shown[part.layer] = here
        else:
            own = focus(trace, layer=part.layer, query=focuses[0].query if focuses else None)
            shown[part.layer] = (own.head,) if own else part.heads[:1]
    return trace, focuses, shown


def _print_check(given: Prepared) -> int:
    """Print what was checked and found; the exit code is 1 where anything is off."""
    from attnctl.models.huggingface.check import check_attention
    from attnctl.readings.traces.consistency import findings_of_trace
    from attnctl.render.terminal.console import finding_lines

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


def _write_trace(trace: Trace, names: Sequence[str] | None, output: str | None) -> None:
    from attnctl.formats.documents.trace_json import trace_to_json
    from attnctl.formats.storage import save_value

    if names is not None:
        trace = narrow_trace(trace, names)
    if output is None or output == "-":
        put_bytes(trace_to_json(trace) + b"\n")
    else:
        save_value(trace, output)


# --- --steps contributions: the logit of the next word as a sum over the parts of the model ---


def _explain_contributions(
    text: str, model: OptionValues, form: str, output: str | None, options: OptionValues
) -> None:
    """Write the sum for the word of --target, else for the model's own best."""
    from attnctl.formats.documents.readings_json import effects_to_json
    from attnctl.models.watching import watched_text
    from attnctl.readings.effects.ablation import EffectRequest, Gauge, baseline_of
    from attnctl.render.terminal.effect_tables import ContributionsTable
    from attnctl.tokens import checked_text

    if form == "npz":
        raise UsageError("--steps contributions is written as .json, .txt or .svg")
    ask = EffectRequest(target=model.pop("target", None), against=options["against"])
    watched = watched_text(arguments.model_of(model), checked_text(text), options["query"])
    gauge = Gauge.of_request(watched, ask)
    if gauge.target is None:
        raise UsageError(f"{watched.info.name} predicts no words: there is no logit to take apart")
    parts = watched.contributions(gauge.target, gauge.against)
    found = replace(baseline_of(watched, ask, gauge), contributions=parts)
    arguments.say_notes((*watched.notes, *parts.notes))
    if form == "json":
        put_bytes(effects_to_json(found) + b"\n", output)
    else:
        write_renderable(
            ContributionsTable(found, options["top"]), form, output, "attnctl explain", found.model.citation
        )


# --- a long text: one exact row in the terminal, the strongest links as JSON ---


def _explain_long(given: Prepared, form: str, output: str | None, options: OptionValues) -> None:
    """Write what a long text comes to. Raises AttnctlError where it would be too large."""
    source, query, top, spans = given.source, options["query"], options["top"], options["spans"]
    if form == "npz":
        n, n_k = len(source.tokens), len(source.key_tokens)
        size = given.head_count * 12e-9 * n * n_k  # GB
        raise AttnctlError(
            f"a trace of {n:,} tokens and {given.head_count} heads is about {size:.1f} GB: write .json, the strongest "
            "links of each query, or see attnctl heatmap and attnctl heads"
        )
    kept = getattr(getattr(source, "overview", None), "query", None)  # the one query of a file that holds its row
    queries = [kept] if query is None else find_several(source.tokens, query)
    if form != "json":
        from rich.console import Group

        shown = Group(*(_row_table(given, at, top, spans) for at in queries))
        write_renderable(shown, form, output, "attnctl explain")
        return
    from attnctl.formats.documents.overview_json import overview_to_json

    found: list[Overview | LongRow]
    if queries == [None]:
        if spans is not None:
            raise UsageError("--spans sums up where one query looks: name it with --query")
        found = [_strongest_links(given, top or TOP)]
    elif top is not None or spans is not None:
        raise UsageError("--top and --spans sum up a row in words: with --json and --query all of it is written")
    elif len(queries) > 1 and output not in (None, "-"):
        raise UsageError(f"-o {output}: a file of JSON holds one row: name one query, or write lines with --json")
    else:
        found = [_long_row(given, at) for at in queries]
    put_bytes(b"".join(overview_to_json(one) + b"\n" for one in found), output)


def _row_table(given: Prepared, at: int | None, top: int | None, spans: str | None) -> Any:
    """Where a query looks, for the terminal: its exact row, or its strongest links where a file holds no more of it."""
    from attnctl.render.terminal.head_tables import RowTable

    source = given.source
    kept = getattr(source, "overview", None)
    if not isinstance(kept, Overview):
        kind = spans
        if kind is None and stand_in_text(source.key_tokens):  # parts into which a text falls by itself
            text = source.text
            kind = "paragraphs" if 1 <= text.count("\n\n") <= 150 or text.count("\n") > 150 else "lines"
        parts = () if kind is None else parts_of(kind, source.text, source.key_tokens)
        return RowTable(_long_row(given, at), parts, top or TOP)
    if spans is not None:
        raise UsageError(f"--spans sums up a whole row, and {source.name} holds links: give the text and its model")
    most = top or min(TOP, *(link.keys.shape[1] for link in kept.links.values()), TOP)
    return RowTable(_linked_row(given, at, most), top=most, whole=False)


def _linked_row(given: Prepared, at: int | None, top: int) -> LongRow:
    """The strongest links of a query as a row that is 0 elsewhere."""
    import numpy as np

    source = given.source
    found = given.read(OverviewReading(links=LinksReading(top)))
    at, said = _named_query(given, at)
    weights = {}
    for place, links in found.links.items():
        row = weights[place] = np.zeros(len(source.key_tokens), np.float32)  # (n_k,)
        row[links.keys[at]] = links.weights[at]
    arguments.say_notes((*said, *found.notes))
    return LongRow(source.text, source.tokens, source.key_tokens, source.info, at, weights, found.notes)


def _long_row(given: Prepared, at: int | None) -> LongRow:
    """The exact row of a query."""
    at, said = _named_query(given, at)
    with cost_progress(heads_over_tokens(len(given.source.tokens), given.head_count)) as tick:
        row = given.read(RowReading(at), tick)
    arguments.say_notes((*said, *row.notes))
    return row


def _named_query(given: Prepared, at: int | None) -> tuple[int, tuple[str, ...]]:
    """The query that was named, or the last one, and what is to be said of it."""
    if at is not None:
        return at, ()
    n, held = len(given.source.tokens), given.source.held_rows
    said = f"there are {n:,} tokens: shown is where the last one looks (--query names another)"
    return n - 1 if held is None else held[-1], (said,)


def _strongest_links(given: Prepared, top: int) -> Overview:
    """The strongest links of each query, and of a run the statistics of its heads: its file may be asked for both again."""
    source = given.source
    n = len(source.tokens)
    size = 16.0 * given.head_count * n * min(top, len(source.key_tokens))
    if size > limits.ROWS_JSON_BYTES:
        raise AttnctlError(
            f"the {top} strongest links of {n:,} tokens in {given.head_count} heads are about {size / 1e9:.1f} GB of JSON: "
            "choose with --layer, --head or --query, or fewer with --top"
        )
    check_cost(source, given.head_count)
    kept = getattr(source, "overview", None)
    asks = not given.left_out and (kept is None or bool(getattr(kept, "head_statistics", ())))
    statistics = HeadStatisticsReading(source.tokens, source.key_tokens) if asks else None
    with cost_progress(heads_over_tokens(n, given.head_count)) as tick:
        found = given.read(OverviewReading(statistics=statistics, links=LinksReading(top)), tick)
    arguments.say_notes(found.notes)
    return found
