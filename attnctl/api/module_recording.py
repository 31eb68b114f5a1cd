"""Record the attention of any torch module: which calls a capture keeps, and what it keeps of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

import torch

from attnctl.api.captures import Captured, Captures
from attnctl.attention import Array
from attnctl.checks.selection import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.models.torch.fused import Changed
from attnctl.models.torch.traced_call import TracedCall
from attnctl.models.torch.watching import AnyCall, Watched, check_seen, watch_module
from attnctl.trace.run import StopForward

if TYPE_CHECKING:
    from torch.nn import Module

    from attnctl.models.torch.sites import Place

ROWS_OF = {
    "queries": 2,
    "scores": 2,
    "scaled_scores": 2,
    "context": 2,
    "weights": 2,
    "mask": 1,
}  # step → axis of queries


@dataclass(frozen=True)
class Selection:
    """What a capture keeps: layers, heads, queries (None: all), kind of attention, steps, gradients; whether it stops."""

    layers: Sequence[int] | None
    heads: Sequence[int] | None
    rows: Sequence[int] | None
    attention: str | None
    keep: frozenset[str]
    grad: bool = False
    stop: bool = False


@dataclass(eq=False)
class ModuleRecording:
    """The calls of a module that a capture has recorded; `offsets` are layers of each kind that were read in another way."""

    model: Module
    chosen: Selection
    traces: Captures
    offsets: Mapping[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # kind → its layers, as far as they are known
    of_parts: GradientOfParts | None = None  # of the last attention
    waiting: list[tuple[Place, AnyCall]] = field(default_factory=list)  # the last calls, if layers count from the end

    @property
    def name(self) -> str:
        """Return the class of the model."""
        return type(getattr(self.model, "_orig_mod", self.model)).__name__

    @contextmanager
    def record(self, without: frozenset[int] = frozenset()) -> Iterator[Watched]:
        """Record the calls within this context; leave a forward after the last one that is needed, with `stop`."""
        with suppress(StopForward), watch_module(self.model, self, without) as watched:
            watched.sites.ended = self.end_forward
            with suppress(StopForward):
                yield watched

    def finish(self, watched: Watched, others: bool) -> str:
        """Return what could not be shown. Raises AttnctlError if no attention was seen, UsageError for a layer that is none.

        `others`: some attention was read in another way.
        """
        if others and not watched.count:
            return "; ".join(watched.problems())
        sentence = check_seen(watched)
        kind = self.chosen.attention
        if watched.count and kind is not None and kind not in self.counts and not others:
            raise AttnctlError(f"no {kind} attention of {self.name} was recorded: there is {', '.join(self.counts)}")
        most = max((count for name, count in self.counts.items() if kind in (None, name)), default=0)
        for index in self.chosen.layers or () if watched.count and not others else ():
            if not -most <= index < most:
                why = f"the attention of {self.name} was recorded in layers 0 to {most - 1}"
                raise UsageError(why, option="layer", value=index)
        return sentence

    # --- which calls ---

    def see(self, place: Place, call: AnyCall) -> Changed | None:
        """Keep a call if it is chosen. With gradients, return the output that follows from the kept weights."""
        layer, chosen = place.layer + self.offsets.get(place.kind, 0), self.chosen
        self.counts[place.kind] = max(self.counts.get(place.kind, 0), layer + 1)
        if chosen.attention not in (None, place.kind):
            return None
        place = replace(place, layer=layer)
        other = None
        if chosen.layers is None or layer in chosen.layers:
            other = self.keep(place, call)
        elif (lowest := min(chosen.layers)) < 0:
            if chosen.grad:
                why = "the layers of a torch module are known only after they ran: count from 0 with grad=True"
                raise UsageError(why, option="layer", value=lowest)
            self.waiting.append((place, call))
            first = self.counts[place.kind] + lowest
            self.waiting = [pair for pair in self.waiting if pair[0].kind != place.kind or pair[0].layer >= first]
        if chosen.stop and chosen.layers is not None and layer >= max(chosen.layers) and self.is_last_part(place, call):
            raise StopForward
        return other

    def is_last_part(self, place: Place, call: AnyCall) -> bool:
        """Return whether a call has the last queries of its attention."""
        return place.chunk is None or sum((place.chunk[0], call.shape[1])) >= place.chunk[1]

    def end_forward(self) -> None:
        """Keep the calls of the layers that are counted from the end, now that their number is known."""
        waiting, self.waiting = self.waiting, []
        for place, call in waiting:
            if place.layer - self.counts[place.kind] in (self.chosen.layers or ()):
                self.keep(place, call)

    # --- what is kept of a call ---

    def keep(self, place: Place, call: AnyCall) -> Changed | None:
        """Keep the chosen heads and queries of a call; with gradients, return the output that follows from the weights."""
        chosen = self.chosen
        n_heads, n_q, _ = call.shape
        heads = chosen_indices(chosen.heads, n_heads, "head", f"layer {place.layer} of {self.name}")
        start, total = place.chunk or (0, n_q)
        rows = range(total) if chosen.rows is None else chosen_indices(chosen.rows, total, "row", "this call", "rows")
        inside = [row - start for row in rows if start <= row < start + n_q]
        if not inside:
            return None
        if chosen.grad:
            self.check_gradients(call)
        with torch.set_grad_enabled(chosen.grad):
            steps = call.steps(chosen.keep)
            weights, other = steps.weights, None
            whole = len(heads) == n_heads and len(inside) == n_q
            kept = weights if whole else weights[:, list(heads)][:, :, inside]
            if chosen.grad:
                kept, weights = with_own_gradient(weights, kept, heads, inside)
                other = Changed(call.with_weights(weights))
        arrays: dict[str, Array] = {"weights": kept}
        for name, array in steps._asdict().items():
            if array is None or name == "weights":
                continue
            array = array if name == "mask" or len(heads) == n_heads else array[:, list(heads)]
            axis = ROWS_OF.get(name)
            if axis is not None and len(inside) < n_q:
                array = array.index_select(axis, torch.tensor(inside, device=array.device))
            arrays[name] = array if chosen.grad else array.detach()
        if not chosen.grad:
            arrays["weights"] = kept.detach()
        numbers = tuple(start + row for row in inside)
        captured = Captured(
            place.name, place.kind, place.layer, heads, place.step, **arrays,
            recurrence=place.recurrence, model=self.name, rows=None if numbers == tuple(range(total)) else numbers,
            n_heads=n_heads, n_queries=total, way=call.way, error=call.error,
            extra=call.extra, unnamed=call.unnamed, has_sink=call.is_below, is_scaled=call.is_scaled,
        )  # fmt: skip
        self.add(captured, place.continues)
        return other

    def add(self, captured: Captured, continues: bool) -> None:
        """Add a call, or the next queries of the last one."""
        before = self.traces[-1] if self.traces else None
        place = captured.kind, captured.layer, captured.step, captured.recurrence
        if continues and before is not None and place == (before.kind, before.layer, before.step, before.recurrence):
            self.traces[-1] = joined(before, captured)
        else:
            self.traces.append(captured)
            self.of_parts = GradientOfParts() if self.chosen.grad else None
        if self.of_parts is not None:
            self.of_parts.add(captured.weights, self.traces[-1].weights)

    def check_gradients(self, call: AnyCall) -> None:
        """Raise AttnctlError if gradients are off, or the weights that a kernel dropped cannot be known."""
        if not torch.is_grad_enabled():
            raise AttnctlError(
                f"{self.name} runs without gradients (torch.no_grad), and grad=True keeps them: call the model with "
                "gradients, or leave out grad=True"
            )
        if (why := without_graph()) is not None:
            raise AttnctlError(f"{self.name} attends {why}, where gradients of the weights cannot be kept (grad=True)")
        if call.changed is not None:
            raise AttnctlError(f"{self.name} is changed by intervene, and grad=True cannot be combined with it")
        if call.dropout and not isinstance(call, TracedCall):
            raise AttnctlError(
                f"{self.name} drops weights inside torch's fused kernel, whose random numbers cannot be had: set its "
                "dropout to 0, or call model.eval(), for grad=True"
            )


def without_graph() -> str | None:
    """Return why the graph of what runs now cannot hold other tensors than the model's own; None if it can."""
    if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality):
        return "in TorchScript"
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and hooks[0].__module__ == torch.utils.checkpoint.__name__:
        return "in a gradient checkpoint, which runs again in the backward pass"
    return None


