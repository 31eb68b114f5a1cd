"""Effects of interventions on a prediction: each head ablated in turn, each edge cut in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from msgspec import field
from msgspec.structs import replace

from attnctl.checks.argument_types import check_types
from attnctl.checks.document_fields import Box, Correlation, Count, Index, Part, Share, about
from attnctl.formats.documents.json_documents import JsonDocument, ResultModel, ResultTokens, flat_records, write_json
from attnctl.text import counted, quoted_beginning
from attnctl.trace.subject import reads_itself

# how logits become probabilities: of one word or class among all, of each label alone, or not: a regression's numbers
LogitScale = Literal["softmax", "sigmoid", "number"]


class Word(Part):
    """A predicted text, the id of its first token, and all ids if it is several tokens."""

    text: str
    id: Index
    ids: Annotated[tuple[Index, ...], about("The ids of all its tokens, if there are several.")] = ()
    is_class: Annotated[bool, about("It is a label of a classifier, not a word.")] = False

    @property
    def all_ids(self) -> tuple[int, ...]:
        """Return the ids that spell it, one or several."""
        return self.ids or (self.id,)


def spelled_word(text: str, ids: Sequence[int]) -> Word:
    """Return the word that these ids spell."""
    return Word(text, ids[0], tuple(ids) if len(ids) > 1 else ())


class LikelyToken(Part):
    """The likeliest first token."""

    text: str
    probability: Share


DISTANCE = about("1 - cosine of the final states, if nothing is predicted.")


class Outcome(Part):
    """A prediction; the log-probability in nats is the sum over the target's tokens if it has several."""

    log_probability: float | None = None
    probability: Annotated[Share | None, about("The probability of the target.")] = None
    logit: Annotated[float | None, about("Of the target; of a regression, the number that it puts out.")] = None
    logit_difference: float | None = None
    distance: Annotated[float | None, DISTANCE] = None
    best: LikelyToken | None = None


class Effect(Part, kw_only=True):
    """The effect of one intervention: after minus before."""

    log_probability: Annotated[float | None, about("After minus before, in nats.")] = None
    logit_difference: Annotated[float | None, about("After minus before.")] = None
    number: Annotated[float | None, about("After minus before, of the number that a regression puts out.")] = None
    distance: Annotated[float | None, DISTANCE] = None
    probability: Annotated[Share | None, about("The probability of the target, under the intervention.")] = None
    best: Annotated[LikelyToken | None, about("The likeliest first token, under the intervention.")] = None

    @property
    def absolute_size(self) -> float:
        """Return the size of the effect: of the logit difference, the log-probability, or the distance, if measured."""
        return abs(self.signed_size)

    @property
    def signed_size(self) -> float:
        """Return the signed number by which heads are ranked and coloured."""
        measured = (self.logit_difference, self.log_probability, self.number, self.distance)
        return next((value for value in measured if value is not None), 0.0)


class Looks(Part):
    """The key with a head's largest weight."""

    key: Index
    weight: Share


class HeadEffect(Effect):
    """One head ablated: where it looks from the watched position, and what it writes to the prediction."""

    layer: Index
    head: Index
    looks: Looks
    writes: Annotated[float | None, about("Direct contribution to the logit, or the logit difference.")] = None


class EdgeEffect(Effect):
    """One key cut from one query, by default the watched one; together: all the named edges."""

    key: Index | None = None
    query: Index | None = None
    together: bool = False


class SpanEffect(Effect):
    """One part of the text or picture hidden from every token beside it, or from the watched query alone.

    Its tokens lie within [start, end); a region of a picture does not hold all tokens between them.
    """

    name: str
    start: Index
    end: Count
    token_count: Count
    looked_at: Annotated[Share, about("The watched query's weight on it, a mean over all layers and heads.")]
    box: Box | None = None


class Agreement(Part):
    """The rank correlation of the heads' weights and their effects."""

    kendall_tau: Correlation | None = None


class Approximation(Part):
    """The rank correlation of the approximation and exact ablation, over this many heads."""

    rank_correlation: float
    heads: Count


class ContributionPart(Part, kw_only=True):
    """What one part adds to a logit: the embedding, a head, an MLP, a bias, under the final norm's scale for this text."""

    part: Literal["embedding", "head", "mlp", "bias"]
    layer: Index | None = None
    head: Index | None = None
    value: float
    # weight · value · W_O · unembedding
    keys: Annotated[tuple[float, ...] | None, about("The value of a head, by source token.")] = None


