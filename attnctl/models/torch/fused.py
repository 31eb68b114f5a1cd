"""Recompute what torch's fused kernels of attention compute, with their weights: `scaled_dot_product_attention` and flex."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch

from attnctl.attention import Array
from attnctl.checks.tolerances import KERNEL, tolerance
from attnctl.errors import AttnctlError
from attnctl.models.torch.layouts import Atom, Axis, Layout, arranged, fresh_axis, fresh_layout, put_back
from attnctl.models.torch.tensors import ExtraKeys, Unnamed


class Steps(NamedTuple):
    """One call of attention with four axes: (batch, heads, n_q, n_k or d); None for what is not known."""

    weights: Array
    queries: Array | None = None
    keys: Array | None = None
    values: Array | None = None
    scores: Array | None = None
    scaled_scores: Array | None = None  # -inf where a model of hand-written attention hides a key
    mask: Array | None = None  # (batch or 1, n_q, n_k)
    context: Array | None = None


class Changed(NamedTuple):
    """What a model goes on with instead of the result of an attention, and other weights (batch, heads, n_q, n_k) if any."""

    output: Array
    weights: Array | None = None


HIDDEN = -5e3  # no score is below it of itself
NO_WEIGHT = 110.0  # exp of minus this is 0 in float32


def softmax_or_zero(scores: Array) -> Array:
    """Return the softmax over the last axis; a row of -inf is 0, as in torch's kernels."""
    if not scores.shape[-1]:
        return scores
    empty = scores.amax(-1, keepdim=True) == -math.inf
    if not bool(empty.any()):
        return torch.softmax(scores, -1)
    return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)


def visible_of(masked_scores: Array) -> Array | None:
    """Return where no score (batch, heads, n_q, n_k) is hidden for all heads → (batch, n_q, n_k); None if none is."""
    shown = masked_scores > torch.finfo(masked_scores.dtype).min / 2
    if masked_scores.shape[-1]:  # models also add -1e4 or -1e9: a key is hidden if that leaves it no weight
        best = masked_scores.amax(-1, keepdim=True)
        shown &= (masked_scores > HIDDEN) | (masked_scores > best - NO_WEIGHT)
    visible = shown.any(1)
    visible = visible | (~visible.any(-1, keepdim=True) & masked_scores.isfinite().any(1))
    return None if bool(visible.all()) else visible