def with_own_gradient(weights: Array, kept: Array, heads: Sequence[int], rows: Sequence[int]) -> tuple[Array, Array]:
    """Return the kept part of the weights, which holds its gradient, and the weights that the model goes on with."""
    if kept.requires_grad:
        kept.retain_grad()
    else:
        kept = kept.detach().requires_grad_()
    if kept.shape == weights.shape:
        return kept, kept
    weights = weights.clone()
    weights[:, torch.tensor(list(heads))[:, None], torch.tensor(list(rows))] = kept
    return kept, weights


@dataclass(eq=False)
class GradientOfParts:
    """Collect the gradient of weights whose queries come in parts: a model uses the parts, each with its own gradient."""

    # (batch, heads, n_q, n_k) of all queries until now; weakly, since the graph that made them holds the hooks of the parts
    weights: ReferenceType[Array] | None = None
    gradient: Array | None = None

    def add(self, part: Array, weights: Array) -> None:
        """Note the weights of some more queries, and those of all until now; these get the gradient of each part."""
        self.weights = ref(weights)
        first, last = weights.shape[2] - part.shape[2], weights.shape[2]

        def add_gradient(gradient: Array) -> None:
            weights = None if self.weights is None else self.weights()
            if weights is None or weights.shape[2] == last - first:  # nobody holds them; a single part keeps its own
                return
            self.gradient = torch.zeros_like(weights) if self.gradient is None else self.gradient
            self.gradient[:, :, first:last] += gradient
            weights.grad = self.gradient

        part.register_hook(add_gradient)


def visible_keys(call: Captured) -> Array:
    """Return the mask of a call (batch, n_q, n_k), also where it hides nothing."""
    shape = call.weights[:, 0].shape
    return call.weights.new_ones(shape, dtype=torch.bool) if call.mask is None else call.mask.expand(shape)


def joined(before: Captured, after: Captured) -> Captured:
    """Return two calls with queries of the same attention as one."""
    arrays: dict[str, Array] = {}
    for name, axis in ROWS_OF.items():
        parts = [getattr(before, name), getattr(after, name)]
        if name == "mask" and any(part is not None for part in parts):
            parts = [visible_keys(call) for call in (before, after)]
        if all(part is not None for part in parts):
            arrays[name] = torch.cat(parts, axis)
    first, second = (range(call.n_queries) if call.rows is None else call.rows for call in (before, after))
    rows = (*first, *second)
    errors = [call.error for call in (before, after) if call.error is not None]
    whole = rows == tuple(range(before.n_queries))
    return replace(before, **arrays, rows=None if whole else rows, error=max(errors, default=None))
