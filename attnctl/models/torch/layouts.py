"""Follow the axes of a tensor while a model reshapes it, so that heads and batch are known where they are folded together.

An axis consists of atoms, the outermost first: the axis of (batch · heads) has two. An atom that comes from the output of a
projection is a `feature`: cut into heads, it is the heads. Others are texts, windows, tokens. If a weight has a matrix for
each place of an atom, and these are neither queries nor keys, they are heads too. An axis of size 1 has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnctl.attention import Array
from attnctl.models.torch.places import in_order


@dataclass(frozen=True, eq=False)
class Atom:
    """A factor of an axis; `parent` is the atom that it was cut out of."""

    size: int
    feature: bool = False
    parent: Atom | None = None
    has_weights: bool = False  # a weight has a matrix of its own for each place
    places: Array | None = None  # (…, n), where the tokens stood before an index put them into another order

    @property
    def is_head(self) -> bool:
        """Return whether the places are heads, if they are neither queries nor keys."""
        return self.feature or self.has_weights

    def part(self, size: int) -> Atom:
        """Return an atom that is cut out of this one."""
        return replace(self, size=size, parent=self, places=None)

    def apart(self) -> Atom:
        """Return another atom of this kind, as that of the keys beside that of the queries."""
        return replace(self, parent=None, places=self.known_places)

    @property
    def known_places(self) -> Array | None:
        """Return `places`, or those of what this atom was cut out of."""
        atom: Atom | None = self
        while atom is not None and atom.places is None:
            atom = atom.parent
        return None if atom is None else atom.places

    def descends_from(self, roots: Iterable[Atom]) -> bool:
        """Return whether this atom is one of `roots`, or a part of one."""
        atom: Atom | None = self
        known = set(roots)
        while atom is not None:
            if atom in known:
                return True
            atom = atom.parent
        return False


Axis = tuple[Atom, ...]
Layout = tuple[Axis, ...]


def fresh_axis(size: int, feature: bool = False, parent: Axis = ()) -> Axis:
    """Return an axis of one new atom, which may replace a part of `parent`; an axis of size 1 has no atoms."""
    if size == 1:
        return ()
    first = parent[0] if parent else None
    has_weights = any(atom.has_weights for atom in parent)
    return (Atom(size, feature or any(atom.feature for atom in parent), first, has_weights),)


def fresh_layout(shape: Sequence[int]) -> Layout:
    """Return a layout of new axes, none of which is a feature."""
    return tuple(fresh_axis(size) for size in shape)


def positional_layout(shape: Sequence[int]) -> Layout:
    """Return the layout of a tensor of which nothing is known: the third axis from the end is the heads, beside a batch."""
    layout = list(fresh_layout(shape))
    if len(shape) > 3:
        layout[-3] = fresh_axis(shape[-3], feature=True)
    return tuple(layout)


def axis_size(axis: Axis) -> int:
    """Return the number of places along an axis."""
    return math.prod(atom.size for atom in axis)


def places_out_of_order(axis: Axis) -> Array | None:
    """Return where the tokens of an axis stood, if an index put them into another order."""
    places = next((atom.known_places for atom in axis if atom.known_places is not None), None)
    return None if places is None or in_order(places, axis_size(axis)) else places


def refactored(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the layout of a tensor that is reshaped, its elements in order; None if an axis is cut across its atoms."""
    rest = [atom for axis in layout for atom in axis]
    if not all(isinstance(size, int) for size in (*shape, *(atom.size for atom in rest))):
        return None  # a nested tensor: texts of several lengths
    if 0 in shape or not all(atom.size for atom in rest):
        return None  # a tensor without elements
    axes: list[Axis] = []
    for size in shape:
        axis: list[Atom] = []
        while size > 1:
            if not rest:
                return None
            atom = rest.pop(0)
            if size % atom.size == 0:
                axis.append(atom)
                size //= atom.size
            elif atom.size % size == 0:
                axis.append(atom.part(size))
                rest.insert(0, atom.part(atom.size // size))
                size = 1
            else:
                return None
        axes.append(tuple(axis))
    return None if rest else tuple(axes)


def arranged(array: Array, layout: Layout, *groups: Sequence[Atom]) -> Array:
    """Return an array with one axis for each group of atoms, in this order. An atom that the array lacks is repeated.

    Every atom of the layout stands in a group.
    """
    atoms = [atom for axis in layout for atom in axis]
    wanted = [atom for group in groups for atom in group]
    apart = array.reshape([atom.size for atom in atoms])
    missing = [atom for atom in wanted if atom not in atoms]
    apart = apart.reshape([1] * len(missing) + [atom.size for atom in atoms])
    order = missing + atoms
    apart = apart.expand([atom.size for atom in order]).permute([order.index(atom) for atom in wanted])
    return apart.reshape([axis_size(tuple(group)) for group in groups])


def put_back(array: Array, like: Array, layout: Layout, *groups: Sequence[Atom]) -> Array:
    """Return what `arranged` made, in the shape of `like` again."""
    atoms = [atom for axis in layout for atom in axis]
    wanted = [atom for group in groups for atom in group]
    apart = array.reshape([atom.size for atom in wanted])
    return apart.permute([wanted.index(atom) for atom in atoms]).reshape(like.shape)


# --- what each function of torch does to the axes -------------------------------------------------------------------

IN_ORDER = frozenset(
    "reshape view flatten unflatten squeeze unsqueeze contiguous ravel _unsafe_view view_as reshape_as clone".split()  # noqa: SIM905
)
RESIZING = frozenset(["cat", "concat", "concatenate", "pad", "topk", "sort", "gather", "cumsum"])
PARTS = frozenset("narrow select slice chunk split unbind tensor_split index_select split_with_sizes".split())  # noqa: SIM905
REDUCTIONS = frozenset("sum mean amax amin max min prod logsumexp std var median nansum nanmean".split())  # noqa: SIM905


def moved(
    name: str, args: Sequence[object], keywords: Mapping[str, object], layout: Layout, out: Array
) -> Layout | None:
    """Return the layout of a result of the function `name` on a tensor with this layout; None if it is not known."""
    shape = tuple(out.shape)
    if name in IN_ORDER:
        return refactored(layout, shape)
    if name in ("transpose", "swapaxes", "swapdims", "permute", "movedim", "T", "mT", "t", "adjoint", "H", "moveaxis"):
        return _permuted(name, args, keywords, layout)
    if name in ("expand", "expand_as", "broadcast_to"):
        return _aligned(layout, shape, [True] * len(shape))
    if name in ("repeat", "tile"):
        return _aligned(layout, shape, [True] * len(shape), multiples=True)
    if name == "repeat_interleave":
        return _aligned(layout, shape, [False] * len(shape), multiples=True)
    if name == "__getitem__":
        return _indexed(args[1], layout, shape)
    if name in PARTS:
        return _part(name, args, keywords, layout, shape)
    if name == "view_as_complex":
        return layout[:-1]
    if name == "view_as_real":
        return (*layout, fresh_axis(shape[-1], feature=True))
    if name == "stack":
        dim = _number(args, keywords, 1, "dim", 0) % len(shape)
        return (*layout[:dim], fresh_axis(shape[dim]), *layout[dim:])
    if name in REDUCTIONS and math.prod(shape) < math.prod(map(axis_size, layout)):
        return _reduced(args, keywords, layout, shape)
    if len(shape) == len(layout) and (name in RESIZING or "_pool" in name):
        return _resized(layout, shape)
    return _aligned(layout, shape, [True] * len(shape))


def _number(args: Sequence[object], keywords: Mapping[str, object], place: int, name: str, default: int) -> int:
    value = keywords.get(name, args[place] if len(args) > place else default)
    return value if isinstance(value, int) else default


def _permuted(name: str, args: Sequence[object], keywords: Mapping[str, object], layout: Layout) -> Layout | None:
    n = len(layout)
    if name in ("T", "t"):
        return layout[::-1]
    if name in ("mT", "adjoint", "H"):
        return (*layout[:-2], layout[-1], layout[-2])
    if name == "permute":
        dims = keywords.get("dims", args[1:])
        dims = dims[0] if isinstance(dims, (tuple, list)) and dims and isinstance(dims[0], (tuple, list)) else dims
        assert isinstance(dims, (tuple, list))
        return tuple(layout[dim] for dim in dims)
    names = ("source", "destination") if name in ("movedim", "moveaxis") else ("dim0", "dim1")
    first, second = (
        keywords.get(key, args[place] if len(args) > place else None) for place, key in enumerate(names, 1)
    )
    if not isinstance(first, int) or not isinstance(second, int):
        return None
    axes = list(layout)
    if name in ("movedim", "moveaxis"):
        axes.insert(second % n, axes.pop(first % n))
    else:
        axes[first], axes[second] = axes[second], axes[first]
    return tuple(axes)


def _aligned(layout: Layout, shape: Sequence[int], outer: Sequence[bool], multiples: bool = False) -> Layout | None:
    """Return the layout of a result whose last axes are those of the tensor, some of them repeated."""
    if len(shape) < len(layout):
        return None
    more = len(shape) - len(layout)
    axes = [fresh_axis(size) for size in shape[:more]]
    for axis, size, first in zip(layout, shape[more:], outer[more:], strict=True):
        old = axis_size(axis)
        if size == old:
            axes.append(axis)
        elif old == 1:
            axes.append(fresh_axis(size))
        elif multiples and size % old == 0:
            again = tuple(replace(atom, parent=None) for atom in fresh_axis(size // old, parent=axis))
            axes.append((*again, *axis) if first else (*axis, *again))
        else:
            return None
    return tuple(axes)


def _resized(layout: Layout, shape: Sequence[int]) -> Layout:
    """Return the layout of a result with as many axes, some of another size."""
    return tuple(resized_axis(axis, size) for axis, size in zip(layout, shape, strict=True))


def resized_axis(axis: Axis, size: int) -> Axis:
    """Return an axis of another size: the inner atoms of the old one if they make it up, else a part of it."""
    if axis_size(axis) == size:
        return axis
    inner: Axis = ()
    for atom in reversed(axis):
        rest = size // axis_size(inner)
        if rest % atom.size:
            break
        inner = (atom, *inner)
    if axis_size(inner) == size:
        return inner
    outer = axis[: len(axis) - len(inner)]
    if inner and outer and size % axis_size(inner) == 0 and size < axis_size(axis):
        return (*fresh_axis(size // axis_size(inner), parent=outer[-1:]), *inner)
    return fresh_axis(size, parent=axis[-1:] if axis and size < axis[-1].size else axis)


def _reduced(
    args: Sequence[object], keywords: Mapping[str, object], layout: Layout, shape: Sequence[int]
) -> Layout | None:
    """Return the layout of a sum, a mean, a maximum over one or several axes."""
    given = keywords.get("dim", keywords.get("axis", next((part for part in args[1:] if part is not None), None)))
    dims = {
        dim % len(layout) for dim in (given if isinstance(given, (tuple, list)) else (given,)) if isinstance(dim, int)
    }
    if len(shape) == len(layout):
        return tuple(() if index in dims else axis for index, axis in enumerate(layout))
    return tuple(axis for index, axis in enumerate(layout) if index not in dims)


def _part(
    name: str, args: Sequence[object], keywords: Mapping[str, object], layout: Layout, shape: Sequence[int]
) -> Layout | None:
    if name in ("select", "unbind"):
        dim = _number(args, keywords, 1, "dim", 0) % len(layout)
        return (*layout[:dim], *layout[dim + 1 :])
    return _resized(layout, shape) if len(shape) == len(layout) else None


def _indexed(index: object, layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the layout of `tensor[index]`: numbers, slices, None and an ellipsis; one tensor if it keeps the axes."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
        return _resized(layout, shape) if len(shape) == len(layout) else None
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    place = parts.index(Ellipsis)
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    parts[place : place + 1] = [slice(None)] * (len(layout) - taken)
    axes: list[Axis] = []
    rest = list(layout)
    for part in parts:
        if part is None:
            axes.append(())
        elif isinstance(part, slice):
            axis = rest.pop(0)
            size = shape[len(axes)]
            axes.append(resized_axis(axis, size))
        else:
            rest.pop(0)
    return tuple(axes)
