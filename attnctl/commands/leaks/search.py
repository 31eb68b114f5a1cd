"""Search a batch for leaks between its segments, whatever the model is: in its masks, its weights, and its outputs.

The outputs also show leaks outside attention: a segment's tokens are replaced, the model runs with its own kernel, and the
outputs of the other segments must not change. If segments are computed separately, not even the last bit changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from attnctl.attention import Array
from attnctl.blockwise import Tick
from attnctl.checks import limits
from attnctl.checks.tolerances import LEAK, tolerance
from attnctl.commands.leaks.result import BatchFact, Expectation, LeakPair, Leaks, Segment, cause_of, parsed_expectation
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.models.exchange import ExchangedBatch
from attnctl.runtime.arrays import expected_table

BLOCK = 256  # queries whose weights or predictions are in memory together


class Moved(NamedTuple):
    """How far a segment's outputs moved: largest change, KL divergence (mean, nats), loss; and the largest output."""

    change: float
    divergence: float | None
    loss: float | None
    largest: float


# Four tables of a layer, (4, segments, segments), a row for each segment that looks: share of visible pairs of tokens, the
# largest weight of a token on the whole other segment, the head of that weight, the mean. The diagonal is the own future.
VISIBLE, LARGEST, HEAD, MEAN = range(4)
Layers = tuple[tuple[int, ...], ...]


# of a row and some of its queries: which keys they see, (rows, n) on the CPU, and their weights, (heads, rows, n)
ReadRows = Callable[[int, Array], tuple[Array, Array]]


EngineOf = TypeVar("EngineOf", bound=ExchangedBatch)


