"""Exchange what a model reads, or what one of its layers reads, run it again, and see which outputs move.

A layer is run alone: the hidden states of some tokens are exchanged at its input, and the outputs that should not depend on
them must stay. So what an earlier layer carried does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from attnctl.attention import Array, Call
from attnctl.runtime.arrays import Bools, Ints
from attnctl.source.model import Model
from attnctl.text.tokens import Token

FEW_ROWS = 4  # rows of a batch that are exchanged one at a time; more are exchanged half of them at a time


class Block(NamedTuple):
    """A layer that can be run again: its kind, its number, its input and its output (batch, n, …).

    `run` returns its output for other hidden states (batch, n, …).
    """

    kind: str
    layer: int
    attends: bool
    rows: Array
    output: Array
    run: Callable[[Array], Array]


@runtime_checkable
class RunsBlocks(Model, Protocol):
    """A model whose layers can be run again one by one."""

    def blocks(self, tokens: Sequence[Token], /) -> Iterator[tuple[Call, Block]]:
        """Yield the call of attention of each layer over a text, and the layer as a block that can be run again."""

    def window_of_layer(self, layer: int, /) -> int | None:
        """Return how many tokens a query of a layer sees; None: all."""


class ExchangesTokens(Protocol):
    """A model with a batch, the tokens of which can be exchanged."""

    @property
    def text_entries(self) -> tuple[str, ...]:
        """Return the names of the arguments that hold tokens."""

    def exchanged(self, entry: str, chosen: Bools, /) -> Array:
        """Return an argument with other tokens in some places (batch, n)."""

    def free(self, entry: str, real: Bools, /) -> Bools:
        """Return which tokens of an argument may be exchanged, (batch, n), if these are `real`, not padding."""


class Moved(NamedTuple):
    """How far exchanged tokens (batch, n) move the output of a query, relative to its largest number."""

    change: float
    query: int
    exchanged: Bools


class BlockRuns:
    """Runs of a layer with exchanged hidden states, compared with a run on its own input.

    `real` (batch, n) marks the tokens whose outputs count. Without exchanged rows, two runs lie `floor` apart. Raises what
    the layer raises if it cannot run alone.
    """

    def __init__(self, block: Block, real: Bools) -> None:
        self.block, self.count, self.limit = block, 0, 0.0
        again = block.run(block.rows)
        self.base, self.floor = block.output, self._floor(block.output, again)
        if not self.floor < NEAR:  # alone, it is not what it was in the model
            self.base, self.floor = again, self._floor(again, block.run(block.rows))
        self.real = torch.as_tensor(real)
        self.is_finite = bool(self.base[self.real.to(self.base.device)].isfinite().all())
        self.noise = other_rows(block.rows)
        self.size = row_size(self.base)  # (batch, n)

    def _floor(self, base: Array, again: Array) -> float:
        if base.shape != again.shape:
            return np.inf
        return float((row_change(base, again) / row_size(base)).nan_to_num(0.0).max())

    def change(self, exchanged: Bools) -> Array:
        """Return how far each output moves if some tokens (batch, n) are exchanged, relative to its size: (batch, n)."""
        self.count += 1
        rows = self.block.rows
        chosen = torch.as_tensor(exchanged, device=rows.device).reshape(*exchanged.shape, *[1] * (rows.ndim - 2))
        output = self.block.run(torch.where(chosen, self.noise, rows))
        return (row_change(self.base, output) / self.size).cpu()

    def farthest(self, sets: Iterable[tuple[Bools, Bools]]) -> dict[int, Moved]:
        """Return row of the batch → its output that moves farthest beyond the limit, over sets of tokens.

        A set is the tokens to exchange, and the tokens whose outputs must stay: (batch, n) each, or (batch, 1).
        """
        found: dict[int, Moved] = {}
        for exchanged, must_stay in sets:
            compared = torch.as_tensor(must_stay) & self.real  # (batch, n)
            change = torch.where(compared, self.change(exchanged).nan_to_num(torch.inf), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                moved = float(change[row, query])
                if moved > max(self.limit, found[row].change if row in found else 0.0):
                    found[row] = Moved(moved, query, exchanged)
        return found

    def key_of(self, row: int, moved: Moved) -> int:
        """Return the key among the exchanged ones of a row that moves a query's output farthest, by halving them."""
        return self._halved(np.flatnonzero(moved.exchanged[row]), lambda keys: self.change_by(row, moved.query, keys))

    def row_of(self, row: int, moved: Moved) -> int:
        """Return the row of the batch among the exchanged ones that moves the output of another row farthest."""
        exchanged = np.flatnonzero(moved.exchanged.any(1))
        return self._halved(exchanged, lambda rows: self._change_by_rows(row, moved.query, rows))

    def change_by(self, row: int, query: int, keys: Ints) -> float:
        """Return how far a query's output moves if these keys of its row are exchanged, relative to its largest number."""
        only = np.zeros(self.block.rows.shape[:2], np.bool_)
        only[row, keys] = True
        return float(self.change(only)[row, query])

    def _change_by_rows(self, row: int, query: int, rows: Ints) -> float:
        only = np.zeros(self.block.rows.shape[:2], np.bool_)
        only[rows] = True
        return float(self.change(only)[row, query])

    def _halved(self, places: Ints, change: Callable[[Ints], float]) -> int:
        while len(places) > 1:
            halves = places[: len(places) // 2], places[len(places) // 2 :]
            first, second = (change(half) for half in halves)
            places = halves[int(second > first)]
        return int(places[0])


NEAR = 1e-3  # a layer that is run alone gives its output in the model, up to rounding


def sets_of_rows(batch: int) -> Iterator[Bools]:
    """Yield sets of rows of a batch to exchange, (batch,) each: for each two rows, a set holds one and not the other."""
    rows = np.arange(batch)
    if batch <= FEW_ROWS:
        yield from (rows == row for row in range(batch if batch > 1 else 0))
        return
    for bit in range((batch - 1).bit_length()):
        for side in (0, 1):
            yield (rows >> bit) & 1 == side


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
