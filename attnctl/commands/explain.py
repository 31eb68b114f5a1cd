"""`attnctl explain`: every step of self-attention, from tokens to context; for a long text, its rows and strongest links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from attnctl.checks import limits
from attnctl.cli import (
    CHANGED,
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    NUMBERS,
    OUTPUT,
    TEXT_WORDS,
    FileOption,
    KeyTokensOption,
    ModelOptions,
    PrecisionOption,
    SourceArgument,
    SpansOption,
    TellingHeadOption,
    TellingLayerOption,
    TokensOption,
    WeightOptions,
    command,
    completing,
    cost_progress,
    heads_over_tokens,
    open_source,
    output_format,
    output_option,
    put_bytes,
    refuse_unused,
    say_notes,
    say_unknown,
    whole,
    write_forms,
)
from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from attnctl.readings import LongRow, Overview
    from attnctl.render import Form
    from attnctl.source import Changes, Prepared, Source
    from attnctl.trace import Trace


# Functions import what one branch needs: --help imports no NumPy, --json no rich, so that the program starts quickly.


@dataclass(frozen=True)
class ChosenOptions:
    """The options that choose layers, heads, queries and keys."""

    layer: TellingLayerOption = None
    head: TellingHeadOption = None
    query: Annotated[
        str | None,
        Option(
            "--query",
            "-q",
            help="Query token: its index, or its text (text:7 is the token “7”); several: eat,pizza or 2-4.",
            metavar="TOKEN",
            autocompletion=completing(TEXT_WORDS, joined=True),
            rich_help_panel=LOOK,
        ),
    ] = None
    top: Annotated[
        int | None,
        Option(
            "--top",
            help="Show only the N strongest: links of each query.",
            metavar="N",
            parser=whole(limits.TOP),
            rich_help_panel=LOOK,
        ),
    ] = None
    spans: SpansOption = None


@dataclass(frozen=True)
class WalkOptions:
    """The options that say how the steps are shown."""

    precision: PrecisionOption = None
    story: Annotated[
        bool,
        Option("--story", help="Explain each step in everyday words.", rich_help_panel=LOOK),
    ] = False


@command(
    example='attnctl explain "Alice will eat pizza" --query eat --steps weights,context',
    more=(CHANGED, NUMBERS, MATHEMATICS, MADE, CHECKPOINT),
)
def explain_command(
    context: Context,
    source: SourceArgument = None,
    *,
    file: FileOption = None,
    tokens: TokensOption = None,
    key_tokens: KeyTokensOption = None,
    chosen: ChosenOptions,
    steps: Annotated[
        str | None,
        Option(
            "--steps",
            help="Keep only these steps: scores,weights,… (matrices shows W_Q, W_K, W_V); all shows every step.",
            metavar="STEPS",
            autocompletion=completing("all", "attnctl.trace.steps:NAMES", joined=True),
            rich_help_panel=LOOK,
        ),
    ] = None,
    walk: WalkOptions,
    json: Annotated[
        bool,
        Option("--json", help="Write JSON: the trace, in one line.", rich_help_panel=OUTPUT),
    ] = False,
    output: Annotated[str | None, output_option("Where to write: .json, .npz, .txt or .svg.")] = None,
    weights: WeightOptions,
    model: ModelOptions,
) -> None:
    """Show every step of self-attention on a text: tokens, queries and keys, scores, softmax, context."""
    hint = " (for the grid alone: attnctl heatmap)"
    form = output_format("explain", output, ("json", "npz", "txt", "svg"), "json" if json else "", hint)
    if steps is not None and "contributions" in steps.split(","):
        raise UsageError("attnctl contributions TEXT does that", option="steps", value=steps)
    from attnctl.source import Changes, OverviewSource, is_long, prepare
    from attnctl.trace.steps import listed_steps

    names = None if steps is None else listed_steps(steps)
    opened = open_source(context, source, file, model, tokens=tokens, key_tokens=key_tokens)
    changes = Changes(weights.measure, weights.words, weights.renormalise, weights.drop)
    pooled = isinstance(opened, OverviewSource) or is_long(opened)
    if names is None and (pooled or chosen.top is not None or chosen.spans is not None):
        refuse_unused(context, WalkOptions, because="the largest weights of rows are shown, and no steps")
        prepared = prepare(opened, changes, chosen.layer, chosen.head, say=say_notes)
        _explain_long(prepared, form, output, chosen)
        return
    if names is not None:
        refuse_unused(context, "top", "spans", because="--steps names what is shown")
    if form in ("json", "npz"):
        refuse_unused(context, WalkOptions, because=f"the output is {form.upper()}")
        prepared = prepare(opened, changes, chosen.layer, chosen.head, chosen.query, say=say_notes)
        _write_trace(prepared.trace(), chosen.query, names, output)
    else:
        _explain_steps(opened, changes, names, form, output, chosen, walk)


def _explain_steps(
    opened: Source,
    changes: Changes,
    names: Sequence[str] | None,
    form: str,
    output: str | None,
    chosen: ChosenOptions,
    walk: WalkOptions,
) -> None:
    """Show the steps, those in `names` or all, of the heads that the user chose or of the most telling head."""
    from attnctl.checks.selection import find_several, selected_indices
    from attnctl.readings import headline, walked_heads
    from attnctl.source import is_long, prepare
    from attnctl.trace.steps import NAMES, check_steps

    layer, head, query = chosen.layer, chosen.head, chosen.query
    narrow = is_long(opened)  # a short text is computed whole: the steps name heads that were not chosen
    computed_heads = head if narrow else None
    if changes.measure is not None:
        from attnctl.measures import check_measure

        check_measure(changes.measure, head not in (None, "all"))
    prepared = prepare(opened, changes, layer, computed_heads, query, say=say_notes)
    heads = selected_indices(head, opened.counts[1], "head", opened.name)
    trace = (prepared if narrow else replace(prepared, rows=None)).trace()
    everything = names == NAMES
    if names is not None and not everything:  # the heading of the first screen, which has these notes, is not shown
        every = not trace.model.nature.is_built_in
        say_unknown(trace.tokens, trace.key_axis, notes=trace.notes, every=every)
        say_notes(check_steps(trace, names))
    from attnctl.render import Explanation, FirstScreen

    queries = [None] if query is None else find_several(trace.tokens, query)
    precision = 2 if walk.precision is None else walk.precision
    chosen_layers = selected_indices(layer, opened.counts[0], "layer", opened.name)

    walked = everything or "all" in (layer, head)
    several = any(picked is not None and len(picked) > 1 for picked in (queries, heads, chosen_layers))
    line = None
    if not (names is not None or walked or several):
        line = headline(trace, head=heads, query=queries[0])
    if line is None:
        alone = names is not None and not everything
        trace, lines, steps_of_heads = walked_heads(trace, layer is None, head is None, heads, queries, alone)
        screen: Explanation | FirstScreen = Explanation(trace, lines, steps_of_heads, names, precision, walk.story)
    else:
        asked = walk.story or any(option is not None for option in (layer, head, query, walk.precision))
        screen = FirstScreen(trace, line, precision, walk.story, asked)
    write_forms(screen.forms(), form, output, "attnctl explain", trace.cited)


def _write_trace(trace: Trace, query: str | None, names: Sequence[str] | None, output: str | None) -> None:
    """Write a trace with its headline, cut to the steps in `names`; the headline is of one query, or of all."""
    from attnctl.checks.selection import find_several
    from attnctl.formats import save_value, trace_to_json
    from attnctl.readings import headline
    from attnctl.trace.steps import narrow_trace

    queries = [None] if query is None else find_several(trace.tokens, query)
    line = headline(trace, query=queries[0]) if len(queries) == 1 else None
    if names is not None:
        trace = narrow_trace(trace, names)
    if output is None or output == "-":
        put_bytes(trace_to_json(trace, line) + b"\n")
    else:
        save_value(trace, output, line)


# --- a long text: one exact row in the terminal, the strongest links as JSON ---


def _explain_long(prepared: Prepared, form: str, output: str | None, chosen: ChosenOptions) -> None:
    """Write rows of a long text as tables, or rows or strongest links as JSON. Raises AttnctlError for .npz."""
    from attnctl.checks.selection import find_several
    from attnctl.cli import LESS_HEADS, check_memory_of_heads
    from attnctl.formats import overview_to_json
    from attnctl.readings import LongRow
    from attnctl.source import TOP_LINKS, check_links, named_query, query_row, read_strongest_links

    source, query, top, spans = prepared.source, chosen.query, chosen.top, chosen.spans
    n, overview = len(source.tokens), prepared.overview
    if form == "npz":
        size = prepared.head_count * 12e-9 * n * len(prepared.key_tokens)  # GB
        raise AttnctlError(
            f"a trace of {n:,} tokens and {prepared.head_count} heads is about {size:.1f} GB: write .json, the strongest "
            "links of each query, or see attnctl heatmap and attnctl heads"
        )
    # a file with one row has one query
    queries = (
        [overview.query if isinstance(overview, LongRow) else None]
        if query is None
        else find_several(source.tokens, query)
    )
    bar = heads_over_tokens(prepared)

    def read_row(query_index: int | None, links: int | None = None) -> LongRow:
        query_index, notes = named_query(prepared, query_index)
        with cost_progress(bar) as tick:
            row = query_row(prepared, query_index, links, tick)
        say_notes((*notes, *row.notes))
        return row

    if form != "json":
        rows = (_row_forms(prepared, query_index, top, spans, read_row) for query_index in queries)
        write_forms(chain.from_iterable(rows), form, output, "attnctl explain")
        return
    overviews: list[Overview | LongRow]
    if queries == [None]:
        if spans is not None:
            raise UsageError("sums up where one query looks: name it with --query", option="spans")
        check_links(prepared, top or TOP_LINKS)
        check_memory_of_heads(source)
        with cost_progress(bar, LESS_HEADS) as tick:
            overviews = [read_strongest_links(prepared, top or TOP_LINKS, tick)]
        say_notes(overviews[0].notes)
    elif top is not None or spans is not None:
        named = "spans" if top is None else "top"
        raise UsageError("sums up a row in words: with --json and --query all of it is written", option=named)
    elif len(queries) > 1 and output not in (None, "-"):
        raise UsageError(f"-o {output}: a file of JSON holds one row: name one query, or write lines with --json")
    else:
        overviews = [read_row(query_index) for query_index in queries]
    put_bytes(b"".join(overview_to_json(overview) + b"\n" for overview in overviews), output)


def _row_forms(
    prepared: Prepared, query_index: int | None, top: int | None, spans: str | None, read_row: Callable[..., LongRow]
) -> Iterator[Form]:
    """Return a table of where a query looks: its exact row, or its strongest links if the file holds only those."""
    from attnctl.readings import Overview
    from attnctl.render import row_forms
    from attnctl.source import TOP_LINKS, parts_of_keys

    overview = prepared.overview
    if not isinstance(overview, Overview):
        return row_forms(read_row(query_index), parts_of_keys(prepared, spans), top or TOP_LINKS)
    if spans is not None:
        raise UsageError(
            f"sums up a whole row, and {prepared.source.name} holds links: give the text and its model", option="spans"
        )
    links_shown = top or min(TOP_LINKS, *(link.keys.shape[1] for link in overview.links.values()), TOP_LINKS)
    return row_forms(read_row(query_index, links_shown), top=links_shown, whole=False)
