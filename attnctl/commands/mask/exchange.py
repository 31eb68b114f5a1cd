"""Exchange the tokens that a query should not see, at the input of each layer, and see whether its output stays.

Each layer is checked alone: the hidden states of the tokens that a query should not see are exchanged at the layer's
input, and the layer's output at the query must stay. So what an earlier layer carried across a window does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch

from attnctl.arrays import Bools
from attnctl.attention import Array
from attnctl.blockwise import Tick
from attnctl.commands.mask.expected import Expectations, Expected, Text
from attnctl.commands.mask.result import How, MaskCheck, MaskGroup, MaskViolation, kind_words
from attnctl.commands.mask.sentence import mask_sentence
from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.huggingface.block_recorder import NOT_AGAIN
from attnctl.tolerances import LEAK
from attnctl.trace.model_info import ModelInfo

WHOLE = 6  # sets of tokens that are exchanged in the model as a whole
# sets of tokens that are exchanged in a layer: at most, at least, and how many tokens all of them read together
EXCHANGES, FEWEST, TOKENS = 48, 8, 4096
STATE = "state"  # the kind of a layer that has no attention

Seen = Mapping[tuple[str, int], list[Bools]]  # (kind, layer) → the masks (rows, n_q, n_k) of its calls


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

    @property
    def passes(self) -> int:
        """Return how many passes over the text the work amounts to."""
        return 5 + min(self.longest, sets_for(self.longest)) + min(self.longest, WHOLE)

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
            raise AttnctlError(f"nothing of {self.info.name} can be checked: its masks cannot be read, and {why}")
        rule = self.expectations.rule
        return MaskCheck(
            model=self.info, tokens=self.tokens, kernel=self.kernel, expect="family" if rule is None else str(rule),
            holds=not violations, groups=groups, violations=violations, exchanges=self.exchanges,
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
        may = torch.as_tensor(expected.may)
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
        worst: dict[int, tuple[float, int, Array]] = {}
        for hidden in sets:  # (batch, n)
            change = (row_change(base, self._run_exchanged(block, noise, hidden)) / scale).cpu()  # (batch, n)
            compared = ~(may & hidden[:, None, :]).any(-1) & real  # (batch, n)
            change = torch.where(compared, change.nan_to_num(torch.inf), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                if (moved := float(change[row, query])) > max(limit, worst.get(row, (0.0,))[0]):
                    worst[row] = moved, query, hidden
        for row, (moved, query, hidden) in worst.items():
            yield Break("sees", row, query, self._key_of(block, noise, base, row, query, hidden), None, moved)

    def _run_exchanged(self, block: Block, noise: Array, hidden: Array) -> Array:
        self.exchanges += 1
        here = hidden.to(block.rows.device).reshape(*hidden.shape, *[1] * (block.rows.ndim - 2))
        return block.run(torch.where(here, noise, block.rows))

    def _key_of(self, block: Block, noise: Array, base: Array, row: int, query: int, hidden: Array) -> int:
        """Return the key among the `hidden` ones that moves a query's output farthest, by halving them."""
        keys = hidden[row].nonzero()[:, 0]
        while len(keys) > 1:
            halves = keys[: len(keys) // 2], keys[len(keys) // 2 :]
            moved = [self._change_by(block, noise, base, row, query, half) for half in halves]
            keys = halves[int(moved[1] > moved[0])]
        return int(keys[0])

    def _change_by(self, block: Block, noise: Array, base: Array, row: int, query: int, keys: Array) -> float:
        """Return how far a query's output moves if these keys are exchanged, relative to its largest number."""
        only = torch.zeros(block.rows.shape[:2], dtype=torch.bool)
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
                expected = self.expectations.of_layer(kind, layer, *made.shape[1:])
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
                expected = self.expectations.of_layer(kind, layer, *made.shape[1:])
                real = self.expectations.real_rows("encoder" if kind == "cross" else kind, made.shape[2], len(made))
                for row, matrix in enumerate(made):
                    holds, words = (kind, layer, row) not in crossed, None if expected is None else expected.words
                    key = kind, sha256(matrix.tobytes()).digest(), matrix.shape, words, holds
                    group = groups.get(key)
                    if group is None:
                        sentence = mask_sentence(matrix, ~real[row], self._block_name)
                        wrong = None if holds or expected is None else _wrong_pairs(matrix, expected, row)
                        groups[key] = group = MaskGroup(
                            kind=kind, layers=(), rows=(), sentence=sentence, expected=words, holds=holds, mask=matrix,
                            wrong=wrong,
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
            moved = self._change_by(block, noise, base, found.row, found.query, torch.tensor([found.key]))
            return found._replace(change=moved)
        return found

    def reach(self, blocks: list[Block], text: Text) -> Bools | None:
        """Return which token may reach which output through all layers, (batch, n, n); None if a layer is unknown."""
        own = [block for block in blocks if block.kind == self.kind]
        n = text.n
        stable = False
        reach = np.broadcast_to(np.eye(n, dtype=np.bool_), (len(text.real), n, n))
        previous = None
        for block in own:
            expected = self.expectations.of_layer(block.kind, block.layer, n, n, block.attends)
            if expected is None:
                return None
            if previous is not None and np.array_equal(previous, expected.may) and stable:
                continue
            wider = (expected.may.astype(np.float32) @ reach.astype(np.float32)) > 0
            stable, reach, previous = np.array_equal(wider, reach), wider, expected.may
        if own:
            return reach
        expected = self.expectations.of_layer(self.kind, 0, n, n, attends=False)
        return None if expected is None else expected.may


# --- masks against what is expected -------------------------------------------------------------------------------------


def _broken_by_mask(made: Bools, expected: Expected) -> Iterator[Break]:
    """Yield the first pair of each row of the batch that a mask shows or hides, and should not."""
    wide = np.broadcast_to(made, expected.may.shape) if len(made) == 1 else made
    missed = None if expected.must is None else expected.must & ~wide
    wrong_pairs: tuple[tuple[How, Bools | None], ...] = ("sees", wide & ~expected.may), ("misses", missed)
    for how, wrong in wrong_pairs:
        for row, pairs in enumerate(() if wrong is None else wrong):
            if pairs.any():
                query, key = np.argwhere(pairs)[0].tolist()
                yield Break(how, row, query, key, int(pairs.sum()), None)


def _wrong_pairs(matrix: Bools, expected: Expected, row: int) -> Bools | None:
    """Return the pairs (n_q, n_k) of a row of the batch that a mask shows or hides, and should not; None without any."""
    row = row if len(expected.may) > 1 else 0
    wrong = matrix & ~expected.may[row]
    if expected.must is not None:
        wrong |= expected.must[row] & ~matrix
    return wrong if wrong.any() else None


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


def exchanged_sets(may: Bools, count: int | None = None) -> Iterator[Array]:
    """Yield sets of tokens to exchange, (batch, n) each: for a query those that it should not see; `count` at most."""
    count = sets_for(may.shape[1]) if count is None else count
    hidden = ~may  # (batch, n, n)
    queries = [query for query in range(may.shape[1]) if hidden[:, query].any()]
    alike: dict[bytes, int] = {}
    for query in queries:
        alike.setdefault(hidden[:, query].tobytes(), query)
    chosen = list(alike.values())
    if len(chosen) > count:
        sizes = hidden.sum(-1)  # (batch, n)
        edges = [q for q in chosen if q and bool((abs(sizes[:, q] - sizes[:, q - 1]) > 1).any())][: count // 2]
        spread = np.linspace(0, len(chosen) - 1, count - len(edges)).astype(int)
        chosen = sorted({*edges, *(chosen[index] for index in spread)})
    for query in chosen:
        yield torch.as_tensor(hidden[:, query].copy())


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


def nearest(hidden: Array, query: int) -> int:
    """Return the token among the `hidden` ones (n,) that is nearest to a query."""
    keys = hidden.nonzero()[:, 0]
    return int(keys[(keys - query).abs().argmin()])
