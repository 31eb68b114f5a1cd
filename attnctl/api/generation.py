"""Join the forwards of a generation: the rows of the prompt and of each new token, over the keys of the whole text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch

from attnctl.errors import UsageError
from attnctl.trace.notes import Note

if TYPE_CHECKING:
    from torch.nn import Module

    from attnctl.attention import Array

OF_QUERIES = ("queries", "context")  # steps with a row for each query: (batch, heads, n_q, d)
OF_KEYS = ("keys", "values")  # steps with a row for each key: (batch, heads, n_k, d)


class Recorded(Protocol):
    """What is asked of a recorded call of attention, `Captured`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def kind(self) -> str:
        """Return which attention it is: self, encoder, decoder, cross."""

    @property
    def layer(self) -> int:
        """Return its layer."""

    @property
    def weights(self) -> Array:
        """Return its weights (batch, heads, n_q, n_k)."""

    @property
    def mask(self) -> Array | None:
        """Return which keys are seen: (n_q, n_k) or (batch, n_q, n_k)."""

    @property
    def rows(self) -> tuple[int, ...] | None:
        """Return its kept queries; None: all."""

    @property
    def n_queries(self) -> int:
        """Return the number of its queries."""


RecordedCall = TypeVar("RecordedCall", bound=Recorded)


class Beginning(NamedTuple):
    """What a forward began with: a cache or none, and whether each text of the batch kept its own part of it."""

    has_cache: bool
    kept: Array | None = None  # (batch,), None without a cache


