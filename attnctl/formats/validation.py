"""Whether what comes from outside is sound: types, shapes, archives. Nothing else trusts a file."""

from __future__ import annotations

import dataclasses
import io
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from attnctl.errors import AttnctlError, in_one_line

if TYPE_CHECKING:
    from attnctl.readings.trace import LayerTrace, Trace

Kind = TypeVar("Kind")
_KINDS: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
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


def typed(kind: type[Kind], given: Mapping[str, Any]) -> Kind:
    """A dataclass of plain fields from what a file gives for them. Raises TypeError where one is of another type."""
    known = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name not in given:
            continue
        value, kinds = given[field.name], str(field.type).split(" | ")
        sort = _KINDS[kinds[0]]
        right = isinstance(value, sort) and (bool in sort or not isinstance(value, bool))
        if not right and not (value is None and "None" in kinds):
            raise TypeError(f"{field.name} is {str(value)[:40]!r}, not {' or '.join(kinds)}")
        known[field.name] = value
    return kind(**known)


def checked(trace: Trace, source: str) -> Trace:
    """The trace itself, if all its arrays fit its tokens and each other. Raises AttnctlError naming what does not."""
    n = len(trace.tokens)
    if trace.measure not in MEASURES:
        raise AttnctlError(f"{source}: no measure {str(trace.measure)[:40]!r}")
    if trace.embeddings is not None and (trace.embeddings.ndim != 2 or len(trace.embeddings) != n):
        raise AttnctlError(f"{source}: embeddings have shape {trace.embeddings.shape}, for {n} tokens")
    if len({layer.layer for layer in trace.layers}) < len(trace.layers):
        raise AttnctlError(f"{source}: a layer stands there twice")
    for layer in trace.layers:
        for what, numbers in (("head", layer.heads), ("row", layer.rows or ())):
            if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
                raise AttnctlError(f"{source}: layer {layer.layer} has a {what} twice, or below 0")
        if layer.layer < 0:
            raise AttnctlError(f"{source}: there is no layer {layer.layer}")
        if layer.rows is not None and max(layer.rows, default=0) >= n:
            raise AttnctlError(f"{source}: layer {layer.layer} has rows beyond its {n} tokens")
        _check_layer(layer, n, len(trace.keys_of), source)
    return trace


def _check_layer(layer: LayerTrace, n: int, n_k: int, source: str) -> None:
    h, n_q = len(layer.heads), n if layer.rows is None else len(layer.rows)
    any_size = None  # dimensions of a vector are whatever they are
    rows, keys, grid = (h, n_q, any_size), (h, n_k, any_size), (h, n_q, n_k)
    wanted: dict[str, tuple[int | None, ...]] = {
        "queries_before_rope": rows, "queries": rows, "context": rows,
        "keys_before_rope": keys, "keys": keys, "values": keys,
        "scores": grid, "bias": grid, "scaled_scores": grid, "weights": grid, "dropped_weights": grid,
        "mask": (n_q, n_k), "input": (n, any_size), "residual": (n, any_size),
    }  # fmt: skip
    arrays = {name: getattr(layer, name) for name in wanted} | dict(layer.parameters)
    wanted |= dict.fromkeys(("W_Q", "W_K", "W_V"), (h, any_size, any_size))
    for name, shape in wanted.items():
        array = arrays.get(name)
        if array is None:
            continue
        fits = array.ndim == len(shape) and all(a in (None, b) for a, b in zip(shape, array.shape, strict=True))
        if not fits:
            said = "(" + ", ".join("…" if size is None else str(size) for size in shape) + ")"
            raise AttnctlError(f"{source}: {name} of layer {layer.layer} has shape {array.shape}, not {said}")


def read_npz(data: bytes, source: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an NPZ file. Raises AttnctlError where it is damaged or holds pickled objects."""
    try:
        archive = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise AttnctlError(f"{source} is a single array, not an .npz archive")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except DAMAGE as error:
        raise AttnctlError(f"{source} is not a sound .npz file: {reason(error)}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise AttnctlError(f"{source} is not a sound .npz file: {name[:40]} is no array")
    return arrays


def read_npy(data: bytes, source: str) -> npt.NDArray[Any]:
    """The array of a .npy file's bytes. Raises AttnctlError where it is damaged or holds pickled objects."""
    try:
        array: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except DAMAGE as error:
        raise AttnctlError(f"{source} is not a sound .npy file: {reason(error)}") from error
    return array


def reason(error: BaseException) -> str:
    """What a library's error comes to, in a few words."""
    if "pickle" in str(error).lower():
        return "it holds pickled objects, which attnctl never unpickles"
    return in_one_line(error)
