"""The result of `attnctl leaks`: who may see whom in a packed batch, who does, what it changes, and what is wrong about it.

A segment is a document in a row of the batch, or the padding of the row. `query` is the segment that looks, `key` the one
that it looks at. A pair of a segment with itself is about the future: tokens behind the token that looks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from attnctl.checks.document_fields import NOT_EMPTY, Amount, Count, Index, Part, Share, about
from attnctl.errors import UsageError
from attnctl.formats import JsonDocument, ResultModel, flat_records
from attnctl.runtime.arrays import Bools
from attnctl.text import counted, percent, visible_text

State = Literal["allowed", "apart", "rounding", "leak"]
Cause = Literal[
    "padding", "prefix", "token-types", "no-causal-mask", "given-mask", "added-mask", "mask-of-ids", "mask-given", "cache",
    "positions-unread", "positions-in-planes", "kernel", "nothing-given", "relayed", "state",
    "own-mask",
]  # fmt: skip
# facts about a batch that decide on the cause of a leak
BatchFact = Literal[
    "restarts", "mask", "ids", "given-mask", "added-mask", "cache", "boundaries", "types", "no-attention", "relayed",
    "read", "planes", "unread", "module",
]  # fmt: skip


class Segment(Part):
    """A group of tokens in one row of the batch: a document, or the padding."""

    row: Annotated[Index, about("Of the batch.")]
    number: Annotated[Index, about("Within the row, in the order of their first tokens; padding is the last.")]
    first: Annotated[Index, about("Position of its first token in the row.")]
    tokens: Count
    padding: bool = False


class LeakPair(Part, kw_only=True):
    """What the segment `query` sees of the segment `key` (indexes in `segments`); if both are the same, its future.

    What could not be measured is absent.
    """

    query: Index
    key: Index
    state: Annotated[
        State,
        about(
            "allowed: expected to be seen; apart: the outputs do not change by a bit; rounding: they change no more than "
            "rounding changes them; leak: visible, or the outputs change by more."
        ),
    ]
    visible: Annotated[
        tuple[Share, ...], about("Share of pairs of tokens that the mask lets through, by `layers`.")
    ] = ()
    first_layer: Annotated[Index | None, about("The first layer in which it is visible.")] = None
    largest: Annotated[Share | None, about("The largest weight of a token of query on all of key together.")] = None
    layer: Annotated[Index | None, about("Of the largest weight.")] = None
    head: Annotated[Index | None, about("Of the largest weight.")] = None
    mean: Annotated[Share | None, about("The same weight, mean over tokens, heads and layers.")] = None
    prefix: Annotated[Count | None, about("Only this many first tokens see their future.")] = None
    change: Annotated[
        Amount | None, about("Largest change of an output of query when the tokens of key are replaced.")
    ] = None
    divergence: Annotated[float | None, about("Mean Kullback-Leibler divergence of the predictions, nats.")] = None
    loss: Annotated[float | None, about("Change of the loss, nats per token.")] = None
    cause: Annotated[Cause | None, about("The likely cause of a leak.")] = None


class Expectation(NamedTuple):
    """Who may see whom: `kind` is segments, causal, prefix (of `prefix` tokens), or a table of segment × segment."""

    kind: str
    prefix: int = 0
    table: Bools | None = None

    def allows(self, query: Segment, key: Segment) -> bool:
        """Return whether a segment may look at another one, or at itself."""
        if query is key or key.padding:
            return not key.padding
        if self.table is not None:
            return bool(self.table[query.number, key.number])
        return self.kind == "causal" and key.first < query.first

    def __str__(self) -> str:
        return f"prefix {self.prefix}" if self.kind == "prefix" else self.kind


def parsed_expectation(spec: str) -> Expectation | None:
    """Return the expectation that "segments", "causal" or "prefix 16" names; None for what may be a file.

    Raises UsageError for a prefix without its number of tokens.
    """
    words = spec.replace(":", " ").split()
    if words[:1] == ["prefix"]:
        if len(words) != 2 or not words[1].isdecimal() or not 0 < int(words[1]) < 10**9:
            raise UsageError('a prefix needs its number of tokens: "prefix 16"', option="expect", value=spec)
        return Expectation("prefix", int(words[1]))
    return Expectation(spec) if spec in ("segments", "causal") else None


class Leaks(JsonDocument, kw_only=True, eq=False, tag="attnctl.leaks/1"):
    """Whether a model keeps the segments of a packed batch apart, with every pair of segments in a row."""

    model: ResultModel
    segments: Annotated[tuple[Segment, ...], NOT_EMPTY]
    expect: Annotated[str, about("Who may see whom: segments, causal, prefix N, or a table.")]
    causal: Annotated[bool, about("Whether the future should be hidden.")]
    outputs: Annotated[str, about("What is compared: logits, or hidden states if a model has no logits.")]
    layers: Annotated[
        tuple[tuple[int, ...], ...], about("Layers in groups; the layers of a group let the same pairs through.")
    ]
    pairs: tuple[LeakPair, ...]
    floor: Annotated[Amount, about("Largest change between two runs of the same input.")]
    limit: Annotated[Amount, about("Largest change that rounding may cause: a larger change is a leak.")]
    forwards: Annotated[Count, about("How often the model ran.")]
    notes: tuple[str, ...]

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each pair of segments, one that leaks or not."""
        return flat_records(self.pairs)

    @property
    def wrong(self) -> tuple[LeakPair, ...]:
        """Return the pairs that leak, the strongest first."""
        leaking = [pair for pair in self.pairs if pair.state == "leak"]
        return tuple(sorted(leaking, key=lambda pair: (-(pair.change or 0), -(pair.largest or 0))))

    @property
    def apart(self) -> bool:
        """Return whether nothing leaks."""
        return not self.wrong

    def __repr__(self) -> str:
        return f"Leaks of {self.model.name}: {len(self.segments)} segments, {len(self.wrong)} pairs leak"

    def __str__(self) -> str:
        return "\n".join([headline(self), *sentences(self)])


