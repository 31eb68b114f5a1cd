"""Measure leaks between the segments of a batch in any torch module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnctl.attention import Array
from attnctl.commands.leaks.search import LeakSearch, ReadRows, expectation_of
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import module_batch
from attnctl.models.exchange import Attended, ModuleBatch


class ModuleLeaks(LeakSearch[ModuleBatch]):
    """A batch for a torch module; `own` is the name of the user's function that made it, on the command line."""

    def __init__(
        self, module: Any, args: Sequence[Any], batch: Mapping[str, Any], segment_ids: Any = None,
        expect: str | Array = "segments", name: str = "", own: str = "",
    ) -> None:  # fmt: skip
        """Run the module once, and lay out the batch. Raises UsageError for arguments that it does not take."""
        expectation_of(expect)  # refused before the module runs
        engine = module_batch(module, args, batch, name, segments=segment_ids, own=own)
        if engine.shape is None:
            raise UsageError(f"no argument of {engine.name} holds tokens, ids (batch, n) or vectors (batch, n, d)")
        super().__init__(engine, engine.shape, expect)
        self.facts |= {"module"} if engine.attends else {"module", "no-attention"}
        if engine.ids is not None and self.causal:
            crossing = self.owner[:, 1:] != self.owner[:, :-1]  # (batch, n - 1)
            self.targets[:, :-1] = engine.ids.cpu()[:, 1:].masked_fill(crossing, -100)

    def outputs(self, changed: Array | None) -> Array:
        """Return the first output with a row for each token, (batch, n, …)."""
        text = self.engine.text_entries[0]
        others = {} if changed is None else {text: self.engine.exchanged(text, changed.numpy())}
        output = self.engine.outputs(**others)
        rows = self.engine.output_rows(output)
        if rows is None:
            raise AttnctlError(f"{self.name} has no output for each token: give the module without its head")
        self.kind = self.engine.output_kind(output, rows)
        return rows

    def watch(self, see: Callable[[int, ReadRows], None]) -> None:
        """Pass each layer's attention over the tokens of the batch to `see`."""

        def take(attended: Attended) -> None:
            place, weights, visible = attended
            if place.kind != "self" or weights.shape[-2:] != (self.shape[1],) * 2 or len(weights) != self.shape[0]:
                return

            def read(row: int, rows: Array) -> tuple[Array, Array]:
                return visible[row][:, rows].any(0).cpu(), weights[row][:, rows].float()

            see(place.layer, read)

        self.engine.watch(take)