class Contributions(Part):
    """A logit as a sum of parts: the model's logit, the sum, and the parts."""

    logit: Annotated[float, about("The model's logit, as in baseline.")]
    sum_of_parts: float = field(name="sum")
    parts: tuple[ContributionPart, ...]
    logit_before_cap: Annotated[float | None, about("The sum of the parts, if the model caps its logits.")] = None

    @property
    def summed_logit(self) -> float:
        """Return the logit to which the parts add up."""
        return self.logit if self.logit_before_cap is None else self.logit_before_cap


def summed_contributions(
    logit: float, parts: Sequence[ContributionPart], logit_before_cap: float | None = None
) -> Contributions:
    """Return the logit of a word (or the difference of two words' logits) with the sum of its parts."""
    return Contributions(logit, math.fsum(part.value for part in parts), tuple(parts), logit_before_cap)


_Tokens = Annotated[ResultTokens, about("", minItems=1)]


class Effects(JsonDocument, kw_only=True, tag="attnctl.effects/1"):
    """The effects of the attention over one text on one prediction.

    Each head ablated in turn, each edge cut, parts of the text cut off. Δ is after minus before, in nats. What was not
    measured is absent.
    """

    text: str
    tokens: _Tokens
    model: ResultModel
    key_tokens: Annotated[
        _Tokens | None, about("The tokens of the key axis, if it is another text (cross attention).")
    ] = None
    how: Annotated[str, about("", enum=["mean", "resample", "zero"])]
    query: Annotated[Index, about("The watched position.")]
    target: Word | None = None
    against: Word | None = None
    baseline: Outcome
    heads: tuple[HeadEffect, ...] = ()
    edges: tuple[EdgeEffect, ...] = ()
    spans: tuple[SpanEffect, ...] = ()
    parts: Annotated[str | None, about("What the spans are: words, sentences, paragraphs, ..., or a file.")] = None
    agreement: Agreement | None = None
    approximation: Approximation | None = None
    contributions: Contributions | None = None
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        measured = (("head", self.heads), ("edge", self.edges), ("span", self.spans))
        contents = ", ".join(counted(len(rows), name) for name, rows in measured if rows) or "nothing measured"
        return f"Effects in {quoted_beginning(self.text)} by {self.model.name}: {contents}"

    @property
    def key_axis(self) -> ResultTokens:
        """Return the tokens of the key axis."""
        return self.tokens if self.key_tokens is None else self.key_tokens

    @property
    def reads_itself(self) -> bool:
        """Return whether query i and key i are the same token."""
        return reads_itself(self.tokens, self.key_tokens, self.model)

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each head, edge or part of the text that was taken away; else for each contribution."""
        contributions = () if self.contributions is None else self.contributions.parts
        return flat_records(self.heads or self.edges or self.spans or contributions)

    def strongest(self, top: int | None = None) -> tuple[HeadEffect, ...]:
        """Return the heads with the largest effects first; with `top`, only that many."""
        check_types("strongest", int | None, top=top)
        return tuple(sorted(self.heads, key=lambda effect: (-effect.absolute_size, effect.layer, effect.head)))[:top]

    def strongest_spans(self, top: int | None = None) -> tuple[SpanEffect, ...]:
        """Return the parts with the largest effects first; with `top`, only that many."""
        check_types("strongest_spans", int | None, top=top)
        return tuple(sorted(self.spans, key=lambda effect: (-effect.absolute_size, effect.start)))[:top]

    def ordered(self, top: int | None = None) -> Effects:
        """Return the effects in the order of files: the `top` heads, edges and spans, the strongest first.

        None: all, the strongest heads first, edges and spans in the order of the text.
        """
        edges, spans = strongest_cuts(self.edges, top), strongest_cuts(self.spans, top)
        return replace(self, heads=self.strongest(top), edges=edges, spans=spans)


CutEffect = TypeVar("CutEffect", EdgeEffect, SpanEffect)


def strongest_cuts(rows: Sequence[CutEffect], top: int | None) -> tuple[CutEffect, ...]:
    """Return the `top` edges or spans with the largest effects, the largest first; None: all, in the order of the text."""
    if top is None:
        return tuple(rows)
    return tuple(sorted(rows, key=lambda row: -row.absolute_size)[:top])


def effects_to_json(effects: Effects, top: int | None = None) -> bytes:
    """Return effects, ordered as by `Effects.ordered`, as one line of JSON without the newline."""
    return write_json(effects.ordered(top), "table of effects")