def cause_of(pair: LeakPair, key: Segment, facts: Collection[BatchFact]) -> Cause:
    """Return the likely cause of a leak, judged by the facts about the batch."""
    if key.padding:
        return "padding"
    if pair.query == pair.key and "types" in facts:
        return "token-types"
    if pair.query == pair.key and pair.prefix:
        return "prefix"
    if "added-mask" not in facts and not any(pair.visible) and (pair.visible or "no-attention" in facts):
        return "relayed" if "relayed" in facts else "state"
    causes: Sequence[tuple[bool, Cause]] = (
        ("added-mask" in facts, "added-mask"),
        ("given-mask" in facts, "given-mask"),
        (pair.query == pair.key, "no-causal-mask"),
        ("module" in facts, "own-mask"),
        ("unread" in facts and "types" not in facts, "positions-unread"),
        ("planes" in facts, "positions-in-planes"),
        ("ids" in facts, "mask-of-ids"),
        ("restarts" in facts and "mask" in facts, "mask-given"),
        ("restarts" in facts and "cache" in facts, "cache"),
        ("restarts" in facts, "positions-unread"),
        ("boundaries" in facts, "kernel"),
        ("types" in facts, "token-types"),
    )
    return next((cause for holds, cause in causes if holds), "nothing-given")


# --- in words --------------------------------------------------------------------------------------------------------

CAUSES = {
    "padding": "attention_mask is missing, or lets the padding through",
    "prefix": "a bidirectional prefix of {prefix} tokens (if this is intended: expect “prefix {prefix}”)",
    "token-types": "token_type_ids mark parts, but hide nothing: some models let the parts look at each other both ways",
    "no-causal-mask": "no mask hides the future",
    "given-mask": "the four-dimensional attention_mask of the batch lets it through",
    "added-mask": "eager attention adds a mask of true and false to the scores: make it 0 and the lowest number",
    "mask-of-ids": "a 2-D attention_mask of segment numbers: transformers reads only which of them are 0",
    "mask-given": "position_ids restart, but with a 2-D attention_mask transformers ignores them: leave the mask out",
    "cache": "position_ids restart, but with a cache transformers ignores them: call with use_cache=False",
    "positions-unread": "this model makes no mask from position_ids: give a four-dimensional mask, which replaces the "
    "windows of its layers too, or use FlashAttention, which reads the positions itself",
    "positions-in-planes": "this model makes a mask only from position_ids with four planes, (4, batch, tokens): first the "
    "places of the tokens in their documents, then time, height and width",
    "kernel": "only FlashAttention reads cu_seq_lens: give position_ids that restart",
    "own-mask": "the module's own mask lets it through",
    "nothing-given": "nothing in the batch tells the model where a segment ends: let position_ids restart",
    "relayed": "another segment sees it, and passes it on in the next layer",
    "state": "not the attention, but a state that is carried from token to token (Mamba, convolution)",
}


def headline(leaks: Leaks) -> str:
    """Return a line about what was measured, and the outcome."""
    count = sum(not segment.padding for segment in leaks.segments)
    rows = f" in {leaks.segments[-1].row + 1} rows" if leaks.segments[-1].row else ""
    outcome = (
        f"{counted(len(leaks.wrong), 'leak')}" if leaks.wrong else "all are apart" if count > 1 else "nothing leaks"
    )
    expected = {"segments": "apart", "causal": "causal"}.get(leaks.expect, f"with {leaks.expect}")
    return f"{visible_text(leaks.model.name)}: {counted(count, 'segment')}{rows}, expected {expected}: {outcome}"


def segment_name(leaks: Leaks, index: int) -> str:
    """Return a name for a segment: its number, and before it the number of its row if the batch has several."""
    segment = leaks.segments[index]
    row = f"{segment.row}." if leaks.segments[-1].row else ""
    return f"{row}padding" if segment.padding else f"{row}{segment.number}"


def sentences(leaks: Leaks) -> list[str]:
    """Return a sentence for each leaking pair: what crosses, where first, how far it moves outputs, and the likely cause."""
    return [_sentence(leaks, pair) for pair in leaks.wrong]


def _sentence(leaks: Leaks, pair: LeakPair) -> str:
    query, key = (f"segment {segment_name(leaks, index)}" for index in (pair.query, pair.key))
    target = "its own future" if query == key else key.replace("segment padding", "padding")
    parts = [f"{query} sees {target}" if any(pair.visible) else f"{target} reaches {query}"]
    if pair.first_layer is not None:
        parts[0] += f" from layer {pair.first_layer} on"
    if pair.largest:
        parts.append(f"up to {percent(pair.largest, 1)} of a token's weight (layer {pair.layer}, head {pair.head})")
    if pair.change is not None and pair.change > leaks.limit:
        parts.append(f"{leaks.outputs} move by {pair.change:.3g}")
        parts += [] if pair.divergence is None else [f"KL {pair.divergence:.2g} nats"]
        parts += [] if pair.loss is None else [f"loss {pair.loss:+.3f}"]
    elif pair.change is not None:
        parts.append(f"{leaks.outputs} do not move")
    cause = CAUSES[pair.cause or "state"].format(prefix=pair.prefix)
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}. Likely cause: {cause}."
