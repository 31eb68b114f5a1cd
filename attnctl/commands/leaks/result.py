"""Who can see whom in a packed batch, who does, and what it changes: pairs of segments, each with what is wrong about it.

A segment is a document of a row of the batch, or the padding of the row. `key` is the segment that is looked at, `query` the
one that looks; a pair of a segment with itself tells of the future: tokens behind the one that looks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Literal, NamedTuple

from attnctl.arrays import Floats
from attnctl.document_fields import Amount, Count, Index, Part, Share, about
from attnctl.errors import UsageError
from attnctl.formats.documents.json_documents import JsonDocument, ResultModel
from attnctl.text import counted, percent, visible_text

State = Literal["allowed", "apart", "rounding", "leak"]
Cause = Literal[
    "padding", "prefix", "token-types", "no-causal-mask", "given-mask", "added-mask", "mask-of-ids", "mask-given", "cache",
    "positions-unread", "positions-in-planes", "kernel", "nothing-given", "relayed", "state",
]  # fmt: skip
# what the batch holds that decides on a cause, by name in BatchFacts
BatchFact = Literal[
    "restarts", "mask", "ids", "given-mask", "added-mask", "cache", "boundaries", "types", "no-attention", "relayed",
    "read", "planes", "unread",
]  # fmt: skip


class Segment(Part):
    """Tokens of one row of the batch that belong together."""

    row: Annotated[Index, about("Of the batch.")]
    number: Annotated[Index, about("Within the row, in order of first tokens; padding is the last.")]
    first: Annotated[Index, about("Place of its first token in the row.")]
    tokens: Count
    padding: bool = False


class LeakPair(Part, kw_only=True):
    """What the segment `key` is to the segment `query`: numbers of `segments`; of one with itself, its future.

    What could not be measured is absent.
    """

    query: Index
    key: Index
    state: Annotated[
        State,
        about(
            "allowed: expected to be seen; apart: the outputs do not move by a bit; rounding: no more than rounding moves "
            "them; leak: visible, or the outputs move by more."
        ),
    ]
    visible: Annotated[
        tuple[Share, ...], about("Share of pairs of tokens that the mask lets through, by `layers`.")
    ] = ()
    first_layer: Annotated[Index | None, about("The first layer in which it is visible.")] = None
    largest: Annotated[Share | None, about("The largest weight of a token of query on all of key together.")] = None
    layer: Annotated[Index | None, about("Of the largest weight.")] = None
    head: Annotated[Index | None, about("Of the largest weight.")] = None
    mean: Annotated[Share | None, about("The same weight, mean of tokens, heads and layers.")] = None
    prefix: Annotated[Count | None, about("Only so many first tokens see their future.")] = None
    change: Annotated[Amount | None, about("Largest change of an output of query where key has other tokens.")] = None
    divergence: Annotated[float | None, about("Kullback-Leibler divergence of the predictions, nats, mean.")] = None
    loss: Annotated[float | None, about("Change of the loss, nats a token.")] = None
    cause: Annotated[Cause | None, about("Of a leak: what likely lets it through.")] = None


class Expectation(NamedTuple):
    """Who may see whom: `kind` is segments, causal, prefix (of so many tokens) or a table of segment × segment."""

    kind: str
    prefix: int = 0
    table: Floats | None = None

    def allows(self, query: Segment, key: Segment) -> bool:
        """Whether a segment may look at another one, or at itself."""
        if query is key or key.padding:
            return not key.padding
        if self.table is not None:
            return bool(self.table[query.number, key.number])
        return self.kind == "causal" and key.first < query.first

    def __str__(self) -> str:
        return f"prefix {self.prefix}" if self.kind == "prefix" else self.kind


def parsed_expectation(spec: str) -> Expectation | None:
    """The expectation that "segments", "causal" or "prefix 16" names; None of what may be a file.

    Raises UsageError for a prefix without its tokens.
    """
    words = spec.replace(":", " ").split()
    if words[:1] == ["prefix"]:
        if len(words) != 2 or not words[1].isdecimal() or not 0 < int(words[1]) < 10**9:
            raise UsageError('a prefix has its tokens beside it: "prefix 16"', option="expect", value=spec)
        return Expectation("prefix", int(words[1]))
    return Expectation(spec) if spec in ("segments", "causal") else None


class Leaks(JsonDocument, kw_only=True, eq=False, tag="attnctl.leaks/1"):
    """Whether a model keeps the segments of a packed batch apart: every pair of segments in a row."""

    model: ResultModel
    segments: tuple[Segment, ...]
    expect: Annotated[str, about("Who may see whom: segments, causal, prefix N, or a table.")]
    causal: Annotated[bool, about("Whether the future is to be hidden.")]
    outputs: Annotated[str, about("What is compared: logits, or hidden states of a model without them.")]
    layers: Annotated[tuple[tuple[int, ...], ...], about("Layers, those together that let the same through.")]
    pairs: tuple[LeakPair, ...]
    floor: Annotated[Amount, about("Largest change between two runs of the same input.")]
    limit: Annotated[Amount, about("Largest change that rounding may make: what is more is a leak.")]
    forwards: Annotated[Count, about("How often the model ran.")]
    notes: tuple[str, ...]

    @property
    def wrong(self) -> tuple[LeakPair, ...]:
        """The pairs that leak, the strongest first."""
        leaking = [pair for pair in self.pairs if pair.state == "leak"]
        return tuple(sorted(leaking, key=lambda pair: (-(pair.change or 0), -(pair.largest or 0))))

    @property
    def apart(self) -> bool:
        """Whether nothing leaks."""
        return not self.wrong

    def __repr__(self) -> str:
        return f"Leaks of {self.model.name}: {len(self.segments)} segments, {len(self.wrong)} pairs leak"

    def __str__(self) -> str:
        return "\n".join([headline(self), *sentences(self)])


def cause_of(pair: LeakPair, key: Segment, facts: Collection[BatchFact]) -> Cause:
    """What likely lets a leak through, by what the batch holds."""
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
    "padding": "attention_mask is left out, or lets the padding through",
    "prefix": "a bidirectional prefix of {prefix} tokens (meant so? expect “prefix {prefix}”)",
    "token-types": "token_type_ids mark parts, and hide nothing: some models let them look at each other both ways",
    "no-causal-mask": "no mask hides the future",
    "given-mask": "the four-dimensional attention_mask of the batch lets it through",
    "added-mask": "eager attention adds a mask of true and false to the scores: make it 0 and the lowest number",
    "mask-of-ids": "a 2-D attention_mask of segment numbers, of which transformers reads only which are 0",
    "mask-given": "position_ids restart, but with a 2-D attention_mask transformers does not look at them: leave it out",
    "cache": "position_ids restart, but with a cache transformers does not look at them: call with use_cache=False",
    "positions-unread": "this model makes no mask of position_ids: give a four-dimensional mask, which stands for the "
    "windows of its layers too, or use FlashAttention, which reads the positions itself",
    "positions-in-planes": "this model makes a mask only of position_ids with four planes, (4, batch, tokens): first the "
    "places of the tokens in their documents, then time, height and width",
    "kernel": "only FlashAttention reads cu_seq_lens: give position_ids that restart",
    "nothing-given": "nothing in the batch tells the model where a segment ends: let position_ids restart",
    "relayed": "by way of a segment that sees it, which passes it on in the next layer",
    "state": "no attention lets it through: a state is carried from token to token (Mamba, convolution)",
}


def headline(leaks: Leaks) -> str:
    """What was measured and how it ended, in one line."""
    count = sum(not segment.padding for segment in leaks.segments)
    rows = f" in {leaks.segments[-1].row + 1} rows" if leaks.segments[-1].row else ""
    outcome = (
        f"{counted(len(leaks.wrong), 'leak')}" if leaks.wrong else "all are apart" if count > 1 else "nothing leaks"
    )
    expected = {"segments": "apart", "causal": "causal"}.get(leaks.expect, f"with {leaks.expect}")
    return f"{visible_text(leaks.model.name)}: {counted(count, 'segment')}{rows}, expected {expected}: {outcome}"


def segment_name(leaks: Leaks, index: int) -> str:
    """How a segment is called: by its number, in a batch of several rows behind that of its row."""
    segment = leaks.segments[index]
    row = f"{segment.row}." if leaks.segments[-1].row else ""
    return f"{row}padding" if segment.padding else f"{row}{segment.number}"


def sentences(leaks: Leaks) -> list[str]:
    """One for each pair that leaks: what crosses, where first, how far it moves the outputs, and the likely cause."""
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
