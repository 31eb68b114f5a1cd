"""Compare the masks of a model's layers with what is expected, and exchange what a query should not see.

Each layer is checked alone: the hidden states of the tokens that a query should not see are exchanged at the layer's
input, and the layer's output at the query must stay. So what an earlier layer carried across a window does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from attnctl.blockwise import Tick
from attnctl.checks.tolerances import LEAK
from attnctl.commands.mask.expected import Expectations, Expected, Text
from attnctl.commands.mask.intervals import IntervalMask, written
from attnctl.commands.mask.result import (
    NO_MASK,
    Heads,
    How,
    MaskCheck,
    MaskGroup,
    MaskViolation,
    Tested,
    What,
    kind_words,
)
from attnctl.commands.mask.sentence import mask_sentence
from attnctl.commands.mask.sets import Chain, exchanged_sets
from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.exchange import NOT_AGAIN, Block, BlockRuns, ExchangedBatch, Moved, RunsBlocks, sets_of_rows
from attnctl.runtime.arrays import Bools

STATE = "state"  # the kind of a layer that has no attention
ALONE = "each row of the batch alone"

# the masks of a call of attention: for each head, or one for all heads, and in it for each row of the batch, or one for all
CallMasks = tuple[tuple[IntervalMask, ...], ...]
Seen = Mapping[tuple[str, int], list[CallMasks]]  # (kind, layer) → the masks of its calls


class Break(NamedTuple):
    """The worst broken expectation of a layer, and how far the output moves; `change` is None if that was not measured."""

    how: How
    row: int
    query: int
    key: int | None = None
    pairs: int | None = None
    change: float | None = None
    heads: Heads = None
    other_row: int | None = None


# what the outputs of a layer tell: (kind, layer) → breaks without their key, each with a function that finds the key
Broken = Mapping[tuple[str, int], list[tuple[Break, Callable[[], Break]]]]


class Search:
    """A model with a text; `measure` runs it. A subclass says how the model runs."""

    kernel = ""
    kind = "self"  # of the layers that the text goes through to the output
    attends = True  # whether the model has attention
    trusted = True  # whether the masks that were read are those of the model's own kernel
    limit = LEAK["float32"]

    def __init__(
        self, model: ExchangedBatch | RunsBlocks, expectations: Expectations, tokens: tuple[str, ...] = ()
    ) -> None:
        self.info, self.expectations, self.tokens = model.info, expectations, tokens
        self.notes: list[str] = []
        self.unknown: list[str] = []  # layers without an expectation
        self.failed: list[str] = []  # layers that cannot be run with exchanged tokens
        self.floor = 0.0
        self.whole_runs = 0  # runs of the whole model with exchanged tokens
        self._layer_runs: list[BlockRuns] = []
        self._tests: dict[tuple[What, str], dict[int, None]] = {}

    @property
    def exchanges(self) -> int:
        """Return how often a layer or the model ran with exchanged tokens."""
        return self.whole_runs + sum(runs.count for runs in self._layer_runs)

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
        broken: dict[tuple[str, int], list[tuple[Break, Callable[[], Break]]]] = {}
        for block in blocks:
            expected = self._expected_of(block)
            if expected is not None:
                with self.running():
                    found = self._broken_by(block, expected, self.trusted and (block.kind, block.layer) in seen)
                    broken.setdefault((block.kind, block.layer), []).extend(found)
            if tick is not None:
                tick(1 / len(blocks))
        with self.running():
            violations = self._violations(seen, broken, blocks)
        groups = self._groups(seen, violations)
        if not violations:
            violations = self.broken_as_a_whole(blocks)
        if not groups and not self.exchanges and not violations and (self.failed or (not blocks and self._hides())):
            why = self.failed[0] if self.failed else "no layer can be run again alone"
            masks = "its masks cannot be read" if self.attends else f"it has {NO_MASK}"
            raise AttnctlError(f"nothing of {self.info.name} can be checked: {masks}, and {why}")
        rule = self.expectations.rule
        return MaskCheck(
            model=self.info, tokens=self.tokens, kernel=self.kernel, expect="family" if rule is None else str(rule),
            holds=False if violations else None if self._may_hide_more(blocks, seen) else True,
            attends=self.attends, groups=groups, violations=violations, exchanges=self.exchanges,
            tested=self._tested(seen), unchecked=tuple(dict.fromkeys((*self.unknown, *self.failed))),
            floor=self.floor, limit=self.limit, notes=tuple(self.notes),
        )  # fmt: skip

    def _hides(self) -> bool:
        """Return whether the first layer of a text should hide anything, or nothing is known of it."""
        layers = [self.expectations.of_layer(kind, 0, text.n, text.n) for kind, text in self.expectations.texts.items()]
        known = [layer for layer in layers if layer is not None]
        return not known or not all(mask.is_full for layer in known for mask in layer.may)

    def _may_hide_more(self, blocks: list[Block], seen: Seen) -> bool:
        """Return whether a layer may hide too much: its mask was not read, or it is not that of its own kernel."""
        attending = {(block.kind, block.layer) for block in blocks if block.attends and self._reads_text(block.kind)}
        return self.attends and (not self.trusted or not seen or bool(attending - seen.keys()))

    def _reads_text(self, kind: str) -> bool:
        return kind in ("self", "decoder") or kind in self.expectations.texts

    def note_test(self, what: What, kind: str, layer: int | None = None) -> None:
        """Note that something was tested, in a layer or in the model as a whole."""
        layers = self._tests.setdefault((what, kind), {})
        if layer is not None:
            layers[layer] = None

    def _tested(self, seen: Seen) -> tuple[Tested, ...]:
        """Return what was compared with the expectation, and how."""
        for (kind, layer), masks in sorted(seen.items()):
            if self.trusted and self.expectations.of_layer(kind, layer, *masks[0][0][0].shape) is not None:
                self.note_test("masks", kind, layer)
        return tuple(
            Tested(what=what, kind=kind, layers=tuple(sorted(layers))) for (what, kind), layers in self._tests.items()
        )

    # --- one layer at a time ---

    def _expected_of(self, block: Block) -> Expected | None:
        n = block.rows.shape[1]
        expected = self.expectations.of_layer(block.kind, block.layer, n, n, block.attends)
        if expected is None and block.kind not in ("vision", "audio"):
            self.unknown.append(f"{block.kind} layer {block.layer}: {n} rows, which are not the tokens of the batch")
        return expected

    def _broken_by(
        self, block: Block, expected: Expected, was_read: bool
    ) -> Iterator[tuple[Break, Callable[[], Break]]]:
        """Yield the worst pair, in each row of the batch, that the output of a layer tells; it must not."""
        real = self._real_rows(block)
        sets = list(exchanged_sets(expected.may, was_read, block.layer))
        rows = list(sets_of_rows(len(real))) if self._has_rows_of(block) else []
        runs = self._runs_of(block) if sets or rows else None
        if runs is None:
            return
        whole_rows = [(np.repeat(chosen[:, None], real.shape[1], 1), ~chosen[:, None]) for chosen in rows]
        mixed = runs.farthest(whole_rows)
        for row, moved in mixed.items():
            found = Break("mixes", row, moved.query, change=moved.change)
            yield found, partial(_with_row, runs, found, moved)
        if rows:
            self.note_test("rows", block.kind, block.layer)
        if mixed:  # the tokens of one row would move another one
            sets = [hidden for hidden in sets if len(real) == 1]
        blind = ((hidden, self._blind(expected, hidden)) for hidden in sets)
        for row, moved in runs.farthest(blind).items():
            found = Break("sees", row, moved.query, change=moved.change)
            yield found, partial(_with_key, runs, found, moved)
        if sets:
            self.note_test("outputs", block.kind, block.layer)

    def _has_rows_of(self, block: Block) -> bool:
        """Return whether the rows of a layer's input are the rows of the batch, and its places the tokens of the text."""
        text = self.expectations.texts.get(block.kind)
        return text is not None and text.real.shape == block.rows.shape[:2]

    def _real_rows(self, block: Block) -> Bools:
        """Return which tokens of a layer's input are real, not padding: (batch, n)."""
        batch, n = block.rows.shape[:2]
        return self.expectations.real_rows(block.kind, n, batch)

    def _runs_of(self, block: Block) -> BlockRuns | None:
        """Return a layer that runs with exchanged rows; None, noted as unchecked, for one that cannot run alone."""
        where = f"{kind_words(block.kind)} {block.layer}"
        try:
            runs = BlockRuns(block, self._real_rows(block))
        except NOT_AGAIN as error:
            self.failed.append(f"{where} cannot be run again alone: {in_one_line(error)[:100]}")
            return None
        if not runs.is_finite:
            self.failed.append(f"{where}: its output is not finite")
            return None
        self.floor = max(self.floor, runs.floor)
        runs.limit = max(self.limit, 2 * self.floor)
        self._layer_runs.append(runs)
        return runs

    def _blind(self, expected: Expected, hidden: Bools) -> Bools:
        """Return the queries that should see none of the `hidden` tokens: (batch, n) each."""
        return ~np.stack([may.sees(keys) for may, keys in zip(expected.may, hidden, strict=True)])

    # --- masks and outputs together ---

    def _violations(self, seen: Seen, broken: Broken, blocks: list[Block]) -> tuple[MaskViolation, ...]:
        """Return the worst pair of each layer and row, told by its mask, or by its output where the mask does not tell."""
        of_place = {(block.kind, block.layer): block for block in blocks}
        violations: list[MaskViolation] = []
        for (kind, layer), heads, made in self._masks(seen):
            expected = self._expected_of_heads(kind, layer, heads, made)
            for found in () if expected is None else _broken_by_mask(made, expected):
                found = self._with_change(of_place.get((kind, layer)), found)._replace(heads=heads)
                others = (other for other in broken.get((kind, layer), ()) if other[0].how == "sees")
                other = next((other for other in others if other[0].row == found.row), None)
                if found.how == "sees" and not found.change and other is not None:  # a pair whose weight is 0
                    found = other[1]()._replace(pairs=found.pairs, heads=heads)
                # a kernel that hides keys itself may have another mask
                if self.trusted or (found.change or 0) > self.limit:
                    violations.append(_violation(found, kind, layer, expected))
        told = {(violation.kind, violation.layer, violation.row) for violation in violations if violation.how == "sees"}
        for (kind, layer), breaks in broken.items():
            block = of_place[kind, layer]
            violations += [
                _violation(find(), kind if block.attends else STATE, layer, self._expected_of(block))
                for found, find in breaks
                if found.how == "mixes" or (kind, layer, found.row) not in told
            ]
        return tuple(sorted(violations, key=lambda one: (one.layer or 0, one.row, one.how == "misses")))

    def _masks(self, seen: Seen) -> Iterator[tuple[tuple[str, int], Heads, tuple[IntervalMask, ...]]]:
        """Yield place, heads, and a mask for each row of the batch, for heads with the same mask and expectation."""
        for (kind, layer), calls in sorted(seen.items()):
            text = self.expectations.texts.get(kind)
            given = text.given if text is not None and self.expectations.is_given(kind) else None
            for call in calls:
                count, alike = max(len(call), len(given or ())), dict[tuple[bytes, ...], list[int]]()
                for head in range(count):
                    masks = (*_of_head(call, head), *(() if given is None else _of_head(given, head)))
                    alike.setdefault(tuple(mask.key for mask in masks), []).append(head)
                for heads in alike.values():
                    yield (kind, layer), None if len(alike) == 1 else tuple(heads), _of_head(call, heads[0])

    def _expected_of_heads(self, kind: str, layer: int, heads: Heads, made: Sequence[IntervalMask]) -> Expected | None:
        return self.expectations.of_layer(kind, layer, *made[0].shape, head=None if heads is None else heads[0])

    def _groups(self, seen: Seen, violations: Sequence[MaskViolation]) -> tuple[MaskGroup, ...]:
        """Return the layers with the same mask and the same expectation as groups."""
        crossed = {(violation.kind, violation.layer, violation.row, violation.heads) for violation in violations}
        groups: dict[tuple[object, ...], MaskGroup] = {}
        for (kind, layer), heads, made in self._masks(seen):
            expected = self._expected_of_heads(kind, layer, heads, made)
            real = self.expectations.real_rows("encoder" if kind == "cross" else kind, made[0].shape[1], len(made))
            for row, mask in enumerate(made):
                holds = crossed.isdisjoint({(kind, layer, row, heads), (kind, layer, row, None)})
                words = None if expected is None else expected.words
                key = kind, mask.key, mask.shape, words, holds, heads
                group = groups.get(key)
                if group is None:
                    sentence = mask_sentence(mask, ~real[row], self._block_name)
                    wrong = None if holds or expected is None else _wrong_pairs(mask, expected, row)
                    groups[key] = group = MaskGroup(
                        kind=kind, layers=(), heads=heads, rows=(), sentence=sentence, expected=words, holds=holds,
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
        key = found.key
        if block is None or key is None or found.how != "sees" or block.rows.shape[1] <= max(found.query, key):
            return found
        with suppress(*NOT_AGAIN):
            runs = next((runs for runs in self._layer_runs if runs.block is block), None) or self._runs_of(block)
            return (
                found
                if runs is None
                else found._replace(change=runs.change_by(found.row, found.query, np.array([key])))
            )
        return found

    def chain(self, blocks: list[Block], text: Text) -> Chain | None:
        """Return what each layer to the output may let through, for each row of the batch; None if a layer is unknown."""
        own = [(block.layer, block.attends) for block in blocks if block.kind == self.kind] or [(0, False)]
        expected = [self.expectations.of_layer(self.kind, layer, text.n, text.n, attends) for layer, attends in own]
        return None if None in expected else [layer.may for layer in expected if layer is not None]


def _with_row(runs: BlockRuns, found: Break, moved: Moved) -> Break:
    """Return what an output tells with the row of the batch that moves it."""
    return found._replace(other_row=runs.row_of(found.row, moved))


def _with_key(runs: BlockRuns, found: Break, moved: Moved) -> Break:
    """Return what an output tells with the key that moves it."""
    return found._replace(key=runs.key_of(found.row, moved))


# --- masks against what is expected -------------------------------------------------------------------------------------


def _of_head(masks: CallMasks, head: int) -> tuple[IntervalMask, ...]:
    """Return the masks of a head for each row of the batch; a single head is that of all heads."""
    return masks[head if len(masks) > 1 else 0]


def _broken_by_mask(made: Sequence[IntervalMask], expected: Expected) -> Iterator[Break]:
    """Yield the first pair of each row of the batch that a mask shows or hides, and should not."""
    rows = range(max(len(made), len(expected.may)))
    hows: tuple[How, ...] = ("sees", "misses")
    for how in hows:
        for row in rows:
            sees, misses = _broken_pairs(_of_row(made, row), expected, row)
            wrong = sees if how == "sees" else misses
            if wrong is not None and wrong.pairs:
                yield Break(how, row, int(wrong.query[0]), int(wrong.first[0]), wrong.pairs)


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
    if expected is not None and found.key is not None:
        row = found.row if len(expected.padding) > 1 else 0
        words, is_padding = expected.words, bool(expected.padding[row, found.key])
    words = ALONE if found.how == "mixes" else words
    return MaskViolation(kind=kind, layer=layer, expected=words, padding=is_padding, **found._asdict())
