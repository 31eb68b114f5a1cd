"""Run a whole model with exchanged tokens, and find the outputs that move though no layer may carry the tokens there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnctl.attention import Array
from attnctl.commands.mask.exchange import ALONE, Search
from attnctl.commands.mask.result import MaskViolation
from attnctl.commands.mask.sets import Chain, exchanged_sets_of_chain, nearest, reached_by
from attnctl.models.exchange import Block, ExchangedBatch, row_change, row_size, sets_of_rows
from attnctl.runtime.arrays import Bools


@dataclass(eq=False)
class WholeRuns:
    """Runs of a whole model with exchanged tokens, compared with its own output `base` (batch, n, …).

    `name` is the entry that the outputs belong to; `run` returns an output and the layers for other entries; `real_of`
    which tokens of an entry are real, not padding, (batch, n).
    """

    search: Search
    engine: ExchangedBatch
    name: str
    base: Array
    blocks: list[Block]
    run: Callable[[Mapping[str, Array]], tuple[Any, list[Block]]]
    real_of: Callable[[str], Bools]

    def __post_init__(self) -> None:
        self.size, self.limit = row_size(self.base), max(self.search.limit, 2 * self.search.floor)
        self.real = self.real_of(self.name)

    def _changed(self, exchanged: Mapping[str, Bools]) -> tuple[Array, list[Block]]:
        """Return how far each output moves if some tokens of some entries are exchanged, (batch, n), and the layers run."""
        self.search.whole_runs += 1
        entries = {entry: self.engine.exchanged(entry, chosen) for entry, chosen in exchanged.items()}
        rows, blocks = self.run(entries)
        return (row_change(self.base, rows) / self.size).cpu(), blocks

    def tokens_that_reach(self, chain: Chain) -> dict[int, MaskViolation]:
        """Return row → its output that a token moves, and that no chain of layers may carry it to."""
        found: dict[int, MaskViolation] = {}
        free, kind = self.engine.free(self.name, self.real), self.search.kind
        for hidden in exchanged_sets_of_chain(chain):
            hidden &= free
            if not hidden.any():
                continue
            self.search.note_test("model", kind)
            change, blocks = self._changed({self.name: hidden})
            unaffected = ~torch.as_tensor(reached_by(hidden, chain))
            change = torch.where(unaffected, change.nan_to_num(0.0), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                if float(change[row, query]) > self.limit and row not in found and hidden[row].any():
                    found[row] = MaskViolation(
                        how="reaches", kind=kind, layer=self._first_moved(blocks, row, query), row=row,
                        query=query, key=nearest(hidden[row], query), change=float(change[row, query]),
                        expected="what its layers carry",
                    )  # fmt: skip
        return found

    def rows_that_mix(self) -> dict[int, MaskViolation]:
        """Return row → its output that another row of the batch moves."""
        found: dict[int, MaskViolation] = {}
        for chosen in sets_of_rows(len(self.base)):
            exchanged = {
                entry: self.engine.free(entry, self.real_of(entry)) & chosen[:, None]
                for entry in self.engine.text_entries
            }
            if not any(some.any() for some in exchanged.values()):
                continue
            self.search.note_test("model-rows", self.search.kind)
            change, blocks = self._changed(exchanged)
            real = self.real if self.real.shape == change.shape else ~chosen[:, None]
            change = torch.where(torch.as_tensor(~chosen[:, None] & real), change.nan_to_num(0.0), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                if float(change[row, query]) > self.limit and row not in found:
                    found[row] = MaskViolation(
                        how="mixes", kind=self.search.kind, layer=self._first_moved(blocks, row, query), row=row,
                        query=query, other_row=int(chosen.argmax()), change=float(change[row, query]), expected=ALONE,
                    )  # fmt: skip
        return found

    def _first_moved(self, changed: list[Block], row: int, query: int) -> int | None:
        """Return the first layer whose output at a query moves; None if it is outside of the layers."""
        kind = self.search.kind
        pairs = [pair for pair in zip(self.blocks, changed, strict=False) if pair[0].kind == kind]
        for before, after in pairs:
            if before.rows.shape != after.rows.shape or before.rows.shape[1] <= query:
                return None
            if self._moves(before.rows, after.rows, row, query):
                return None
            if self._moves(before.output, after.output, row, query):
                return before.layer
        return None

    def _moves(self, before: Array, after: Array, row: int, query: int) -> bool:
        return bool((row_change(before, after) / row_size(before))[row, query] > self.limit)
