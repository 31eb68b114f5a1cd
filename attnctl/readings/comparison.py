"""Two traces side by side: their weights, the difference over the tokens that both have, and its largest cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Annotated

import numpy as np

from attnctl.checks.argument_types import check_types
from attnctl.checks.document_fields import Index, Part, about
from attnctl.errors import AttnctlError
from attnctl.measures import chosen_measure, head_text, joins_heads, measure_text
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import counted, number_list, quoted_beginning, visible_text
from attnctl.text.tokens import Token
from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.attention import Array


NAMED = 6  # tokens of only one side that the note names

TokenPairs = Annotated[tuple[tuple[Index, Index], ...], about("(index in A, index in B) of each that both have.")]


class AlignedTokens(Part):
    """The pairs of tokens that are compared."""

    queries: TokenPairs
    keys: TokenPairs


@dataclass(frozen=True)
class Comparison:
    """Traces `a` and `b`, and the layers and heads that both hold; differences are b - a over the `aligned` tokens."""

    a: Trace
    b: Trace
    names: tuple[str, str]
    places: tuple[tuple[int, int], ...]  # (layer, head), in order
    aligned: AlignedTokens | None = None  # the pairs if the texts have different tokens; None: pairs of equal indices

    def __repr__(self) -> str:
        a, b = self.names
        heads = counted(len(self.places), "head")
        return f"Comparison of {a} and {b}, {heads} of both: {quoted_beginning(self.a.text)}"

    def to_records(self) -> list[dict[str, object]]:
        """Return a flat record for each weight that both have: layer, head, query, key, their texts, a, b, difference.

        `query` and `key` are the numbers of the tokens in A.
        """
        heads = (
            (layer, head, a, b, b - a) for layer, head in self.places for a, b in (self.both_weights(layer, head),)
        )
        return self.records_of_weights(self.axis_labels(), self.aligned, heads)

    @staticmethod
    def records_of_weights(
        labels: Sequence[Sequence[str]],
        aligned: AlignedTokens | None,
        heads: Iterable[tuple[int, int, Floats, Floats, Floats]],
    ) -> list[dict[str, object]]:
        """Return a flat record for each weight that both have, as `to_records`.

        `labels` are the texts of the queries and of the keys; `heads` are layer, head, and the numbers of A, of B, and their
        difference, (n_q, n_k) each. Lists of a damaged file may have other lengths: the shortest counts.
        """
        pairs = (None, None) if aligned is None else (aligned.queries, aligned.keys)
        rows, columns = (
            list(zip(range(len(texts)) if of_axis is None else [a for a, _ in of_axis], texts, strict=False))
            for texts, of_axis in zip(labels, pairs, strict=True)
        )
        return [
            {"layer": layer, "head": head, "query": query, "key": key, "query_text": row, "key_text": column}
            | {"a": float(str(a)), "b": float(str(b)), "difference": float(str(difference))}
            for layer, head, *cells in heads
            for (query, row), *of_row in zip(rows, *cells, strict=False)
            for (key, column), a, b, difference in zip(columns, *of_row, strict=False)
        ]

    def whole_weights(self, layer: int, head: int) -> tuple[Floats, Floats]:
        """Return both weight matrices of one layer and head with all tokens: (n_q, n_k) of A, (n_q, n_k) of B."""
        return self.a.layer(layer).head_weights(head), self.b.layer(layer).head_weights(head)

    def both_weights(self, layer: int, head: int) -> tuple[Floats, Floats]:
        """Return both weight matrices of one layer and head, over the tokens that both have: (n_q, n_k) each."""
        a, b = self.whole_weights(layer, head)
        return self._of_aligned(a, 0), self._of_aligned(b, 1)

    def _of_aligned(self, array: Array, side: int) -> Array:
        """Return the rows and columns of one side's array that the other side has, too."""
        if self.aligned is None:
            return array
        rows, columns = ([pair[side] for pair in pairs] for pairs in (self.aligned.queries, self.aligned.keys))
        return array[np.ix_(rows, columns)]  # (n_q, n_k)

    def whole_masks(self, layer: int) -> tuple[Bools | None, Bools | None]:
        """Return both masks of a layer with all tokens, true where a query may look: (n_q, n_k) each; None for no mask."""
        return self.a.layer(layer).mask, self.b.layer(layer).mask

    def both_masks(self, layer: int) -> tuple[Bools | None, Bools | None, Bools | None]:
        """Return the masks of A, of B, and of both, over the tokens that both have: (n_q, n_k) each; None for no mask."""
        a, b = (
            None if mask is None else self._of_aligned(mask, side) for side, mask in enumerate(self.whole_masks(layer))
        )
        return a, b, b if a is None else a if b is None else a & b

    def head_text(self, head: int) -> str:
        """Return what is compared of a head: "head 3", "head 3, value norms", "rollout of all heads"."""
        return head_text(self.a.measure if self.a.measure == self.b.measure else None, head)

    def side_name(self, side: int) -> str:
        """Return the name of A (0) or B (1), with its measure if the other has another one."""
        measures = [measure_text(trace.measure) for trace in (self.a, self.b)]
        held = "" if measures[0] == measures[1] else f", {measures[side]}"
        return f"{'AB'[side]}  {self.names[side]}{held}"

    @property
    def unit(self) -> str:
        """Return the meaning of the numbers that are compared, for a colour bar."""
        if self.a.measure != self.b.measure:
            return "number"
        measure = chosen_measure(self.a.measure)
        return "weight" if measure is None else measure.unit

    def unmatched_tokens(self) -> str:
        """Return a sentence on the tokens that only one side has; empty if every token has a partner."""
        if self.aligned is None:
            return ""
        unmatched = []
        for side, trace in enumerate((self.a, self.b)):
            met = {pair[side] for pair in self.aligned.queries}
            texts = [token.text for index, token in enumerate(trace.tokens) if index not in met]
            if texts:
                names = ", ".join(visible_text(text.strip() or text) for text in texts[:NAMED])
                unmatched.append(f"{'AB'[side]} alone has {names}{', …' if len(texts) > NAMED else ''}")
        return "" if not unmatched else f"The difference is of the tokens that both have: {'; '.join(unmatched)}."

    def hidden_in_one(self, layer: int) -> Bools | None:
        """Return true where only one of the traces hides a key, so that no weights can be compared; None if nowhere."""
        a, b, _ = self.both_masks(layer)
        if a is None or b is None:
            mask = b if a is None else a
            return None if mask is None or mask.all() else ~mask
        return (a ^ b) if (a ^ b).any() else None

    def largest_difference(self, layer: int | None = None, head: int | None = None) -> tuple[int, int, int, int]:
        """Return (layer, head, query, key) of the largest difference, within the layer and head that are chosen.

        Raises AttnctlError if the two traces do not share this layer or head.
        """
        check_types("largest_difference", int | None, layer=layer, head=head)
        best, where = -1.0, None
        for at_layer, at_head in self.places:
            if layer not in (None, at_layer) or head not in (None, at_head):
                continue
            x, y = self.both_weights(at_layer, at_head)
            gap = np.abs(y - x)  # (n_q, n_k)
            if (hidden := self.hidden_in_one(at_layer)) is not None:
                gap = np.where(hidden, 0, gap)  # (n_q, n_k)
            i, j = (int(index) for index in np.unravel_index(int(np.argmax(gap)), gap.shape))
            if gap[i, j] > best:
                best, where = float(gap[i, j]), (at_layer, at_head, i, j)
        if where is None:
            layers, heads = (number_list(sorted(set(numbers))) for numbers in zip(*self.places, strict=True))
            raise AttnctlError(f"no layer {layer}, head {head} in both: they have layers {layers}, heads {heads}")
        return where

    def telling_place(self) -> tuple[int, int]:
        """Return the (layer, head) with the largest difference, among heads that were measured to find a relation in both.

        Without such heads, or if none of them differs, among all.
        """
        roles = [trace.model.roles_of_heads() for trace in (self.a, self.b)]
        measured = [place for place in self.places if all(place in of_side for of_side in roles)]
        best = max(measured, key=self.gap_of_head, default=None)
        return best if best is not None and self.gap_of_head(best) else self.largest_difference()[:2]

    def gap_of_head(self, place: tuple[int, int]) -> float:
        """Return the largest difference of the two in a (layer, head)."""
        *_, i, j = self.largest_difference(*place)
        x, y = self.both_weights(*place)
        return float(abs(y[i, j] - x[i, j]))

    def axis_labels(self) -> tuple[list[str], list[str]]:
        """Return the labels of rows and columns: the token, or both tokens if the texts differ there."""
        sides = (self.a.tokens, self.b.tokens), (self.a.key_axis, self.b.key_axis)
        pairs = (
            [tuple((index, index) for index in range(len(ours))) for ours, _ in sides]
            if self.aligned is None
            else [self.aligned.queries, self.aligned.keys]
        )
        rows, columns = (
            [_shared_label(ours[i].text, theirs[j].text) for i, j in met]
            for met, (ours, theirs) in zip(pairs, sides, strict=True)
        )
        return rows, columns


