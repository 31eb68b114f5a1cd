"""Measure whether a model keeps the segments of a packed batch apart: in its masks, its weights, and its outputs.

The outputs also show leaks outside attention: a segment's tokens are replaced, the model runs with its own kernel, and the
outputs of the other segments must not change. If segments are computed separately, not even the last bit changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.blockwise import Tick
from attnctl.checks import limits
from attnctl.checks.argument_types import check_network
from attnctl.checks.tolerances import LEAK, tolerance
from attnctl.commands.leaks.result import BatchFact, Expectation, LeakPair, Leaks, Segment, cause_of, parsed_expectation
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.models.huggingface.attention_call import call_of_text
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.exchanged_network import ExchangedNetwork
from attnctl.models.huggingface.optional_fields import config_value, output_value
from attnctl.models.huggingface.token_batch import (
    expected_table,
    other_ids,
    segment_begins,
    visible_pairs,
    vocabulary_of,
)
from attnctl.trace.run import StopForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK = 256  # queries whose weights or predictions are in memory together
OF_TEXT = ("self", "encoder", "decoder")  # kinds of attention
OF_CACHE = (
    "Measured with use_cache=False, as transformers' Trainer runs a model. With a cache, which is the default of "
    "model(**batch), transformers does not look at where position_ids restart."
)


def leaks(
    model: PreTrainedModel, *, segments: Array | None = None, expect: str | Array = "segments", **batch: object
) -> Leaks:
    """Measure whether a transformers model keeps the segments of a batch apart.

    The result's `.apart` is True if nothing leaks; `.wrong` holds the pairs that leak: who, where, and why. `batch` holds
    the arguments of the model: input_ids (batch, n), and what else a collator makes. `segments` (batch, n) numbers the
    documents, -1 is padding; by default the numbers come from an attention_mask of numbers, position_ids that restart,
    cu_seq_lens_q or seq_idx. `expect` is segments, causal, "prefix 16", or a table of 0 and 1: a row for each segment that
    looks, a column for each that is seen. The model runs without a cache, as under transformers' Trainer, unless
    `use_cache` is given. Raises UsageError for an invalid batch.

    >>> found = attnctl.leaks(model, **collator(examples))  # doctest: +SKIP
    >>> assert found.apart, found  # doctest: +SKIP
    """
    check_network("leaks", model)
    return LeakSearch(model, batch, segments, expect).measure()


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


@dataclass(eq=False)
class LeakSearch:
    """A batch for a network, checked and laid out in segments; `measure` runs it."""

    network: PreTrainedModel
    batch: Mapping[str, object]
    segment_ids: Array | None = None
    expect: str | Array = "segments"
    name: str = ""
    facts: set[BatchFact] = field(default_factory=set)
    segments: list[Segment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.expected = _expectation(self.expect)
        why = "leaks replaces them to see what moves"
        self.engine = ExchangedNetwork(
            self.network, self.batch, self.name, segments=self.segment_ids, tokens_only=True, why=why
        )
        self.name, self.info, self.notes = self.engine.name, self.engine.info, self.engine.notes
        self.ids, self.entries = self.engine.ids, self.engine.entries
        self.causal = bool(self.info.causal) or self.expected.kind in ("causal", "prefix")
        self._lay_out()
        self._read_facts(self.engine.labels)

    # --- which tokens belong together ---

    def _lay_out(self) -> None:
        """Give each segment of a row its number. Raises UsageError if there is nothing to keep apart."""
        batch, n = self.ids.shape
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

    def _read_facts(self, labels: Array | None) -> None:
        """Note the facts that decide on the cause of a leak, notes for the reader, and the target of each token."""
        mask, positions = self.entries.get("attention_mask"), self.entries.get("position_ids")
        types, crossing = self.entries.get("token_type_ids"), self.owner[:, 1:] != self.owner[:, :-1]  # (batch, n - 1)
        batch_facts: dict[BatchFact, bool] = {
            "mask": mask is not None and mask.ndim == 2,
            "ids": mask is not None and mask.ndim == 2 and bool((mask > 1).any()),
            "given-mask": mask is not None and mask.ndim == 4,
            "added-mask": mask is not None
            and mask.ndim == 4
            and mask.dtype == torch.bool
            and self.engine.kernel == "eager",
            "restarts": positions is not None and bool(segment_begins(positions).any()),
            "cache": bool(self.entries.get("use_cache")),
            "boundaries": bool(self.engine.boundaries),
            "types": types is not None and bool(types.any()),
            "no-attention": not self.engine.attends,
        }
        self.facts = {fact for fact, holds in batch_facts.items() if holds}
        cached = config_value(self.network.config, "use_cache") and not self.engine.says_cache
        if batch_facts["restarts"] and mask is None and cached and self.info.causal and not batch_facts["no-attention"]:
            self.notes.append(OF_CACHE)
        self.targets = torch.full(self.ids.shape, -100)  # (batch, n)
        next_ids = labels if labels is not None else self.ids if self.info.causal else None
        if next_ids is not None and self.info.causal:
            self.targets[:, :-1] = torch.where(crossing, -100, next_ids.cpu()[:, 1:])
            if labels is not None and (wrong := int((crossing & (labels.cpu()[:, 1:] != -100)).sum())):
                self.notes.append(
                    f"labels: the first token of {wrong} segments is the target of a token of another segment: set its "
                    "label to -100."
                )
        elif next_ids is not None:
            self.targets = next_ids.cpu()

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
        need = 3.0 * self.ids.numel() * vocabulary_of(self.network) * self.network.dtype.itemsize
        if self.ids.device.type == "cpu":
            limits.check_memory(need, "comparing outputs", "give a smaller batch")
        advance: Callable[[], object] = (lambda: None) if tick is None else partial(tick, 1 / self.forwards)
        base = self._outputs(self.ids)
        advance()
        again, all_tokens = self._outputs(self.ids), torch.ones(self.ids.shape, dtype=torch.bool)
        advance()
        readers = [index for index, segment in enumerate(self.segments) if not segment.padding]
        noise = [self._moved(base, again, index, all_tokens) for index in readers]
        floor = max(moved_by.change for moved_by in noise)
        limit = max(floor, tolerance(LEAK, self.network.dtype) * max(moved_by.largest for moved_by in noise))
        layers = self._watch()
        advance()
        moved: dict[tuple[int, int], Moved] = {}
        exchanged_ids = other_ids(self.network, self.ids)
        for number, future in product(range(self.numbers), (False, True)[: 1 + self.causal]):
            numbered = [index for index, segment in enumerate(self.segments) if segment.number == number]
            firsts = torch.tensor([self._future_of(index) if future else 0 for index in numbered])  # (numbered,)
            exchanged = self.owner == torch.tensor(numbered)[:, None, None]  # (numbered, batch, n)
            exchanged &= self.place >= firsts[:, None, None]
            changed = exchanged.any(0)
            if bool(changed.any()):
                outputs = self._outputs(torch.where(changed.to(self.ids.device), exchanged_ids, self.ids))
                for index, tokens in zip(numbered, exchanged, strict=True):
                    for query in self.row_of(index) if bool(tokens.any()) else ():
                        if query in readers and (query == index) == future:
                            moved[query, index] = self._moved(base, outputs, query, ~changed)
            advance()
        self._find_remedy(layers)
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

    def _find_remedy(self, layers: Mapping[int, Array]) -> None:
        """Note among the facts whether positions that restart would separate segments that see each other."""
        self.probes = 0
        between = ~torch.eye(len(self.segments), dtype=torch.bool)
        any_visible = any(bool((tables[VISIBLE][between] > 0).any()) for tables in layers.values())
        if not any_visible or not self.engine.trusted:
            return
        reads = "position_ids" in inspect.signature(self.engine.network.forward).parameters
        places = self.place.to(self.ids.device)
        tried: dict[BatchFact, Array] = {"read": places, "planes": places.expand(4, *places.shape)} if reads else {}
        for fact, positions in tried.items():
            self.probes += 1
            if self._kept_apart_by(positions):
                self.facts.add(fact)
                return
        self.facts.add("unread")
        self.notes = [note for note in self.notes if note != OF_CACHE]

    def _kept_apart_by(self, positions: Array) -> bool:
        """Return whether the first layer's mask separates the documents if only these positions mark them."""
        apart: list[bool] = []

        def see(site: Site, call: Call) -> None:
            if not apart and call.n_q == call.n_k == self.ids.shape[1]:
                padding = [index for index, segment in enumerate(self.segments) if segment.padding]
                visible = self._tables_of(call)[VISIBLE].fill_diagonal_(0)
                visible[padding], visible[:, padding] = 0, 0
                apart.append(not bool(visible.any()))
            raise StopForward

        more = {"use_cache": False} if "use_cache" in self.entries else {}
        network = self.engine.network
        watching = watch_attention(network, see, lambda site: site.kind in OF_TEXT)
        with suppress(AttnctlError), self.engine.running(), watching, suppress(StopForward):
            network(input_ids=self.ids, position_ids=positions, **more)
        return apart == [True]

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

    def _outputs(self, ids: Array) -> Array:
        """Return the logits (batch, n, vocabulary); without logits, the last hidden states (batch, n, d_model)."""
        output = self.engine.outputs(input_ids=ids)
        self.kind = "hidden states" if output_value(output, "logits") is None else "logits"
        rows = self.engine.output_rows(output)
        if rows is None:
            raise AttnctlError(f"{self.name} has no output for each token: give the model without its head")
        return rows

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

        def see(site: Site, call: Call) -> None:
            if site.layer not in layers and call.n_q == call.n_k == self.ids.shape[1]:
                layers[site.layer] = self._tables_of(call)

        watched = self.engine.watch(see, lambda site: site.kind in OF_TEXT)
        return {} if watched is None else layers

    def _tables_of(self, call: Call) -> Array:
        """Return what one call of attention may and does move between segments: (4, segments, segments)."""
        (batch, n), tables = self.ids.shape, torch.zeros(4, len(self.segments), len(self.segments), dtype=torch.float64)
        for row in range(batch):
            first = int(self.owner[row].min())
            call_of_row, local, place = call_of_text(call, row), self.owner[row] - first, self.place[row]  # (n,)
            belongs = torch.nn.functional.one_hot(local).to(call.queries.device, torch.float32)  # (n, columns)
            columns = slice(first, first + belongs.shape[1])
            for start in range(0, n, BLOCK):
                rows = torch.arange(start, min(start + BLOCK, n))
                part, owners, places = attention.select_call(call_of_row, rows=rows.tolist()), local[rows], place[rows]
                steps = attention.run_call(part)
                visible = visible_pairs(part).cpu()  # (rows, n)
                future = (
                    visible & (owners[:, None] == local) & (places[:, None] < place) & (place >= self.expected.prefix)
                )
                weights, index = steps.weights.float(), torch.arange(len(rows))  # (heads, rows, n), (rows,)
                shares = (weights @ belongs).double().cpu()  # (heads, rows, columns)
                pairs = visible.double() @ belongs.double().cpu()  # (rows, columns)
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


def _expectation(spec: str | Array) -> Expectation:
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
