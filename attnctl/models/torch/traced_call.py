"""An attention that a model wrote out: a table of scores, its softmax, and how to go on with other weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from attnctl.attention import Array
from attnctl.checks.tolerances import OWN_ROW
from attnctl.models.torch.fused import Changed, Steps, softmax_or_zero, visible_of
from attnctl.models.torch.layouts import (
    Atom,
    Axis,
    Layout,
    arranged,
    axis_size,
    put_back,
)
from attnctl.models.torch.tensors import ExtraKeys, Unnamed, storage_of


@dataclass(eq=False)
class Softmaxed:
    """A softmax of a table, or another way to make its rows sum to 1; `lost`: a function that is not followed changed it."""

    module: str
    array: Array | None  # the input of the softmax
    layout: Layout
    is_confirmed: bool = False
    lost: str = ""
    shown: set[tuple[StorageWeakRef, int, int]] = field(default_factory=set)  # each part that has met values

    def is_new(self, weights: Array) -> bool:
        """Return whether these weights have not met values yet: the first ones, or another text or head of them."""
        part = storage_of(weights), weights.storage_offset(), weights.numel()
        if self.is_confirmed and (self.is_whole(weights) or part in self.shown):
            return False
        self.shown.add(part)
        return True

    def is_whole(self, weights: Array) -> bool:
        """Return whether weights are all that the softmax gave, and not those of a text, a head or some queries."""
        return int(weights.numel()) >= math.prod(axis_size(axis) for axis in self.layout)


@dataclass(frozen=True, eq=False)
class Table:
    """Scores or weights: what is known of a tensor that says how much each query looks at each key."""

    rows: Axis = ()  # of the first operand of the product
    columns: Axis = ()  # of the second
    first: tuple[Array, Layout] | None = None
    second: tuple[Array, Layout] | None = None
    is_cross: bool = False
    softmax: Softmaxed | None = None
    keys: Axis = ()  # the axis of the softmax
    before_dropout: Array | None = None
    touched: str = ""  # the function that changed the weights after the softmax
    mixed: str = ""  # the same, of a function that does more than multiply each weight by a number of its own
    has_sink: bool = False
    is_exponential: bool = False
    is_divided: bool = False  # exponentials, divided by their sum over the keys
    is_log: bool = False
    are_keys_learned: bool = False  # a prompt, a memory: the same in every text
    needs_queries: bool = False  # it is attention only if the product shows an axis of queries
    spread: tuple[Array, Layout, Array] | None = None  # weights, their layout, values that they multiply place by place

    @property
    def is_of_exponentials(self) -> bool:
        """Return whether the weights are no softmax of a product, and were divided by their sum."""
        return self.softmax is not None and self.softmax.array is None and not (self.rows or self.columns)

    @property
    def of_channels(self) -> bool:
        """Return whether both sides are features, not tokens."""
        sides = self.rows, self.columns
        return all(side and all(atom.feature for atom in side) for side in sides)


@dataclass(eq=False)
class TracedCall:
    """An attention that the model computed itself: its weights, and how to go on with others."""

    way: str
    weights_array: Array  # before dropout, in the model's own shape
    used: Array  # what multiplied the values
    layout: Layout
    groups: tuple[list[Atom], list[Atom], list[Atom], list[Atom]]  # batch, heads, queries, keys
    table: Table
    values: tuple[Array, Layout]
    output: Array
    output_layout: Layout
    width: list[Atom]  # atoms of the values' own axes
    multiply: Callable[[Array], Array]  # other weights in the shape of `used` → the output of the product
    dropout: float = 0.0
    is_scaled: bool = False  # weights were multiplied after the softmax: rows sum to less than 1
    error: float | None = None
    extra: ExtraKeys | None = None
    unnamed: Unnamed | None = None
    changed: Changed | None = None

    @property
    def is_below(self) -> bool:
        """Return whether rows may sum to less than 1: by a sink, or as the weights were multiplied after the softmax."""
        return self.is_scaled or self.table.has_sink

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the numbers of heads, queries and keys."""
        heads, queries, keys = (math.prod(atom.size for atom in group) for group in self.groups[1:])
        return heads, queries, keys

    def steps(self, keep: frozenset[str] = frozenset(), *, check: bool = True) -> Steps:
        """Return the model's own weights, with those of the steps in `keep` that are known."""
        batch, heads, queries, keys = self.groups
        weights = arranged(self.weights_array, self.layout, batch, heads, queries, keys)
        if self.changed is not None and self.changed.weights is not None:
            weights = self.changed.weights
        parts: dict[str, Array | None] = {}
        if "context" in keep:
            parts["context"] = self.context()
        if "values" in keep:
            array, layout = self.values
            parts["values"] = _arranged_or_none(array, layout, batch, heads, keys, self.width)
        parts |= self._operands(keep)
        softmax = self.table.softmax
        if softmax is not None and softmax.array is not None and {"scaled_scores", "mask"} & keep:
            scores = _arranged_or_none(softmax.array, softmax.layout, batch, heads, queries, keys)
            if scores is not None:
                parts["mask"] = visible_of(scores.detach()) if "mask" in keep else None
                if "scaled_scores" in keep and (not self.table.touched or _follow(weights, scores)):
                    parts["scaled_scores"] = scores
        return Steps(weights, **parts)

    def _operands(self, keep: frozenset[str]) -> dict[str, Array | None]:
        """Return queries and keys, as they are multiplied: a model may have scaled them before."""
        table = self.table
        if table.first is None or table.second is None:
            return {}
        batch, heads, queries, keys = self.groups
        by_columns = any(atom.descends_from(table.columns) for atom in keys) or not table.columns
        of_queries, of_keys = (table.first, table.second) if by_columns else (table.second, table.first)
        columns = list(table.columns if by_columns else table.rows)  # of the product: a sink is no column of it
        keys = columns if math.prod(atom.size for atom in columns) == self.shape[2] else keys
        known = {atom for group in (batch, heads, queries, keys) for atom in group}
        parts = {}
        for name, (array, layout), rows in (("queries", of_queries, queries), ("keys", of_keys, keys)):
            if name in keep:
                width = [atom for axis in layout for atom in axis if atom not in known]
                parts[name] = _arranged_or_none(array, layout, batch, heads, rows, width)
        return parts

    def context(self) -> Array:
        """Return the result of the product as (batch, heads, n_q, d_v)."""
        return self.arranged_output(self.output)

    def arranged_output(self, output: Array) -> Array:
        """Return another output of the product's shape as (batch, heads, n_q, d_v)."""
        return arranged(output, self.output_layout, *self.groups[:3], self.width)

    def masked_scores(self) -> Array | None:
        """Return what the softmax read: (batch, heads, n_q, n_k); None if the weights are not what it gave."""
        return None if self.table.touched or self.table.has_sink else self.read_by_softmax()

    def read_by_softmax(self) -> Array | None:
        """Return what the softmax read, whatever the model did with its result: (batch, heads, n_q, n_k)."""
        softmax = self.table.softmax
        if softmax is None or softmax.array is None:
            return None
        scores = _arranged_or_none(softmax.array, softmax.layout, *self.groups)
        return None if scores is None else scores.to(torch.promote_types(scores.dtype, torch.float32))

    def with_context(self, context: Array) -> Array:
        """Return the output with another context (batch, heads, n_q, d_v)."""
        return put_back(context.to(self.output.dtype), self.output, self.output_layout, *self.groups[:3], self.width)

    def with_weights(self, weights: Array) -> Array:
        """Return the output with other weights (batch, heads, n_q, n_k); what dropout set to 0 stays 0."""
        back = put_back(weights.to(self.used.dtype), self.used, self.layout, *self.groups)
        if self.weights_array is not self.used:
            back = back * self.kept_by_dropout()
        return self.multiply(back)

    def kept_by_dropout(self) -> Array:
        """Return the factor of each weight in dropout, in the model's own shape: 0, or 1/(1 - p)."""
        before, used = self.weights_array, self.used
        if used.requires_grad and before.requires_grad:
            ones = torch.ones_like(used)
            (factor,) = torch.autograd.grad(used, before, ones, retain_graph=True, allow_unused=True)
            if factor is not None:
                return factor.detach()
        return torch.where(before.detach() != 0, used.detach() / before.detach(), 0.0)


def _follow(weights: Array, scores: Array) -> bool:
    """Return whether each row of weights is the softmax of its scores, times one number."""
    shares = softmax_or_zero(scores.detach().float())
    return bool(
        ((weights.detach().float() - shares * weights.detach().float().sum(-1, keepdim=True)).abs() < OWN_ROW).all()
    )


def _arranged_or_none(array: Array, layout: Layout, *groups: Sequence[Atom]) -> Array | None:
    """Return what `arranged` returns; None if the array has an axis that stands in none of the groups."""
    atoms = {atom for axis in layout for atom in axis}
    return arranged(array, layout, *groups) if atoms <= {atom for group in groups for atom in group} else None
