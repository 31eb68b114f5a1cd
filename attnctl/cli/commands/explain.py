"""`attnctl explain`: every step of self-attention, from tokens to context; of a long text its rows and strongest links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from attnctl import inputs
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import output_format, put_bytes, show_renderable, write_renderable
from attnctl.cli.progress import cost_progress, heads_over_tokens
from attnctl.errors import DONE, FINDING, AttnctlError, UsageError
from attnctl.readings.questions.headline import headline, walked_heads
from attnctl.source import NO_CHANGES, Changes, OverviewSource, Prepared, Source, is_long, prepare, selected_indices
from attnctl.tokens import find_several
from attnctl.trace import Headline, Trace
from attnctl.trace.steps import check_names, check_steps, narrow_trace

if TYPE_CHECKING:
    from attnctl.readings.overview import LongRow, Overview
    from attnctl.render.terminal.console import Shown


# Imports inside functions are of what one mode needs: `explain --json` imports no rich, and a start is counted in ms.


def explain_command(
    *,
    source: str | None,
    file: str | None,
    tokens: str | None,
    key_tokens: str | None,
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
        text = inputs.text_of(source, file)
        if names != ["contributions"]:
            raise UsageError("--steps contributions stands by itself: it is a sum over the whole model")
        _explain_contributions(text, model, form, output, options)
        return
    check_names(names or ())
    opened = arguments.open_source(source, file, tokens, model, key_tokens)
    chosen = options["layer"], options["head"]
    if check:
        raise typer.Exit(_print_check(prepare(opened, NO_CHANGES, *chosen)))
    pooled = isinstance(opened, OverviewSource) or is_long(opened)
    if names is None and (pooled or options["top"] is not None or options["spans"] is not None):
        arguments.check_mode("explain", "a long text, --top and --spans")
        _explain_long(prepare(opened, changes, *chosen, say=arguments.say_notes), form, output, options)
    elif form in ("json", "npz"):
        arguments.check_mode("explain", "a trace in a file or pipe")
        given = prepare(opened, changes, *chosen, options["query"], say=arguments.say_notes)
        trace = given.trace()
        queries = [None] if options["query"] is None else find_several(trace.tokens, options["query"])
        line = headline(trace, query=queries[0]) if len(queries) == 1 else None
        _write_trace(trace, line, names, output)
    else:
        arguments.check_mode("explain", "the steps" if names is None else "--steps")
        _explain_steps(opened, changes, names, form, output, options)


def _explain_steps(
    opened: Source, changes: Changes, names: list[str] | None, form: str, output: str | None, options: OptionValues
) -> None:
    """Walk through the steps, those of `names` or every one, of the heads that were chosen or that tell most."""
    layer, head, query = options["layer"], options["head"], options["query"]
    narrow = is_long(opened)  # of a short text every head and row is read: the walk names what heads found
    some = head if narrow else None
    if changes.measure is not None:
        from attnctl.measures import check_measure

        check_measure(changes.measure, head not in (None, "all"))
    given = prepare(opened, changes, layer, some, query, say=arguments.say_notes)
    heads = selected_indices(head, opened.counts[1], "head", opened.name)
    trace = (given if narrow else given._replace(rows=None)).trace()
    if names is not None:  # where the steps are picked, their heading is not shown
        every = trace.model.kind in ("checkpoint", "matrix")
        arguments.say_unknown(trace.tokens, trace.key_axis, notes=trace.notes, every=every)
        arguments.say_notes(check_steps(trace, names))
    from attnctl.render.terminal.console import Shown
    from attnctl.render.told.explanation import Explanation
    from attnctl.render.told.first_screen import FirstScreen

    queries = [None] if query is None else find_several(trace.tokens, query)
    settings = o.arguments_of(FirstScreen, options)
    chosen_layers = selected_indices(layer, opened.counts[0], "layer", opened.name)
    several = any(chosen is not None and len(chosen) > 1 for chosen in (queries, heads, chosen_layers))
    line = None if names is not None or options["all"] or several else headline(trace, head=heads, query=queries[0])
    if line is None:
        trace, lines, shown = walked_heads(trace, layer is None, head is None, heads, queries)
        screen: Explanation | FirstScreen = Explanation(trace, lines, shown, names, **settings)
    else:
        screen = FirstScreen(trace, line, **settings)
    write_renderable(Shown(screen.forms()), form, output, "attnctl explain", trace.cited)


def _print_check(given: Prepared) -> int:
    """Print what was checked and found; return FINDING where anything is off."""
    from attnctl.api import findings_of
    from attnctl.render.terminal.console import Shown
    from attnctl.render.told.models import findings_table

    findings = findings_of(given)
    show_renderable(Shown([findings_table(findings)]), soft_wrap=True)
    return FINDING if any(finding.holds is False for finding in findings) else DONE


def _write_trace(trace: Trace, line: Headline | None, names: Sequence[str] | None, output: str | None) -> None:
    from attnctl.formats.documents.trace_json import trace_to_json
    from attnctl.formats.storage import save_value

    if names is not None:
        trace = narrow_trace(trace, names)
    if output is None or output == "-":
        put_bytes(trace_to_json(trace, line) + b"\n")
    else:
        save_value(trace, output, line)


# --- --steps contributions: the logit of the next word as a sum over the parts of the model ---


def _explain_contributions(
    text: str, model: OptionValues, form: str, output: str | None, options: OptionValues
) -> None:
    """Write the sum for the word of --target, else for the model's own best."""
    from attnctl.formats.documents.readings_json import effects_to_json
    from attnctl.models.watching import watched_text
    from attnctl.readings.effects.ablation import EffectRequest, measure_contributions
    from attnctl.render.terminal.console import Shown
    from attnctl.render.told.effects import contributions_forms
    from attnctl.tokens import checked_text

    if form == "npz":
        raise UsageError("--steps contributions is written as .json, .txt or .svg")
    ask = EffectRequest(target=model.pop("target", None), against=options["against"])
    watched = watched_text(arguments.model_of(model), checked_text(text), options["query"])
    found = measure_contributions(watched, ask)
    assert found.contributions is not None
    arguments.say_notes((*watched.notes, *found.contributions.notes))
    if form == "json":
        put_bytes(effects_to_json(found) + b"\n", output)
    else:
        shown = Shown(contributions_forms(found, options["top"]))
        write_renderable(shown, form, output, "attnctl explain", found.model.citation)


