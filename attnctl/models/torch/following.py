"""Follow the tensors of a running model from function to function: where they come from, and what their axes are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from attnctl.attention import Array
from attnctl.models.torch.contractions import Contraction, summed_product
from attnctl.models.torch.layouts import (
    IN_ORDER,
    PARTS,
    REDUCTIONS,
    Atom,
    Axis,
    Layout,
    axis_size,
    fresh_axis,
    fresh_layout,
    moved,
    places_out_of_order,
    positional_layout,
)
from attnctl.models.torch.places import PUTS, TAKES, axis_and_places, composed, in_order, start_of_part, taken
from attnctl.models.torch.tensors import MIXED, REORDERED, ByTensor, Chunk, ExtraKeys, Unnamed, storage_of, tensors_in
from attnctl.models.torch.traced_call import Softmaxed, Table

VIEWS = frozenset(
    "transpose swapaxes swapdims permute movedim moveaxis T mT t expand to type_as float half bfloat16 double detach".split()  # noqa: SIM905
).union(IN_ORDER, PARTS, ["type", "_to_copy", "__getitem__"])
CHUNKS = frozenset(["__getitem__", "narrow", "chunk", "split", "tensor_split", "split_with_sizes", "select", "unbind"])
MULTIPLICATION = frozenset(["mul", "__mul__", "multiply", "__rmul__"])
SCALES = MULTIPLICATION.union(  # functions that multiply each weight by a number, also by 0 where it is hidden
    "rmul imul div divide truediv true_divide rtruediv itruediv normalize".split(),  # noqa: SIM905
    "masked_fill where tril triu nan_to_num threshold hardshrink".split(),  # noqa: SIM905
)
FRESH = frozenset(["new_zeros", "new_ones", "new_empty", "new_full"])  # they read no number of the tensor
RANDOM = frozenset(["rand", "randn", "rand_like", "randn_like", "normal", "normal_", "uniform_"])
MIXED_ORIGINS = 1000  # more are not kept: the state of a recurrence has one more at each token
JOINS = frozenset(["cat", "concat", "concatenate"])
SUMMARIES = frozenset(
    "sum mean max min amax amin argmax argmin norm logsumexp topk any all item numel size dim".split()  # noqa: SIM905
)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """The mark of what was made of tensors with several marks: these in order, and that of the tensor that was changed.

    a gated by b is not b gated by a; but `a * cos` and `cos * a` are both a, turned. The larger tensor is the one that was
    changed, as cosines are the same for all heads; the first of two that are equally large.
    """

    parts: tuple[object, ...]
    changed: object

    @classmethod
    def of(cls, origins: Sequence[object], changed: object) -> _Mixture:
        """Return the mark of what was made of tensors with these marks, of which one was changed by the others."""
        parts = (origin.parts if isinstance(origin, cls) else (origin,) for origin in origins)
        changed = changed.changed if isinstance(changed, cls) else changed
        return cls(tuple(dict.fromkeys(chain.from_iterable(parts))), changed)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Mixture) or len(self.parts) != len(other.parts):
            return False
        return self.parts == other.parts or (self.changed is other.changed and set(self.parts) == set(other.parts))

    def __hash__(self) -> int:
        return hash(frozenset(self.parts))


@dataclass(eq=False)
class Follower:
    """What is known of the tensors of a running model, from function to function."""

    layouts: ByTensor[Layout] = field(default_factory=ByTensor)
    tables: ByTensor[Table] = field(default_factory=ByTensor)
    constants: ByTensor[bool] = field(default_factory=ByTensor)
    random: ByTensor[bool] = field(default_factory=ByTensor)  # constants of random numbers, drawn in this forward
    origins: ByTensor[object] = field(default_factory=ByTensor)
    grown: ByTensor[bool] = field(default_factory=ByTensor)  # new keys after those of a cache
    chunks: ByTensor[Chunk] = field(default_factory=ByTensor)
    extras: ByTensor[ExtraKeys] = field(default_factory=ByTensor)  # what holds tokens, and constants before and after
    multiplied: ByTensor[tuple[Array, Array]] = field(default_factory=ByTensor)  # place by place: both factors
    heads: ByTensor[bool] = field(default_factory=ByTensor)  # parts of the features of a projection
    of_weights: ByTensor[bool] = field(default_factory=ByTensor)  # made of products of two softmaxes, and nothing else
    written: dict[StorageWeakRef, object] = field(default_factory=dict)  # a buffer → origin of what was written into it

    def summed(
        self, table: Table, args: Sequence[Any], keywords: Mapping[str, Any], spread: Array, out: Array
    ) -> Array | None:
        """Look at the sum of weights times values; return another result, or None."""
        raise NotImplementedError

    def note_product(self, product: Contraction, out: Array) -> None:
        """Note the axes of a product of two activations, which may be scores."""
        raise NotImplementedError

    # --- constants and origins ---

    def is_constant(self, tensor: Array) -> bool:
        """Return whether a tensor does not depend on the model's inputs: a parameter, a buffer, or made of these."""
        if tensor not in self.constants and not isinstance(tensor, torch.nn.Parameter):
            return False
        return not self.written or storage_of(tensor) not in self.written

    def note_constant(self, out: Array, name: str, tensors: Sequence[Array]) -> None:
        """Note the result of a function that reads constants alone, or nothing."""
        self.constants[out] = True
        if name in RANDOM or any(tensor in self.random for tensor in tensors):
            self.random[out] = True

    def origin(self, tensor: Array) -> object:
        """Return a mark; two tensors have equal ones if they were made of the same tensors, and the same one was changed.

        So queries and keys that were multiplied with the same cosines come from the same tokens.
        """
        if self.written and (kept := self.written.get(storage_of(tensor))) is not None:
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
            self.written[storage_of(into)] = self.origin(sources[-1])

    def _note_weights_written(self, into: Array, key: object, weights: Array) -> None:
        """Note weights that are written into a tensor of all heads or texts, of which the others may follow."""
        table = self.tables.get(weights)
        if table is None or table.softmax is None:
            return
        places = key if isinstance(key, tuple) else (key,)
        places = (*places, *[slice(None)] * (into.ndim - len(places)))
        axes = list(self.layouts[weights])
        kept = [place for place in places if place == slice(None)]
        sizes = [size for size, place in zip(into.shape, places, strict=False) if place == slice(None)]
        known = all(isinstance(place, int) or place == slice(None) for place in places) and len(places) == into.ndim
        if not known or len(kept) != weights.ndim or sizes != list(weights.shape):
            table.softmax.lost = table.softmax.lost or "a tensor that holds others"
            return
        if (before := self.tables.get(into)) is not None and before.softmax is not None:
            return
        has_heads = any(atom.feature for axis in axes for atom in axis)
        self.layouts[into] = layout = tuple(
            axes.pop(0) if place == slice(None) else fresh_axis(size, feature=index > 0 and not has_heads)
            for index, (size, place) in enumerate(zip(into.shape, places, strict=True))
        )
        whole = Softmaxed(table.softmax.module, None, layout)
        self.tables[into] = replace(
            table, softmax=whole, first=None, second=None, before_dropout=None, touched="__setitem__"
        )

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
        if name == "__setitem__" and len(args) == 3 and isinstance(args[2], torch.Tensor):
            self._note_weights_written(args[0], args[1], args[2])
        moving = [tensor for tensor in tensors if not self.is_constant(tensor)]
        if not moving or name in FRESH:
            for part in results:
                self.note_constant(part, name, tensors)
            return out
        if name.startswith("conv") or name == "embedding":
            for part in results:
                channel = part.ndim - 1 if name == "embedding" else (1 if part.ndim > 2 else 0)
                layout = list(fresh_layout(part.shape))
                known = self.layouts.get(moving[0])
                if known and len(known) == part.ndim > channel == 1 and axis_size(known[0]) == part.shape[0]:
                    layout[0] = known[0]  # texts, or texts and heads
                layout[channel] = fresh_axis(part.shape[channel], feature=True)
                self.layouts[part] = tuple(layout)
                self._pass_origin(name, moving, part)
            return out
        name = name.rstrip("_") if not name.startswith("__") else name
        takes = self._taken(name, args, keywords, moving[0], results)
        if name in ("sum", "__sum__") and (table := self.tables.get(moving[0])) is not None and table.spread:
            other = self.summed(table, args, keywords, moving[0], out)
            return out if other is None else other
        if name == "sum" and moving[0] in self.multiplied and isinstance(out, torch.Tensor):
            product = summed_product(self.multiplied[moving[0]], moving[0], args, keywords, out)
            if product is not None:
                self.note_product(product, out)
                return out
        if name in JOINS and isinstance(out, torch.Tensor):
            self._note_extras(args, keywords, out)
        for part in results:
            if not part.is_floating_point() and not part.is_complex():
                continue
            self._pass_origin(name, moving, part)
            self._pass_layout(name, args, keywords, moving, part)
            if all(tensor in self.of_weights for tensor in moving):
                self.of_weights[part] = True
        if name in MULTIPLICATION and len(moving) == 2 and results and not any(part in self.tables for part in moving):
            self._note_multiplied(moving[0], moving[1], results[0])
        if name in CHUNKS and moving[0].is_floating_point():
            self._note_chunks(name, args, keywords, moving[0], results, dict(takes))
        if takes and results[0] in self.layouts:
            self._note_places(moving[0], results[0], takes)
        if name in PUTS and results and results[0] in self.layouts:
            self._note_put(name, args, keywords, results[0])
        return out

    # --- parts, and tokens in another order ---

    def unnamed(self, queries: Axis, keys: Axis, is_cross: bool) -> tuple[Unnamed | None, bool]:
        """Return why queries or keys are not the tokens in order, None if they are; whether the attention is cross then."""
        first, second = (places_out_of_order(axis) for axis in (queries, keys))
        if first is None and second is None:
            is_mixture = keys and all(atom.feature for atom in keys) and not is_cross
            return (Unnamed(keys=MIXED), True) if is_mixture else (None, is_cross)
        is_same = first is not None and second is not None and torch.equal(first, second.to(first.device))
        if is_same and first is not None and first.ndim == 1 and bool((first.diff() > 0).all()):
            return None, is_cross  # the same choice in all texts, as every second token, in the order of the text
        return Unnamed(*("" if places is None else REORDERED for places in (first, second))), is_cross or not is_same

    def _taken(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], source: Array, results: Sequence[Array]
    ) -> list[tuple[int, Array]]:
        """Return the axes of `source` that a function reads by an index, with their places; its layout is known then."""
        if name not in TAKES or not results or not results[0].numel():
            return []
        if not source.is_floating_point() or source in self.tables:
            return []
        takes = list(taken(name, args, keywords, source, results[0]))
        if takes and source not in self.layouts:
            self.layouts[source] = positional_layout(source.shape)
        return takes

    def _note_places(self, source: Array, out: Array, takes: Sequence[tuple[int, Array]]) -> None:
        """Note tokens that were put into another order; those that are back in the first one are in order."""
        layout = list(self.layouts[out])
        for axis, index in takes:
            atoms = self.layouts[source][axis]
            if not atoms or not layout[axis] or any(atom.feature for atom in atoms):
                continue
            before = atoms[0].known_places
            places = composed(before, index, source.shape[axis])
            if before is None and start_of_part(places) is not None:
                continue
            is_known = in_order(places, places.shape[-1])
            atom = Atom(out.shape[axis], has_weights=atoms[0].has_weights, places=None if is_known else places)
            layout[axis] = (atom,)
            self.chunks.forget(out)
        self.layouts[out] = tuple(layout)

    def _note_put(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], out: Array) -> None:
        """Note tokens that are written back to where an index had taken them."""
        given = axis_and_places(name, args, keywords, out.ndim)
        if given is None:
            return
        (axis, back), layout = given, list(self.layouts[out])
        places = next((atom.known_places for atom in layout[axis]), None)
        if places is not None and torch.equal(places.reshape(-1).to(back.device), back.reshape(-1)):
            layout[axis] = fresh_axis(out.shape[axis])
            self.layouts[out] = tuple(layout)

    def _note_multiplied(self, a: Array, b: Array, out: Array) -> None:
        if out.numel() > min(a.numel(), b.numel()):  # one is repeated, as queries for each key
            self.multiplied[out] = a, b

    def _pass_origin(self, name: str, moving: Sequence[Array], out: Array) -> None:
        floats = [tensor for tensor in moving if tensor.is_floating_point() or tensor.is_complex()]
        if not floats:
            return
        joined = name in JOINS
        origins = [self.origin(tensor) for tensor in floats]
        is_one = all(origin == origins[-1] for origin in origins)
        known = None if joined else next((self.extras[tensor] for tensor in floats if tensor in self.extras), None)
        if known is not None:
            self.extras[out] = known
        if joined or is_one:
            self.origins[out] = origins[-1]
        else:
            changed = max(range(len(floats)), key=lambda place: (floats[place].numel(), floats[place].ndim))
            if len((mixture := _Mixture.of(origins, origins[changed])).parts) <= MIXED_ORIGINS:
                self.origins[out] = mixture
        if (joined and not is_one) or any(self.is_grown(tensor) for tensor in floats):
            self.grown[out] = True
        parts = [self.chunks.get(tensor) for tensor in floats]
        if parts[0] is not None and all(part == parts[0] for part in parts):
            self.chunks[out] = parts[0]

    def _note_extras(self, args: Sequence[Any], keywords: Mapping[str, Any], out: Array) -> None:
        """Note constants that are joined to the tokens of one tensor: learned keys, or a key of zeros."""
        pieces = keywords.get("tensors", args[0] if args else None)
        dim = keywords.get("dim", keywords.get("axis", args[1] if len(args) > 1 else 0))
        if not isinstance(pieces, (tuple, list)) or not isinstance(dim, int):
            return
        pieces = [piece for piece in pieces if piece.ndim == out.ndim]  # an empty tensor may have one axis
        moving = [index for index, piece in enumerate(pieces) if not self.is_constant(piece)]
        if len(moving) != 1 or not pieces[moving[0]].is_floating_point():
            return
        names = [
            ("learned key" if bool(piece.any()) else "key of zeros",) * int(piece.shape[dim])
            for index, piece in enumerate(pieces)
            if index != moving[0]
        ]
        inner = self.extras.get(pieces[moving[0]]) or ExtraKeys()
        before, after = (sum(part, ()) for part in (names[: moving[0]], names[moving[0] :]))
        self.extras[out] = ExtraKeys(before + inner.before, inner.after + after)

    def extra_keys(self, keys: Array | None, shape: tuple[int, int, int], is_cross: bool) -> ExtraKeys | None:
        """Return the keys of an attention that are no tokens, if there are any."""
        extra = None if keys is None else self.extras.get(keys)
        _, n_q, n_k = shape
        if extra is None or not 0 < extra.count < n_k:
            return None
        return replace(extra, beside_queries=not is_cross and n_q + extra.count == n_k)

    def part_of(self, tensor: Array | None, length: int) -> Chunk | None:
        """Return of what queries or keys are a part, if they were cut along their tokens, of which there are `length`."""
        chunk = None if tensor is None else self.chunks.get(tensor)
        return chunk if chunk is not None and chunk.length == length else None

    def differs(self, shape: tuple[int, int, int], of_queries: Chunk | None, keys: Array | None) -> bool:
        """Return whether queries are not named as keys are: not as many, not parts of as many, not after a cache."""
        _, n_q, n_k = shape
        if n_q == n_k or (keys is not None and self.is_grown(keys)):
            return False
        of_keys = self.part_of(keys, n_k)
        if of_queries is None:
            return True
        return of_queries.whole not in (n_k, n_k if of_keys is None else of_keys.whole)

    def is_grown(self, tensor: Array) -> bool:
        """Return whether a tensor holds what came before, and after it something new: a cache of keys."""
        return tensor in self.grown or bool(self.written and storage_of(tensor) in self.written)

    def _note_chunks(
        self,
        name: str,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        source: Array,
        results: Sequence[Array],
        takes: Mapping[int, Array],
    ) -> None:
        """Note results that are parts of a tensor along an axis of tokens, with where they start."""
        if source not in self.layouts:
            self.layouts[source] = positional_layout(source.shape)
        layout = self.layouts[source]
        start = 0
        for number, part in enumerate(results):
            if part.ndim == source.ndim - 1:
                self._note_block(name, args, keywords, source, part, number)
                continue
            resized = [i for i in range(part.ndim) if part.ndim == source.ndim and part.shape[i] != source.shape[i]]
            if len(resized) == 1 and any(atom.feature for atom in layout[resized[0]]):
                if source not in self.tables:
                    self.heads[part] = True
                continue
            if len(resized) != 1:
                return
            (axis,) = resized
            if name == "__getitem__":
                first = start_of_part(takes[axis]) if axis in takes else None
                if first is None:
                    return
                start = first
            elif name == "narrow":
                start = int(keywords.get("start", args[2] if len(args) > 2 else 0)) % source.shape[axis]
            self._note_chunk(source, part, source.shape[axis], start, part.shape[axis])
            start += part.shape[axis]

    def _note_chunk(self, source: Array, part: Array, whole: int, start: int, length: int) -> None:
        before = self.chunks.get(source)
        self.chunks[part] = (
            Chunk(storage_of(source), tuple(source.shape), whole, start, length)
            if before is None
            else before._replace(start=before.start + start, length=length)
        )

    def _note_block(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], source: Array, part: Array, number: int
    ) -> None:
        """Note one token, or one of the blocks that an axis of tokens was cut into."""
        dim = keywords.get("dim", args[1] if len(args) > 1 and name != "__getitem__" else 0)
        if name == "select":
            number = keywords.get("index", args[-1])
        elif name == "__getitem__":
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            numbers = [place for place, piece in enumerate(parts) if isinstance(piece, int)]
            if len(numbers) != 1 or any(not isinstance(piece, slice) for piece in parts[: numbers[0]]):
                return
            dim, number = numbers[0], parts[numbers[0]]
        layout = self.layouts[source]
        outer = layout[dim][0] if layout[dim] else None
        if outer is None or outer.feature or not isinstance(number, int):
            return
        inner = [axis for axis in layout if axis and axis != layout[dim] and axis[0].parent is outer.parent]
        if outer.parent is None or not inner:
            whole = axis_size(layout[dim])
            self._note_chunk(source, part, whole, number % whole, 1)
        elif len(inner) == 1 and outer.size * axis_size(inner[0]) == outer.parent.size:
            length = axis_size(inner[0])
            self._note_chunk(source, part, outer.parent.size, number % outer.size * length, length)

    def _pass_layout(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], moving: Sequence[Array], out: Array
    ) -> None:
        tables = [tensor for tensor in moving if tensor in self.tables]
        source = next((t for t in tables if t.ndim == out.ndim), tables[0] if tables else None)
        if source is None:
            known = [tensor for tensor in moving if tensor in self.layouts]
            known.sort(key=lambda tensor: (tensor.shape != out.shape, tensor.ndim != out.ndim, -tensor.numel()))
            source = known[0] if known else None
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
        if table is not None and name in REDUCTIONS and out.ndim < source.ndim:
            self.tables.forget(out)  # each query, or each key, has one number
        elif table is not None:
            self.tables[out] = self._carried(table, name, source, args, keywords, moving, out)

    def _heads_joined(
        self, name: str, args: Sequence[Any], keywords: Mapping[str, Any], source: Array, out: Array
    ) -> Layout | None:
        """Return the layout of heads, cut out of a projection, that get an axis of their own; None for anything else."""
        pieces = keywords.get("tensors", args[0] if args else None)
        if name not in ("stack", *JOINS) or not isinstance(pieces, (tuple, list)):
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
            values = [tensor for tensor in moving if tensor is not source]
            if table.is_divided and name in MULTIPLICATION and out.numel() > source.numel() and values:
                return replace(table, spread=(source, self.layouts[source], values[0]))
            others = [tensor for tensor in values if tensor in self.tables]
            joined = name in ("pad", *JOINS) and not others
            return replace(
                table,
                has_sink=table.has_sink or joined,
                is_exponential=table.is_exponential or name == "exp",
                is_divided=table.is_divided and name in VIEWS,
            )
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
        if name in MULTIPLICATION and out.numel() > source.numel() and others:
            return replace(table, spread=(source, self.layouts[source], others[0]))
        is_scaled = name in SCALES or name.strip("_") in SCALES
        return replace(table, touched=name, mixed=table.mixed if is_scaled else name, before_dropout=None)
