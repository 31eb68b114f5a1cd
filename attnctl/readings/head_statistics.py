"""Statistics of each head: the table of their names, units and sources, and their values for one attention layer."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnctl.attention import Array
from attnctl.blockwise import RowStatistics, effective_rank, even_parts
from attnctl.checks.tolerances import SAME_LOGIT, WHOLE_ROW
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.measures.value_norm import value_lengths
from attnctl.readings.counted_rows import CountedRows, counted_rows, mean_where
from attnctl.runtime.arrays import MEMORY, Bools
from attnctl.text.tokens import PADDING, WHOLE, Token

SINK_MASS = 0.3  # a key with this share of a head's attention or more is a sink (Gu et al. 2025)


@dataclass(frozen=True, slots=True)
class HeadStatistics:
    """The statistics of one head over a text, by name: each is a mean over the queries for which it is defined."""

    layer: int
    head: int
    values: Mapping[str, float | None]
    names: tuple[str, ...] = ()  # labels such as "previous token"
    is_doubted: bool = False  # whether a label is uncertain, because the text is short: it ends in "?"

    def __repr__(self) -> str:
        values = [f"{name} {value:.3g}" for name in STATISTICS if (value := self[name]) is not None]
        return f"HeadStatistics of layer {self.layer}, head {self.head}: {', '.join([*values, *self.names])}"

    def __getitem__(self, name: str) -> float | None:
        """Return the value of a statistic of STATISTICS; None if it is not defined here."""
        return self.values.get(name)


class HeadTable(tuple[HeadStatistics, ...]):
    """The statistics of heads, one for each."""

    __slots__ = ()

    def to_records(self) -> list[dict[str, object]]:
        """Return a flat record for each head: layer, head, the statistics by name, and its names with "; " between them."""
        return [
            {"layer": head.layer, "head": head.head}
            | {name: head[name] for name in STATISTICS}
            | {"names": "; ".join(head.names)}
            for head in self
        ]


def head_statistics(
    layer: LayerAttention, tokens: Sequence[Token], keys: Sequence[Token] | None = None
) -> list[HeadStatistics]:
    """Return the statistics of each head of one layer, as `statistics_of_counted` does."""
    return statistics_of_counted(layer, tokens, keys)[0]


def statistics_of_counted(
    layer: LayerAttention,
    tokens: Sequence[Token],
    keys: Sequence[Token] | None = None,
    left_out: Sequence[int] = (),
) -> tuple[list[HeadStatistics], Bools]:
    """Return the statistics of each head of one layer, and which queries (n_q,) count in their means.

    `keys` are the tokens of the layer's keys (None: the queries' own `tokens`), `left_out` the keys that the user hides.
    Queries count that see something and are no padding. Keys of another text have no distance, and keys beside the text's
    own (compressed slots) have no position either. Raises AttnctlError if the scores are NaN or infinite.
    """
    reads_itself = (keys is None or tuple(keys) == tuple(tokens)) and layer.n_q == layer.n_k == len(tokens)
    placed = reads_itself or keys is None or tuple(keys[: len(tokens)]) != tuple(tokens)
    marks = _marked_keys(layer, tokens if reads_itself else (), left_out)
    lengths = value_lengths(layer) if layer.values is not None and layer.n_q >= LEAST_TOKENS else None  # (heads, n_k)
    statistics = _statistics_of_rows(layer, marks, lengths)
    # the mass that learned sinks take, (heads, n_q); a row that sees nothing has no sink either
    sink_mass = np.where(statistics.mass > 0, 1 - statistics.mass, 0)
    has_sink = bool((sink_mass > WHOLE_ROW).any())
    counted = counted_rows(layer, statistics.mass, left_out, reads_itself=reads_itself, has_sink=has_sink)
    learned = counted.mean(sink_mass) if has_sink else None
    means: dict[str, Array] = {  # "gate" is known when the layer has ended
        "entropy": counted.mean(statistics.entropy),
        "entropy_share": _share_of_entropy(layer, statistics, counted),
        "confidence": counted.mean(statistics.largest),
        "sink": learned,
        **_sink_kinds(layer, statistics, lengths, learned, counted),
        **_extreme_logits(layer, statistics, counted.by_head),
        "first": counted.mean(statistics.marked[:, 0]),
        "special": counted.mean(statistics.marked[:, 1]) if marks[1].any() else None,
        "punctuation": counted.mean(statistics.marked[:, 2]) if marks[2].any() else None,
        "distance": counted.mean(statistics.distance) if reads_itself or keys is None else None,
        "spread": counted.mean(statistics.spread) if placed else None,
        "rank": effective_rank(_grid_of_counted(layer, statistics.pooled, counted)),
        **(_of_places(layer, tokens, counted) if reads_itself else {}),
    }
    n = layer.n_k - int((~counted.keys).sum())
    heads = []
    for row, head in enumerate(layer.heads):
        numbers = {
            name: int(mean[row]) if STATISTICS[name].unit == "token" else float(str(np.float32(mean[row])))  # shortest
            for name, mean in means.items()
            if mean is not None and not np.isnan(mean[row])
        }
        values = {name: numbers.get(name) for name in STATISTICS}
        heads.append(name_head(HeadStatistics(layer.layer, head, values), n))
    return heads, counted.rows


def _marked_keys(layer: LayerAttention, tokens: Sequence[Token], left_out: Sequence[int]) -> Bools:
    """Return which keys are the first that is seen, special, and punctuation → (3, n_k).

    `tokens` are those of the keys; without any, no key is known to be special or punctuation.
    """
    seen = np.array(layer.seen_keys())  # (n_k,)
    seen[list(left_out)] = True
    marks = np.zeros((3, layer.n_k), bool)
    marks[0, int(seen.argmax())] = True
    if tokens:
        marks[1] = [token.special for token in tokens]
        marks[2] = [not token.special and _is_punctuation(token.text) for token in tokens]
    return marks


def _statistics_of_rows(layer: LayerAttention, marks: Bools, lengths: Array | None) -> RowStatistics:
    """Return the statistics of a layer's rows, with the mass on each of `marks` (3, n_k).

    With the `lengths` (heads, n_k) of the values, the sum of the weights times the lengths is a fourth mass. Raises
    AttnctlError if the scores are NaN or infinite.
    """
    marked: Array = marks
    if lengths is not None:
        marked = np.concatenate([np.broadcast_to(marks, (len(lengths), *marks.shape)), lengths[:, None]], 1)
    statistics = layer.statistics(marked, RANKED)
    if not np.isfinite(statistics.entropy).all():  # a row that sees nothing has entropy 0
        raise AttnctlError(f"the scores of layer {layer.layer} are not finite numbers: see the weights up to there")
    return statistics


def _share_of_entropy(layer: LayerAttention, statistics: RowStatistics, counted: CountedRows) -> Array:
    """Return the mean entropy as a share of the largest possible (heads,); None if no query has a choice of keys."""
    largest = np.log(np.maximum(layer.visible_counts(), 1))  # (n_q,), nats
    choosing = counted.by_head & (largest > 0)  # (heads, n_q): more than one key to choose from
    return mean_where(statistics.entropy / np.where(largest > 0, largest, 1), choosing) if choosing.any() else None


def _of_places(layer: LayerAttention, tokens: Sequence[Token], counted: CountedRows) -> dict[str, Array]:
    """Return the statistics of a text that reads itself, which depend on the places of its keys: (heads,) each, or None."""
    # the first query may look at a later key
    first, later = np.array([[counted.first_row]]), np.arange(counted.first_row + 1, layer.n_k)[None]
    ahead = bool(layer.visible_at(first, later).any())
    offsets = _at_offsets(layer, ahead, counted)
    means: dict[str, Array] = {"self": offsets.get(0), "previous": offsets.get(-1), "next": offsets.get(1)}
    means["offset"], means["at_offset"] = _best_offset(offsets)
    streams = not ahead and layer.n_q > sum(STREAMING) and not counted.first_key
    change = layer.streaming_change(*STREAMING) if streams else None
    means["streaming"] = None if change is None else counted.mean(change)
    means["picture"], means["spatial_entropy"] = _on_picture(layer, tokens, ahead, counted.last_row)
    ids = [(token.id, token.text) for token in tokens]
    names = {name: number for number, name in enumerate(dict.fromkeys(ids))}
    for name, shift in (("induction", 1), ("duplicate", 0)):
        means[name] = _mean_of_numbers(layer.on_copies([names[name_id] for name_id in ids], shift), counted)
    return means


@lru_cache(maxsize=1 << 14)
def _is_punctuation(text: str) -> bool:
    """Return whether the text of a token is signs of punctuation alone, at least one."""
    word = text.strip()
    return word != "" and all(unicodedata.category(sign)[0] == "P" for sign in word)


def _grid_of_counted(layer: LayerAttention, pooled: Array, counted: CountedRows) -> Array:
    """Return the mass between at most RANKED × RANKED parts of the text without padding → (heads, row parts, key parts).

    `pooled` is that of the whole text.
    """
    if counted.whole or not counted.rows.any():
        return pooled
    keys = np.flatnonzero(counted.keys)  # (keys that are no padding,)
    rows = even_parts(counted.first_row, counted.last_row + 1, RANKED)
    return layer.pooled(rows, even_parts(int(keys[0]), int(keys[-1]) + 1, RANKED), "mass")


def _at_offsets(layer: LayerAttention, ahead: bool, counted: CountedRows) -> dict[int, Array]:
    """Return offset → mean weight of the keys at this offset (heads,), for offsets that at least one query can see."""

    def at_offset(offset: int) -> Array:
        """Return each query's weight on the key at this offset → (heads, n_q), NaN where that is padding or missing."""
        weights = layer.at_offset(offset)
        columns = np.clip(layer.positions + offset, 0, layer.n_k - 1)  # (n_q,)
        return np.where(counted.keys[columns], weights, np.nan)

    means = {
        offset: _mean_of_numbers(at_offset(offset), counted)
        for offset in range(-FARTHEST, FARTHEST + 1)
        if abs(offset) < layer.n_k and (offset <= 0 or ahead)
    }
    return {offset: mean for offset, mean in means.items() if mean is not None}


