"""What the mask of a layer should let through: as the user says, or by the configuration and documentation of its family.

Nothing here looks at a mask that the network made, nor at what its modules say of themselves: both may be what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from attnctl.commands.mask.intervals import IntervalMask, band, interval_mask, outer, same
from attnctl.errors import UsageError
from attnctl.models.exchange import Reach
from attnctl.runtime.arrays import Bools, expected_table


class Rule(NamedTuple):
    """What the user expects: `kind` is causal, bidirectional, prefix, window, segments or a table.

    `is_causal`: the user said so of a window, or of segments.
    """

    kind: str
    size: int = 0
    table: IntervalMask | None = None
    is_causal: bool = False

    def __str__(self) -> str:
        words = f"{self.kind} {self.size}" if self.size else self.kind
        return f"causal {words}" if self.is_causal else words


class Expected(NamedTuple):
    """What a layer may and must let through, in each row of the batch; `must` is None if that is not known.

    `padding` marks the keys that are padding: (rows of the batch, n_k).
    """

    may: tuple[IntervalMask, ...]
    must: tuple[IntervalMask, ...] | None
    words: str
    padding: Bools


def parsed_rule(spec: str) -> Rule | None:
    """Return the rule that "causal", "prefix 16" or "window 512" names; None for what may be a file.

    Raises UsageError for a prefix or a window without its number of tokens.
    """
    words = spec.replace(":", " ").split()
    is_causal = words[:1] == ["causal"] and words[1:2] in (["window"], ["segments"])
    words = words[is_causal:]
    if words[:1] in (["prefix"], ["window"]):
        if len(words) != 2 or not words[1].isdecimal() or not 0 < int(words[1]) < 10**9:
            raise UsageError(f'a {words[0]} needs its number of tokens: "{words[0]} 16"', option="expect", value=spec)
        return Rule(words[0], int(words[1]), is_causal=is_causal)
    return Rule(words[0], is_causal=is_causal) if words in (["causal"], ["bidirectional"], ["segments"]) else None


def rule_of(spec: Any) -> Rule | None:
    """Return the user's expectation, from its name or a table of 0 and 1; None if there is none. Raises UsageError."""
    if spec is None or isinstance(spec, Rule):
        return spec
    if isinstance(spec, str):
        if (rule := parsed_rule(spec)) is None:
            why = "it is causal, bidirectional, prefix N, window N, segments, causal window N, or a file of 0 and 1"
            raise UsageError(why, option="expect", value=spec)
        return rule
    if (table := expected_table(spec)) is None:
        raise UsageError("needs a table of 0 and 1: a row for each query, a column for each key", option="expect")
    return Rule("a table", table=interval_mask(table))


@dataclass
class Text:
    """The tokens of one kind of attention, (batch, n) each: whether it is real (not padding), its segment, its picture."""

    real: Bools
    segments: Any = None  # number of each token's segment; None if the batch marks none
    pictures: Any = None  # number of each token's picture, -1 for others; None if there are none
    prefix: Any = None  # true for the tokens of a prefix that sees itself; None if there is none
    may_be_prefix: bool = False  # whether nothing says which tokens are a prefix: all may see each other, none must
    is_known: bool = True  # whether the batch says what its tokens are; False for the patches of a picture
    # the four-dimensional mask of the batch: for each head, or one for all heads, and in it for each of its rows
    given: tuple[tuple[IntervalMask, ...], ...] | None = None

    @property
    def n(self) -> int:
        """Return the number of tokens."""
        return int(self.real.shape[1])

    def rows(self) -> Iterator[TextRow]:
        """Yield each row of the batch."""
        for row, real in enumerate(self.real):
            marks = (None if mark is None else mark[row] for mark in (self.segments, self.pictures, self.prefix))
            yield TextRow(real, *marks)