@contextmanager
def watch_cache(model: Module, beginnings: list[Beginning]) -> Iterator[None]:
    """Add to `beginnings`, for each forward of `model` within this context, what it begins with."""
    left: Array | None = None  # the marks of the cache after the forward before

    def begin(_: Module, __: object, keywords: dict[str, Any]) -> None:
        marks = _marks_of_cache(_cache_in(keywords))
        kept = None if marks is None else torch.zeros(len(marks), dtype=torch.bool)
        if marks is not None and left is not None and marks.shape == left.shape:
            kept = (marks == left).all(-1).cpu()
        beginnings.append(Beginning(marks is not None, kept))

    def end(_: Module, __: object, keywords: dict[str, Any], output: object) -> None:
        nonlocal left
        put_out = _cache_in(output) if isinstance(output, Mapping) else None
        left = _marks_of_cache(_cache_in(keywords) if put_out is None else put_out)

    handles = (
        model.register_forward_pre_hook(begin, with_kwargs=True),
        model.register_forward_hook(end, with_kwargs=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cache_in(values: Mapping[str, Any]) -> object:
    """Return the cache among the arguments or the results of a forward; None without one."""
    name = next((name for name in ("cache", "past_key_values") if name in values.keys()), None)  # noqa: SIM118
    return None if name is None else values[name]


def _marks_of_cache(cache: Any) -> Array | None:
    """Return one number of each key in a layer of a cache → (batch, n_k); None for a cache that is empty or unknown."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", None) or ()
    keys = next((keys for layer in layers if (keys := getattr(layer, "keys", None)) is not None), None)
    if not isinstance(keys, torch.Tensor) or keys.ndim != 4 or not keys.numel() or not cache.get_seq_length():
        return None
    return keys[:, 0, :, 0].detach().clone()  # a static cache is overwritten


def joined_forwards(
    steps: Sequence[Sequence[RecordedCall]], beginnings: Sequence[Beginning], item: int
) -> tuple[list[RecordedCall], tuple[Note, ...]] | None:
    """Return the calls of several forwards as those of one, a call for each layer, and notes; None if each begins anew.

    `steps` has the calls of each forward, in the order of their layers, `beginnings` what each began with (those that are
    not known are left out). Raises UsageError if a forward goes on from another text than that of the forward before.
    """
    known = len(beginnings) == len(steps)
    for calls, beginning in zip(steps[1:], beginnings[1:], strict=True) if known else ():
        if not beginning.has_cache and any(call.n_queries == call.weights.shape[-1] for call in calls):
            return None
    if any([call.layer for call in calls] != [call.layer for call in steps[0]] for calls in steps):
        return None
    layers = [_join_layer([calls[place] for calls in steps]) for place in range(len(steps[0]))]
    joined = [layer for layer in layers if layer is not None]
    if len(joined) < len(layers):
        return None
    kept = [beginning.kept for beginning in beginnings[1:]] if known else []
    for number, same in enumerate(kept, 1):
        if same is not None and not bool(same[item]):
            raise UsageError(
                f"forward {number} does not go on from the cache that forward {number - 1} left for text {item}, as with "
                "beams or an assistant: record one forward of the finished text, or name a forward with step"
            )
    is_unsure = len(joined[0].weights) > 1 and (not kept or any(same is None for same in kept))
    note = "The forwards are joined as those of texts that keep their place in the batch; with beams they do not."
    return joined, (Note(note, "input"),) * is_unsure


def _join_layer(calls: Sequence[RecordedCall]) -> RecordedCall | None:
    """Return the calls of one layer in successive forwards as one call; None if they do not go on from each other."""
    first, cross = calls[0], calls[0].kind == "cross"
    n_source = first.weights.shape[-1]
    ends, total = [], 0  # ends: the tokens that were read when each forward ended
    for call in calls:
        n_k, goes_on = call.weights.shape[-1], total > 0
        if goes_on and (call.n_queries != 1 or n_k != n_source if cross else call.n_queries >= n_k):
            return None
        total += call.n_queries
        ends.append(total)
    width = n_source if cross else total
    places = [_places_of_keys(call.weights.shape[-1], end, cross) for call, end in zip(calls, ends, strict=True)]
    if not cross and any(bool(call.weights[:, :, -1, end:].any()) for call, end in zip(calls, ends, strict=True)):
        return None  # the last query sees keys that no token was read for
    fields: dict[str, Any] = {"weights": _rows_over_keys([call.weights for call in calls], places, width)}
    for name in OF_QUERIES:
        parts = [getattr(call, name) for call in calls]
        fields[name] = None if any(part is None for part in parts) else torch.cat(parts, 2)
    for name in OF_KEYS:
        parts = [getattr(call, name) for call in calls]
        fields[name] = None if any(part is None for part in parts) else _laid_out(parts, places, width)
    if any(call.mask is not None for call in calls):
        fields["mask"] = _rows_over_keys([_mask_of(call) for call in calls], places, width)
    numbers = (range(call.n_queries) if call.rows is None else call.rows for call in calls)
    rows = tuple(end - call.n_queries + row for call, end, of in zip(calls, ends, numbers, strict=True) for row in of)
    every = rows == tuple(range(total))
    # a query's scores with keys that came later were never computed
    return replace(first, scores=None, scaled_scores=None, rows=None if every else rows, n_queries=total, **fields)


def _places_of_keys(n_k: int, end: int, cross: bool) -> tuple[int, int]:
    """Return the first and one past the last position of a call's n_k keys, when `end` tokens were read.

    A cache with a window has the last keys, and a static cache has places behind them.
    """
    return (0, n_k) if cross else (max(0, end - n_k), end)


def _rows_over_keys(parts: Sequence[Array], places: Sequence[tuple[int, int]], width: int) -> Array:
    """Return the rows (…, n_q, n_k) of each part, one below the other, over `width` keys; 0 or false where it has none."""
    padded = [
        torch.nn.functional.pad(part[..., : end - start], (start, width - end))
        for part, (start, end) in zip(parts, places, strict=True)
    ]
    return torch.cat(padded, -2)


def _laid_out(parts: Sequence[Array], places: Sequence[tuple[int, int]], width: int) -> Array:
    """Return the keys (batch, heads, n_k, d) of all parts at their positions → (batch, heads, width, d)."""
    whole = parts[0].new_zeros((*parts[0].shape[:2], width, parts[0].shape[-1]))
    for part, (start, end) in zip(parts, places, strict=True):
        whole[:, :, start:end] = part[:, :, : end - start]
    return whole


def _mask_of(call: Recorded) -> Array:
    """Return which keys each kept query of a call sees → (batch, n_q, n_k)."""
    batch, _, n_q, n_k = call.weights.shape
    every = torch.ones((), dtype=torch.bool, device=call.weights.device)
    return (every if call.mask is None else call.mask).expand(batch, n_q, n_k)