def _best_offset(offsets: dict[int, Array]) -> tuple[Array, Array]:
    """Return the offset with the largest weight and that weight, (heads,) each; None if there is only one offset."""
    if len(offsets) < 2:
        return None, None
    numbers = np.array(list(offsets))  # (offsets,)
    masses = np.stack([offsets[offset] for offset in numbers])  # (offsets, heads)
    return numbers[masses.argmax(0)], masses.max(0)


def _on_picture(layer: LayerAttention, tokens: Sequence[Token], ahead: bool, last: int) -> tuple[Array, Array]:
    """Return one query's weight on the tokens with a box and its spatial entropy, (heads,) each; None for text alone.

    The query is the `last` token; for a picture without text, if its tokens look `ahead`, it is the first token outside the
    picture (CLS). For tiles and a small view of the whole the entropy is that of the tiles; several pictures have none.
    """
    boxes = {index: token.box for index, token in enumerate(tokens) if token.box is not None and token.is_patch}
    beside = [index for index in range(len(tokens)) if index not in boxes and PADDING not in tokens[index].text]
    if not boxes or not beside:
        return None, None
    first = ahead and all(tokens[index].special for index in beside)
    weights = layer.rows_of([beside[0] if first else last])[:, 0]  # (heads, n_k)
    cells = {
        index: box for index, box in boxes.items() if WHOLE not in tokens[index].text and tokens[index].picture is None
    }
    rows, columns = (len({box[side] for box in cells.values()}) for side in (1, 0))
    in_rows = sorted(cells, key=lambda index: (cells[index][1], cells[index][0]))  # tiles stand one after another
    grid = weights[:, in_rows].reshape(-1, rows, columns) if cells and rows * columns == len(cells) else None
    return weights[:, list(boxes)].sum(-1), None if grid is None else spatial_entropy(grid)


