"""Measure whether a model keeps the segments of a packed batch apart; a network of transformers with its batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from attnctl.attention import Array, Call
from attnctl.checks import limits
from attnctl.checks.argument_types import check_module, is_network
from attnctl.commands.leaks.module import ModuleLeaks
from attnctl.commands.leaks.result import BatchFact, Leaks
from attnctl.commands.leaks.search import VISIBLE, LeakSearch, ReadRows, expectation_of
from attnctl.errors import AttnctlError
from attnctl.models import network_batch
from attnctl.models.exchange import NetworkBatch, Place, rows_of_call
from attnctl.trace import StopForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OF_TEXT = ("self", "encoder", "decoder")  # kinds of attention
OF_CACHE = (
    "Measured with use_cache=False, as transformers' Trainer runs a model. With a cache, which is the default of "
    "model(**batch), transformers does not look at where position_ids restart."
)


def leaks(
    model: Any, *args: Any, segments: Array | None = None, expect: str | Array = "segments", **batch: Any
) -> Leaks:
    """Measure whether a model keeps the segments of a batch apart.

    The result's `.apart` is True if nothing leaks; `.wrong` holds the pairs that leak: who, where, and why. `args` and
    `batch` hold the arguments of the model: input_ids (batch, n), and what else a collator makes. `segments` (batch, n)
    numbers the documents, -1 is padding; by default the numbers come from an attention_mask of numbers, position_ids that
    restart, cu_seq_lens_q or seq_idx, and for a torch module of your own from doc_ids. `expect` is segments, causal, "prefix
    16", or a table of 0 and 1: a row for each segment that looks, a column for each that is seen. A transformers model runs
    without a cache, as under transformers' Trainer, unless `use_cache` is given. Raises UsageError for an invalid batch.

    >>> found = attnctl.leaks(model, **collator(examples))  # doctest: +SKIP
    >>> assert found.apart, found  # doctest: +SKIP
    """
    check_module("leaks", model)
    if not is_network(model):
        return ModuleLeaks(model, args, batch, segments, expect).measure()
    if args:
        raise TypeError("leaks(): the arguments of a transformers model are given by name")
    return NetworkLeaks(model, batch, segments, expect).measure()


class NetworkLeaks(LeakSearch[NetworkBatch]):
    """A batch for a network of transformers."""

    def __init__(
        self,
        network: PreTrainedModel,
        batch: Mapping[str, object],
        segment_ids: Array | None = None,
        expect: str | Array = "segments",
        name: str = "",
    ) -> None:
        """Check and lay out the batch. Raises UsageError for entries that do not fit each other or the network."""
        why = "leaks replaces them to see what moves"
        expectation_of(expect)  # refused before the batch is read
        engine = network_batch(network, batch, name, segments=segment_ids, tokens_only=True, why=why)
        self.ids, self.entries = engine.ids, engine.entries
        super().__init__(engine, tuple(engine.ids.shape), expect)
        self.dtype = engine.dtype
        self._read_facts(engine.labels)

    def _read_facts(self, labels: Array | None) -> None:
        """Note the facts that decide on the cause of a leak, notes for the reader, and the target of each token."""
        mask, types = self.entries.get("attention_mask"), self.entries.get("token_type_ids")
        crossing = self.owner[:, 1:] != self.owner[:, :-1]  # (batch, n - 1)
        batch_facts: dict[BatchFact, bool] = {
            "mask": mask is not None and mask.ndim == 2,
            "ids": mask is not None and mask.ndim == 2 and bool((mask > 1).any()),
            "given-mask": mask is not None and mask.ndim == 4,
            "added-mask": mask is not None
            and mask.ndim == 4
            and mask.dtype == torch.bool
            and self.engine.kernel == "eager",
            "restarts": self.engine.restarts(),
            "cache": bool(self.entries.get("use_cache")),
            "boundaries": bool(self.engine.boundaries),
            "types": types is not None and bool(types.any()),
            "no-attention": not self.engine.attends,
        }
        self.facts = {fact for fact, holds in batch_facts.items() if holds}
        cached = self.engine.caches() and not self.engine.says_cache
        if batch_facts["restarts"] and mask is None and cached and self.info.causal and not batch_facts["no-attention"]:
            self.notes.append(OF_CACHE)
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

    def outputs(self, changed: Array | None) -> Array:
        """Return the logits (batch, n, vocabulary); without logits, the last hidden states (batch, n, d_model)."""
        others = {} if changed is None else {"input_ids": self.engine.exchanged("input_ids", changed.numpy())}
        output = self.engine.outputs(**others)
        rows = self.engine.output_rows(output)
        if rows is None:
            raise AttnctlError(f"{self.name} has no output for each token: give the model without its head")
        self.kind = self.engine.output_kind(output, rows)
        return rows

    def check_memory(self) -> None:
        """Raise AttnctlError if the logits need more memory than there is."""
        need = 3.0 * self.ids.numel() * self.engine.vocabulary() * self.dtype.itemsize
        if self.ids.device.type == "cpu":
            limits.check_memory(need, "comparing outputs", "give a smaller batch")

    def watch(self, see: Callable[[int, ReadRows], None]) -> None:
        """Pass each layer's attention over the tokens of the batch to `see`; nothing, with a note, if it is unreadable."""

        def see_call(site: Place, call: Call) -> None:
            if call.n_q == call.n_k == self.shape[1]:
                see(site.layer, partial(rows_of_call, call))

        self.engine.watch(see_call, lambda site: site.kind in OF_TEXT)

    def find_remedy(self, layers: Mapping[int, Array]) -> None:
        """Note among the facts whether positions that restart would separate segments that see each other."""
        between = ~torch.eye(len(self.segments), dtype=torch.bool)
        any_visible = any(bool((tables[VISIBLE][between] > 0).any()) for tables in layers.values())
        if not any_visible or not self.engine.trusted:
            return
        places = self.place.to(self.ids.device)
        tried: dict[BatchFact, Array] = {}
        if self.engine.takes_positions():
            tried = {"read": places, "planes": places.expand(4, *places.shape)}
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

        def see(site: Place, call: Call) -> None:
            if not apart and call.n_q == call.n_k == self.shape[1]:
                padding = [index for index, segment in enumerate(self.segments) if segment.padding]
                visible = self.tables_of(partial(rows_of_call, call))[VISIBLE].fill_diagonal_(0)
                visible[padding], visible[:, padding] = 0, 0
                apart.append(not bool(visible.any()))
            raise StopForward

        self.engine.watch_positions(positions, see, lambda site: site.kind in OF_TEXT)
        return apart == [True]