class LeakSearch(Generic[EngineOf]):
    """A batch for a model, laid out in segments; `measure` runs it. A subclass says how the model runs."""

    kind = "logits"  # what is compared
    probes = 0  # further runs, to find a remedy

    def __init__(self, engine: EngineOf, shape: tuple[int, int], expect: str | Array) -> None:
        """Lay out the batch of `shape` (batch, n). Raises UsageError if there is nothing to keep apart."""
        self.expected = expectation_of(expect)
        self.engine, self.shape = engine, shape
        self.name, self.info, self.notes = engine.name, engine.info, engine.notes
        self.facts, self.segments = set[BatchFact](), list[Segment]()
        self.targets = torch.full(shape, -100)  # (batch, n)
        self.causal = bool(self.info.causal) or self.expected.kind in ("causal", "prefix")
        self.dtype: Any = self.info.dtype
        self._lay_out()

    def outputs(self, changed: Array | None) -> Array:
        """Return the outputs (batch, n, …), with other tokens where `changed` (batch, n) is true."""
        raise NotImplementedError

    def watch(self, see: Callable[[int, ReadRows], None]) -> None:
        """Pass each layer's attention over the tokens of the batch to `see`."""
        raise NotImplementedError

    def find_remedy(self, layers: Mapping[int, Array]) -> None:
        """Note among the facts what would separate segments that see each other."""

    def check_memory(self) -> None:
        """Raise AttnctlError if the outputs need more memory than there is."""

    # --- which tokens belong together ---

    def _lay_out(self) -> None:
        """Give each segment of a row its number. Raises UsageError if there is nothing to keep apart."""
        batch, n = self.shape
        numbers, real = self.engine.segments()  # (batch, n) each
        self.owner, self.place = torch.zeros(
            2, batch, n, dtype=torch.long
        )  # of each token: its segment, its place in it
        for row in range(batch):
            labels = list(dict.fromkeys(numbers[row, real[row]].tolist()))
            parts = [(numbers[row] == label) & real[row] for label in labels] + [~real[row]] * bool((~real[row]).any())
            if len(self.segments) + len(parts) > limits.SEGMENTS:
                raise UsageError(f"the batch has more than {limits.SEGMENTS:,} segments: give a smaller one")
            for number, part in enumerate(parts):
                first, count = int(part.nonzero()[0]), int(part.sum())
                self.owner[row, part], self.place[row, part] = len(self.segments), torch.arange(count)
                self.segments.append(Segment(row, number, first, count, number == len(labels)))
        several = max(segment.number + 1 - segment.padding for segment in self.segments)
        if all(segment.padding for segment in self.segments):
            raise UsageError("the batch holds only padding, by its attention_mask or segments")
        if len(self.segments) == batch and self.expected.kind not in ("causal", "prefix"):
            raise UsageError(
                "each row of the batch is one segment: number its documents (segments), or let position_ids restart; "
                f"{option_name('expect', 'causal')} asks only about the future"
            )
        table = self.expected.table
        if table is not None and table.shape != (several, several):
            why = f"needs a table of {several} × {several}, the segments of a row, not {table.shape}"
            raise UsageError(why, option="expect")

    # --- measurements ---

    @property
    def forwards(self) -> int:
        """Return how often the model runs: twice unchanged, once watched, once or twice for the segments of each number."""
        return 3 + self.numbers * (1 + self.causal)

    @property
    def numbers(self) -> int:
        """Return the largest number of segments in a row."""
        return 1 + max(segment.number for segment in self.segments)

    def row_of(self, segment: int) -> list[int]:
        """Return the indexes of the segments in the same row."""
        return [index for index, candidate in enumerate(self.segments) if candidate.row == self.segments[segment].row]

    def measure(self, tick: Tick | None = None) -> Leaks:
        """Run the batch and measure every pair. Raises AttnctlError if the model fails on it."""
        self.check_memory()
        advance: Callable[[], object] = (lambda: None) if tick is None else partial(tick, 1 / self.forwards)
        base = self.outputs(None)
        advance()
        again, all_tokens = self.outputs(None), torch.ones(self.shape, dtype=torch.bool)
        advance()
        readers = [index for index, segment in enumerate(self.segments) if not segment.padding]
        noise = [self._moved(base, again, index, all_tokens) for index in readers]
        floor = max(moved_by.change for moved_by in noise)
        limit = max(floor, tolerance(LEAK, self.dtype) * max(moved_by.largest for moved_by in noise))
        layers = self._watch()
        advance()
        moved: dict[tuple[int, int], Moved] = {}
        for number, future in product(range(self.numbers), (False, True)[: 1 + self.causal]):
            numbered = [index for index, segment in enumerate(self.segments) if segment.number == number]
            firsts = torch.tensor([self._future_of(index) if future else 0 for index in numbered])  # (numbered,)
            exchanged = self.owner == torch.tensor(numbered)[:, None, None]  # (numbered, batch, n)
            exchanged &= self.place >= firsts[:, None, None]
            changed = exchanged.any(0)
            if bool(changed.any()):
                outputs = self.outputs(changed)
                for index, tokens in zip(numbered, exchanged, strict=True):
                    for query in self.row_of(index) if bool(tokens.any()) else ():
                        if query in readers and (query == index) == future:
                            moved[query, index] = self._moved(base, outputs, query, ~changed)
            advance()
        self.find_remedy(layers)
        self.reached = torch.eye(len(self.segments))  # whether a segment sees another one, directly or through others
        for tables in layers.values():
            self.reached = ((self.reached + (tables[VISIBLE] > 0)) @ self.reached > 0).float()
        alike: dict[bytes, list[int]] = {}  # layers that let the same pairs through
        for layer, tables in sorted(layers.items()):
            alike.setdefault(tables[VISIBLE].numpy().tobytes(), []).append(layer)
        groups = tuple(map(tuple, alike.values()))
        pairs = tuple(
            self._pair(query, key, layers, groups, moved.get((query, key)), limit)
            for query in readers
            for key in self.row_of(query)
        )
        return Leaks(
            model=self.info, segments=tuple(self.segments), expect=str(self.expected), causal=self.causal,
            outputs=self.kind, layers=groups, pairs=pairs, floor=floor, limit=limit,
            forwards=self.forwards + self.probes, notes=tuple(self.notes),
        )  # fmt: skip

    def _future_of(self, segment: int) -> int:
        """Return the position in a segment from which its tokens are exchanged, to see whether earlier ones move."""
        if segment in self.seen_future:
            return max(self.seen_future[segment][0] + 1, self.expected.prefix)
        return max(self.segments[segment].tokens // 2, self.expected.prefix, 1)

    def _pair(
        self, query: int, key: int, layers: Mapping[int, Array], groups: Layers, moved: Moved | None, limit: float
    ) -> LeakPair:
        """Return the measurements of a pair, and whether it is a leak."""
        looks, looked = self.segments[query], self.segments[key]
        pair = LeakPair(query=query, key=key, state="apart")
        if layers:
            of_layer = {layer: tables[:, query, key].tolist() for layer, tables in sorted(layers.items())}
            pair.visible = tuple(of_layer[group[0]][VISIBLE] for group in groups)
            pair.first_layer = next((layer for layer, numbers in of_layer.items() if numbers[VISIBLE] > 0), None)
            strongest = max(of_layer, key=lambda layer: of_layer[layer][LARGEST])
            pair.largest = of_layer[strongest][LARGEST]
            pair.mean = float(np.mean([numbers[MEAN] for numbers in of_layer.values()]))
            if pair.largest:
                pair.layer, pair.head = strongest, int(of_layer[strongest][HEAD])
            farthest = self.seen_future.get(query, (0, 0))[1] + 1
            pair.prefix = farthest if query == key and 1 < farthest < looks.tokens else None
        if moved is not None:
            pair.change, pair.divergence, pair.loss = moved.change, moved.divergence, moved.loss
        if self.expected.allows(looks, looked) and not (query == key and self.causal):
            pair.state = "allowed"
        elif (self.engine.trusted and any(pair.visible)) or (pair.change or 0) > limit:
            facts: set[BatchFact] = {"relayed"} if self.reached[query, key] else set()
            pair.state, pair.cause = "leak", cause_of(pair, looked, self.facts | facts)
        elif pair.change:
            pair.state = "rounding"
        return pair

    def _moved(self, base: Array, changed: Array, query: int, compared: Array) -> Moved:
        """Return how far the outputs of a segment moved, at its tokens that are `compared` (batch, n)."""
        row = self.segments[query].row
        places = ((self.owner[row] == query) & compared[row]).nonzero()[:, 0]
        change, largest, divergences, losses = 0.0, 0.0, [], []
        for start in range(0, len(places), BLOCK):
            block = places[start : start + BLOCK]
            positions = block.to(base.device)
            before, after = base[row, positions].float(), changed[row, positions].float()  # (block, vocabulary)
            change, largest = max(change, float((before - after).abs().max())), max(largest, float(before.abs().max()))
            if not (change < np.inf and largest < np.inf and bool(after.isfinite().all())):
                raise AttnctlError(f"{self.name} has outputs in row {row} that are not finite: they cannot be compared")
            if self.kind == "logits":
                p, q = before.log_softmax(-1), after.log_softmax(-1)  # (block, vocabulary)
                divergences += (p.exp() * (p - q)).sum(-1).clamp(min=0).tolist()
                target = self.targets[row, block].to(base.device)
                has_target = (target >= 0) & (target < before.shape[-1])
                losses += (p - q)[has_target].gather(-1, target[has_target, None])[:, 0].tolist()
        mean = float(np.mean(divergences)) if divergences else None
        return Moved(change, mean, float(np.mean(losses)) if losses else None, largest)

    # --- attention ---

    def _watch(self) -> dict[int, Array]:
        """Return what each layer's attention may and does move between segments; empty, with a note, if unreadable."""
        # segment → its first token that sees the future, and the farthest token that it sees
        self.seen_future: dict[int, tuple[int, int]] = {}
        layers: dict[int, Array] = {}

        def see(layer: int, read: ReadRows) -> None:
            if layer not in layers:
                layers[layer] = self.tables_of(read)

        self.watch(see)
        return layers

    def tables_of(self, read: ReadRows) -> Array:
        """Return what one call of attention may and does move between segments: (4, segments, segments)."""
        (batch, n), tables = self.shape, torch.zeros(4, len(self.segments), len(self.segments), dtype=torch.float64)
        for row in range(batch):
            first = int(self.owner[row].min())
            local, place = self.owner[row] - first, self.place[row]  # (n,)
            belongs = torch.nn.functional.one_hot(local).float()  # (n, columns)
            columns = slice(first, first + belongs.shape[1])
            for start in range(0, n, BLOCK):
                rows = torch.arange(start, min(start + BLOCK, n))
                owners, places = local[rows], place[rows]
                visible, weights = read(row, rows)  # (rows, n), (heads, rows, n)
                future = (
                    visible & (owners[:, None] == local) & (places[:, None] < place) & (place >= self.expected.prefix)
                )
                index = torch.arange(len(rows))  # (rows,)
                shares = (weights @ belongs.to(weights.device)).double().cpu()  # (heads, rows, columns)
                pairs = visible.double() @ belongs.double()  # (rows, columns)
                shares[:, index, owners] = (weights * future.to(weights.device)).sum(-1).double().cpu()
                pairs[index, owners] = future.sum(-1).double()
                for segment in dict.fromkeys(owners.tolist()):
                    is_query, table = owners == segment, tables[:, first + segment, columns]  # (rows,), (4, columns)
                    top, head = shares[:, is_query].amax(1).max(0)  # (own,)
                    table[HEAD] = torch.where(top > table[LARGEST], head.double(), table[HEAD])
                    table[LARGEST] = torch.maximum(top, table[LARGEST])
                    table[MEAN] += shares[:, is_query].sum((0, 1)) / (
                        len(weights) * self.segments[first + segment].tokens
                    )
                    table[VISIBLE] += pairs[is_query].sum(0)
                    looking, looked_at = future[is_query].nonzero(as_tuple=True)
                    if len(looking):
                        seen_before = self.seen_future.get(first + segment, (n, 0))
                        first_looking, farthest = int(places[is_query][looking].min()), int(place[looked_at].max())
                        earlier, later = min(seen_before[0], first_looking), max(seen_before[1], farthest)
                        self.seen_future[first + segment] = earlier, later
        sizes = torch.tensor([segment.tokens for segment in self.segments], dtype=torch.float64)
        ahead = sizes.clamp(max=self.expected.prefix)
        every = sizes[:, None] * sizes  # (segments, segments)
        every.diagonal().copy_((sizes * (sizes - 1) - ahead * (ahead - 1)) / 2)
        tables[VISIBLE] /= every.clamp(min=1)
        return tables


def expectation_of(spec: str | Array) -> Expectation:
    """Return what may be seen, by its name or a table of 0 and 1. Raises UsageError for anything else."""
    if isinstance(spec, str):
        if (expectation := parsed_expectation(spec)) is None:
            why = "it is segments, causal, prefix N, or a file of 0 and 1"
            raise UsageError(why, option="expect", value=spec)
        return expectation
    table = expected_table(spec)
    if table is None or table.shape[0] != table.shape[1] or not bool(table.diagonal().all()):
        why = "needs a table of 0 and 1, with a row and a column for each segment, and 1 on its diagonal"
        raise UsageError(why, option="expect")
    return Expectation("a table", table=table)
