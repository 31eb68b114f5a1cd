"""`attnctl heads`: what each head does over a text, long or short, as a table, JSON, CSV or a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.inputs.sources import open_source
from attnctl.cli.inputs.weights import (
    Chosen,
    WeightChoice,
    check_attention_weights,
    chosen_of,
    dropped_keys,
    measured_source,
    renormalised_source,
    weight_choice,
)
from attnctl.cli.output import output_format, put_bytes, show_renderable
from attnctl.cli.progress import check_cost, cost_progress, heads_over_tokens
from attnctl.errors import UsageError
from attnctl.formats.pictures import figure_bytes, format_names

if TYPE_CHECKING:
    from attnctl.readings.census.census_table import CensusTable
    from attnctl.readings.head_statistics import HeadStatistics
    from attnctl.readings.overview import Overview
    from attnctl.readings.traces.trace import ModelInfo
    from attnctl.render.figure.look import Look
    from attnctl.source import Source

TOP_BY = "confidence"  # the statistic by which --top chooses heads without --by
PICTURED = "entropy"  # the statistic that is drawn without --by


class HeadRequest(NamedTuple):
    """Which heads come first, how many of them, and what else is measured of them."""

    by: str | None = None
    top: int | None = None
    probe: bool = False
    census: str | None = None

    def check_request(self, picture: bool) -> None:
        """Raise UsageError for no statistic's name, and for what a picture of one statistic of every head would not show."""
        from attnctl.readings.statistic_table import STATISTICS

        if self.by is not None and self.by not in STATISTICS:
            raise UsageError(f"--by {self.by}: it is {', '.join(STATISTICS)}")
        if picture and (self.top is not None or self.census is not None):
            option = "--top" if self.top is not None else "--census"
            raise UsageError(f"{option} does not go with a picture, which shows one statistic of every head")
        if picture and self.probe and self.by not in ("induction", "duplicate"):
            raise UsageError("--probe measures induction and duplicate: name the one to draw with --by")


def heads_command(
    *,
    source: str | None,
    file: str | None,
    tokens: str | None,
    layer: str | None,
    head: str | None,
    json: bool,
    csv: bool,
    output: str | None,
    **options: object,
) -> None:
    """What each head does over a text, and what kind it is."""
    asked = o.taken(HeadRequest, options)
    form = _heads_format(output, json, csv)
    picture = form in format_names()
    look = arguments.look_of(options, picture=picture, picture_only=o.LOOK_OPTIONS)
    asked.check_request(picture)
    known = None if asked.census is None else _census_in(asked.census)
    if look.log:
        raise UsageError("--log does not go with heads: shares have a scale from 0 to 1 (see --vmin and --vmax)")
    choice = weight_choice(options)
    opened: Source
    named = (source, file, tokens, options.get("chat"), options.get("qkv"))
    if asked.probe and all(one is None for one in named):
        from attnctl.models.probe import probe_text

        opened = probe_text(arguments.model_of(options))
        arguments.say_notes(["there is no text: every statistic is of the probe's, random tokens said twice"])
    else:
        opened = open_source(source, file, tokens, options)
    given = chosen_of(opened, layer, head)
    check_attention_weights(given.source, "heads")
    found = _statistics_of(given, choice, asked)
    found = _by_role(found) if known is None else replace(found, head_statistics=_named_by(known, found))
    if picture:
        _write_statistic_grid(found, asked.by or PICTURED, look, str(output), form)
    else:
        _write_table(found, asked, form, output)


def _write_statistic_grid(found: Overview, by: str, look: Look, output: str, form: str) -> None:
    """One statistic of every head as a picture."""
    from attnctl.files import write_whole
    from attnctl.render.figure.head_statistics import statistic_grid

    title = f"{found.model.name}, {len(found.tokens):,} tokens"
    drawing = statistic_grid(found.head_statistics, by, title, look, found.model.citation)
    write_whole(output, figure_bytes(drawing.figure, form))


def _write_table(found: Overview, asked: HeadRequest, form: str, output: str | None) -> None:
    """The heads, those with most of what was asked for first, as a table, CSV or JSON."""
    from attnctl.render.terminal.head_statistics import HeadTable, heads_csv, ranked_by

    order = asked.by if asked.by or asked.top is None else TOP_BY
    ranked = ranked_by(found.head_statistics, order)[: asked.top]
    if form == "csv":
        put_bytes(heads_csv(ranked).encode(), output)
    elif form == "json":
        from attnctl.formats.documents.overview_json import overview_to_json

        put_bytes(overview_to_json(replace(found, head_statistics=tuple(ranked))) + b"\n", output)
    else:
        show_renderable(
            HeadTable(ranked, order, _named_elsewhere(found.model, ranked, asked.census is not None)), soft_wrap=True
        )


