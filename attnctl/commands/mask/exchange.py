"""Exchange the tokens that a query should not see, at the input of each layer, and see whether its output stays.

Each layer is checked alone: the hidden states of the tokens that a query should not see are exchanged at the layer's
input, and the layer's output at the query must stay. So what an earlier layer carried across a window does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import NamedTuple

import numpy as np
import torch

from attnctl.arrays import Bools, Ints
from attnctl.attention import Array
from attnctl.blockwise import Tick
from attnctl.commands.mask.expected import Expectations, Expected, Text
from attnctl.commands.mask.intervals import IntervalMask, different, written
from attnctl.commands.mask.result import NO_MASK, How, MaskCheck, MaskGroup, MaskViolation, kind_words
from attnctl.commands.mask.sentence import mask_sentence
from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.huggingface.block_recorder import NOT_AGAIN
from attnctl.tolerances import LEAK
from attnctl.trace.model_info import ModelInfo

WHOLE = 6  # sets of tokens that are exchanged in the model as a whole
# sets of tokens that are exchanged in a layer: at most, at least, and how many tokens all of them read together
EXCHANGES, FEWEST, TOKENS = 48, 8, 4096
STATE = "state"  # the kind of a layer that has no attention

# (kind, layer) → the masks of its calls: for each row of the batch, or one for all rows
Seen = Mapping[tuple[str, int], list[tuple[IntervalMask, ...]]]


class Block(NamedTuple):
    """A layer that can be run again: its kind, its number, and its input.

    `run` returns its output (batch, n, …) for other hidden states (batch, n, …).
    """

    kind: str
    layer: int
    attends: bool
    rows: Array
    run: Callable[[Array], Array]


class Break(NamedTuple):
    """The worst broken expectation of a layer, and how far the output moves; `change` is None if that was not measured."""

    how: How
    row: int
    query: int
    key: int
    pairs: int | None
    change: float | None


Broken = Mapping[tuple[str, int], list[Break]]  # (kind, layer) → what its outputs tell


class Search:
    """A model with a text; `measure` runs it. A subclass says how the model runs."""

    kernel = ""
    kind = "self"  # of the layers that the text goes through to the output
    attends = True  # whether the model has attention
    trusted = True  # whether the masks that were read are those of the model's own kernel
    limit = LEAK["float32"]

    def __init__(self, info: ModelInfo, expectations: Expectations, tokens: tuple[str, ...] = ()) -> None:
        self.info, self.expectations, self.tokens = info, expectations, tokens
        self.notes: list[str] = []
        self.unchecked: list[str] = []
        self.exchanges, self.floor = 0, 0.0

    def run(self) -> tuple[list[Block], Seen]:
        """Return the layers of the model after a run, and the masks of their calls of attention."""
        raise NotImplementedError

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which layers run."""
        return nullcontext()

    def broken_as_a_whole(self, blocks: list[Block]) -> tuple[MaskViolation, ...]:
        """Return the violations at the output that no layer's mask explains."""
        return ()

    @property
    def longest(self) -> int:
        """Return the number of tokens of the longest kind of text."""
        return max((text.n for text in self.expectations.texts.values()), default=1)

    def measure(self, tick: Tick | None = None) -> MaskCheck:
        """Read the masks, exchange tokens, and return what crosses. Raises AttnctlError if the model fails on the inputs."""
        blocks, seen = self.run()
        for kind in (kind for kind, text in self.expectations.texts.items() if text.n == 1):
            whose = "The text" if kind == "self" else f"The {kind}"
            more = "a longer target (--target, or decoder_input_ids)" if kind == "decoder" else "a longer text"
            self.notes.append(f"{whose} has one token, which tests no mask: give {more}.")
        broken: dict[tuple[str, int], list[Break]] = {}  # what the outputs of a layer tell
        for block in blocks:
            expected = self._expected_of(block)
            if expected is not None:
                with self.running():
                    broken.setdefault((block.kind, block.layer), []).extend(self._broken_by(block, expected))
            if tick is not None:
                tick(1 / len(blocks))
        violations = self._violations(seen, broken, blocks)
        groups = self._groups(seen, violations)
        if not violations:
            violations = self.broken_as_a_whole(blocks)
        if not groups and not self.exchanges and not violations:
            why = "no token is hidden that could be exchanged" if blocks else "no layer can be run again alone"
            why = self.unchecked[0] if self.unchecked else why
            masks = "its masks cannot be read" if self.attends else f"it has {NO_MASK}"
            raise AttnctlError(f"nothing of {self.info.name} can be checked: {masks}, and {why}")
        rule = self.expectations.rule
        return MaskCheck(
            model=self.info, tokens=self.tokens, kernel=self.kernel, expect="family" if rule is None else str(rule),
            holds=not violations, attends=self.attends, groups=groups, violations=violations, exchanges=self.exchanges,
            unchecked=tuple(dict.fromkeys(self.unchecked)),
            floor=self.floor, limit=self.limit, notes=tuple(self.notes),
        )  # fmt: skip

    # --- one layer at a time ---

    def _expected_of(self, block: Block) -> Expected | None:
        n = block.rows.shape[1]
        expected = self.expectations.of_layer(block.kind, block.layer, n, n, block.attends)
        if expected is None and block.kind not in ("vision", "audio"):
            self.unchecked.append(f"{block.kind} layer {block.layer}: {n} rows, which are not the tokens of the batch")
        return expected

    def _broken_by(self, block: Block, expected: Expected) -> Iterator[Break]:
        """Yield the worst pair, in each row of the batch, that the output of a layer tells; it must not."""
        sets = list(exchanged_sets(expected.may))
        if not sets:
            return
        try:
            base, again = block.run(block.rows), block.run(block.rows)
        except NOT_AGAIN as error:
            self.unchecked.append(
                f"{block.kind} layer {block.layer} cannot be run again alone: {in_one_line(error)[:100]}"
            )
            return
        real = torch.as_tensor(self.expectations.real_rows(block.kind, base.shape[1], len(base)))  # (batch, n)
        if not bool(base[real.to(base.device)].isfinite().all()):
            self.unchecked.append(f"{kind_words(block.kind)} {block.layer}: its output is not finite")
            return
        scale = row_size(base)
        self.floor = max(self.floor, float((row_change(base, again) / scale).nan_to_num(0.0).max()))
        limit = max(self.limit, 2 * self.floor)
        noise = other_rows(block.rows)
        worst: dict[int, tuple[float, int, Bools]] = {}
        for hidden in sets:  # (batch, n)
            change = (row_change(base, self._run_exchanged(block, noise, hidden)) / scale).cpu()  # (batch, n)
            sees_any = [may.sees(keys) for may, keys in zip(expected.may, hidden, strict=True)]
            compared = ~torch.as_tensor(np.stack(sees_any)) & real  # (batch, n)
            change = torch.where(compared, change.nan_to_num(torch.inf), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                if (moved := float(change[row, query])) > max(limit, worst.get(row, (0.0,))[0]):
                    worst[row] = moved, query, hidden
        for row, (moved, query, hidden) in worst.items():
            yield Break("sees", row, query, self._key_of(block, noise, base, row, query, hidden), None, moved)

    def _run_exchanged(self, block: Block, noise: Array, hidden: Bools) -> Array:
        self.exchanges += 1
        here = torch.as_tensor(hidden, device=block.rows.device).reshape(*hidden.shape, *[1] * (block.rows.ndim - 2))
        return block.run(torch.where(here, noise, block.rows))

    def _key_of(self, block: Block, noise: Array, base: Array, row: int, query: int, hidden: Bools) -> int:
        """Return the key among the `hidden` ones that moves a query's output farthest, by halving them."""
        keys = np.flatnonzero(hidden[row])
        while len(keys) > 1:
            halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
            moved = [self._change_by(block, noise, base, row, query, half) for half in halves]
            keys = halves[int(moved[1] > moved[0])]
        return int(keys[0])

    def _change_by(self, block: Block, noise: Array, base: Array, row: int, query: int, keys: Ints) -> float:
        """Return how far a query's output moves if these keys are exchanged, relative to its largest number."""
        only = np.zeros(block.rows.shape[:2], np.bool_)
        only[row, keys] = True
        change = row_change(base, self._run_exchanged(block, noise, only)) / row_size(base)
        return float(change[row, query])

    # --- masks and outputs together ---

    def _violations(self, seen: Seen, broken: Broken, blocks: list[Block]) -> tuple[MaskViolation, ...]:
        """Return the worst pair of each layer and row, told by its mask, or by its output where the mask does not tell."""
        of_place = {(block.kind, block.layer): block for block in blocks}
        violations: list[MaskViolation] = []
        for (kind, layer), masks in seen.items():
            for made in masks:
                expected = self.expectations.of_layer(kind, layer, *made[0].shape)
                for found in () if expected is None else _broken_by_mask(made, expected):
                    moved = self._with_change(of_place.get((kind, layer)), found)
                    other = next((one for one in broken.get((kind, layer), ()) if one.row == found.row), None)
                    if found.how == "sees" and not moved.change and other is not None:  # a pair whose weight is 0
                        moved = other._replace(pairs=found.pairs)
                    # a kernel that hides keys itself may have another mask
                    if self.trusted or (moved.change or 0) > self.limit:
                        violations.append(_violation(moved, kind, layer, expected))
        told = {(violation.kind, violation.layer, violation.row) for violation in violations if violation.how == "sees"}
        for (kind, layer), breaks in broken.items():
            block = of_place[kind, layer]
            violations += [
                _violation(found, kind if block.attends else STATE, layer, self._expected_of(block))
                for found in breaks
                if (kind, layer, found.row) not in told
            ]
        return tuple(sorted(violations, key=lambda one: (one.layer or 0, one.row, one.how == "misses")))

    def _groups(self, seen: Seen, violations: Sequence[MaskViolation]) -> tuple[MaskGroup, ...]:
        """Return the layers with the same mask and the same expectation as groups."""
        crossed = {(violation.kind, violation.layer, violation.row) for violation in violations}
        groups: dict[tuple[object, ...], MaskGroup] = {}
        for (kind, layer), masks in sorted(seen.items()):
            for made in masks:
                expected = self.expectations.of_layer(kind, layer, *made[0].shape)
                real = self.expectations.real_rows("encoder" if kind == "cross" else kind, made[0].shape[1], len(made))
                for row, mask in enumerate(made):
                    holds, words = (kind, layer, row) not in crossed, None if expected is None else expected.words
                    key = kind, mask.key, mask.shape, words, holds
                    group = groups.get(key)
                    if group is None:
                        sentence = mask_sentence(mask, ~real[row], self._block_name)
                        wrong = None if holds or expected is None else _wrong_pairs(mask, expected, row)
                        groups[key] = group = MaskGroup(
                            kind=kind, layers=(), rows=(), sentence=sentence, expected=words, holds=holds,
                            mask=written(mask), wrong=None if wrong is None or not wrong.pairs else written(wrong),
                        )  # fmt: skip
                    group.layers = tuple(dict.fromkeys((*group.layers, layer)))
                    group.rows = tuple(dict.fromkeys((*group.rows, row)))
        return tuple(groups.values())

    @property
    def _block_name(self) -> str:
        text = self.expectations.texts.get("self")
        return "image tokens" if text is not None and text.pictures is not None else "tokens"

    def _with_change(self, block: Block | None, found: Break) -> Break:
        """Return a broken pair with how far the query's output moves if its key is exchanged, where that can be run."""
        if block is None or found.how != "sees" or block.rows.shape[1] <= max(found.query, found.key):
            return found
        with self.running(), suppress(*NOT_AGAIN):
            noise, base = other_rows(block.rows), block.run(block.rows)
            moved = self._change_by(block, noise, base, found.row, found.query, np.array([found.key]))
            return found._replace(change=moved)
        return found

    def chain(self, blocks: list[Block], text: Text) -> Chain | None:
        """Return what each layer to the output may let through, for each row of the batch; None if a layer is unknown."""
        own = [(block.layer, block.attends) for block in blocks if block.kind == self.kind] or [(0, False)]
        expected = [self.expectations.of_layer(self.kind, layer, text.n, text.n, attends) for layer, attends in own]
        return None if None in expected else [layer.may for layer in expected if layer is not None]


# --- masks against what is expected -------------------------------------------------------------------------------------


def _broken_by_mask(made: Sequence[IntervalMask], expected: Expected) -> Iterator[Break]:
    """Yield the first pair of each row of the batch that a mask shows or hides, and should not."""
    rows = range(max(len(made), len(expected.may)))
    hows: tuple[How, ...] = ("sees", "misses")
    for how in hows:
        for row in rows:
            sees, misses = _broken_pairs(_of_row(made, row), expected, row)
            wrong = sees if how == "sees" else misses
            if wrong is not None and wrong.pairs:
                yield Break(how, row, int(wrong.query[0]), int(wrong.first[0]), wrong.pairs, None)


def _broken_pairs(mask: IntervalMask, expected: Expected, row: int) -> tuple[IntervalMask, IntervalMask | None]:
    """Return the pairs of a row of the batch that a mask shows and should not, and those that it hides and should not."""
    missed = None if expected.must is None else _of_row(expected.must, row) - mask
    return mask - _of_row(expected.may, row), missed


def _of_row(masks: Sequence[IntervalMask], row: int) -> IntervalMask:
    """Return the mask of a row of the batch; a single mask is that of all rows."""
    return masks[row if len(masks) > 1 else 0]


def _wrong_pairs(mask: IntervalMask, expected: Expected, row: int) -> IntervalMask:
    """Return the pairs of a row of the batch that a mask shows or hides, and should not."""
    sees, misses = _broken_pairs(mask, expected, row)
    return sees if misses is None else sees | misses


def _violation(found: Break, kind: str, layer: int | None, expected: Expected | None) -> MaskViolation:
    """Return the sentence about a layer that breaks its expectation."""
    words, is_padding = "", False
    if expected is not None:
        row = found.row if len(expected.padding) > 1 else 0
        words, is_padding = expected.words, bool(expected.padding[row, found.key])
    return MaskViolation(kind=kind, layer=layer, expected=words, padding=is_padding, **found._asdict())


# --- sets of tokens, and changes of rows ----------------------------------------------------------------------------------


def sets_for(n: int) -> int:
    """Return how many sets of tokens are exchanged in a layer over n tokens."""
    return max(FEWEST, min(EXCHANGES, TOKENS // n))


def exchanged_sets(may: Sequence[IntervalMask]) -> Iterator[Bools]:
    """Yield sets of tokens to exchange, (batch, n) each: for a query those that it should not see."""
    for query in chosen_queries(may, sets_for(may[0].shape[0])):
        yield ~np.stack([mask.row(query) for mask in may])


def chosen_queries(masks: Sequence[IntervalMask], count: int) -> list[int]:
    """Return at most `count` queries from which a mask hides something, and of those with the same rows only the first."""
    shown = np.stack([mask.keys_of_queries() for mask in masks])  # (masks, n)
    alike: dict[tuple[bytes, ...], int] = {}
    for query, rows in enumerate(zip(*(mask.row_keys() for mask in masks), strict=True)):
        if (shown[:, query] < masks[0].shape[1]).any():
            alike.setdefault(rows, query)
    return spread_queries(list(alike.values()), lambda query: shown[:, query], count)


def spread_queries(queries: list[int], shown: Callable[[int], Ints], count: int) -> list[int]:
    """Return at most `count` of some queries: up to half of them where a segment or a picture begins, others in between.

    `shown` returns how many tokens a query sees, which changes there by more than one token.
    """
    if len(queries) <= count:
        return queries
    edges = [query for query in queries if query and np.abs(shown(query) - shown(query - 1)).max() > 1][: count // 2]
    spread = np.linspace(0, len(queries) - 1, count - len(edges)).astype(int)
    return sorted({*edges, *(queries[index] for index in spread)})


# what each layer to the output may let through, for each row of the batch
Chain = Sequence[Sequence[IntervalMask]]


def exchanged_sets_of_chain(chain: Chain) -> Iterator[Bools]:
    """Yield sets of tokens to exchange, (batch, n) each: for a query those that should not reach it through any layers."""
    sets: dict[bytes, int] = {}
    for query in chosen_queries(different(mask for layer in chain for mask in layer), EXCHANGES):
        seen = reaching(query, chain)
        if not seen.all():
            sets.setdefault(seen.tobytes(), query)
    for query in spread_queries(list(sets.values()), lambda query: reaching(query, chain).sum(1), WHOLE):
        yield ~reaching(query, chain)


def reaching(query: int, chain: Chain) -> Bools:
    """Return the tokens that may reach the output of a query through the layers of a chain: (batch, n)."""
    tokens = np.zeros((len(chain[0]), chain[0][0].shape[0]), np.bool_)
    tokens[:, query] = True
    for layer in reversed(chain):
        tokens = np.stack([mask.seen_by(queries) for mask, queries in zip(layer, tokens, strict=True)])
    return tokens


def reached_by(tokens: Bools, chain: Chain) -> Bools:
    """Return the outputs that some tokens may reach through the layers of a chain: (batch, n) each."""
    for layer in chain:
        tokens = np.stack([mask.sees(keys) for mask, keys in zip(layer, tokens, strict=True)])
    return tokens


def other_rows(rows: Array) -> Array:
    """Return other hidden states in place of `rows` (batch, n, …): random ones with the mean and spread of each row."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(rows.shape, generator=generator).to(rows.device)
    flat = rows.float().flatten(2)
    mean, spread = flat.mean(-1), flat.std(-1)
    shape = (*rows.shape[:2], *[1] * (rows.ndim - 2))
    return (noise * spread.reshape(shape) + mean.reshape(shape)).to(rows.dtype)


def row_change(before: Array, after: Array) -> Array:
    """Return the largest change of each row: (batch, n)."""
    return (before.float() - after.float()).flatten(2).abs().amax(-1)


def row_size(rows: Array) -> Array:
    """Return the largest number of each row, without its sign: (batch, n)."""
    return rows.float().flatten(2).abs().amax(-1).clamp(min=1e-20)


def nearest(hidden: Bools, query: int) -> int:
    """Return the token among the `hidden` ones (n,) that is nearest to a query."""
    keys = np.flatnonzero(hidden)
    return int(keys[np.abs(keys - query).argmin()])
