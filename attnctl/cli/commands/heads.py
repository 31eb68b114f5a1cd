"""`attnctl heads`: what each head does over a text, long or short, as a table, JSON, CSV or a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnctl import api
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import output_format, put_bytes, write_renderable
from attnctl.cli.progress import cost_progress, heads_over_tokens
from attnctl.errors import UsageError
from attnctl.formats.pictures import format_names
from attnctl.models.watching import probe_text
from attnctl.readings.head_statistics import STATISTICS
from attnctl.render.terminal.console import Shown
from attnctl.render.told.heads import heads_table, names_origin, ranked_by
from attnctl.source import Changes, Source, check_attention_weights, prepare
from attnctl.source.cells import cost_of_heads

TOP_BY = "confidence"  # the statistic by which --top chooses heads without --by
PICTURED = "entropy"  # the statistic that is drawn without --by


def heads_command(
    *,
    source: str | None,
    file: str | None,
    tokens: str | None,
    key_tokens: str | None,
    layer: str | None,
    head: str | None,
    by: str | None,
    top: int | None,
    probe: bool,
    census: str | None,
    json: bool,
    csv: bool,
    output: str | None,
    **options: Any,
) -> None:
    """What each head does over a text, and what kind it is."""
    asked = "json" if json else "csv" if csv else ""
    form = output_format("heads", output, ("csv", "json", "html", *format_names()), asked)
    picture = form in format_names()
    mode = {"json": "JSON", "csv": "CSV", "terminal": "the table", "html": "the table"}.get(form, "a picture")
    arguments.check_mode("heads", mode)
    look = arguments.look_of(options)
    by = by and by.replace("-", "_")
    if by is not None and by not in STATISTICS:
        raise UsageError(f"--by {by}: it is {', '.join(STATISTICS)}")
    if picture and probe and by not in ("induction", "duplicate"):
        raise UsageError("--probe measures induction and duplicate: name the one to draw with --by")
    known = None
    if census is not None:
        from attnctl.formats.census_table import read_census

        known = read_census(census)
    changes = o.taken(Changes, options)
    named = (source, file, tokens, key_tokens, options.get("chat"), options.get("qkv"))
    opened: Source
    if probe and all(one is None for one in named):
        opened = probe_text(arguments.model_of(options))
        arguments.say_notes(["there is no text: every statistic is of the probe's, random tokens said twice"])
    else:
        opened = arguments.open_source(source, file, tokens, options, key_tokens)
    check_attention_weights(opened, "heads")
    given = prepare(opened, changes, layer, head, keeps_columns=True, say=arguments.say_notes)
    arguments.say_cost(cost_of_heads(opened, given.head_count))
    with cost_progress(heads_over_tokens(given)) as tick:
        found = api.measure_heads(given, probe, known, tick)
    arguments.say_notes(found.notes)
    arguments.say_unknown(given.source.tokens)
    title = f"{found.model.name}, {len(found.tokens):,} tokens"
    if picture:
        from attnctl.render.figure.charts import statistic_grid

        drawing = statistic_grid(found.head_statistics, by or PICTURED, title, look, found.model.citation)
        arguments.write_drawing(drawing, form, output)
        return
    order = by if by or top is None else TOP_BY
    ranked = ranked_by(found.head_statistics, order)[:top]
    if form == "csv":
        put_bytes(heads_table(ranked).as_csv().encode(), output)
    elif form == "json":
        from attnctl.formats.documents.overview_json import overview_to_json

        put_bytes(overview_to_json(replace(found, head_statistics=tuple(ranked))) + b"\n", output)
    else:
        origin = names_origin(found.model, ranked, known)
        table = Shown([heads_table(ranked, order, origin)])
        write_renderable(table, form, output, title, found.model.citation, soft_wrap=True)
