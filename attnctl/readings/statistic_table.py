"""The statistics of a head: what every table, picture, page, schema and help says of each. Imports no NumPy."""

from __future__ import annotations

from typing import NamedTuple

FARTHEST = 5  # tokens: fixed offsets go from -5 to 5
STREAMING = (4, 64)  # the first and the last tokens that a streaming cache keeps
RANKED = 64  # cells a side of the overview whose effective rank is told
LEAST_TOKENS = 20  # of a text whose labels are not doubted: with fewer, looking everywhere alike comes near a threshold


class Statistic(NamedTuple):
    """One statistic of a head: what every table, picture, page and schema says of it."""

    name: str  # in JSON, CSV and --by
    heading: str  # of a column, 7 characters at most
    sentence: str  # mean over the queries of …
    unit: str  # "share" (0 to 1), "nats", "tokens", "places" (whole, with a sign), or "" for a bare number
    rank: int  # in a narrow table the columns of the lowest rank go first
    label: str | None = None  # what a head with at least `threshold` of it looks like
    threshold: float | None = None
    source: str | None = None  # of the label and its threshold

    @property
    def is_share(self) -> bool:
        """Whether its values are shares, 0 to 1."""
        return self.unit == "share"

    @property
    def title_with_unit(self) -> str:
        """The sentence with its unit: "entropy (nats)"."""
        return self.sentence if self.unit in ("", "share") else f"{self.sentence} ({self.unit})"

    @property
    def label_text(self) -> str:
        """From what on a head bears its label: " (sink: 0.3 or more)"; empty without one."""
        return "" if self.label is None or self.threshold is None else f" ({self.label}: {self.threshold:g} or more)"


USUAL = "customary"
# a new statistic is a line here, and a line in `head_statistics` that computes it
STATISTICS: dict[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        Statistic("entropy", "entropy", "entropy", "nats", 4),
        Statistic("entropy_share", "of max", "entropy, as a share of the most there can be", "share", 13,
                  "broad", 0.8, USUAL),
        Statistic("confidence", "confid", "largest weight of a query", "share", 5, source="Voita et al. 2019"),
        Statistic("sink", "sink", "mass that a learned sink takes", "share", 8),
        Statistic("gate", "gate", "share of the context that a learned gate lets through", "share", 8),
        Statistic("first", "first", "mass on the first token", "share", 12, "sink", 0.3, "Gu et al. 2025"),
        Statistic("special", "special", "mass on special tokens", "share", 5),
        Statistic("self", "self", "mass on the token itself", "share", 9, "own token", 0.4, USUAL),
        Statistic("previous", "prev", "mass on the previous token", "share", 11, "previous token", 0.4, USUAL),
        Statistic("next", "next", "mass on the next token", "share", 6, "next token", 0.4, USUAL),
        Statistic("punctuation", "punct", "mass on punctuation", "share", 3),
        Statistic("distance", "dist", "mean distance", "tokens", 8),
        Statistic("spread", "spread", "spread of the attended position", "tokens", 1),
        Statistic("induction", "induct", "mass on what followed copies of the token", "share", 10,
                  "induction", 0.4, "Olsson et al. 2022"),
        Statistic("duplicate", "dupl", "mass on copies of the token", "share", 7, "duplicate token", 0.4, USUAL),
        Statistic("offset", "offset", f"offset with most mass, of -{FARTHEST} to {FARTHEST}", "places", 0,
                  source="Voita et al. 2019"),
        Statistic("at_offset", "at it", "mass on the token at that offset", "share", 0, source="Voita et al. 2019"),
        Statistic("streaming", "stream", f"change of the head's output where it sees the first {STREAMING[0]} and the last "
                  f"{STREAMING[1]} tokens alone", "", 0, source="Xiao et al. 2024"),
        Statistic("rank", "rank", f"effective rank of the overview, {RANKED} cells a side", "", 2),
    )
}  # fmt: skip


def statistics_explained() -> list[tuple[str, str]]:
    """Heading → what the column holds, and from what on a head bears its label."""
    return [(one.heading, f"{one.title_with_unit}{one.label_text}") for one in STATISTICS.values()]
