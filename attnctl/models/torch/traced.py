"""Recognise attention that a model writes out itself: a table of scores, its softmax, and the values that it multiplies.

Each tensor that comes from the model's inputs is followed from function to function. A product of two of them is a table of
scores. The axis of the softmax says which side holds the keys. It is attention once the table multiplies values along that
axis, and the values are the same for all queries: so a router of experts, a loss over a batch or logits over a vocabulary is
none. The weights are the model's own tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from attnctl.attention import Array
from attnctl.checks.tolerances import NEGATIVE, OWN_ROW
from attnctl.models.torch.contractions import Contraction, contraction_of
from attnctl.models.torch.fused import Changed, Steps, visible_of
from attnctl.models.torch.layouts import (
    IN_ORDER,
    PARTS,
    Atom,
    Axis,
    Layout,
    arranged,
    axis_size,
    fresh_axis,
    fresh_layout,
    moved,
    put_back,
)

POOLED_HEADS = 8  # the most heads of an attention that pools tokens by a linear layer; more are the features of keys
NO_SHARES = "its scores multiply values without a softmax, and rows do not sum to 1: they are no shares of attention"
OVER_QUERIES = "its softmax is over the queries: for each key, the weights of all queries sum to 1"
LINEAR = "it multiplies keys with values before the queries (linear attention): there is no map of tokens"
VIEWS = frozenset(
    "transpose swapaxes swapdims permute movedim moveaxis T mT t expand to type_as float half bfloat16 double detach".split()  # noqa: SIM905
).union(IN_ORDER, PARTS, ["type", "_to_copy", "__getitem__"])
CHUNKS = frozenset(["__getitem__", "narrow", "chunk", "split", "tensor_split", "split_with_sizes"])
SUMMARIES = frozenset(
    "sum mean max min amax amin argmax argmin norm logsumexp topk any all item numel size dim".split()  # noqa: SIM905
)


Known = TypeVar("Known")


class ByTensor(Generic[Known]):
    """What is known of tensors, as long as they live; two tensors are never the same, whatever their numbers."""

    def __init__(self) -> None:
        self.known: Any = WeakTensorKeyDictionary()

    def get(self, tensor: Array, default: Known | None = None) -> Known | None:
        """Return what is known of a tensor, or the default."""
        value: Known | None = self.known.get(tensor, default)
        return value

    def forget(self, tensor: Array) -> None:
        """Forget what is known of a tensor."""
        self.known.pop(tensor, None)

    def __contains__(self, tensor: Array) -> bool:
        return tensor in self.known

    def __getitem__(self, tensor: Array) -> Known:
        value: Known = self.known[tensor]
        return value

    def __setitem__(self, tensor: Array, value: Known) -> None:
        self.known[tensor] = value


# a part of a tensor: the address and the shape of the whole, its length, where the part starts
Chunk = tuple[int, tuple[int, ...], int, int]


@dataclass(eq=False)
class Softmaxed:
    """A softmax of a table, or another way to make its rows sum to 1; `lost`: a function that is not followed changed it."""

    module: str
    array: Array | None  # the input of the softmax
    layout: Layout
    is_confirmed: bool = False
    lost: str = ""


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
    has_sink: bool = False
    is_log: bool = False
    needs_queries: bool = False  # it is attention only if the product shows an axis of queries
    spread: tuple[Array, Layout, Array] | None = None  # weights, their layout, values that they multiply place by place

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
    error: float | None = None
    changed: Changed | None = None

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
                parts |= {"scaled_scores": scores} if "scaled_scores" in keep else {}
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
        softmax = self.table.softmax
        if softmax is None or softmax.array is None or self.table.touched or self.table.has_sink:
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


def _arranged_or_none(array: Array, layout: Layout, *groups: Sequence[Atom]) -> Array | None:
    """Return what `arranged` returns; None if the array has an axis that stands in none of the groups."""
    atoms = {atom for axis in layout for atom in axis}
    return arranged(array, layout, *groups) if atoms <= {atom for group in groups for atom in group} else None


@dataclass(eq=False)
class Tracer:
    """What is known of the tensors of a running model; `see` gets each attention, and returns other output or None."""

    see: Callable[[TracedCall, bool, Chunk | None], Array | None]
    module: Callable[[], str]
    layouts: ByTensor[Layout] = field(default_factory=ByTensor)
    tables: ByTensor[Table] = field(default_factory=ByTensor)
    constants: ByTensor[bool] = field(default_factory=ByTensor)
    origins: ByTensor[object] = field(default_factory=ByTensor)
    grown: ByTensor[bool] = field(default_factory=ByTensor)  # new keys after those of a cache
    chunks: ByTensor[Chunk] = field(default_factory=ByTensor)
    heads: ByTensor[bool] = field(default_factory=ByTensor)  # parts of the features of a projection
    written: dict[int, object] = field(default_factory=dict)  # address of a buffer → origin of what was written into it
    candidates: list[Softmaxed] = field(default_factory=list)
    refused: dict[tuple[str, str], None] = field(default_factory=dict)  # (module, sentence), in order

    # --- constants and origins ---

    def is_constant(self, tensor: Array) -> bool:
        """Return whether a tensor does not depend on the model's inputs: a parameter, a buffer, or made of these."""
        if tensor not in self.constants and not isinstance(tensor, torch.nn.Parameter):
            return False
        return not self.written or tensor.untyped_storage().data_ptr() not in self.written

    def origin(self, tensor: Array) -> object:
        """Return a mark that two tensors share if they were projected from the same tensor."""
        if self.written and (kept := self.written.get(tensor.untyped_storage().data_ptr())) is not None:
            return kept
        if tensor not in self.origins:
            self.origins[tensor] = object()
        return self.origins[tensor]

    def note_write(self, name: str, args: Sequence[Any], tensors: Sequence[Array]) -> None:
        """Note that a function writes what depends on the inputs into a constant, as a cache of keys."""
        into = args[0] if args else None
        if not isinstance(into, torch.Tensor) or not (into in self.constants or self.is_grown(into)):
            return
        sources = [tensor for tensor in tensors if tensor is not into and not self.is_constant(tensor)]
        sources = [tensor for tensor in sources if tensor.is_floating_point()]
        if sources:
            self.written[into.untyped_storage().data_ptr()] = self.origin(sources[-1])

    # --- any function ---

    def follow(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], out: Any) -> Any:
        """Follow the tensors of a call of a function to its result `out`; return the result that the model goes on with."""
        if name == "__iter__":  # x, y = tensor
            parts = list(out)
            self.follow("unbind", (*args, 0), keywords, parts)
            return iter(parts)
        tensors = list(tensors_in(args, keywords))
        results = [
            part for part in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(part, torch.Tensor)
        ]
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
            self.note_write(name, args, tensors)
        moving = [tensor for tensor in tensors if not self.is_constant(tensor)]
        if not moving:
            for part in results:
                self.constants[part] = True
            return out
        if name.startswith("conv") or name == "embedding":
            for part in results:
                channel = part.ndim - 1 if name == "embedding" else (1 if part.ndim > 2 else 0)
                layout = list(fresh_layout(part.shape))
                layout[channel] = fresh_axis(part.shape[channel], feature=True)
                self.layouts[part] = tuple(layout)
                self._pass_origin(name, moving, part)
            return out
        name = name.rstrip("_") if not name.startswith("__") else name
        if name in ("sum", "__sum__") and (table := self.tables.get(moving[0])) is not None and table.spread:
            other = self._meet_by_sum(table, args, keywords, moving[0], out)
            return out if other is None else other
        for part in results:
            if not part.is_floating_point() and not part.is_complex():
                continue
            self._pass_origin(name, moving, part)
            self._pass_layout(name, args, keywords, moving, part)
        if name in CHUNKS and moving[0].is_floating_point() and moving[0] not in self.tables:
            self._note_chunks(name, args, keywords, moving[0], results)
        return out

    def _pass_origin(self, name: str, moving: Sequence[Array], out: Array) -> None:
        floats = [tensor for tensor in moving if tensor.is_floating_point() or tensor.is_complex()]
        if not floats:
            return
        first = self.origin(floats[-1])
        is_one = all(self.origin(tensor) is first for tensor in floats)
        joined = name in ("cat", "concat", "concatenate")
        if joined or is_one:
            self.origins[out] = first
        if (joined and not is_one) or any(self.is_grown(tensor) for tensor in floats):
            self.grown[out] = True
        parts = [self.chunks.get(tensor) for tensor in floats]
        if parts[0] is not None and all(part == parts[0] for part in parts):
            self.chunks[out] = parts[0]

    def differs(self, shape: tuple[int, int, int], chunk: Chunk | None, grown: bool) -> bool:
        """Return whether queries are not named as keys are: not as many, no part of as many, not after a cache."""
        _, n_q, n_k = shape
        return n_q != n_k and not grown and (chunk is None or chunk[2] != n_k)

    def is_grown(self, tensor: Array) -> bool:
        """Return whether a tensor holds what came before, and after it something new: a cache of keys."""
        return tensor in self.grown or bool(self.written and tensor.untyped_storage().data_ptr() in self.written)

    def _note_chunks(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], source: Array, results: Sequence[Array]
    ) -> None:
        """Note results that are parts of a tensor along an axis of tokens, with where they start."""
        if source not in self.layouts:
            self.layouts[source] = fresh_layout(source.shape)
        layout = self.layouts[source]
        pointer, shape, size, before = self.chunks.get(source) or (0, (), 0, 0)
        start = 0
        for part in results:
            resized = [i for i in range(part.ndim) if part.ndim == source.ndim and part.shape[i] != source.shape[i]]
            if len(resized) == 1 and any(atom.feature for atom in layout[resized[0]]):
                self.heads[part] = True
                continue
            if len(resized) != 1:
                return
            whole = source.shape[resized[0]]
            if name == "__getitem__":
                slices = [
                    piece
                    for piece in (args[1] if isinstance(args[1], tuple) else (args[1],))
                    if isinstance(piece, slice)
                ]
                start = next((piece.start or 0 for piece in slices if piece.start or piece.stop), 0) % whole
            elif name == "narrow":
                start = int(keywords.get("start", args[2] if len(args) > 2 else 0)) % whole
            root = (pointer, shape, size) if size else (source.untyped_storage().data_ptr(), tuple(source.shape), whole)
            self.chunks[part] = (*root, before + start)
            start += part.shape[resized[0]]

    def _pass_layout(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], moving: Sequence[Array], out: Array
    ) -> None:
        tables = [tensor for tensor in moving if tensor in self.tables]
        source = next((t for t in tables if t.ndim == out.ndim), tables[0] if tables else None)
        if source is None:
            known = [tensor for tensor in moving if tensor in self.layouts]
            source = next((t for t in known if t.ndim == out.ndim), known[0] if known else None)
        if source is None:
            return
        if name in ("where",) or (name == "masked_fill"):
            args = ()
        layout = self._heads_joined(name, args, keywords, source, out)
        layout = moved(name, args, keywords, self.layouts[source], out) if layout is None else layout
        if layout is not None and [axis_size(axis) for axis in layout] != list(out.shape):
            layout = None
        table: Table | None = self.tables.get(source)
        if layout is None:
            if (
                table is not None
                and table.softmax is not None
                and name not in SUMMARIES
                and out.numel() >= source.numel()
            ):
                table.softmax.lost = table.softmax.lost or name
            self.tables.forget(out)
            self.layouts.forget(out)
            return
        self.layouts[out] = layout
        if table is not None:
            self.tables[out] = self._carried(table, name, source, args, keywords, moving, out)

    def _heads_joined(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], source: Array, out: Array
    ) -> Layout | None:
        """Return the layout of heads, cut out of a projection, that get an axis of their own; None for anything else."""
        pieces = keywords.get("tensors", args[0] if args else None)
        if name not in ("stack", "cat", "concat", "concatenate") or not isinstance(pieces, (tuple, list)):
            return None
        if source not in self.heads or len({tuple(piece.shape) for piece in pieces}) > 1:
            return None
        dim = keywords.get("dim", args[1] if len(args) > 1 else 0)
        layout, heads = self.layouts[source], fresh_axis(len(pieces), feature=True)
        if not isinstance(dim, int):
            return None
        dim %= out.ndim
        if name == "stack":
            return (*layout[:dim], heads, *layout[dim:])
        if any(atom.feature for atom in layout[dim]):
            return None
        return (*layout[:dim], (*heads, *layout[dim]), *layout[dim + 1 :])

    def _carried(
        self,
        table: Table,
        name: str,
        source: Array,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        moving: Sequence[Array],
        out: Array,
    ) -> Table:
        """Return what is known of the result of a function on a table."""
        if table.softmax is None:
            return replace(table, has_sink=True) if name in ("cat", "concat", "concatenate") else table
        if name == "exp" and table.is_log:
            return replace(table, is_log=False)
        if "dropout" in name:
            if out is source:
                return replace(table, touched=name)
            changed = table.before_dropout if table.before_dropout is not None else source
            return replace(table, before_dropout=changed)
        if name in VIEWS:
            if table.before_dropout is None:
                return table
            function = getattr(torch.Tensor, name, None)
            if not callable(function):
                return replace(table, touched=name, before_dropout=None)
            with torch._C.DisableTorchFunction():
                before = function(table.before_dropout, *args[1:], **keywords)
            return replace(table, before_dropout=before if isinstance(before, torch.Tensor) else before[0])
        others = [tensor for tensor in moving if tensor is not source]
        if name in ("mul", "__mul__", "multiply", "__rmul__") and out.numel() > source.numel() and others:
            return replace(table, spread=(source, self.layouts[source], others[0]))
        return replace(table, touched=name, before_dropout=None)

    # --- softmax ---

    def softmax(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], out: Array) -> None:
        """Note a softmax over an axis of a table, or over tokens that a linear layer has rated."""
        scores = args[0] if args else keywords.get("input")
        dim = keywords.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(scores, torch.Tensor) or self.is_constant(scores):
            if isinstance(out, torch.Tensor) and isinstance(scores, torch.Tensor):
                self.constants[out] = True
            return
        if not isinstance(dim, int) or not scores.ndim:
            return
        layout: Layout | None = self.layouts.get(scores)
        is_followed = layout is not None
        if layout is None:  # its scores come from a function that is not followed
            layout = positional_layout(scores.shape)
        self._pass_origin(name, [scores], out)
        self.layouts[out] = layout
        table: Table | None = self.tables.get(scores)
        axis = layout[dim]
        if table is None:
            if not axis or any(atom.feature for atom in axis):
                return  # over the features of a linear layer: experts, classes, a vocabulary
            table = Table(keys=axis, is_cross=True, needs_queries=not is_followed)
        elif table.softmax is not None and not table.is_log:
            self.refuse("its weights go through a second softmax before they meet values")
        softmax = Softmaxed(self.module(), scores.detach(), layout)
        self.candidates.append(softmax)
        self.tables[out] = replace(
            table, softmax=softmax, keys=axis, is_log=name.startswith("log"), before_dropout=None, touched=""
        )

    def lost(self) -> dict[tuple[str, str], None]:
        """Return (module, sentence) of each softmax of scores that went through a function which is not followed."""
        return {
            (softmax.module, f"its weights go through {softmax.lost}, which attnctl cannot follow"): None
            for softmax in self.candidates
            if softmax.lost and not softmax.is_confirmed
        }

    def refuse(self, sentence: str) -> None:
        """Note what looks like attention, in the module that runs, and cannot be shown."""
        self.refused[self.module(), sentence] = None

    # --- products ---

    def product(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], run: Callable[..., Any]) -> Any:
        """Run a product of tensors; note scores, see attention where weights meet values. Return the product's result."""
        out = run(*args, **keywords)
        product = contraction_of(name, args, keywords)
        if product is None or not isinstance(out, torch.Tensor):
            return self.follow(name, args, keywords, out)
        constant = [self.is_constant(tensor) for tensor in product.operands]
        if all(constant):
            self.constants[out] = True
            return out
        moving = [tensor for tensor, still in zip(product.operands, constant, strict=True) if not still]
        tables = [place for place in (0, 1) if product.operands[place] in self.tables]
        with_softmax = [place for place in tables if self.tables[product.operands[place]].softmax is not None]
        place = next(iter(with_softmax or tables), None)
        if place is not None:
            other = self._use_table(product, place, constant[1 - place], out, name, args, keywords, run)
            self.origins[out] = object()
            return out if other is None else other
        self._pass_origin(name, moving, out)
        self._make_layout(product, constant, out)
        return out

    def _make_layout(self, product: Contraction, constant: Sequence[bool], out: Array) -> None:
        """Note the axes of a product; if it may hold scores, note that too."""
        a, b = product.operands
        known = [self.layouts.get(tensor) for tensor in (a, b)]
        if all(layout is None for layout in known) and not any(constant) and len(product.result) > 3:
            known[0] = positional_layout(a.shape)
        axes: dict[str, Axis] = {}
        order = (1, 0) if constant[0] else (0, 1)
        for place in order:
            layout = known[place]
            for index, letter in enumerate(product.letters[place]):
                if letter == "." or letter in axes:
                    continue
                size = product.operands[place].shape[index]
                is_feature = constant[place] and place == 1
                axes[letter] = fresh_axis(size, is_feature) if layout is None or constant[place] else layout[index]
        outside = [set(product.letters[place]) - set(product.letters[1 - place]) - {"."} for place in (0, 1)]
        for letter in outside[0] | outside[1] if not any(constant) else outside[0]:
            axes[letter] = tuple(Atom(atom.size, atom.feature) for atom in axes[letter])
        layouts = [
            tuple(() if letter == "." else axes[letter] for letter in product.letters[place]) for place in (0, 1)
        ]
        result = tuple(axes[letter] for letter in product.result)
        if [axis_size(axis) for axis in result] != list(out.shape):
            return
        self.layouts[out] = result
        is_table = len(outside[1]) == 1 and (0 < len(outside[0]) < 3 or (not outside[0] and not constant[0]))
        if constant[1] or not product.summed or not is_table:
            return  # a projection, or no table
        if any(
            [axis_size(axis) for axis in layout] != list(tensor.shape)
            for layout, tensor in zip(layouts, (a, b), strict=True)
        ):
            return
        rows, columns = (
            tuple(atom for letter in product.result if letter in outside[place] for atom in axes[letter])
            for place in (0, 1)
        )
        is_cross = constant[0] or self.origin(a) is not self.origin(b)
        self.tables[out] = Table(rows, columns, (a, layouts[0]), (b, layouts[1]), is_cross)

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
        if values in self.tables and self.tables[values].softmax is not None and values is not used:
            return None
        if values_are_constant:
            return None  # rows of a parameter: an embedding of what a vocabulary's softmax expects
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
        new = product.operands[1 - place]
        for letter, size in zip(product.letters[1 - place], new.shape, strict=True):
            axes.setdefault(letter, fresh_axis(size, feature=True))
        layout = tuple(axes[letter] for letter in product.result)
        if [axis_size(axis) for axis in layout] == list(out.shape):
            self.layouts[out] = layout
            touched = "a mix of heads" if table.softmax is not None else ""
            self.tables[out] = replace(table, touched=touched, before_dropout=None, first=None, second=None)

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
        because: str = NO_SHARES,
    ) -> Array | None:
        """See scores that multiply values without a softmax: attention if the model has made the rows sum to 1 itself."""
        sides = [side for side in (table.rows, table.columns) if side]
        if table.of_channels or any(all(atom.feature for atom in side) for side in sides):
            if any(_same_side(summed, side) for side in sides):
                self.refuse(LINEAR)
            return None
        if not any(_same_side(summed, side) for side in sides):
            return None
        dims = [index for index, letter in enumerate(product.letters[place]) if letter in product.summed]
        weights = used.detach().float()
        sums = weights.sum(dims)
        if bool((weights.amin() < -NEGATIVE) | ((sums - 1).abs().nan_to_num(0.0).amax() > OWN_ROW)):
            self.refuse(because)
            return None
        softmax = Softmaxed(self.module(), None, layout)
        table = replace(table, softmax=softmax, keys=tuple(summed))
        return self._meet(table, used, layout, product, place, axes, summed, out, *how)

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
    ) -> Array | None:
        """See weights that meet values: an attention, if the values are the same for all queries."""
        values = product.operands[1 - place]
        shared = {letter for letter in product.letters[1 - place] if letter != "."}
        free = [atom for letter, axis in axes.items() if letter not in shared for atom in axis]
        groups = _groups(table, layout, summed, free)
        if any(atom not in free for atom in groups[2]) or (table.needs_queries and not groups[2]):
            return None  # each query has values of its own: experts, or a loss over pairs
        if not (table.rows or table.columns) and _pools_features(axes, shared, groups[1]):
            self.refuse(LINEAR)
            return None
        own = {
            letter: fresh_axis(size)
            for letter, size in zip(product.letters[1 - place], values.shape, strict=True)
            if letter not in axes and letter != "."
        }
        of_values = tuple(() if letter == "." else (axes | own)[letter] for letter in product.letters[1 - place])
        of_output = tuple((axes | own)[letter] for letter in product.result)
        width = [atom for letter in product.result if letter in own for atom in own[letter]]

        def multiply(weights: Array) -> Array:
            changed = list(args)
            for index, part in enumerate(changed):
                if part is used:
                    changed[index] = weights
                elif isinstance(part, (tuple, list)):
                    changed[index] = [weights if piece is used else piece for piece in part]
            return run(*changed, **{key: weights if part is used else part for key, part in keywords.items()})

        return self._confirm(table, used, layout, groups, (values, of_values), out, of_output, width, multiply)

    def _meet_by_sum(
        self, table: Table, args: Sequence[Any], keywords: Mapping[str, Any], spread: Array, out: Array
    ) -> Array | None:
        """See weights that are multiplied with values place by place, and summed: an attention that pools."""
        assert table.spread is not None
        used, layout, values = table.spread
        dim = keywords.get("dim", keywords.get("axis", args[1] if len(args) > 1 else None))
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        of_spread: Layout = self.layouts[spread]
        if (
            table.needs_queries
            or not isinstance(dim, int)
            or not isinstance(out, torch.Tensor)
            or not _same_side(list(of_spread[dim]), table.keys)
        ):
            return None
        groups = _groups(table, layout, list(of_spread[dim]), [])
        sizes = [1] * (len(of_spread) - values.ndim) + list(values.shape)
        free = [atom for axis, size in zip(of_spread, sizes, strict=True) if size == 1 for atom in axis]
        if any(atom not in free for atom in groups[2]):
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
        if softmax.is_confirmed:
            return None  # the same weights meet a second tensor
        softmax.is_confirmed = True
        weights = used if table.before_dropout is None else table.before_dropout
        if table.touched:
            dims = [index for index, axis in enumerate(layout) if axis and axis[0] in groups[3]]
            wide = weights.detach().float()
            if bool((wide.amin() < -NEGATIVE) | ((wide.sum(dims) - 1).nan_to_num(0.0).amax() > OWN_ROW)):
                self.refuse(
                    f"its weights are changed after the softmax ({table.touched}): they are no shares of attention"
                )
                return None
        call = TracedCall(
            "softmax" if softmax.array is not None else "shares",
            weights, used, layout, groups, table, values, out, of_output, width, multiply,
            dropout=float(table.before_dropout is not None),
        )  # fmt: skip
        first, second = (part and part[0] for part in (table.first, table.second))
        by_columns = bool(table.columns) and _same_side(groups[3], table.columns)
        queries, keys_of = (first, second) if by_columns else (second, first)
        grown = keys_of is not None and self.is_grown(keys_of)
        chunk = None if queries is None else self.chunks.get(queries)
        other = self.see(call, table.is_cross or self.differs(call.shape, chunk, grown), chunk)
        softmax.array = None  # its memory is not needed any more
        return other