class TextRow(NamedTuple):
    """A row of a `Text`: (n,) each."""

    real: Bools
    segments: Any
    pictures: Any
    prefix: Any

    @property
    def shape(self) -> tuple[int, int]:
        """Return the numbers of queries and of keys."""
        return len(self.real), len(self.real)

    @property
    def everything(self) -> IntervalMask:
        """Return the mask that hides nothing."""
        return band(self.shape, np.inf, np.inf)

    @property
    def causal(self) -> IntervalMask:
        """Return the mask that hides the future."""
        return band(self.shape, np.inf, 0)

    @property
    def places(self) -> Any:
        """Return the place of each token among the real ones."""
        return np.cumsum(self.real) - 1


@dataclass
class Expectations:
    """Who may see whom in each layer of a model.

    `causal` and `reach` are what the model's documentation says: whether its text is read from left to right, and how far a
    layer of a kind sees.
    """

    causal: bool
    reach: Callable[[str, int, bool], Reach]
    rule: Rule | None
    texts: dict[str, Text] = field(default_factory=dict)  # kind of attention → its tokens
    _of_layers: dict[tuple[Any, ...], Expected | None] = field(default_factory=dict, init=False, repr=False)

    def of_layer(
        self, kind: str, layer: int, n_q: int, n_k: int, attends: bool = True, head: int | None = None
    ) -> Expected | None:
        """Return what a layer may let through; None if it attends to tokens that the batch does not have.

        `attends` is False for a layer that carries a state from token to token. Without a `head`, it is what any of them
        may let through.
        """
        asked = kind, layer, n_q, n_k, attends, head  # by each test of a layer again
        if asked not in self._of_layers:
            self._of_layers[asked] = self._made_of_layer(*asked)
        return self._of_layers[asked]

    def _made_of_layer(
        self, kind: str, layer: int, n_q: int, n_k: int, attends: bool, head: int | None
    ) -> Expected | None:
        source = "encoder" if kind == "cross" else kind
        queries = self.texts.get("decoder" if kind == "cross" else kind)
        keys = self.texts.get(source)
        if keys is None and kind != "decoder" and not (kind == "self" and self.causal):  # a picture or a sound
            known = next(iter(self.texts.values()), None) if kind in ("cross", "encoder") else None
            keys = Text(np.ones((len(known.real) if known is not None else 1, n_k), np.bool_), is_known=False)
            queries = queries if kind == "cross" else keys
        if keys is None or queries is None or keys.n != n_k or queries.n != n_q:
            return None
        if kind == "cross":
            everything = [band((n_q, n_k), np.inf, np.inf)] * len(keys.real)
            return hidden_padding(everything, keys.is_known, queries, keys, "everything")
        if self.rule is not None and kind in ("self", "decoder"):
            shapes = [self._shape_of_rule(self.rule, row) for row in keys.rows()]
            return hidden_padding(shapes, attends, keys, keys, str(self.rule))
        if keys.given is not None and attends:
            heads = keys.given if head is None else keys.given[head if len(keys.given) > 1 else 0 :][:1]
            shapes = [reduce(or_, of_row) for of_row in zip(*heads, strict=True)]
            return hidden_padding(shapes, True, keys, keys, "the four-dimensional attention_mask of the batch")
        return self._by_family(kind, layer, keys, attends)

    def is_given(self, kind: str) -> bool:
        """Return whether the four-dimensional mask of the batch says what a kind of attention should let through."""
        text = self.texts.get(kind)
        return text is not None and text.given is not None and (self.rule is None or kind not in ("self", "decoder"))

    def real_rows(self, kind: str, n: int, batch: int) -> Bools:
        """Return whether each token of a kind of attention is real, not padding: (batch, n)."""
        text = self.texts.get(kind)
        return text.real if text is not None and text.real.shape == (batch, n) else np.ones((batch, n), np.bool_)

    def _shape_of_rule(self, rule: Rule, text: TextRow) -> IntervalMask:
        """Return what the user's rule lets through. Raises UsageError for a rule that does not fit."""
        n, base = len(text.real), text.causal if self.causal or rule.is_causal else text.everything
        if rule.table is not None:
            if rule.table.shape != text.shape:
                why = f"needs a table of {n} × {n}, the tokens of a row, not {rule.table.shape}"
                raise UsageError(why, option="expect")
            return rule.table
        if rule.kind == "bidirectional":
            return text.everything
        if rule.kind == "window":
            return base & band(text.shape, rule.size - 1, rule.size - 1)
        if rule.kind == "segments":
            if text.segments is None:
                why = "needs a batch that says where a segment ends (segments, or position_ids that restart)"
                raise UsageError(why, option="expect", value="segments")
            return base & same(text.segments)
        if rule.kind == "prefix":
            prefix = text.places < rule.size
            return text.causal | outer(prefix, prefix)
        return text.causal

    def _by_family(self, kind: str, layer: int, text: Text, attends: bool) -> Expected:
        """Return what the configuration and the documentation of the family say."""
        causal = kind in ("self", "decoder") and self.causal
        limits = self.reach(kind, layer, causal) if attends and text.is_known else Reach(exact=False)
        shapes = [_shape_by_family(row, causal, limits) for row in text.rows()]
        words = ["causal" if causal else "bidirectional"]
        if text.pictures is not None and causal:
            words.append("each picture both ways")
        if limits.back is not None:
            ahead = limits.back if limits.ahead is None else limits.ahead
            sides = (
                f"{limits.back - 1} tokens to each side"
                if ahead == limits.back
                else f"{limits.back - 1} back, {ahead - 1} ahead"
            )
            words.append(f"window {limits.back}" if causal else sides)
        if limits.chunk:
            words.append(f"chunks of {limits.chunk}")
        if text.prefix is not None and causal:
            words.append("the prefix both ways")
        if not attends:
            words.append("carried by a state")
        if not limits.exact:  # states and compressed blocks hold padding, too
            may = [shape | outer(~real, np.ones_like(real)) for shape, real in zip(shapes, text.real, strict=True)]
            return Expected(tuple(may), None, ", ".join(words), ~text.real)
        if text.segments is not None:
            words.append("segments apart")
        expected = hidden_padding(shapes, True, text, text, ", ".join(words))
        if not text.may_be_prefix:
            return expected
        everything = [row.everything for row in text.rows()]
        words.append("or a prefix both ways")
        return hidden_padding(everything, True, text, text, ", ".join(words))._replace(must=expected.must)


