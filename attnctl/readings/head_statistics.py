"""Statistics of each head: the table of them, with name, unit and source, and their values for one call of attention."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnctl.attention import Array
from attnctl.blockwise import effective_rank
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention, Run
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.readings.overview import LongRow, Overview


SINKS = 1e-3  # mass that is lacking in a row, from which it is no rounding


@dataclass(frozen=True, slots=True)
class HeadStatistics:
    """What one head does over a text: means over the queries that each statistic has a meaning for, by its name."""

    layer: int
    head: int
    values: Mapping[str, float | None]
    names: tuple[str, ...] = ()  # what it looks like
    is_doubted: bool = False  # whether a name is, as the text is too short to tell: it ends in "?"

    def __repr__(self) -> str:
        known = [f"{name} {value:.3g}" for name in STATISTICS if (value := self[name]) is not None]
        return f"HeadStatistics of layer {self.layer}, head {self.head}: {', '.join([*known, *self.names])}"

    def __getitem__(self, name: str) -> float | None:
        """The value of a statistic of STATISTICS; None where it has no meaning."""
        return self.values.get(name)


class HeadStatisticsReading:
    """The statistics of every head of every layer of a text; `keys` as of `head_statistics`."""

    predicts = False

    def __init__(self, tokens: Sequence[Token], keys: Sequence[Token] | None = None) -> None:
        self._tokens, self._keys = tokens, keys
        self._heads: list[HeadStatistics] = []

    def take(self, layer: LayerAttention) -> None:
        """Take in one layer. Raises AttnctlError where its scores are NaN or infinite."""
        self._heads += head_statistics(layer, self._tokens, self._keys)

    def kept_in(
        self, overview: Overview | LongRow, wanted: Callable[[int, int], bool], name: str
    ) -> tuple[HeadStatistics, ...]:
        """The statistics of an overview. Raises AttnctlError where it has none of these heads."""
        known = getattr(overview, "head_statistics", ())
        found = tuple(head for head in known if wanted(head.layer, head.head))
        if not found:
            raise AttnctlError(f"{name} holds no statistics of these heads: give the text and its model")
        return found

    def value(self, run: Run) -> tuple[HeadStatistics, ...]:
        """The statistics, layer by layer."""
        return tuple(_gated_statistics(head, run.gates.get(head.layer)) for head in self._heads)


def _gated_statistics(head: HeadStatistics, gates: Array) -> HeadStatistics:
    """The statistics with what a learned gate lets through; `gates` (heads, n_q) of its layer, None where there are none."""
    return head if gates is None else replace(head, values={**head.values, "gate": float(gates[head.head].mean())})


def head_statistics(
    layer: LayerAttention, tokens: Sequence[Token], keys: Sequence[Token] | None = None
) -> list[HeadStatistics]:
    """The statistics of each head of one layer; `keys` are what its keys stand for (None: the queries' own `tokens`).

    Of another text's keys there is no distance, and of keys beside the text's own (compressed slots) no position either.
    Raises AttnctlError where its scores are NaN or infinite.
    """
    own = (keys is None or tuple(keys) == tuple(tokens)) and layer.n_q == layer.n_k == len(tokens)
    placed = own or keys is None or tuple(keys[: len(tokens)]) != tuple(tokens)
    marks = np.zeros((3, layer.n_k), bool)
    marks[0, 0] = True
    if own:
        marks[1] = [token.special for token in tokens]
        words = ["" if token.special else token.text.strip() for token in tokens]
        marks[2] = [word != "" and all(unicodedata.category(sign)[0] == "P" for sign in word) for word in words]
    found: Any = layer.statistics(marks, RANKED)
    if not np.isfinite(found.entropy).all():  # a row that sees nothing has entropy 0
        raise AttnctlError(f"the scores of layer {layer.layer} are no finite numbers: see the weights up to there")
    most = np.log(np.maximum(layer.visible_counts(), 1))  # (n_q,), nats
    means: dict[str, Array] = {
        "entropy": found.entropy.mean(-1),
        "entropy_share": (found.entropy[:, most > 0] / most[most > 0]).mean(-1) if (most > 0).any() else None,
        "confidence": found.largest.mean(-1),
        "sink": _mass_on_sinks(found.kept),
        "gate": None,  # known when the layer has ended
        "first": found.marked[:, 0].mean(-1),
        "special": found.marked[:, 1].mean(-1) if marks[1].any() else None,
        "punctuation": found.marked[:, 2].mean(-1) if marks[2].any() else None,
        "distance": found.distance.mean(-1) if own or keys is None else None,
        "spread": found.spread.mean(-1) if placed else None,
        "rank": effective_rank(found.pooled),
    }
    first, later = np.zeros((1, 1), int), np.arange(1, layer.n_k)[None]  # (1, 1), (1, n_k - 1)
    ahead = bool(layer.visible_at(first, later).any())  # the first query may look at a later key
    offsets = _at_offsets(layer, ahead) if own else {}
    for name, offset in (("self", 0), ("previous", -1), ("next", 1)):
        means[name] = offsets.get(offset)
    means["offset"], means["at_offset"] = _best_offset(offsets)
    change = layer.streaming_change(*STREAMING) if own and not ahead and layer.n_q > sum(STREAMING) else None
    means["streaming"] = None if change is None else change.mean(-1)
    ids = [(token.id, token.text) for token in tokens]
    names = {name: at for at, name in enumerate(dict.fromkeys(ids))}
    for name, shift in (("induction", 1), ("duplicate", 0)):
        means[name] = _mean_over_queries(layer.on_copies([names[at] for at in ids], shift)) if own else None
    heads = []
    for at, head in enumerate(layer.heads):
        values = {name: None if (mean := means[name]) is None else float(mean[at]) for name in STATISTICS}
        heads.append(name_head(HeadStatistics(layer.layer, head, values), layer.n_k))
    return heads


def _at_offsets(layer: LayerAttention, ahead: bool) -> dict[int, Array]:
    """Offset → the mean mass there (heads,), of offsets that some query can see."""
    found = {
        offset: _mean_over_queries(layer.at_offset(offset))
        for offset in range(-FARTHEST, FARTHEST + 1)
        if abs(offset) < layer.n_k and (offset <= 0 or ahead)
    }
    return {offset: mean for offset, mean in found.items() if mean is not None}


def _best_offset(offsets: dict[int, Array]) -> tuple[Array, Array]:
    """The offset with most mass and that mass, (heads,) each; None where there is but one."""
    if len(offsets) < 2:
        return None, None
    known = np.array(list(offsets))  # (offsets,)
    masses = np.stack([offsets[offset] for offset in known])  # (offsets, heads)
    return known[masses.argmax(0)], masses.max(0)


def _mass_on_sinks(kept: Array) -> Array:
    """The mass that learned sinks take, of the mass on all keys (heads, n_q) → (heads,); None where there are none."""
    taken = np.where(kept > 0, 1 - kept, 0)  # (heads, n_q); a row that sees nothing has no sink either
    return taken.mean(-1) if (taken > SINKS).any() else None


def name_head(head: HeadStatistics, n: int, sure: Container[str] = ()) -> HeadStatistics:
    """The statistics with the head's names: labels whose thresholds it passes, the most particular first.

    Over a text of n tokens, fewer than LEAST_TOKENS, a label is doubted ("sink?"), but for the statistics named `sure`.
    """
    passed = [
        one
        for one in reversed(STATISTICS.values())
        if one.label is not None and one.threshold is not None and (head[one.name] or 0.0) >= one.threshold
    ]
    doubted = {one.name for one in passed if n < LEAST_TOKENS and one.name not in sure}
    names = (f"{one.label}{'?' * (one.name in doubted)}" for one in passed)
    return replace(head, names=tuple(names), is_doubted=bool(doubted))


def _mean_over_queries(rows: Array) -> Array:
    """Means over the queries with a number (heads, n_q) → (heads,); None where no query has one."""
    there = ~np.isnan(rows[0])
    return rows[:, there].mean(-1) if there.any() else None


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
