"""Exchange what a model reads, or what one of its layers reads, run it again, and see which outputs move.

A layer is run alone: the hidden states of some tokens are exchanged at its input, and the outputs that should not depend on
them must stay. So what an earlier layer carried does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Call, visible_keys
from attnctl.models.huggingface.attention_call import call_of_text
from attnctl.runtime.arrays import Bools, Ints
from attnctl.source.model import Model
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo

# what the code of a model raises if it cannot run with other rows, or shares keys with others
NOT_AGAIN = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)
HIDING = -1e3  # an additive mask below this hides: no score is large enough to outweigh it
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


class Reach(NamedTuple):
    """How far a layer sees by its configuration: `back` tokens with the query, or a chunk; `exact`: nothing else hides."""

    back: int | None = None
    chunk: int = 0
    exact: bool = True
    ahead: int | None = None  # of a bidirectional window whose sides differ, with the query; None: as `back`


@runtime_checkable
class RunsBlocks(Model, Protocol):
    """A model whose layers can be run again one by one."""

    def blocks(self, tokens: Sequence[Token], /) -> Iterator[tuple[Call, Block]]:
        """Yield the call of attention of each layer over a text, and the layer as a block that can be run again."""

    def window_of_layer(self, layer: int, /) -> int | None:
        """Return how many tokens a query of a layer sees; None: all."""


class ExchangedBatch(Protocol):
    """A model with a batch, checked: it runs with its own kernel, whole or a layer alone, and its attention is seen."""

    name: str
    info: ModelInfo
    notes: list[str]  # what a reader must know, to which more is added
    attends: bool  # whether the model has attention
    limit: float  # how far outputs may move by rounding

    @property
    def kernel(self) -> str:
        """Return how the model attends."""

    @property
    def trusted(self) -> bool:
        """Return whether the masks that are read are those of the model's own kernel."""

    @property
    def text_entries(self) -> tuple[str, ...]:
        """Return the names of the arguments that hold tokens."""

    def exchanged(self, entry: str, chosen: Bools, /) -> Array:
        """Return an argument with other tokens in some places (batch, n)."""

    def free(self, entry: str, real: Bools, /) -> Bools:
        """Return which tokens of an argument may be exchanged, (batch, n), if these are `real`, not padding."""

    def segments(self) -> tuple[Array, Array]:
        """Return the number of each token's segment, and whether the token is real, not padding: (batch, n) each."""

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which the model and its layers run."""

    def outputs(self, **other: Array) -> Any:
        """Run the model, with other tensors in place of some arguments, and return its output."""

    def output_rows(self, output: Any, /) -> Array | None:
        """Return the rows of an output that belong to the tokens, (batch, n, …); None without such rows."""

    def output_kind(self, output: Any, rows: Array, /) -> str:
        """Return what the rows of an output are: logits, or hidden states."""


class Place(Protocol):
    """Where a call of attention is made."""

    @property
    def kind(self) -> str:
        """Return which attention it is: self, encoder, decoder or cross."""

    @property
    def layer(self) -> int:
        """Return the number of the layer."""


class NetworkBatch(ExchangedBatch, Protocol):
    """A network of transformers with the arguments of its forward."""

    kind: str  # of its main attention: self, encoder or decoder
    ids: Any  # its tokens (batch, n); None if it is given none
    entries: dict[str, Any]
    labels: Any
    block_mask: Any
    dtype: torch.dtype

    boundaries: list[Any]  # arguments with the boundaries of a row's segments
    says_cache: bool  # whether the batch says if there is a cache; it runs without one otherwise

    def restarts(self) -> bool:
        """Return whether the positions restart within a row."""

    def caches(self) -> bool:
        """Return whether the network keeps a cache by its configuration."""

    def vocabulary(self) -> int:
        """Return how many tokens the network has embeddings for."""

    def record(self, shape: Callable[[str], tuple[int, ...] | None], /, **other: Array) -> tuple[Any, list[Block]]:
        """Run the network with its own kernel, and return its output and its layers, which can be run again.

        `shape` returns the numbers of rows and tokens of a kind of attention, None if they are not known.
        """

    def watch(
        self, see: Callable[[Place, Call], Array | None], wants: Callable[[Place], bool], /, **other: Array
    ) -> Any:
        """Run the network, pass each call of attention that is wanted to `see`, and return its output.

        If no attention can be read, return None, with a note.
        """

    def takes_positions(self) -> bool:
        """Return whether the forward takes position_ids."""

    def watch_positions(
        self, positions: Array, see: Callable[[Place, Call], Array | None], wants: Callable[[Place], bool], /
    ) -> None:
        """Run the tokens with these position_ids and nothing else, and pass each call that is wanted to `see`.

        `see` may raise StopForward. An error of the network ends the run.
        """

    def documented_direction(self) -> bool:
        """Return whether the documentation says that the text is read from left to right."""

    def documented_reach(self, kind: str, layer: int, causal: bool, /) -> Reach:
        """Return how far a layer of a kind sees by the configuration."""

    def documented_pictures(self, types: Any, /) -> Any:
        """Return the number of each token's picture (batch, n), -1 for text; None without pictures that see themselves."""

    def documented_prefix(self, real: Bools, types: Any, /) -> tuple[Bools | None, bool]:
        """Return the prefix (batch, n) that is read both ways, None without one; and whether there may be one."""

    def mixes_neighbours(self) -> bool:
        """Return whether the embedding of a token holds its neighbours."""


