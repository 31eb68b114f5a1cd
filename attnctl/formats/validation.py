"""Whether what comes from outside is sound: types, shapes, archives. Nothing else trusts a file."""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Hashable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from attnctl import limits
from attnctl.arrays import Floats
from attnctl.errors import AttnctlError, in_one_line

if TYPE_CHECKING:
    from attnctl.readings.traces.trace import LayerTrace, Trace

Kind = TypeVar("Kind")
MEASURES = (None, "weights", "value-norm", "rollout")

# what NumPy and zipfile are known to raise on a file that is damaged or made to harm
DAMAGE = (
    ValueError,
    TypeError,
    SyntaxError,
    EOFError,
    OverflowError,
    RuntimeError,  # encrypted archives, and RecursionError
    NotImplementedError,
    MemoryError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
)


def read_fields(kind: type[Kind], given: Mapping[str, object]) -> Kind:
    """A dataclass of plain fields from what a file gives for them. Raises TypeError where one is of another type."""
    known = {}
    for name, accepted in _accepted_types(cast(Hashable, kind)).items():
        if name not in given:
            continue
        value = given[name]
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            names = " or ".join("nothing" if sort is NoneType else sort.__name__ for sort in accepted)
            raise TypeError(f"{name} is {str(value)[:40]!r}, not {names}")
        known[name] = value
    return kind(**known)


@cache
def _accepted_types(kind: Hashable) -> dict[str, tuple[type, ...]]:
    """The types that the fields of a dataclass may have; a whole number is a number, too."""
    accepted = {}
    for name, hint in get_type_hints(kind).items():
        kinds = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
        accepted[name] = (*kinds, int) if float in kinds else kinds
    return accepted


def checked_whole_number(value: object, what: str) -> int:
    """A whole number of a file, as it stands. Raises TypeError where it is of another type, ValueError beyond any count."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} is {str(value)[:40]!r}, not a whole number")
    if abs(value) > limits.CONFIGURED_SIZE:
        raise ValueError(f"{what} is {str(value)[:20]}…, which counts nothing")
    return value


def finite_floats(values: object) -> Floats:
    """As float32. Raises ValueError, TypeError where it is no array of finite numbers."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "c":
        raise TypeError("complex numbers are no weights")
    with np.errstate(over="ignore"):  # what overflows is refused below
        array = np.asarray(values, dtype=np.float32)
    if array.ndim == 0 or not np.isfinite(array).all():
        raise ValueError("a number is missing, or not finite (NaN or infinity)")
    return array


def check_trace(trace: Trace, source: str) -> Trace:
    """The trace itself, if all its arrays fit its tokens and each other. Raises AttnctlError naming what does not."""
    n = len(trace.tokens)
    if trace.measure not in MEASURES:
        raise AttnctlError(f"{source}: no measure {str(trace.measure)[:40]!r}")
    if trace.embeddings is not None and (trace.embeddings.ndim != 2 or len(trace.embeddings) != n):
        raise AttnctlError(f"{source}: embeddings have shape {trace.embeddings.shape}, for {n} tokens")
    if len({layer.layer for layer in trace.layers}) < len(trace.layers):
        raise AttnctlError(f"{source}: a layer stands there twice")
    check_head_count(sum(len(layer.heads) for layer in trace.layers), source)
    for layer in trace.layers:
        for what, numbers in (("head", layer.heads), ("row", layer.rows or ())):
            if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
                raise AttnctlError(f"{source}: layer {layer.layer} has a {what} twice, or below 0")
        if layer.layer < 0:
            raise AttnctlError(f"{source}: there is no layer {layer.layer}")
        if layer.rows is not None and max(layer.rows, default=0) >= n:
            raise AttnctlError(f"{source}: layer {layer.layer} has rows beyond its {n} tokens")
        _check_shapes(layer, n, len(trace.key_axis), source)
    return trace


def check_head_count(count: int, source: str) -> None:
    """Raise AttnctlError where there are more heads than are read."""
    if count > limits.HEADS_IN_ALL:
        raise AttnctlError(f"{source} holds {count:,} heads in all: {limits.HEADS_IN_ALL:,} are read at most")


def _check_shapes(layer: LayerTrace, n: int, n_k: int, source: str) -> None:
    sizes = {"rows": n if layer.rows is None else len(layer.rows), "keys": n_k, "tokens": n}
    for array, there in layer.arrays_kept():
        heads = [len(layer.heads)] if array.level == "head" else []
        shape = [*heads, *(sizes.get(axis) for axis in array.axes)]  # None: a vector is as long as it is
        fits = there.ndim == len(shape) and all(a in (None, b) for a, b in zip(shape, there.shape, strict=True))
        if not fits:
            said = "(" + ", ".join("…" if size is None else str(size) for size in shape) + ")"
            raise AttnctlError(f"{source}: {array.name} of layer {layer.layer} has shape {there.shape}, not {said}")


def read_npz(data: bytes, source: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an NPZ file. Raises AttnctlError where it is damaged or holds pickled objects."""
    if data[:2] != b"PK" and data[:6] != b"\x93NUMPY":
        raise AttnctlError(f"{source} is not a sound .npz file: it is no archive (nothing is ever unpickled)")
    try:
        archive = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise AttnctlError(f"{source} is a single array, not an .npz archive")
        with archive:
            assert archive.zip is not None
            _check_unpacked(archive.zip, len(data), source)
            arrays = {name: archive[name] for name in archive.files}
    except DAMAGE as error:
        raise AttnctlError(f"{source} is not a sound .npz file: {error_reason(error)}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise AttnctlError(f"{source} is not a sound .npz file: {name[:40]} is no array")
    return arrays


def _check_unpacked(archive: zipfile.ZipFile, size: int, source: str) -> None:
    """Raise AttnctlError where an archive of `size` bytes would unpack to more than its numbers can be."""
    entries = archive.infolist()
    total = sum(entry.file_size for entry in entries)
    if total > limits.UNPACKED_BYTES or (total > limits.PACKED_FREELY and total > limits.MOST_PACKED * size):
        raise AttnctlError(
            f"{source} would unpack to {limits.bytes_text(total)}, from {limits.bytes_text(size)}: "
            "no arrays of numbers are so large"
        )
    limits.check_memory(3.0 * total, f"unpacking {source}", "give a smaller file")
    if len({entry.filename for entry in entries}) < len(entries):
        raise ValueError("an array stands in it twice")
    for entry in entries:
        if entry.filename.endswith(".npy"):
            with archive.open(entry) as file:
                _check_header(file, entry.file_size)


def _check_header(file: IO[bytes], size: int) -> None:
    """Raise ValueError where the header of an array claims more numbers than `size` bytes hold."""
    read = np.lib.format.read_array_header_1_0
    if np.lib.format.read_magic(file) != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if len(shape) > limits.ARRAY_AXES or (not dtype.hasobject and math.prod(shape) * dtype.itemsize > size):
        raise ValueError(f"it claims an array of shape {str(shape)[:60]}, and holds {size:,} bytes")


def read_npy(data: bytes, source: str) -> npt.NDArray[Any]:
    """The array of a .npy file's bytes. Raises AttnctlError where it is damaged or holds pickled objects."""
    try:
        _check_header(io.BytesIO(data), len(data))
        array: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except DAMAGE as error:
        raise AttnctlError(f"{source} is not a sound .npy file: {error_reason(error)}") from error
    return array


def error_reason(error: BaseException) -> str:
    """What a library's error comes to, in a few words."""
    if "pickle" in str(error).lower() and "Header info" not in str(error):
        return "it holds pickled objects, which attnctl never unpickles"
    return in_one_line(error)
