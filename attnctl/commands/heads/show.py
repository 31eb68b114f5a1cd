"""Statistics of heads: one line a head."""

from __future__ import annotations

from collections.abc import Sequence

from attnctl.errors import option_name
from attnctl.readings import HeadNames, measured_checkpoint
from attnctl.readings.head_statistics import LEAST_TOKENS, STATISTICS, HeadStatistics, Statistic
from attnctl.render import Column, Table
from attnctl.text import for_pasting
from attnctl.trace import ModelInfo

LONGEST_NAME = 20  # letters: so long a name, as "pronoun → antecedent", with its comma stays on one line
REPEATING = ("induction", "duplicate")  # statistics of repeated tokens
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
        statistic, has_value = STATISTICS[measure], any(head[measure] is not None for head in heads)
        by = f" Sorted by {statistic.heading}, the largest first." if has_value else f" {no_value_sentence(measure)}"
    stand_out = (measure, f"{measure}_query", f"{measure}_key")
    doubt = DOUBT * any(head.is_doubted for head in heads)
    names = [", ".join(head.names) for head in heads]
    longest = max((len(name) for head in heads for name in head.names if len(name) <= LONGEST_NAME), default=0)
    return Table(
        [
            Column("layer", [head.layer for head in heads]),
            Column("head", [head.head for head in heads]),
            *(_statistic_column(statistic, heads, statistic.name in stand_out) for statistic in STATISTICS.values()),
            Column("looks like", names, "text", cut="below", min_width=longest + 1, tone="dim", name=""),
            Column("names", ["; ".join(head.names) for head in heads], "text", hidden=True),
        ],
        legend=f"Means over the queries. {{}}.{by}{doubt}{more}",
        elsewhere=f" ({option_name('csv')} has them all)",
        in_full=True,
    )


def no_value_sentence(name: str) -> str:
    """Return a sentence that says why no head has a statistic on this text, and what to do."""
    statistic = STATISTICS[name]
    if name in REPEATING:
        probe = option_name("probe", True)
        return f"No token is repeated in this text, so no head has {name} ({statistic.title_with_unit}): see {probe}."
    return f"No head has {statistic.heading} ({statistic.title_with_unit}) on this text."


def _statistic_column(statistic: Statistic, heads: Sequence[HeadStatistics], stands_out: bool) -> Column:
    def cell_text(value: float) -> str:
        if statistic.unit == "places":
            return f"{value:+.0f}" if value else "0"
        if statistic.unit == "token":
            return str(value)
        return f"{value:.3f}" if statistic.is_share else f"{value:.2f}" if value < 100 else f"{value:.0f}"

    return Column(
        statistic.heading,
        [head[statistic.name] for head in heads],
        "heat" if statistic.is_share else "number",
        cell_text,
        rank=None if stands_out else statistic.rank,
        tone="bold" if stands_out else "",
        about=f"{statistic.heading}: {statistic.title_with_unit}{statistic.label_text}",
        name=statistic.name,
    )


def names_origin(model: ModelInfo, heads: Sequence[HeadStatistics], names: HeadNames | None) -> str:
    """Return a sentence on where head names come from if not from this text; empty without such names."""
    if names is not None:
        named = not names.by_head.keys().isdisjoint((head.layer, head.head) for head in heads)
        return f" {names.legend}" * named
    roles = model.roles_of_heads()
    first = next((roles[place][0] for head in heads if (place := (head.layer, head.head)) in roles), None)
    if first is None:
        return ""
    where = "the model's evaluation" if (measured := measured_checkpoint(model)) is None else measured.corpus
    card = "" if measured is not None else f" (attnctl model {for_pasting(model.card_name)})"
    return f" Names such as {first}: what the head finds in {where}, not on this text{card}."
