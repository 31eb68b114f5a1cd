"""Statistics of heads: one line a head."""

from __future__ import annotations

from collections.abc import Sequence

from attnctl.errors import option_name
from attnctl.readings.head_names import HeadNames
from attnctl.readings.head_statistics import LEAST_TOKENS, STATISTICS, HeadStatistics, Statistic
from attnctl.readings.questions.headline import roles_of_heads
from attnctl.render.forms import Column, Table
from attnctl.text import for_pasting
from attnctl.trace.model_info import ModelInfo

DOUBT = f" ?: the text has fewer than {LEAST_TOKENS} tokens, too few to tell what a head does."


def ranked_by(heads: Sequence[HeadStatistics], measure: str | None) -> list[HeadStatistics]:
    """Return the heads sorted by a statistic, the largest value first; None keeps the order of layers and heads."""
    if measure is None:
        return list(heads)
    return sorted(heads, key=lambda head: (head[measure] is None, -(head[measure] or 0), head.layer, head.head))


def heads_table(heads: Sequence[HeadStatistics], measure: str | None = None, more: str = "") -> Table:
    """Return a table of the statistics; the column of `measure` is bold, and `more` is added to the legend."""
    by = ""
    if measure is not None:
        one, told = STATISTICS[measure], any(head[measure] is not None for head in heads)
        by = (
            f" Sorted by {one.heading}, the largest first."
            if told
            else f" No head has {one.heading} ({one.title_with_unit}) on this text."
        )
    doubt = DOUBT * any(head.is_doubted for head in heads)
    return Table(
        [
            Column("layer", [head.layer for head in heads]),
            Column("head", [head.head for head in heads]),
            *(_statistic_column(one, heads, one.name == measure) for one in STATISTICS.values()),
            Column("looks like", [", ".join(head.names) for head in heads], "text", cut="below", tone="dim", name=""),
            Column("names", ["; ".join(head.names) for head in heads], "text", hidden=True),
        ],
        legend=f"Means over the queries. {{}}.{by}{doubt}{more}",
        elsewhere=f" ({option_name('csv')} has them all)",
        in_full=True,
    )


def _statistic_column(one: Statistic, heads: Sequence[HeadStatistics], own: bool) -> Column:
    def cell_text(value: float) -> str:
        if one.unit == "places":
            return f"{value:+.0f}" if value else "0"
        return f"{value:.3f}" if one.is_share else f"{value:.2f}" if value < 100 else f"{value:.0f}"

    return Column(
        one.heading,
        [head[one.name] for head in heads],
        "heat" if one.is_share else "number",
        cell_text,
        rank=None if own else one.rank,
        tone="bold" if own else "",
        about=f"{one.heading}: {one.title_with_unit}{one.label_text}",
        name=one.name,
    )


def names_origin(model: ModelInfo, heads: Sequence[HeadStatistics], names: HeadNames | None) -> str:
    """Return a sentence on the source of head names that do not come from this text; empty if there are no such names."""
    if names is not None:
        named = not names.by_head.keys().isdisjoint((one.layer, one.head) for one in heads)
        return f" {names.legend}" * named
    known = roles_of_heads(model)
    first = next((known[place][0] for one in heads if (place := (one.layer, one.head)) in known), None)
    if first is None:
        return ""
    told = "what the model's evaluation measured the head to find, and nothing that was read off this text"
    return f" {first} and the like: {told} (attnctl model {for_pasting(model.card_name)})."