def positional_layout(shape: Sequence[int]) -> Layout:
    """Return the layout of a tensor of which nothing is known: the third axis from the end is the heads, beside a batch."""
    layout = list(fresh_layout(shape))
    if len(shape) > 3:
        layout[-3] = fresh_axis(shape[-3], feature=True)
    return tuple(layout)


def _same_side(summed: Sequence[Atom], side: Axis) -> bool:
    """Return whether atoms are a side of a table, or parts of it; both may be of size 1, without atoms."""
    return (not summed and not side) or (bool(summed) and all(atom.descends_from(side) for atom in summed))


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
    heads = [atom for atom in rest if atom.feature]
    return [atom for atom in rest if atom not in heads and atom not in queries], heads, queries, keys


def _pools_features(axes: Mapping[str, Axis], shared: set[str], heads: Sequence[Atom]) -> bool:
    """Return whether weights without a product are keys of linear attention: each feature looks at the tokens."""
    free = [atom for letter, axis in axes.items() if letter not in shared for atom in axis if atom in heads]
    return bool(free) and (len(free) < len(heads) or math.prod(atom.size for atom in free) > POOLED_HEADS)


def tensors_in(args: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[Array]:
    """Yield the tensors among arguments, also those in lists."""
    for part in (*args, *keywords.values()):
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (tuple, list)):
            yield from (piece for piece in part if isinstance(piece, torch.Tensor))