class Attended(NamedTuple):
    """One attention of a forward: its place, its weights, and which keys each query sees, (batch, heads, n_q, n_k) each."""

    place: Place
    weights: Array
    visible: Array


class ModuleBatch(ExchangedBatch, Protocol):
    """A torch module with its arguments."""

    shape: tuple[int, int] | None  # (batch, n) of its text; None if no argument holds tokens
    sizes: dict[tuple[int, int], int]  # (batch, n) of self-attentions → how many, the commonest first
    problems: list[str]  # what of its attention cannot be read

    @property
    def ids(self) -> Array | None:
        """Return the ids of the text's tokens, (batch, n); None if it has none."""

    @property
    def has_segments(self) -> bool:
        """Return whether something numbers the documents of the text."""

    def nothing_seen(self) -> str:
        """Return a sentence that says what was looked for, if no attention was seen."""

    def output_texts(self, output: Any, /) -> Array | None:
        """Return the first output with a row for each text of the batch, (batch, 1, …); None without one."""

    def record(self, **other: Array) -> tuple[Any, list[Block]]:
        """Run the module, and return its output and its layers, which can be run again."""

    def watch(self, see: Callable[[Attended], None], /) -> bool:
        """Run the module, and pass each attention to `see`. Return whether there is any."""


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


# --- which keys a call of attention lets through ---


def visible_pairs(call: Call) -> Array:
    """Return where a query sees a key, by the mask and by a bias that hides: (n_q, n_k) or (batch, n_q, n_k), bool."""
    return visible_pairs_of_heads(call).any(-3)


RAMP = 2 * HIDING  # a bias between this and HIDING grows with the distance (ALiBi): masks are far below


def visible_pairs_of_heads(call: Call) -> Array:
    """Return where a query of each head sees a key: (heads, n_q, n_k) or (batch, heads, n_q, n_k), bool.

    There is one head for all if no bias hides. A bias that falls with the distance counts as one that does not hide where
    another head sees the key, since it has no border.
    """
    mask, bias = visible_keys(call), call.bias
    shape = (*call.queries.shape[:-3], 1, call.n_q, call.n_k)
    visible = torch.ones(shape, dtype=torch.bool, device=call.queries.device)
    if mask is not None:
        visible &= mask.unsqueeze(-3)
    if bias is None:
        return visible
    shown = bias > HIDING  # it may hold an additive mask
    falls = ((bias <= HIDING) & (bias > RAMP)).any(-1, keepdim=True).any(-2, keepdim=True)
    lowest = max(torch.finfo(bias.dtype).min / 2, -1e8)
    shown = shown | (falls & (bias > lowest) & shown.any(-3, keepdim=True))
    return visible & shown


def rows_of_call(call: Call, row: int, rows: Array) -> tuple[Array, Array]:
    """Return which keys some queries of a row of the batch see, (rows, n) on the CPU, and their weights (heads, rows, n)."""
    part = attention.select_call(call_of_text(call, row), rows=rows.tolist())
    return visible_pairs(part).cpu(), attention.run_call(part).weights.float()