@dataclass(frozen=True)
class Arguments:
    """The arguments of `torch.nn.functional.scaled_dot_product_attention`, in its order."""

    query: Array
    key: Array
    value: Array
    attn_mask: Array | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @cached_property
    def factor(self) -> float:
        """Return the number by which the scores are multiplied."""
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    def shared(self, array: Array) -> Array:
        """Return keys or values, each head repeated for the query heads that share it."""
        if not self.enable_gqa or array.shape[-3] == self.query.shape[-3]:
            return array
        return array.repeat_interleave(self.query.shape[-3] // array.shape[-3], -3)

    def masked(self, scores: Array, *, in_place: bool = False) -> Array:
        """Return scaled scores with the mask: torch counts causality from the upper left, query i sees key j ≤ i.

        `in_place`: they may be overwritten.
        """
        if self.is_causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill_(hidden, -math.inf) if in_place else scores.masked_fill(hidden, -math.inf)
        bias = self.attn_mask
        if bias is None:
            return scores
        if type(bias) is not torch.Tensor and hasattr(bias, "_materialize"):
            bias = bias._materialize(scores.device)  # torch.nn.attention.bias.CausalBias
        assert bias is not None
        if in_place and bias.dtype in (torch.bool, scores.dtype) and _fits_into(bias, scores):
            return scores.masked_fill_(~bias, -math.inf) if bias.dtype == torch.bool else scores.add_(bias)
        return scores.masked_fill(~bias, -math.inf) if bias.dtype == torch.bool else scores + bias


def _fits_into(array: Array, other: Array) -> bool:
    """Return whether an array can be added to another one in its place."""
    shape: tuple[int, ...] = torch.broadcast_shapes(array.shape, other.shape)  # type: ignore[no-untyped-call]
    return tuple(shape) == tuple(other.shape)


NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def arguments_of(args: Sequence[Any], keywords: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a call of scaled_dot_product_attention, by place or by name."""
    return Arguments(**dict(zip(NAMES, args, strict=False)), **keywords)


@dataclass(eq=False)
class FusedCall:
    """A call of scaled_dot_product_attention: its weights are computed when `steps` asks for them.

    `layout` is that of the queries, if it is known. Without one, the axis before the queries is the heads.
    """

    is_below = is_scaled = False  # the rows of a kernel are whole: see TracedCall

    arguments: Arguments
    output: Array
    layout: Layout | None
    way: str = "kernel"
    error: float | None = field(default=None, init=False)
    extra: ExtraKeys | None = field(default=None, init=False)
    unnamed: Unnamed | None = field(default=None, init=False)
    changed: Changed | None = field(default=None, init=False)

    @cached_property
    def axes(self) -> tuple[Layout, Axis, Axis]:
        """Return the axes before the queries, those of the queries, and those of the keys."""
        q, k = self.arguments.query, self.arguments.key
        lead: tuple[int, ...] = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
            q.shape[:-2], self.arguments.shared(k).shape[:-2]
        )
        if self.layout is None or len(self.layout) != len(lead) + 2:
            axes = list(fresh_layout(lead))
            if len(lead) > 1:
                axes[-1] = fresh_axis(lead[-1], feature=True)
        else:
            axes = [
                axis if size == q.shape[place] else fresh_axis(size)
                for place, (axis, size) in enumerate(zip(self.layout, lead, strict=False))
            ]
        return tuple(axes), fresh_axis(q.shape[-2]), fresh_axis(k.shape[-2])

    @cached_property
    def groups(self) -> tuple[list[Atom], list[Atom]]:
        """Return the atoms of the batch, and those of the heads."""
        atoms = [atom for axis in self.axes[0] for atom in axis]
        return [atom for atom in atoms if not atom.is_head], [atom for atom in atoms if atom.is_head]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the numbers of heads, queries and keys."""
        return (
            math.prod(atom.size for atom in self.groups[1]),
            int(self.arguments.query.shape[-2]),
            int(self.arguments.key.shape[-2]),
        )

    @property
    def dropout(self) -> float:
        """Return the share of weights that the kernel sets to 0 at random."""
        return float(self.arguments.dropout_p)

    def arrange(self, array: Array, rows: Axis, last: int) -> Array:
        """Return an array of the call as (batch, heads, rows, last)."""
        lead, columns = self.axes[0], fresh_axis(last)
        shape = [math.prod(atom.size for atom in axis) for axis in lead]
        array = array.expand(*shape, *array.shape[-2:])
        return arranged(array, (*lead, rows, columns), *self.groups, rows, columns)

    def restore(self, array: Array, like: Array) -> Array:
        """Return (batch, heads, n_q, d_v) in the shape of the kernel's output."""
        lead, rows, _ = self.axes
        columns = fresh_axis(array.shape[-1])
        return put_back(array, like, (*lead, rows, columns), *self.groups, rows, columns)

    def steps(self, keep: frozenset[str] = frozenset(), *, check: bool = True) -> Steps:
        """Return the weights before dropout, with the steps of `keep`, held against the kernel's own output.

        Raises AttnctlError if they disagree.
        """
        given = self.arguments
        wide = torch.promote_types(given.query.dtype, torch.float32)
        with torch.autocast(given.query.device.type, enabled=False):
            keys, values = given.shared(given.key), given.shared(given.value)
            raw = given.query.to(wide) @ keys.to(wide).transpose(-2, -1)
            is_free = not raw.requires_grad  # at most two tables of a layer are in memory, if no more are kept
            scaled = raw.mul_(given.factor) if is_free and "scores" not in keep else raw * given.factor
            masked = given.masked(scaled, in_place=is_free and "scaled_scores" not in keep)
            weights = softmax_or_zero(masked)
            if check and not self.dropout and self.changed is None:
                self.compare(weights, values.to(wide))
        _, rows, columns = self.axes
        n_k, width = given.key.shape[-2], given.query.shape[-1]
        hides = given.is_causal or given.attn_mask is not None
        parts: dict[str, Array | None] = {}
        if "queries" in keep:
            parts["queries"] = self.arrange(given.query, rows, width)
        if "keys" in keep:
            parts["keys"] = self.arrange(keys, columns, width)
        if "values" in keep:
            parts["values"] = self.arrange(values, columns, values.shape[-1])
        if "scores" in keep:
            parts["scores"] = self.arrange(raw, rows, n_k)
        if "scaled_scores" in keep:
            with_bias = masked.where(masked > torch.finfo(wide).min / 2, scaled) if hides else scaled
            parts["scaled_scores"] = self.arrange(with_bias, rows, n_k)
        if "mask" in keep and hides:
            parts["mask"] = visible_of(self.arrange(masked.detach(), rows, n_k))
        if "context" in keep:
            parts["context"] = self.arrange(self.output, rows, self.output.shape[-1])
        arranged_weights = self.arrange(weights, rows, n_k)
        if self.changed is not None and self.changed.weights is not None:
            arranged_weights = self.changed.weights
        return Steps(arranged_weights, **parts)

    @torch.no_grad()
    def compare(self, weights: Array, values: Array) -> None:
        """Set `error`, the largest difference from the kernel's output. Raises AttnctlError if it is more than rounding."""
        gap = (weights.detach() @ values.detach() - self.output.detach().to(values.dtype)).abs()
        self.error = float(gap.nan_to_num(0.0).max()) if gap.numel() else 0.0
        limit = tolerance(KERNEL, self.output.dtype) * float(values.detach().abs().nan_to_num(0.0).max() or 1.0)
        if self.error > max(limit, 1e-30):
            raise AttnctlError(
                f"torch's kernel of attention gave another result than its arguments say (difference {self.error:.1e}): "
                "nothing is shown rather than something wrong"
            )

    def with_weights(self, weights: Array) -> Array:
        """Return what the kernel would give with these weights (batch, heads, n_q, n_k): its dropout comes after them."""
        given = self.arguments
        values = given.shared(given.value)
        context = torch.nn.functional.dropout(weights, self.dropout).to(values.dtype)
        context = context @ self.arrange(values, self.axes[2], values.shape[-1])  # (batch, heads, n_q, d_v)
        return self.restore(context, self.output)

    def context(self) -> Array:
        """Return the kernel's output as (batch, heads, n_q, d_v)."""
        return self.arranged_output(self.output)

    def arranged_output(self, output: Array) -> Array:
        """Return another output of the kernel's shape as (batch, heads, n_q, d_v)."""
        return self.arrange(output, self.axes[1], output.shape[-1])

    def masked_scores(self) -> Array | None:
        """Return what the softmax reads: (batch, heads, n_q, n_k), -inf where the mask hides a key."""
        given = self.arguments
        wide = torch.promote_types(given.query.dtype, torch.float32)
        with torch.autocast(given.query.device.type, enabled=False):
            raw = given.query.to(wide) @ given.shared(given.key).to(wide).transpose(-2, -1)
            return self.arrange(given.masked(raw * given.factor), self.axes[1], given.key.shape[-2])

    def with_context(self, context: Array) -> Array:
        """Return the output with another context (batch, heads, n_q, d_v)."""
        return self.restore(context, self.output)


@dataclass(eq=False)
class FlexCall(FusedCall):
    """A call of flex_attention: `how` is what its operator gets after queries, keys and values."""

    how: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def masked_scores(self) -> Array | None:
        """Return what the softmax reads: (batch, heads, n_q, n_k), -inf where the block mask hides a key."""
        from torch._higher_order_ops.flex_attention import _math_attention_inner

        given = self.arguments
        keys, values = given.shared(given.key), given.shared(given.value)
        scores: Array = _math_attention_inner(given.query, keys, values, *self.how, **self.keywords)[1]
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def steps(self, keep: frozenset[str] = frozenset(), *, check: bool = True) -> Steps:
        """Return the weights, by the score_mod and the block mask that the operator got."""
        given = self.arguments
        keys, values = given.shared(given.key), given.shared(given.value)
        masked = self.masked_scores()
        assert masked is not None
        weights = softmax_or_zero(masked)  # (batch, heads, n_q, n_k)
        if check and self.changed is None:
            self.compare(weights, values.to(masked.dtype))
        if self.changed is not None and self.changed.weights is not None:
            weights = self.changed.weights
        known = {"queries": given.query, "keys": keys, "values": values, "context": self.output}
        parts = {name: array for name, array in known.items() if name in keep}
        return Steps(weights, **parts, mask=visible_of(masked) if "mask" in keep else None)


def blocks_matter(block_mask: Sequence[Any], n_q: int, n_k: int) -> bool:
    """Return whether the blocks that a block mask lists show other keys than its mask_mod.

    The compiled kernel goes by the blocks, and asks mask_mod within the partial ones alone. Uncompiled, mask_mod is all.
    """
    from torch.nn.attention.flex_attention import create_mask

    _, _, number, index, full_number, full_index, *_, size_q, size_k, mask_mod = block_mask
    columns = -(-n_k // size_k)
    partial = _listed(number, index, columns)  # (batch, heads, rows, columns) of blocks
    full = torch.zeros_like(partial) if full_number is None else _listed(full_number, full_index, columns)
    for row in range(-(-n_q // size_q)):
        first = row * size_q
        height = min(size_q, n_q - first)

        def below(batch: Array, head: Array, query: Array, key: Array, first: int = first) -> Array:
            shown: Array = mask_mod(batch, head, query + first, key)
            return shown

        batch, heads = partial.shape[:2]
        shown = create_mask(below, batch, heads, height, n_k, device=str(number.device))
        in_partial, in_full = (
            blocks[:, :, row].repeat_interleave(size_k, -1)[..., None, :n_k] if columns > 1 else blocks[:, :, row, None]
            for blocks in (partial, full)
        )
        if bool((((in_partial & shown) | in_full) != shown).any()):
            return True
    return False


def _listed(number: Array, index: Array, columns: int) -> Array:
    """Return which of the columns of blocks each row of blocks lists: the first `number` of its `index`."""
    counted = torch.arange(index.shape[-1], device=index.device) < number[..., None]
    listed = torch.zeros(*index.shape[:-1], max(columns, index.shape[-1]) + 1, dtype=torch.bool, device=index.device)
    places = torch.where(counted, index, listed.shape[-1] - 1).long()
    return listed.scatter(-1, places, True)[..., :columns]
