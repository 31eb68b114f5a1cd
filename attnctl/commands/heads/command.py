"""`attnctl heads`: what each head does over a text, long or short, as a table, JSON, CSV or a picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
    PICTURE,
    SHOW,
    FileOption,
    HeadOption,
    JsonOption,
    KeyTokensOption,
    LayerOption,
    SourceArgument,
    TokensOption,
    WeightOptions,
    WeightsModelOptions,
    command,
    completing,
    cost_progress,
    heads_over_tokens,
    model_of,
    open_source,
    output_format,
    output_option,
    put_bytes,
    refuse_unused,
    say_notes,
    say_unknown,
    whole,
    write_forms,
    write_panels,
    write_table,
)
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats import PictureLook, format_names, suffixes_listed

if TYPE_CHECKING:
    from attnctl.readings import HeadNames, Overview
    from attnctl.source import Changes, Source

TOP_BY = "confidence"  # the statistic by which --top chooses heads without --by
PICTURED = "entropy"  # the statistic that is drawn without --by


@command(
    example='attnctl heads "Alice will eat pizza" --by previous',
    more=(SHOW, CHANGED, PICTURE, NUMBERS, MATHEMATICS, MADE, CHECKPOINT),
)
def heads_command(
    context: Context,
    source: SourceArgument = None,
    *,
    layer: LayerOption = None,
    head: HeadOption = None,
    by: Annotated[
        str | None,
        Option(
            "--by",
            help="Sort by this, the largest first: entropy, first, previous, induction, …",
            metavar="STATISTIC",
            autocompletion=completing("attnctl.readings.head_statistics:STATISTICS"),
            rich_help_panel=LOOK,
        ),
    ] = None,
    top: Annotated[
        int | None,
        Option(
            "--top",
            help="Show only the N strongest: heads, by --by or by confidence.",
            metavar="N",
            parser=whole(limits.TOP),
            rich_help_panel=LOOK,
        ),
    ] = None,
    probe: Annotated[
        bool,
        Option(
            "--probe",
            help="Measure induction and duplicates with the usual probe, repeated random tokens: needs no text.",
            rich_help_panel=LOOK,
        ),
    ] = False,
    census: Annotated[
        str | None,
        Option(
            "--census",
            help="Name heads after what they find in a corpus: the JSON of attnctl evaluate.",
            metavar="FILE",
            rich_help_panel=LOOK,
        ),
    ] = None,
    weights: WeightOptions,
    look: PictureLook,
    file: FileOption = None,
    tokens: TokensOption = None,
    key_tokens: KeyTokensOption = None,
    model: WeightsModelOptions,
    json: JsonOption = False,
    csv: Annotated[
        bool,
        Option("--csv", help="Write CSV, one line a head.", rich_help_panel=OUTPUT),
    ] = False,
    output: Annotated[
        str | None, output_option(f"Where to write: .csv, .parquet, .json, .html, or a picture: {suffixes_listed()}.")
    ] = None,
) -> None:
    """Show what each head does on a text: its entropy, where and how far its attention goes, and which kind of head it is.

    A mass is a share of a query's attention, averaged over the queries. A head "looks like" a previous-token, induction,
    duplicate-token, sink or broad head if it passes the usual threshold.

    Columns (means over the queries): entropy: entropy (nats); of max: entropy, as a share of the largest possible (broad:
    0.8 or more); confid: largest weight of a query; sink: mass that a learned sink takes; brings: share of the context's
    norm from sinks (keys with 30% of a head); s norm: norm of the values of such sinks, of the mean norm of all values
    (passing sink: 0.2 or more; empty sink: less); gate: share of the context that a learned gate lets through; first: mass
    on the first token (sink: 0.3 or more); special: mass on special tokens; self: mass on the token itself (own token: 0.4
    or more); prev: mass on the previous token (previous token: 0.4 or more); next: mass on the next token (next token: 0.4
    or more); punct: mass on punctuation; dist: mean distance (tokens); spread: spread of the attended position (tokens);
    induct: mass on what followed copies of the token (induction: 0.4 or more); dupl: mass on copies of the token (duplicate
    token: 0.4 or more); offset: offset with most mass, of -5 to 5 (places); at it: mass on the token at that offset;
    stream: change of the head's output where it sees the first 4 and the last 64 tokens alone; picture: weight of the last
    token, or of CLS, on a picture; scatter: spatial entropy of that weight: over connected parts above its mean (nats);
    rank: effective rank of the overview, 64 cells a side; logit: largest logit: the scaled score of a query and a key that
    it sees; query: number of the query with the largest logit; key: number of the key with the largest logit; least:
    smallest logit. A scaled score is that of the softmax: with the model's soft cap and bias, and without hidden keys and
    learned sinks.
    """
    from attnctl.source import Changes

    form = output_format(
        "heads", output, ("csv", "parquet", "json", "html", *format_names()), "json" if json else "csv" if csv else ""
    )
    by = _statistic_name(by)
    if probe and all(value is None for value in (source, file, tokens, key_tokens, model.chat, model.qkv)):
        opener: Callable[[], Source] = partial(_open_probe, model)
    else:
        opener = partial(open_source, context, source, file, model, tokens=tokens, key_tokens=key_tokens)
    changes = Changes(weights.measure, weights.words, weights.renormalise, weights.drop)
    measure = partial(_measure_heads, opener, changes, layer, head, probe)
    if form in format_names():
        refuse_unused(context, "top", "census", because="one statistic of every head is drawn")
        if probe and by not in ("induction", "duplicate"):
            raise UsageError("measures induction and duplicate: name the one to draw with --by", option="probe")
        _draw_statistic(measure, by or PICTURED, look, form, str(output))
        return
    refuse_unused(context, PictureLook, because="use it with a picture (-o heads.png)")
    if form in ("json", "parquet"):
        refuse_unused(context, "csv", because=f"the output is {'JSON' if form == 'json' else 'Parquet'}")
    _write_heads(measure, by, top, census, form, output)


def _statistic_name(by: str | None) -> str | None:
    """Return the name of a statistic, with underscores. Raises UsageError for an unknown one."""
    from attnctl.readings.head_statistics import STATISTICS

    name = by and by.replace("-", "_")
    if name is not None and name not in STATISTICS:
        raise UsageError(f"it is {', '.join(STATISTICS)}", option="by", value=name)
    return name


def _open_probe(model: WeightsModelOptions) -> Source:
    """Return the model with the text of the probe."""
    from attnctl.source import probe_text

    opened = probe_text(model_of(model))
    say_notes(["there is no text: every statistic is measured on random tokens that are repeated"])
    return opened


def _measure_heads(
    opener: Callable[[], Source],
    changes: Changes,
    layer: str | None,
    head: str | None,
    probe: bool,
    names: HeadNames | None = None,
) -> Overview:
    """Return the statistics of the heads; print notes after."""
    from attnctl.cli import LESS_HEADS, check_memory_of_heads
    from attnctl.commands.heads.compute import measure_heads
    from attnctl.source import check_attention_weights, prepare

    opened = opener()
    check_attention_weights(opened, "heads")
    prepared = prepare(opened, changes, layer, head, keeps_columns=True, say=say_notes)
    check_memory_of_heads(opened)
    with cost_progress(heads_over_tokens(prepared), LESS_HEADS) as tick:
        measured = measure_heads(prepared, probe, names, tick)
    say_notes(measured.notes)
    say_unknown(prepared.source.tokens)
    return measured


def _draw_statistic(measure: Callable[[], Overview], by: str, look: PictureLook, form: str, output: str) -> None:
    """Draw one statistic of every head as a picture."""
    from attnctl.commands.heads.figure import statistic_panels
    from attnctl.commands.heads.show import no_value_sentence
    from attnctl.render import colour_map

    colour_map(look.cmap)  # an unknown name is refused before long work
    measured = measure()
    if all(head[by] is None for head in measured.head_statistics):
        raise AttnctlError(no_value_sentence(by).rstrip("."))
    drawn, model = look.as_look(), measured.model
    grids = statistic_panels(measured.head_statistics, by, _title_of(measured), drawn, model.citation)
    write_panels(grids, form, output, drawn)


def _write_heads(
    measure: Callable[[HeadNames | None], Overview],
    by: str | None,
    top: int | None,
    census: str | None,
    form: str,
    output: str | None,
) -> None:
    """Write the heads, sorted and cut to `top`: as CSV, JSON, a page, or on the terminal."""
    from attnctl.commands.heads.show import heads_table, names_origin, ranked_by
    from attnctl.formats import TABLE_FORMATS, block_of, overview_to_json
    from attnctl.readings import names_in_file
    from attnctl.readings.head_statistics import HeadTable

    names = None if census is None else names_in_file(census)
    measured = measure(names)
    order = by if by or top is None else TOP_BY
    ranked = ranked_by(measured.head_statistics, order)[:top]
    if form in TABLE_FORMATS:
        write_table([block_of(HeadTable(ranked).to_records())], form, output)
    elif form == "json":
        put_bytes(overview_to_json(replace(measured, head_statistics=tuple(ranked))) + b"\n", output)
    else:
        table = heads_table(ranked, order, names_origin(measured.model, ranked, names))
        write_forms([table], form, output, _title_of(measured), measured.model.citation, soft_wrap=True)


def _title_of(measured: Overview) -> str:
    return f"{measured.model.name}, {len(measured.tokens):,} tokens"