def _named_elsewhere(model: ModelInfo, heads: Sequence[HeadStatistics], by_census: bool) -> str:
    """Where the names of heads come from that are not read off this text; empty where there are none."""
    from attnctl.readings.questions.roles import roles_of_heads

    if by_census:
        named = any(name.endswith("%") for one in heads for name in one.names)
        return " With a share: what the census found, and how often it was right there; nothing of this text." * named
    known = roles_of_heads(model)
    first = next((known[place][0] for one in heads if (place := (one.layer, one.head)) in known), None)
    if first is None:
        return ""
    told = "what the model's evaluation measured the head to find, and nothing that was read off this text"
    return f" {first} and the like: {told} (attnctl model {model.card_name})."


def _heads_format(output: str | None, json: bool, csv: bool) -> str:
    if json and csv:
        raise UsageError("--json and --csv exclude each other")
    return output_format("heads", output, ("csv", "json", *format_names()), "json" if json else "csv" if csv else "")


def _statistics_of(given: Chosen, choice: WeightChoice, asked: HeadRequest) -> Overview:
    """The statistics of the heads chosen; with --probe, induction and duplicates as it finds them."""
    from attnctl.models.probe import probe_heads as probed
    from attnctl.readings.grid import OverviewReading
    from attnctl.readings.head_statistics import HeadStatisticsReading

    if choice.drop and not choice.renormalise:
        raise UsageError("--drop goes with --renormalise here: statistics are of rows that share all their attention")
    model: Any = getattr(given.source, "model", None)
    if asked.probe and model is None:
        raise UsageError(f"--probe runs a model: {given.source.name} holds numbers that have been computed already")
    source, layers, chosen = measured_source(choice, given)
    if asked.probe and source.measure is not None:
        raise UsageError(f"--probe measures the weights of single heads: it does not go with {source.measure}")
    if asked.census is not None and source.measure == "rollout":
        raise UsageError("--census names single heads, and rollout is of all heads together")
    source = renormalised_source(choice, source, dropped_keys(choice, source)[0])
    check_cost(given.source, given.head_count)
    statistics = HeadStatisticsReading(source.tokens, source.key_tokens)
    with cost_progress(heads_over_tokens(len(source.tokens), given.head_count)) as tick:
        found = source.read(OverviewReading(statistics=statistics), layers, chosen, tick)
    if asked.probe:
        scores = probed(model, layers=layers, heads=chosen)
        found = replace(
            found,
            head_statistics=tuple(
                _with_probe(measured, len(found.tokens), *scores[measured.layer, measured.head])
                for measured in found.head_statistics
            ),
        )
    arguments.say_notes(found.notes)
    arguments.say_unknown(source.tokens)
    return found


def _census_in(path: str) -> CensusTable:
    from attnctl.formats.documents.census_json import read_census

    return read_census(path)


def _named_by(census: CensusTable, found: Overview) -> tuple[HeadStatistics, ...]:
    """The statistics with the names that a census gives. Raises UsageError for the census of a model of other sizes."""
    from attnctl.readings.census.census_table import head_names

    info = found.model
    if census.head_grid != (info.n_layers, info.n_heads):
        layers, heads = census.head_grid
        raise UsageError(
            f"--census is of {census.model}, {layers} layers of {heads} heads: {info.name} has "
            f"{info.n_layers} of {info.n_heads}"
        )
    names = head_names(census)
    return tuple(
        replace(measured, names=(*measured.names, *names.get((measured.layer, measured.head), ())))
        for measured in found.head_statistics
    )


def _by_role(found: Overview) -> Overview:
    """The statistics of the heads, each head named first by what its model's own evaluation measured it to find."""
    from attnctl.readings.questions.roles import roles_of_heads

    known = roles_of_heads(found.model)
    statistics = (
        replace(measured, names=(*known.get((measured.layer, measured.head), ()), *measured.names))
        for measured in found.head_statistics
    )
    return replace(found, head_statistics=tuple(statistics)) if known else found


def _with_probe(measured: HeadStatistics, n: int, induction: float, duplicate: float) -> HeadStatistics:
    from attnctl.readings.head_statistics import name_head

    probed = {"induction": induction, "duplicate": duplicate}
    return name_head(replace(measured, values={**measured.values, **probed}), n, probed)
