"""Recognise attention that a model writes out itself: a table of scores, its softmax, and the values that it multiplies.

Each tensor that comes from the model's inputs is followed from function to function. A product of two of them is a table of
scores. The axis of the softmax says which side holds the keys. It is attention once the table multiplies values along that
axis, and the values are the same for all queries: so a router of experts, a loss over a batch or logits over a vocabulary is
none. The weights are the model's own tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from typing import Any

import torch

from attnctl.attention import Array
from attnctl.checks.tolerances import NEGATIVE, NOTHING, OWN_ROW
from attnctl.models.torch.contractions import CONVOLUTIONS, Contraction, contraction_of, scaled_einsum, spread_product
from attnctl.models.torch.edges import EDGES, EdgeSoftmax
from attnctl.models.torch.following import MULTIPLICATION, SCALES, VIEWS, Follower
from attnctl.models.torch.layouts import (
    Atom,
    Axis,
    Layout,
    axis_size,
    fresh_axis,
    positional_layout,
)
from attnctl.models.torch.states import States
from attnctl.models.torch.tensors import ByTensor, Chunk, tensors_in
from attnctl.models.torch.traced_call import Softmaxed, Table, TracedCall

ROUNDING = 256  # units in the last place by which a product of rounded shares may lie beside the model's own output
POOLED_HEADS = 8  # the most heads of an attention that pools tokens by a linear layer; more are the features of keys
NO_SHARES = "its scores multiply values without a softmax, and rows do not sum to 1: they are no shares of attention"
BELOW_ZERO = "its scores multiply values without a softmax, and some are negative: they are no shares of attention"
EXPONENTIALS = (
    "the exponentials of its scores multiply values, rows do not sum to 1, and attnctl sees no division by their sums"
)
PARTS_ADDED = (
    "the exponentials of its scores multiply values, a part of the keys at a time, and the sum of all parts is divided at "
    "the end (memory-efficient attention): attnctl does not join the parts"
)
OVER_QUERIES = "its softmax is over the queries: for each key, the weights of all queries sum to 1"
PARTS_OF_KEYS = (
    "the same queries look at several parts of the keys, each with a softmax of its own: the rows of each part sum to 1, "
    "not those of all keys"
)
TWO_SOFTMAXES = "its weights are multiplied with those of another softmax before they meet values"
PART_OF_ROW = "only a part of the keys of its softmax meets these values: their weights do not sum to 1"
LINEAR = "it multiplies keys with values before the queries (linear attention): there is no map of tokens"
WITHOUT_KEYS = (
    "a linear layer of its queries says how they weigh the values (outlook attention, Synthesizer): there are no keys"
)
LEAVES = frozenset(["numpy", "__array__", "tolist"])  # functions whose results torch does not see
LEFT = "its scores leave torch (numpy), and what becomes of them is not seen"
QUOTIENTS = frozenset(["div", "truediv", "true_divide", "divide", "itruediv"])
DIVIDES = QUOTIENTS | {"mul", "multiply", "rmul", "imul"}
KEEPS = VIEWS | DIVIDES | {"stack", "cat", "sum", "add", "iadd", "radd"}  # functions after which a sum may still divide


@dataclass(eq=False)
class Refusal:
    """Why scores that meet values without a softmax are refused, unless the result is divided by their sum later."""

    module: str
    sentence: str
    is_over: bool = False


@dataclass(frozen=True, eq=False)
class Undivided:
    """The product of shares that do not sum to 1 with values: their axes of keys, the call of the product."""

    refusal: Refusal
    used: Array
    dims: Sequence[int]
    how: tuple[Any, ...]  # name, args, keywords, function
    is_part: bool  # of the keys
    is_exponential: bool
    meet: Callable[..., Array | None]


@dataclass(eq=False)
class Tracer(Follower):
    """Recognise attention among the functions of a model; `see` gets each, and returns other output or None."""

    see: Callable[[TracedCall, bool, Chunk | None], Array | None] = field(kw_only=True)
    module: Callable[[], str] = field(kw_only=True)  # returns the name of the module that runs
    candidates: list[Softmaxed] = field(default_factory=list)
    shares_of_features: set[Atom] = field(default_factory=set)  # axes of a softmax over what a linear layer gave
    by_learned_keys: Table | None = None  # the last product with constants of each head: scores, if a softmax follows
    parts_of_keys: dict[tuple[object, ...], int] = field(
        default_factory=dict
    )  # queries, keys → start of the first part
    refused: dict[tuple[str, str], None] = field(default_factory=dict)  # (module, sentence), in order
    left: dict[str, str] = field(default_factory=dict)  # module → sentence, until its scores are seen to attend
    undivided_refusals: list[Refusal] = field(default_factory=list)
    undivided: ByTensor[Undivided] = field(default_factory=ByTensor)
    exponentials: ByTensor[bool] = field(default_factory=ByTensor)  # of scores that are no product
    pooled: ByTensor[bool] = field(default_factory=ByTensor)  # values, weighted by a softmax without queries
    edges: EdgeSoftmax = field(default_factory=EdgeSoftmax)
    states: States = field(default_factory=States)

    # --- softmax ---

    def softmax(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], out: Array) -> None:
        """Note a softmax over an axis of a table, or over tokens that a linear layer has rated."""
        scores = args[0] if args else keywords.get("input")
        dim = keywords.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(scores, torch.Tensor) or self.is_constant(scores):
            if isinstance(out, torch.Tensor) and isinstance(scores, torch.Tensor):
                self.constants[out] = True
            return
        if isinstance(dim, int) and scores.ndim:
            self._note_softmax(name, scores, dim, out, -scores.detach() if name == "softmin" else scores.detach())

    def _note_softmax(self, name: str, scores: Array, dim: int, out: Array, array: Array | None) -> None:
        """Note the softmax of scores; `array` is what it read, None if the model divided exponentials by their sum."""
        layout: Layout | None = self.layouts.get(scores)
        is_followed = layout is not None
        if layout is None:  # its scores come from a function that is not followed
            layout = positional_layout(scores.shape)
        self._pass_origin(name, [scores], out)
        self.layouts[out] = layout
        table: Table | None = self.tables.get(scores)
        axis = layout[dim]
        if table is None and axis and self.by_learned_keys is not None and axis == self.by_learned_keys.columns:
            table = self.by_learned_keys
            self.shares_of_features.update(axis)
        if table is None:
            if not axis or any(atom.feature for atom in axis):
                self.shares_of_features.update(axis)
                return  # over the features of a linear layer: experts, classes, a vocabulary
            is_cross = scores not in self.origins and not self.is_grown(scores)
            table = Table(keys=axis, is_cross=is_cross, needs_queries=not is_followed)
        elif table.softmax is not None and not table.is_log:
            self.refuse("its weights go through a second softmax before they meet values")
        softmax = Softmaxed(self.module(), array, layout)
        self.candidates.append(softmax)
        self.tables[out] = replace(
            table, softmax=softmax, keys=axis, is_log=name.startswith("log"), before_dropout=None, touched=""
        )

    def lost(self) -> dict[tuple[str, str], None]:
        """Return (module, sentence) of each softmax that a function lost, and of shares that no sum divided."""
        lost = [
            (softmax.module, f"its weights go through {softmax.lost}, which attnctl cannot follow")
            for softmax in self.candidates
            if softmax.lost and not softmax.is_confirmed
        ]
        undivided = [(refusal.module, refusal.sentence) for refusal in self.undivided_refusals if not refusal.is_over]
        return dict.fromkeys([*lost, *undivided, *self.left.items()])

    def refuse(self, sentence: str) -> None:
        """Note what looks like attention, in the module that runs, and cannot be shown."""
        self.refused[self.module(), sentence] = None

    # --- products ---

    def product(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], run: Callable[..., Any]) -> Any:
        """Run a product of tensors; note scores, see attention where weights meet values. Return the product's result."""
        out = run(*args, **keywords)
        product = contraction_of(name, args, keywords)
        if product is None or not isinstance(out, torch.Tensor):
            if name == "einsum" and any(self._is_softmax(tensor) for tensor in tensors_in(args, keywords)):
                self.refuse(f"its weights meet values in an einsum of several tensors ({args[0]}): split it in two")
            elif name == "einsum" and any(self._is_linear(tensor) for tensor in tensors_in(args, keywords)):
                self.refuse(LINEAR)
            out = self.follow(name, args, keywords, out)
            scaled = scaled_einsum(args) if name == "einsum" else None
            if scaled is not None and not any(
                self.is_constant(part) or part in self.tables for part in scaled.operands
            ):
                self.note_product(scaled, out)
            return out
        constant = [self.is_constant(tensor) for tensor in product.operands]
        if all(constant):
            self.note_constant(out, name, product.operands)
            return out
        moving = [tensor for tensor, still in zip(product.operands, constant, strict=True) if not still]
        if len(moving) == 2 and self.states.is_read(product):
            self.refuse(LINEAR)
        if len(moving) == 2 and any(tensor in self.of_weights for tensor in moving):
            self._multiply_of_weights(name, moving, out)
            return out
        tables = [place for place in (0, 1) if self._is_table(product.operands[place], constant[1 - place])]
        with_softmax = [place for place in tables if self.tables[product.operands[place]].softmax is not None]
        place = next(iter(with_softmax or tables), None)
        if place is not None:
            other = self._use_table(product, place, constant[1 - place], out, name, args, keywords, run)
            self.origins[out] = object()
            if other is not None and isinstance(keywords.get("out"), torch.Tensor):
                other = out.copy_(other)  # the model goes on with the tensor that it gave
            return out if other is None else other
        for place in (0, 1) if not any(constant) else ():
            if why := self._why_without_keys(product, place):
                self.refuse(why)
        if name in CONVOLUTIONS:  # over a picture or a sound: its channels, and not its places, are features
            return self.follow(name, args, keywords, out)
        self._pass_origin(name, moving, out)
        self._make_layout(product, constant, out)
        if len(moving) == 2:
            self.states.note(product, self.layouts, self.module(), out)
        return out

    def _multiply_of_weights(self, name: str, factors: Sequence[Array], out: Array) -> None:
        """Note a product with what two softmaxes gave, as a pseudo-inverse of weights: no scores, and no values."""
        with_softmax = [self._is_softmax(tensor) for tensor in factors]
        if any(with_softmax):
            self.refuse(TWO_SOFTMAXES)
        if all(known or tensor in self.of_weights for known, tensor in zip(with_softmax, factors, strict=True)):
            self.of_weights[out] = True
        self._pass_origin(name, factors, out)

    def _why_without_keys(self, product: Contraction, place: int) -> str:
        """Return what a softmax over the features of a linear layer is if its rows share the other operand; "" otherwise.

        Experts have an output for each row. What linear attention multiplies with a softmax of its queries are features.
        """
        letters, others = product.letters[place], product.letters[1 - place]
        own, other = (self.layouts.get(product.operands[side]) for side in (place, 1 - place))
        if own is None or not product.summed:
            return ""
        summed = [atom for letter, axis in zip(letters, own, strict=True) if letter in product.summed for atom in axis]
        is_shared = any(axis and letter not in (*others, ".") for letter, axis in zip(letters, own, strict=True))
        if not is_shared or not summed or not set(summed) <= self.shares_of_features:
            return ""
        known = [axis for letter, axis in zip(others, other or (), strict=bool(other)) if letter in product.summed]
        if not any(atom.feature for axis in known for atom in axis):
            return WITHOUT_KEYS
        return LINEAR if product.operands[1 - place] in self.pooled else ""

    def _is_table(self, tensor: Array, is_other_constant: bool) -> bool:
        """Return whether a tensor holds scores or weights; learned keys have learned values."""
        table = self.tables.get(tensor)
        return table is not None and (is_other_constant or not table.are_keys_learned)

    def _is_softmax(self, tensor: Array) -> bool:
        table = self.tables.get(tensor)
        return table is not None and table.softmax is not None

    def _is_linear(self, tensor: Array) -> bool:
        table = self.tables.get(tensor)
        return table is not None and table.softmax is None and table.of_channels

    def note_product(self, product: Contraction, out: Array) -> None:
        """Note the axes of a product of two activations that was written as a sum."""
        self._pass_origin("sum", product.operands, out)
        self._make_layout(product, (False, False), out)

    def _make_layout(self, product: Contraction, constant: Sequence[bool], out: Array) -> None:
        """Note the axes of a product; if it may hold scores, note that too."""
        a, b = product.operands
        known = [self.layouts.get(tensor) for tensor in (a, b)]
        if all(layout is None for layout in known) and not any(constant) and len(product.result) > 3:
            known[0] = positional_layout(a.shape)
        axes: dict[str, Axis] = {}
        order = sorted((0, 1), key=lambda place: constant[place] or known[place] is None)
        for place in order:
            layout = known[place]
            for index, letter in enumerate(product.letters[place]):
                if letter == "." or letter in axes:
                    continue
                size = product.operands[place].shape[index]
                is_feature = constant[place] and place == 1
                axes[letter] = fresh_axis(size, is_feature) if layout is None or constant[place] else layout[index]
        if any(constant) and product.summed and product.operands[constant.index(True)] not in self.random:
            axes |= _axes_with_weights(product, constant.index(True), axes)
        outside = [set(product.letters[place]) - set(product.letters[1 - place]) - {"."} for place in (0, 1)]
        for letter in outside[0] | outside[1] if not any(constant) else outside[0]:
            axes[letter] = tuple(atom.apart() for atom in axes[letter])
        layouts = [
            tuple(() if letter == "." else axes[letter] for letter in product.letters[place]) for place in (0, 1)
        ]
        result = tuple(axes[letter] for letter in product.result)
        if [axis_size(axis) for axis in result] != list(out.shape):
            return
        self.layouts[out] = result
        is_table = len(outside[1]) == 1 and (0 < len(outside[0]) < 3 or (not outside[0] and not constant[0]))
        if not product.summed or not is_table:
            return
        if any(
            [axis_size(axis) for axis in layout] != list(tensor.shape)
            for layout, tensor in zip(layouts, (a, b), strict=True)
        ):
            return
        rows, columns = (
            tuple(atom for letter in product.result if letter in outside[place] for atom in axes[letter])
            for place in (0, 1)
        )
        is_cross = any(constant) or self.origin(a) != self.origin(b)
        table = Table(rows, columns, (a, layouts[0]), (b, layouts[1]), is_cross, are_keys_learned=constant[1])
        if not constant[1]:
            self.tables[out] = table
        elif columns and (set(product.letters[0]) & set(product.letters[1]) & set(product.result)) - {"."}:
            self.by_learned_keys = table

    def _use_table(
        self,
        product: Contraction,
        place: int,
        values_are_constant: bool,
        out: Array,
        name: str,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        run: Callable[..., Any],
    ) -> Array | None:
        """See what a product does with a table: meet values, mix heads, or something else."""
        used, values = product.operands[place], product.operands[1 - place]
        table: Table = self.tables[used]
        layout: Layout = self.layouts[used]
        axes = {letter: axis for letter, axis in zip(product.letters[place], layout, strict=True) if letter != "."}
        summed = [atom for letter in product.letters[place] if letter in product.summed for atom in axes[letter]]
        is_side = [any(atom.descends_from(side) for atom in summed) for side in (table.rows, table.columns)]
        over_keys = _same_side(summed, table.keys) if table.softmax is not None else any(is_side)
        if values_are_constant and not over_keys and not any(is_side):
            self._mix(product, place, axes, table, out)  # heads are mixed, before or after the softmax
            return None
        if self._is_softmax(values) and values is not used:
            if over_keys:
                self.refuse(TWO_SOFTMAXES)
            self.of_weights[out] = True
            return None
        if (
            values_are_constant and not table.are_keys_learned
        ):  # rows of a parameter: an embedding of what a vocabulary's softmax expects
            if table.softmax is None and any(
                side and all(atom.feature for atom in side) for side in (table.rows, table.columns)
            ):
                self._note_projected(product, place, axes, out)
            return None
        if table.softmax is None:
            return self._unnormalised(table, used, layout, product, place, axes, summed, out, name, args, keywords, run)
        if table.of_channels:
            if over_keys:
                self.refuse("its weights say how much channels look at channels, not tokens at tokens")
            return None
        if not over_keys:
            if not any(is_side):
                return None
            how = (table, used, layout, product, place, axes, summed, out, name, args, keywords, run)
            return self._unnormalised(*how, because=OVER_QUERIES)
        return self._meet(table, used, layout, product, place, axes, summed, out, name, args, keywords, run)

    def _mix(self, product: Contraction, place: int, axes: dict[str, Axis], table: Table, out: Array) -> None:
        """Follow a table whose heads a constant matrix mixes."""
        if self._note_projected(product, place, axes, out):
            mixed = "a mix of heads" if table.softmax is not None else ""
            self.tables[out] = replace(table, touched=mixed, mixed=mixed, before_dropout=None, first=None, second=None)

    def _note_projected(self, product: Contraction, place: int, axes: dict[str, Axis], out: Array) -> bool:
        """Note the axes of a table that a constant matrix multiplies; return whether they are known."""
        for letter, size in zip(product.letters[1 - place], product.operands[1 - place].shape, strict=True):
            axes.setdefault(letter, fresh_axis(size, feature=True))
        layout = tuple(axes[letter] for letter in product.result)
        is_known = [axis_size(axis) for axis in layout] == list(out.shape)
        if is_known:
            self.layouts[out] = layout
        return is_known

    def _unnormalised(
        self,
        table: Table,
        used: Array,
        layout: Layout,
        product: Contraction,
        place: int,
        axes: dict[str, Axis],
        summed: list[Atom],
        out: Array,
        *how: Any,
        because: str = "",
    ) -> Array | None:
        """See scores that multiply values without a softmax: attention if the model has made the rows sum to 1 itself."""
        sides = [side for side in (table.rows, table.columns) if side]
        if table.of_channels or any(all(atom.feature for atom in side) for side in sides):
            if any(_same_side(summed, side) for side in sides) and not self._has_features_alone(product, place):
                self.refuse(LINEAR)
            return None
        if not any(_same_side(summed, side) for side in sides):
            return None
        dims = [index for index, letter in enumerate(product.letters[place]) if letter in product.summed]
        weights = used.detach().float()
        sums = weights.sum(dims)
        divided_along = table.keys
        table = replace(table, softmax=Softmaxed(self.module(), None, layout), keys=tuple(summed))
        meet = partial(self._meet, table, used, layout, product, place, axes, summed)
        has_sink = table.has_sink and _same_side(summed, divided_along)
        if bool(weights.amin() >= -NEGATIVE) and bool((sums - 1).abs().nan_to_num(0.0).amax() <= OWN_ROW or has_sink):
            return meet(out, *how)
        of_keys = table.second if _same_side(summed, table.columns) else table.first
        is_part = of_keys is not None and self.part_of(of_keys[0], math.prod(atom.size for atom in summed)) is not None
        if table.is_exponential:
            because = because or (PARTS_ADDED if is_part else EXPONENTIALS)
        is_negative = bool(weights.amin() < -NEGATIVE)
        refusal = Refusal(self.module(), because or (BELOW_ZERO if is_negative else NO_SHARES))
        self.undivided_refusals.append(refusal)
        if bool(weights.amin() >= 0):
            self.undivided[out] = Undivided(refusal, used, dims, how, is_part, table.is_exponential, meet)
        return None

    def _has_features_alone(self, product: Contraction, place: int) -> bool:
        """Return whether the other operand has features for rows, as the mix of streams in hyper-connections: no queries."""
        other, letters = product.operands[1 - place], product.letters[1 - place]
        layout = self.layouts.get(other)
        if layout is None or len(layout) != len(letters):
            return False
        rows = [axis for axis, letter in zip(layout, letters, strict=True) if letter not in product.letters[place]]
        rows = [axis for axis in rows if axis]
        return bool(rows) and all(atom.feature for axis in rows for atom in axis)

    def follow(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], out: Any) -> Any:
        """Follow a call; see an attention where weights have met values first, and their sum divides the result."""
        out = super().follow(name, args, keywords, out)
        if self.edges.meet_values(name, args, keywords, out):
            self.refuse(EDGES)
        if self.states.follow(name, args, keywords, out):
            self.refuse(LINEAR)
        if name in MULTIPLICATION and isinstance(out, torch.Tensor):
            factors = tuple(tensors_in(args, keywords))
            is_outer = len(factors) == 2 and out.numel() > max(factors[0].numel(), factors[1].numel())
            if is_outer and not any(map(self.is_constant, factors)):
                product = spread_product((factors[0], factors[1]), out)
                self.states.note(product, self.layouts, self.module(), out)
        if name in LEAVES and args and (table := self.tables.get(args[0])) is not None:
            if table.softmax is not None:
                table.softmax.lost = table.softmax.lost or name
            elif not table.of_channels:
                self.left[self.module()] = LEFT
        if name.strip("_") in QUOTIENTS and isinstance(out, torch.Tensor) and len(args) == 2:
            self._note_division(args[0], args[1], out)
        self._note_exponential(name, args, out)
        if not self.undivided_refusals or not isinstance(out, torch.Tensor):
            return out
        before = self._undivided(name, args, keywords)
        shares = None
        if before is not None and name.strip("_") in DIVIDES and args[0] in self.undivided:
            shares = self._divided(before, args[1] if len(args) > 1 else None, out)
        if before is None or shares is None:
            return self._keep_undivided(before, name, out)
        before.refusal.is_over = True
        other = before.meet(out, *before.how, shares=shares)
        if other is not None and name.endswith("_") and not name.endswith("__"):
            return out.copy_(other)
        return out if other is None else other

    def _undivided(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> Undivided | None:
        """Return the product among the arguments that is still to be divided, if there is one alone."""
        if name.strip("_") not in KEEPS:
            return None
        known = {self.undivided[tensor] for tensor in tensors_in(args, keywords) if tensor in self.undivided}
        return known.pop() if len(known) == 1 else None

    def _keep_undivided(self, before: Undivided | None, name: str, out: Array) -> Array:
        """Note that a result is still to be divided; return it. A part of the keys is divided at once, or not read."""
        if before is not None and not before.is_part and before.refusal.module == self.module():
            self.undivided[out] = before
        return out

    def _divided(self, before: Undivided, divisor: object, out: Array) -> Array | None:
        """Return the shares whose product with the values is `out`, or None if there are none.

        They are divided by their sum; or by the model's own divisor, if it adds to each sum a small number, so that a row
        that sees no key has shares of 0, or the exponential of a sink.
        """
        again = _multiplying(before.used, *before.how[1:])
        allowed = min(OWN_ROW, ROUNDING * torch.finfo(out.dtype).eps) * out.detach().abs().amax()

        def gives(shares: Array) -> bool:
            result = again(shares)
            return result.shape == out.shape and bool((result - out).detach().abs().amax() <= allowed)

        sums = before.used.sum(before.dims, keepdim=True)
        if gives(shares := before.used / sums):
            return shares
        if not isinstance(divisor, torch.Tensor) or divisor.numel() != sums.numel():
            return None
        long = [size for size in divisor.shape if size > 1]
        for order in permutations(range(len(long))):  # a product may have its rows and heads in another order
            turned = divisor.reshape(long).permute(order)
            if turned.shape == torch.Size([size for size in sums.shape if size > 1]):
                shares = before.used / turned.reshape(sums.shape)
                rows = shares.sum(before.dims).detach()
                has_sink = before.is_exponential and not before.is_part and not self.is_constant(divisor)
                is_row = (rows <= 1 + OWN_ROW) if has_sink else ((rows - 1).abs() <= OWN_ROW).logical_or(rows == 0)
                if bool(is_row.all()) and gives(shares):
                    return shares
        return None

    def _note_exponential(self, name: str, args: Sequence[Any], out: object) -> None:
        """Note the exponentials of scores that are no product; they may be masked before they are divided by their sum."""
        plain, before = name.strip("_"), args[0] if args else None
        if plain != "exp" and not self.exponentials.known:
            return
        if not isinstance(before, torch.Tensor) or not isinstance(out, torch.Tensor) or out in self.tables:
            return
        if before in self.exponentials:
            is_kept = name in VIEWS or (plain in SCALES - QUOTIENTS and out.shape == before.shape)
        else:
            is_kept = plain == "exp" and not self.is_constant(out)
        if is_kept:
            self.exponentials[out] = True

    def _note_division(self, before: object, divisor: object, out: Array) -> None:
        """Note exponentials that were divided by their sum, a softmax, or by more, as exp(s) / (1 + Σ exp(s)): a sink."""
        table = self.tables.get(out)
        if table is None and not (isinstance(before, torch.Tensor) and before in self.exponentials):
            return
        if not isinstance(divisor, torch.Tensor) or divisor.ndim != out.ndim or self.is_constant(divisor):
            return
        reduced = [place for place in range(out.ndim) if divisor.shape[place] != out.shape[place]]
        if len(reduced) != 1 or divisor.shape[reduced[0]] != 1:
            return
        if table is not None and not (table.is_exponential and table.softmax is None):
            if table.is_of_exponentials and self.layouts[out][reduced[0]] != table.keys:
                self.tables.forget(out)  # rows and columns in turn (Sinkhorn)
            return
        sums = out.detach().float().sum(reduced[0])
        is_whole = bool((sums - 1).abs().nan_to_num(0.0).amax() <= OWN_ROW)
        if table is None:
            is_whole = bool(((sums - 1).abs() <= OWN_ROW).logical_or(sums == 0).all())  # a text may be padding alone
            if is_whole and isinstance(before, torch.Tensor):
                self._note_softmax("softmax", before, reduced[0], out, None)
        elif is_whole:
            self.tables[out] = replace(table, is_divided=True, keys=self.layouts[out][reduced[0]])
        elif bool(sums.amax() <= 1 + OWN_ROW) and bool(sums.amin() < 1 - OWN_ROW):
            self.tables[out] = replace(table, has_sink=True, keys=self.layouts[out][reduced[0]])

    def _meet(
        self,
        table: Table,
        used: Array,
        layout: Layout,
        product: Contraction,
        place: int,
        axes: dict[str, Axis],
        summed: list[Atom],
        out: Array,
        name: str,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        run: Callable[..., Any],
        shares: Array | None = None,
    ) -> Array | None:
        """See weights that meet values: an attention, if the values are the same for all queries."""
        values = product.operands[1 - place]
        shared = {letter for letter in product.letters[1 - place] if letter != "."}
        free = [atom for letter, axis in axes.items() if letter not in shared for atom in axis]
        groups = _groups(table, layout, summed, free)
        if any(atom not in free for atom in groups[2]) or (table.needs_queries and not groups[2]):
            return None  # each query has values of its own: experts, or a loss over pairs
        known = self.layouts.get(values) or ((),) * values.ndim
        own = {
            letter: tuple(atom.apart() for atom in axis) if axis_size(axis) == size else fresh_axis(size)
            for letter, size, axis in zip(product.letters[1 - place], values.shape, known, strict=True)
            if letter not in axes and letter != "."
        }
        of_output = tuple((axes | own)[letter] for letter in product.result)
        if [axis_size(axis) for axis in of_output] == list(out.shape):
            self.layouts[out] = of_output
        if not (table.rows or table.columns) and _pools_features(axes, shared, groups[1]):
            self.refuse(LINEAR)
            return None
        if not (table.rows or table.columns):
            self.pooled[out] = True
        of_values = tuple(() if letter == "." else (axes | own)[letter] for letter in product.letters[1 - place])
        width = [atom for letter in product.result if letter in own for atom in own[letter]]
        multiply = _multiplying(used, args, keywords, run)
        if shares is not None:
            used, dims = shares, [index for index, axis in enumerate(layout) if any(atom in groups[3] for atom in axis)]
            sums = shares.detach().float().sum(dims)
            is_below = bool((1 - sums > OWN_ROW).logical_and(sums > 0).any())
            table = replace(table, has_sink=table.has_sink or is_below)
        return self._confirm(table, used, layout, groups, (values, of_values), out, of_output, width, multiply)

    def summed(
        self, table: Table, args: Sequence[Any], keywords: Mapping[str, Any], spread: Array, out: Array
    ) -> Array | None:
        """See weights that are multiplied with values place by place, and summed: an attention that pools."""
        assert table.spread is not None
        used, layout, values = table.spread
        if table.softmax is None:
            table = replace(table, softmax=Softmaxed(self.module(), None, layout))
        dim = keywords.get("dim", keywords.get("axis", args[1] if len(args) > 1 else None))
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        of_spread: Layout = self.layouts[spread]
        if (
            not isinstance(dim, int)
            or not isinstance(out, torch.Tensor)
            or not _same_side(list(of_spread[dim]), table.keys)
        ):
            return None
        sizes = [1] * (len(of_spread) - values.ndim) + list(values.shape)
        free = [atom for axis, size in zip(of_spread, sizes, strict=True) if size == 1 for atom in axis]
        groups = _groups(table, layout, list(of_spread[dim]), free)
        if any(atom not in free for atom in groups[2]) or (table.needs_queries and not groups[2]):
            return None
        of_output = tuple(axis for index, axis in enumerate(of_spread) if index != dim % len(of_spread))
        if keywords.get("keepdim", len(args) > 2 and args[2]):
            of_output = (*of_spread[: dim % len(of_spread)], (), *of_spread[dim % len(of_spread) + 1 :])
        if [axis_size(axis) for axis in of_output] != list(out.shape):
            return None
        known = {atom for axis in layout for atom in axis}
        width = [atom for axis in of_output for atom in axis if atom not in known]

        def multiply(weights: Array) -> Array:
            return (weights * values).sum(dim, keepdim=out.ndim == spread.ndim)

        of_values = [() if size == 1 else axis for axis, size in zip(of_spread, sizes, strict=True)][-values.ndim :]
        known_values = values, tuple(of_values)
        return self._confirm(table, used, layout, groups, known_values, out, of_output, width, multiply)

    def _confirm(
        self,
        table: Table,
        used: Array,
        layout: Layout,
        groups: tuple[list[Atom], list[Atom], list[Atom], list[Atom]],
        values: tuple[Array, Layout],
        out: Array,
        of_output: Layout,
        width: list[Atom],
        multiply: Callable[[Array], Array],
    ) -> Array | None:
        softmax = table.softmax
        assert softmax is not None
        weights = used if table.before_dropout is None else table.before_dropout
        if not softmax.is_new(weights):
            return None  # the same weights meet a second tensor
        softmax.is_confirmed = True
        self.left.pop(softmax.module, None)
        is_scaled = False
        is_part = not table.has_sink and math.prod(atom.size for atom in groups[3]) < axis_size(table.keys)
        if table.touched or is_part:
            least, above, below = _rows_of(weights, layout, groups[3])
            is_sum = table.mixed and not table.has_sink  # of heads, or of two softmaxes: shares only if they sum to 1
            if least < -NEGATIVE or above > OWN_ROW or (is_sum and below > OWN_ROW):
                function = table.mixed or table.touched
                self.refuse(f"its weights are changed after the softmax ({function}): they are no shares of attention")
                return None
            if is_part and below > OWN_ROW:
                self.refuse(PART_OF_ROW)
                return None
            is_scaled = not table.has_sink and below > OWN_ROW
        call = TracedCall(
            "softmax" if softmax.array is not None else "shares",
            weights, used, layout, groups, table, values, out, of_output, width, multiply,
            dropout=float(table.before_dropout is not None), is_scaled=is_scaled,
        )  # fmt: skip
        first, second = (part and part[0] for part in (table.first, table.second))
        by_columns = bool(table.columns) and _same_side(groups[3], table.columns)
        queries, keys_of = (first, second) if by_columns else (second, first)
        if queries is not None and keys_of is not None:
            self._note_parts_of_keys(queries, self.part_of(keys_of, call.shape[2]))
        call.unnamed, is_cross = self.unnamed(tuple(groups[2]), tuple(groups[3]), table.is_cross)
        call.extra = self.extra_keys(keys_of, call.shape, is_cross)
        chunk = self.part_of(queries, call.shape[1]) or self.part_of(weights, call.shape[1])
        is_cross = is_cross or self.differs(call.shape, chunk, keys_of)
        other = self.see(call, is_cross, chunk)
        if softmax.is_whole(weights):
            softmax.array = None  # its memory is not needed any more
        return other

    def _note_parts_of_keys(self, queries: Array, part: Chunk | None) -> None:
        """Note that the same queries look at a second part of the keys, with a softmax of its own, as in ring attention."""
        if part is None:
            return
        whole = self.module(), self.origin(queries), tuple(queries.shape), self.chunks.get(queries), part.source
        before = self.parts_of_keys.setdefault(whole, part.start)
        if before != part.start:
            self.refuse(PARTS_OF_KEYS)


def _rows_of(weights: Array, layout: Layout, keys: Sequence[Atom]) -> tuple[float, float, float]:
    """Return the smallest weight in shares of the largest, how far the sum of a row is above 1 at most, and below 1."""
    dims = [index for index, axis in enumerate(layout) if axis and axis[0] in keys]
    wide = weights.detach().float()
    sums = (wide.sum(dims) if dims else wide).nan_to_num(1.0)
    wide = wide.nan_to_num(0.0)
    least = float(wide.amin() / wide.abs().amax().clamp(min=NOTHING))
    return least, float(sums.amax()) - 1, 1 - float(sums.amin())


def _multiplying(
    used: Array, args: Sequence[Any], keywords: Mapping[str, Any], run: Callable[..., Any]
) -> Callable[[Array], Array]:
    """Return a function that runs a product again, with other weights in place of `used`."""

    def multiply(weights: Array) -> Array:
        changed = list(args)
        for index, part in enumerate(changed):
            if part is used:
                changed[index] = weights
            elif isinstance(part, (tuple, list)):
                changed[index] = [weights if piece is used else piece for piece in part]
        product: Array = run(*changed, **{key: weights if part is used else part for key, part in keywords.items()})
        return product

    return multiply


def _same_side(summed: Sequence[Atom], side: Axis) -> bool:
    """Return whether atoms are a side of a table, or parts of it; both may be of size 1, without atoms."""
    return (not summed and not side) or (bool(summed) and all(atom.descends_from(side) for atom in summed))


def _axes_with_weights(product: Contraction, place: int, axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """Return the axes along which the constant operand has a matrix of its own for each place, marked so."""
    weights, shared = product.operands[place], set(product.letters[1 - place]) & set(product.result)
    marked = {}
    for dim, letter in enumerate(product.letters[place]):
        sizes = [atom.size for atom in axes[letter]] if letter in shared else []
        if math.prod(sizes) == weights.shape[dim] > 1:
            apart = weights.unflatten(dim, sizes)
            differs = [bool((apart != apart.narrow(dim + index, 0, 1)).any()) for index in range(len(sizes))]
            atoms = zip(axes[letter], differs, strict=True)
            marked[letter] = tuple(replace(atom, parent=atom, has_weights=True) if own else atom for atom, own in atoms)
    return marked


def _groups(
    table: Table, layout: Layout, keys: list[Atom], free: list[Atom]
) -> tuple[list[Atom], list[Atom], list[Atom], list[Atom]]:
    """Return the atoms of weights by what they stand for: batch, heads, queries, keys."""
    rest = [atom for axis in layout for atom in axis if atom not in keys]
    sides = [
        side for side in (table.rows, table.columns) if side and not any(atom.descends_from(side) for atom in keys)
    ]
    if table.first is not None or table.rows or table.columns:
        queries = [atom for atom in rest if not atom.feature and any(atom.descends_from(side) for side in sides)]
    else:
        queries = [atom for atom in rest if not atom.feature and atom in free]
    heads = [atom for atom in rest if atom.is_head and atom not in queries]
    return [atom for atom in rest if atom not in heads and atom not in queries], heads, queries, keys


def _pools_features(axes: Mapping[str, Axis], shared: set[str], heads: Sequence[Atom]) -> bool:
    """Return whether weights without a product are keys of linear attention: each feature looks at the tokens."""
    free = [atom for letter, axis in axes.items() if letter not in shared for atom in axis if atom in heads]
    return bool(free) and (len(free) < len(heads) or math.prod(atom.size for atom in free) > POOLED_HEADS)