def _shape_by_family(text: TextRow, causal: bool, limits: Reach) -> IntervalMask:
    """Return what a layer may let through by its family, apart from padding."""
    shape = text.causal if causal else text.everything
    if text.pictures is not None and causal:
        shape |= same(text.pictures, text.pictures >= 0)
    if limits.back is not None:
        ahead = limits.back if limits.ahead is None else limits.ahead
        shape &= band(text.shape, limits.back - 1, text.shape[1] if causal else ahead - 1)
    if limits.chunk:
        shape &= same(np.where(text.real, text.places, 0) // limits.chunk)
    if text.prefix is not None and causal:
        shape |= outer(text.prefix, text.prefix)
    return shape if text.segments is None else shape & same(text.segments)


def hidden_padding(shapes: Sequence[IntervalMask], exact: bool, queries: Text, keys: Text, words: str) -> Expected:
    """Return the expectation with padding hidden, and the rows of padding free; a token may always see itself."""
    may, must = list[IntervalMask](), list[IntervalMask]()
    for shape, is_query, is_key in zip(shapes, queries.real, keys.real, strict=True):
        seen = shape & outer(np.ones_like(is_query), is_key)
        free = outer(~is_query, np.ones_like(is_key))
        if queries is keys:
            free |= band(shape.shape, 0, 0)
        may.append(seen | free)
        must.append(seen - free)
    words = words if keys.real.all() else f"{words}, padding hidden"
    return Expected(tuple(may), tuple(must) if exact else None, words, ~keys.real)