def spatial_entropy(weights: Array) -> Array:
    """Return how scattered the weight of a grid is, (heads, rows, columns) → (heads,) in nats (Kang et al. 2025).

    It is the entropy over the connected parts (8 neighbours) of the cells above the grid's mean; the share of a part is
    its share of these cells. 0 means one part; NaN, that no cell is above the mean.
    """
    above = weights > weights.mean((1, 2), keepdims=True)  # (heads, rows, columns)
    spread, parts = np.arange(1, weights[0].size + 1).reshape(weights.shape[1:]) * above, None
    while parts is None or (spread != parts).any():  # until each part has the largest number of its cells
        parts = spread
        near = np.lib.stride_tricks.sliding_window_view(np.pad(parts, ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
        spread = near.max((-2, -1)) * above
    shares = [np.unique(part[part > 0], return_counts=True)[1] / max((part > 0).sum(), 1) for part in parts]
    return np.array([abs((share * np.log(share)).sum()) if len(share) else np.nan for share in shares])


def _extreme_logits(layer: LayerAttention, statistics: RowStatistics, counted: Bools) -> dict[str, Array]:
    """Return the largest logit of each head with its query and key, and the smallest one: four arrays (heads,).

    Only the queries in `counted` (heads, n_q) count. Of logits that differ by rounding alone, such as those of repeated
    words, the first query and key are named. The arrays are None if the scores are unknown, and NaN for a head whose
    queries see no key.
    """
    names = ("max_logit", "max_logit_query", "max_logit_key", "min_logit")
    if statistics.max_logit is None or statistics.min_logit is None:
        return dict.fromkeys(names)
    max_logit = np.where(counted, statistics.max_logit, -np.inf)  # (heads, n_q)
    queries = _first_largest(max_logit)  # (heads,)
    logits = layer.logits_of_heads(queries.tolist())  # (heads, n_k)
    assert logits is not None
    keys = _first_largest(logits)  # (heads,)
    largest, smallest = max_logit.max(-1), np.where(counted, statistics.min_logit, np.inf).min(-1)  # (heads,)
    return {
        name: np.where(np.isfinite(largest), numbers, np.nan)
        for name, numbers in zip(names, (largest, queries, keys, smallest), strict=True)
    }


def _first_largest(logits: Array) -> Array:
    """Return the place of the first logit (..., n) that is the largest but for rounding → (...)."""
    largest = logits.max(-1, keepdims=True)  # (..., 1)
    return (logits >= largest - SAME_LOGIT * np.maximum(1, np.abs(largest))).argmax(-1)


def _sink_kinds(
    layer: LayerAttention, statistics: RowStatistics, lengths: Array, learned: Array, counted: CountedRows
) -> dict[str, Array]:
    """Return what the sinks of a head add to its context → two arrays (heads,), NaN for a head without a sink.

    `statistics` hold the layer's masses in RANKED even parts a side, and last of the marked masses the sum of the weights
    times the `lengths` (heads, n_k) of the values. A learned sink, which takes `learned` (heads,), has no value vector and
    adds nothing. The arrays are None if the values are not known, or if the text is too short to distinguish a sink from a
    word.
    """
    rows = np.flatnonzero(counted.rows)  # (queries that count,)
    if lengths is None or len(rows) < LEAST_TOKENS:
        return {"sink_kind": None, "sink_norm": None}
    parts = even_parts(0, layer.n_k, RANKED)
    sizes = np.array([part[-1][1] - part[0][0] for part in even_parts(0, layer.n_q, RANKED)])  # (row parts,)
    largest = (sizes @ np.asarray(statistics.pooled) / len(rows)).max(
        0
    )  # (key parts,): a key has at most its part's mass
    keys = [key for part, mass in zip(parts, largest, strict=True) if mass >= SINK_MASS for key in range(*part[0])]
    step = max(1, MEMORY // (16 * len(layer.heads) * len(rows)))  # keys whose columns are in memory at once
    columns = [keys[start : start + step] for start in range(0, len(keys), step)]

    def weights_on(keys: Sequence[int]) -> Array:
        """Return the weights of the queries that count on some keys → (heads, rows, keys)."""
        return layer.weights_at(rows[None], np.array(keys)[None])[:, 0]

    masses = [weights_on(some).mean(1) for some in columns]  # (heads, keys) each
    mass = np.concatenate(masses, 1) if masses else np.zeros((len(layer.heads), 0))  # (heads, keys)
    taking = mass >= SINK_MASS
    total = (mass * taking).sum(-1)  # (heads,)
    if learned is not None:
        total += np.where(learned >= SINK_MASS, learned, 0)
    sinks = np.flatnonzero(taking.any(0))  # places of the keys that are a sink of some head
    brought = np.zeros((len(layer.heads), len(rows)))
    for place in sinks:
        brought += weights_on([keys[place]])[..., 0] * (lengths[:, keys[place]] * taking[:, place])[:, None]
    whole = statistics.marked[:, -1, rows]  # (heads, rows)
    share = np.where(total > 0, (brought / np.where(whole > 0, whole, 1)).mean(-1), np.nan)
    typical = lengths.mean(-1)  # (heads,)
    with np.errstate(invalid="ignore"):
        norm = (mass * taking * lengths[:, keys]).sum(-1) / (total * np.where(typical > 0, typical, 1))
    return {"sink_kind": share, "sink_norm": norm}  # (heads,) each


def name_head(head: HeadStatistics, n: int, sure: Container[str] = ()) -> HeadStatistics:
    """Return the statistics with the head's labels, those whose thresholds it passes, the most specific first.

    For n tokens, fewer than LEAST_TOKENS, a label is doubted ("sink?"), except for the statistics named in `sure`.
    """
    passed = [
        (statistic.name, label)
        for statistic in reversed(STATISTICS.values())
        if statistic.name != "first" or head["sink_norm"] is None  # the label of `sink_norm` says more
        if (label := statistic.label_of(head[statistic.name])) is not None
    ]
    doubted = {name for name, _ in passed if n < LEAST_TOKENS and name not in sure}
    names = (f"{label}{'?' * (name in doubted)}" for name, label in passed)
    return replace(head, names=tuple(names), is_doubted=bool(doubted))


def _mean_of_numbers(rows: Array, counted: CountedRows) -> Array:
    """Return the means over the queries that count and have a number, (heads, n_q) → (heads,); None without such a query."""
    is_number = ~np.isnan(rows) & counted.by_head
    return mean_where(rows, is_number) if is_number.any() else None


FARTHEST = 5  # tokens: fixed offsets go from -5 to 5
STREAMING = (4, 64)  # the first and the last tokens that a streaming cache keeps
RANKED = 64  # cells on each side of the overview whose effective rank is computed
LEAST_TOKENS = 20  # a label of a shorter text is doubted: there even uniform attention comes near a threshold


class Statistic(NamedTuple):
    """One statistic of a head: the texts about it in every table, picture, page and schema."""

    name: str  # in JSON, CSV and --by
    heading: str  # of a column, 7 characters at most
    sentence: str  # mean over the queries of …
    # "share" (0 to 1), "nats", "tokens", "places" (whole, with a sign), "logit" (with a sign), "token" (the index of one),
    # or "" for a bare number
    unit: str
    rank: int  # a narrow table leaves out the columns of the lowest rank first
    label: str | None = None  # the label of a head with `threshold` or more
    threshold: float | None = None
    source: str | None = None  # the source of the label and its threshold
    label_below: str | None = None  # the label of a head with less than `threshold`

    @property
    def is_share(self) -> bool:
        """Return whether its values are shares, 0 to 1."""
        return self.unit == "share"

    @property
    def title_with_unit(self) -> str:
        """Return the sentence with its unit: "entropy (nats)"."""
        return self.sentence if self.unit in ("", "share", "logit", "token") else f"{self.sentence} ({self.unit})"

    def label_of(self, value: float | None) -> str | None:
        """Return the label of a head with this value; None if the value gives no label."""
        if value is None or self.threshold is None:
            return None
        return self.label if value >= self.threshold else self.label_below

    @property
    def label_text(self) -> str:
        """Return the threshold of the label as text: " (sink: 0.3 or more)"; empty for a statistic without a label."""
        if self.label is None or self.threshold is None:
            return ""
        below = f"; {self.label_below}: less" * (self.label_below is not None)
        return f" ({self.label}: {self.threshold:g} or more{below})"


USUAL = "customary"
# a new statistic is a line here, and a line in `head_statistics` that computes it
STATISTICS: dict[str, Statistic] = {
    statistic.name: statistic
    for statistic in (
        Statistic("entropy", "entropy", "entropy", "nats", 4),
        Statistic("entropy_share", "of max", "entropy, as a share of the largest possible", "share", 13,
                  "broad", 0.8, USUAL),
        Statistic("confidence", "confid", "largest weight of a query", "share", 5, source="Voita et al. 2019"),
        Statistic("sink", "sink", "mass that a learned sink takes", "share", 8),
        Statistic("sink_kind", "brings", f"share of the context's norm from sinks (keys with {SINK_MASS:.0%} of a head)",
                  "share", 0, source="Kobayashi et al. 2020"),
        Statistic("sink_norm", "s norm", "norm of the values of such sinks, of the mean norm of all values", "", 0,
                  "passing sink", 0.2, "Gu et al. 2025", "empty sink"),
        Statistic("gate", "gate", "share of the context that a learned gate lets through", "share", 8),
        Statistic("first", "first", "mass on the first token", "share", 12, "sink", SINK_MASS, "Gu et al. 2025"),
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
        Statistic("picture", "picture", "weight of the last token, or of CLS, on a picture", "share", 9,
                  source="Kang et al. 2025"),
        Statistic("spatial_entropy", "scatter", "spatial entropy of that weight: over connected parts above its mean",
                  "nats", 8, source="Kang et al. 2025"),
        Statistic("rank", "rank", f"effective rank of the overview, {RANKED} cells a side", "", 2),
        Statistic("max_logit", "logit", "largest logit: the scaled score of a query and a key that it sees", "logit", 1),
        Statistic("max_logit_query", "query", "number of the query with the largest logit", "token", 0),
        Statistic("max_logit_key", "key", "number of the key with the largest logit", "token", 0),
        Statistic("min_logit", "least", "smallest logit", "logit", 0),
    )
}  # fmt: skip