def compare_traces(a: Trace, b: Trace, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Return a comparison of two traces over the tokens that both have.

    Raises AttnctlError if they share nothing, or only one has a map of all heads together.
    """
    for name, trace in zip(names, (a, b), strict=True):
        if all(layer.weights is None for layer in trace.layers):
            raise AttnctlError(f"{name} holds no weights to compare")
        if any(layer.rows is not None for layer in trace.layers):
            raise AttnctlError(f"{name} holds some query rows only: compare whole traces")
    if joins_heads(a.measure) != joins_heads(b.measure):
        joined, other = (0, 1) if joins_heads(a.measure) else (1, 0)
        what = f"{names[joined]} holds {(a, b)[joined].measure} of all heads together, and {names[other]} single heads"
        raise AttnctlError(f"{what}: compare two traces of one measure")
    sides = [
        [(layer.layer, head) for layer in trace.layers if layer.weights is not None for head in layer.heads]
        for trace in (a, b)
    ]
    places = tuple(place for place in sides[0] if place in set(sides[1]))
    if not places:
        raise AttnctlError(f"{names[0]} and {names[1]} share no layer and head")
    return Comparison(a, b, names, places, _aligned_axes(a, b, names))


def _aligned_axes(a: Trace, b: Trace, names: tuple[str, str]) -> AlignedTokens | None:
    """Return the pairs of tokens; None if all pairs have equal indices. Raises AttnctlError without any pair."""
    queries = _token_pairs(a.tokens, b.tokens, a.text, b.text)
    cross = a.key_tokens is not None or b.key_tokens is not None
    keys = _token_pairs(a.key_axis, b.key_axis, "", "") if cross else queries
    longest = max(len(a.tokens), len(b.tokens)), max(len(a.key_axis), len(b.key_axis))
    if (queries, keys) == tuple(tuple((index, index) for index in range(count)) for count in longest):
        return None
    if not queries or not keys:
        raise AttnctlError(f"“{names[0]}” and “{names[1]}” share no token: attnctl view shows the two side by side")
    return AlignedTokens(queries, keys)


def _token_pairs(ours: Sequence[Token], theirs: Sequence[Token], our_text: str, their_text: str) -> TokenPairs:
    """Return (our index, their index) of each token that both sides align with each other."""
    forward = aligned_tokens(ours, theirs, our_text, their_text)
    back = aligned_tokens(theirs, ours, their_text, our_text)
    return tuple((i, j) for i, j in enumerate(forward) if j is not None and back[j] == i)


def _shared_label(ours: str, theirs: str) -> str:
    """Return the token, or both if they differ by more than the space around them."""
    return ours if ours.strip() == theirs.strip() else f"{ours}/{theirs}"


MOST_CELLS = 1_000_000  # pairs of tokens that the exact alignment compares at most: a quarter of a second
Name = tuple[bool, str]  # whether a token is special, and its text


def aligned_tokens(
    ours: Sequence[Token], theirs: Sequence[Token], our_text: str = "", their_text: str = ""
) -> list[int | None]:
    """Return for each of our tokens the index of the same token among theirs; None if they do not have it.

    For one text with two tokenizers it is the token that covers the same first letter; of several tokens within one letter,
    such as the bytes of 天, the first meets the first, the second the second. For two texts it is the same word
    in the same order; between two such words, tokens pair in order if both sides have the same number of them.
    """
    placed = all(
        any(token.start is not None for token in side) for side in (ours, theirs)
    )  # patches and frames are not
    if placed and our_text and our_text == their_text:
        if [_place(token) for token in ours] == [_place(token) for token in theirs]:
            return list(range(len(ours)))
        return [_token_at_letter(index, ours, theirs, our_text) for index in range(len(ours))]
    our_names, their_names = (
        [(token.special, token.text.strip().casefold()) for token in side] for side in (ours, theirs)
    )
    matches: list[int | None] = [None] * len(ours)
    a = b = 0  # what comes after the pair before
    for past_a, past_b in [*_equal_pairs(our_names, their_names), (len(ours), len(theirs))]:
        if past_a - a == past_b - b:
            for step in range(past_a - a):
                if ours[a + step].special == theirs[b + step].special:
                    matches[a + step] = b + step
        if past_a < len(ours):
            matches[past_a] = past_b
        a, b = past_a + 1, past_b + 1
    return matches


def _equal_pairs(ours: Sequence[Name], theirs: Sequence[Name]) -> list[tuple[int, int]]:
    """Return (our index, their index) of equal names in order: those that a shortest list of edits leaves in place.

    Lists with more than MOST_CELLS pairs align by their longest common runs. The order of the two lists does not matter.
    """
    if list(theirs) < list(ours):  # so that several shortest lists of edits give the same one from either side
        return [(i, j) for j, i in _equal_pairs(theirs, ours)]
    if len(ours) * len(theirs) > MOST_CELLS:
        blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
        return [(a + step, b + step) for a, b, size in blocks for step in range(size)]
    # dynamic programming, from the end: a row for each index of ours, an entry for each index of theirs, with the number
    # of edits from there on
    edits = [list(range(len(theirs), -1, -1))]
    for name in reversed(ours):
        below, row = edits[-1], [edits[-1][-1] + 1]
        for j in range(len(theirs) - 1, -1, -1):
            row.append(min(below[j + 1] + (name != theirs[j]), below[j] + 1, row[-1] + 1))
        edits.append(row[::-1])
    edits.reverse()
    pairs, i, j = [], 0, 0
    while i < len(ours) and j < len(theirs):
        if edits[i][j] == edits[i + 1][j + 1] + (ours[i] != theirs[j]):
            pairs += [(i, j)] * (ours[i] == theirs[j])
            i, j = i + 1, j + 1
        elif edits[i][j] == edits[i + 1][j] + 1:
            i += 1
        else:
            j += 1
    return pairs


def _token_at_letter(number: int, ours: Sequence[Token], theirs: Sequence[Token], text: str) -> int | None:
    """Return the token of `theirs` that covers the first letter of our token; a special token needs the same text.

    Special tokens with the same text, such as the two [SEP] of a pair of texts, pair in order.
    """
    token = ours[number]
    if token.special or token.start is None or token.end is None:
        before = sum(other.special and other.text == token.text for other in ours[:number])
        same = [index for index, other in enumerate(theirs) if other.special and other.text == token.text]
        return same[before] if before < len(same) else None
    first = _first_letter(token, text)
    covering = [
        index
        for index, other in enumerate(theirs)
        if not other.special and other.start is not None and other.end is not None and other.start <= first < other.end
    ]
    if len(covering) < 2:
        return covering[0] if covering else None
    before = sum(not other.special and _first_letter(other, text) == first for other in ours[:number])
    return covering[min(before, len(covering) - 1)]


def _first_letter(token: Token, text: str) -> int:
    """Return the index of a token's first character that is no white space, or of its first one; -1 without a place."""
    if token.start is None or token.end is None:
        return -1
    letters = (index for index in range(token.start, token.end) if not text[index : index + 1].isspace())
    return next(letters, token.start)


def _place(token: Token) -> tuple[str, bool, int | None, int | None]:
    """Return what is the same of a token in two readings of one text."""
    return token.text, token.special, token.start, token.end