# --- a long text: one exact row in the terminal, the strongest links as JSON ---


def _explain_long(given: Prepared, form: str, output: str | None, options: OptionValues) -> None:
    """Write what a long text comes to. Raises AttnctlError where it would be too large."""
    from attnctl.formats.documents.overview_json import overview_to_json
    from attnctl.source.cells import TOP, check_links, cost_of_heads, named_query, query_row, read_strongest_links

    source, query, top, spans = given.source, options["query"], options["top"], options["spans"]
    n, kept = len(source.tokens), getattr(source, "overview", None)
    if form == "npz":
        size = given.head_count * 12e-9 * n * len(source.key_tokens)  # GB
        raise AttnctlError(
            f"a trace of {n:,} tokens and {given.head_count} heads is about {size:.1f} GB: write .json, the strongest "
            "links of each query, or see attnctl heatmap and attnctl heads"
        )
    # the one query of a file that holds its row
    queries = [getattr(kept, "query", None)] if query is None else find_several(source.tokens, query)
    bar = heads_over_tokens(given)

    def read_row(at: int | None, links: int | None = None) -> LongRow:
        at, said = named_query(given, at)
        with cost_progress(bar) as tick:
            row = query_row(given, at, links, tick)
        arguments.say_notes((*said, *row.notes))
        return row

    if form != "json":
        tables = [_row_table(source, at, top, spans, read_row) for at in queries]
        from rich.console import Group

        write_renderable(Group(*tables), form, output, "attnctl explain")
        return
    found: list[Overview | LongRow]
    if queries == [None]:
        if spans is not None:
            raise UsageError("--spans sums up where one query looks: name it with --query")
        check_links(given, top or TOP)
        arguments.say_cost(cost_of_heads(source, given.head_count))
        with cost_progress(bar) as tick:
            found = [read_strongest_links(given, top or TOP, tick)]
        arguments.say_notes(found[0].notes)
    elif top is not None or spans is not None:
        raise UsageError("--top and --spans sum up a row in words: with --json and --query all of it is written")
    elif len(queries) > 1 and output not in (None, "-"):
        raise UsageError(f"-o {output}: a file of JSON holds one row: name one query, or write lines with --json")
    else:
        found = [read_row(at) for at in queries]
    put_bytes(b"".join(overview_to_json(one) + b"\n" for one in found), output)


def _row_table(
    source: Source, at: int | None, top: int | None, spans: str | None, read_row: Callable[..., LongRow]
) -> Shown:
    """Where a query looks, for the terminal: its exact row, or its strongest links where a file holds no more of it."""
    from attnctl.readings.overview import Overview
    from attnctl.render.terminal.console import Shown
    from attnctl.render.told.rows import row_forms
    from attnctl.source.cells import TOP, own_parts

    kept = getattr(source, "overview", None)
    if not isinstance(kept, Overview):
        return Shown(row_forms(read_row(at), own_parts(source, spans), top or TOP))
    if spans is not None:
        raise UsageError(f"--spans sums up a whole row, and {source.name} holds links: give the text and its model")
    most = top or min(TOP, *(link.keys.shape[1] for link in kept.links.values()), TOP)
    return Shown(row_forms(read_row(at, most), top=most, whole=False))
