"""Check types, shapes and archives of files from outside. No other module trusts a file."""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, compress
from pathlib import Path
from typing import IO, Any, TypedDict

import numpy as np
import numpy.typing as npt

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.runtime.arrays import Bools, Floats


def finite_floats(values: object, name: str = "a list", dtype: type[np.floating[Any]] = np.float32) -> Floats:
    """Return values as float32, or as `dtype`. Raises ValueError, TypeError with `name` if they are not finite numbers."""
    array = _checked_array(values, name, "fiu")
    with np.errstate(over="ignore"):  # numbers that overflow are refused below
        floats = array.astype(dtype, copy=False)
    if not np.isfinite(floats).all():
        raise ValueError(f"{name}: a number is missing, or not finite (NaN or infinity)")
    if isinstance(values, list) and floats.size:  # NumPy reads true as 1
        rows = values if floats.ndim > 1 else [values]
        for _ in range(floats.ndim - 2):
            rows = list(chain.from_iterable(rows))
        suspect = ((floats == 0) | (floats == 1)).any(axis=-1).ravel()  # (rows,)
        if any(bool in set(map(type, row)) for row in compress(rows, suspect)):
            raise TypeError(f"{name}: true or false instead of a number")
    return floats


def true_or_false(values: object, name: str) -> Bools:
    """Return values as booleans. Raises ValueError, TypeError with `name` if they are not an array of booleans."""
    return _checked_array(values, name, "b").astype(np.bool_, copy=False)


KINDS = {"fiu": "numbers", "b": "true and false"}


def _checked_array(values: object, name: str, kinds: str) -> npt.NDArray[np.generic]:
    """Return an array of one of NumPy's `kinds`. Raises ValueError for rows of different lengths, otherwise TypeError."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name}: its rows are of different lengths") from error
    if array.ndim == 0:
        raise TypeError(f"{name} is {str(values)[:40]!r}, not a list of {KINDS[kinds]}")
    if array.size and array.dtype.kind not in kinds:
        kinds_in_words = {
            "c": "complex numbers",
            "b": "true and false",
            "U": "texts",
            **dict.fromkeys("fiu", "numbers"),
        }
        contents = kinds_in_words.get(array.dtype.kind, "nulls or other things")
        raise TypeError(f"{name}: {contents} instead of {KINDS[kinds]}")
    return array


@contextmanager
def telling_unsound(source: str, kind: str) -> Iterator[None]:
    """Turn the many errors of NumPy and zipfile on a damaged or malicious file into one line."""
    try:
        yield
    except AttnctlError:
        raise
    except Exception as error:
        is_pickled = "pickle" in str(error).lower() and "Header info" not in str(error)
        reason = "it holds pickled objects, which attnctl never unpickles" if is_pickled else in_one_line(error)
        raise AttnctlError(f"{source} is not a sound {kind} file: {reason}") from error


def read_npz(data: bytes, source: str) -> dict[str, Array]:
    """Return the arrays of an NPZ file. Raises AttnctlError if it is damaged or holds pickled objects."""
    if data[:2] != b"PK" and data[:6] != b"\x93NUMPY":
        raise AttnctlError(f"{source} is not a sound .npz file: it is not an archive (nothing is ever unpickled)")
    with telling_unsound(source, ".npz"):
        archive = np.load(io.BytesIO(data), allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise AttnctlError(f"{source} is a single array, not an .npz archive")
        with archive:
            assert archive.zip is not None
            _check_unpacked(archive.zip, len(data), source)
            arrays = {name: archive[name] for name in archive.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise AttnctlError(f"{source} is not a sound .npz file: {name[:40]} is not an array")
    return {name: with_bfloat16(array) for name, array in arrays.items()}


def with_bfloat16(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return an array; one of bfloat16 as float32. NumPy lacks the type, so .npy files hold two bytes a number (V2)."""
    if array.dtype != np.dtype("V2"):
        return array
    return (array.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


PICKLES = (".pt", ".pth", ".pkl", ".pickle")  # suffixes of files by torch.save and pickle
_TORCH = b"\x80\2\x8a\nl\xfc\x9cF\xf9"  # the first bytes of a file by an older torch.save


def check_unpickled(data: bytes, source: str, named: bool = False) -> None:
    """Raise AttnctlError for the bytes of a pickled file; `named`: the advice is for tensors with names."""
    start = data[:1000]
    by_torch = start[:9] == _TORCH or (start[:4] == b"PK\x03\x04" and b"data.pkl" in start[30:])
    if by_torch:
        raise AttnctlError(torch_refusal(source, named))
    if start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5") and start[8:9] != b"{":  # no safetensors
        raise AttnctlError(f"{source} is pickled, which attnctl never reads: write its array with numpy.save")


def torch_refusal(source: str, named: bool = False) -> str:
    """Return why a file of torch.save is not read, and the command that converts it: to one array, or to named tensors."""
    file = Path("weights.pt" if source in ("-", "standard input") else source)
    load = f'torch.load({_literal(file)}, "cpu", weights_only=True)'
    if named:
        to = _literal(file.with_suffix(".safetensors"))
        script = (
            "import safetensors.torch, torch; safetensors.torch.save_file({k: v.contiguous().clone() "
            f"for k, v in {load}.items()}}, {to})"
        )
    else:
        script = (
            f"import numpy, torch; x = {load}; x = x if torch.is_tensor(x) else torch.stack(list(x)); "
            f"numpy.save({_literal(file.with_suffix('.npy'))}, x.float().numpy(force=True))"
        )
    return f"{source} is pickled, which attnctl never reads; convert it: python -c {shlex.quote(script)}"


WEIGHTS_KEYS = ("weights", "attention", "attentions", "attn")  # names of an array that is the attention


def check_no_bare_weights(document: object, source: str) -> None:
    """Raise AttnctlError, with the command that makes it a trace, for JSON of bare weights: lists, or an object of them."""
    rows = document
    if isinstance(document, dict):
        key = None if "schema" in document else next((name for name in WEIGHTS_KEYS if name in document), None)
        rows = document.get(key)
    if isinstance(rows, list) and rows and isinstance(rows[0], list):
        file = shlex.quote("weights.json" if source in ("-", "standard input") else source)
        raise AttnctlError(
            f"{source} holds bare weights, not a trace; this writes the trace: attnctl explain {file} -o trace.json"
        )


def _literal(path: Path) -> str:
    """Return a path as Python writes it, in double quotes: the whole script is in single quotes."""
    return json.dumps(str(path), ensure_ascii=False)


class SchemaAlone(TypedDict):
    """What is read of a JSON document to know whose it is."""

    schema: str


def schema_in(data: bytes) -> str | None:
    """Return the schema of a JSON document of attnctl, of the first where each line is one; None for any other bytes."""
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"{") or b'"schema"' not in text:
        return None
    if begins := re.match(rb'\{\s*"schema"\s*:\s*"(attnctl\.[\w-]+/\d+)"', text):
        return begins[1].decode()
    import msgspec

    with suppress(msgspec.DecodeError, RecursionError):  # another program may have sorted the keys
        schema = msgspec.json.decode(text, type=SchemaAlone)["schema"]
        return schema if re.fullmatch(r"attnctl\.[\w-]+/\d+", schema) else None
    return None


def names_in_npz(data: bytes) -> set[str]:
    """Return the names of the arrays of an NPZ file without unpacking; empty for a file that `read_npz` refuses."""
    with suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.removesuffix(".npy") for name in archive.namelist()}
    return set()


def _check_unpacked(archive: zipfile.ZipFile, size: int, source: str) -> None:
    """Raise AttnctlError if an archive of `size` bytes would unpack to more than arrays of numbers can be."""
    entries = archive.infolist()
    total = sum(entry.file_size for entry in entries)
    if total > limits.UNPACKED_BYTES or (total > limits.PACKED_FREELY and total > limits.MOST_PACKED * size):
        raise AttnctlError(
            f"{source} would unpack to {limits.bytes_text(total)}, from {limits.bytes_text(size)}: "
            "no arrays of numbers are so large"
        )
    limits.check_memory(3.0 * total, f"unpacking {source}", "give a smaller file")
    if len({entry.filename for entry in entries}) < len(entries):
        raise ValueError("it holds an array twice")
    for entry in entries:
        if entry.filename.endswith(".npy"):
            with archive.open(entry) as file:
                _check_header(file, entry.file_size)


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return the shape of the array in a .npy file, whether it is stored by columns, and its type. Raises ValueError."""
    old = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
    try:
        return read(file)
    except ValueError as error:
        if "'<f1'" in str(error):  # what ml_dtypes calls float8_e5m2
            raise ValueError("its numbers are float8_e5m2, a type that NumPy lacks: write them as float32") from error
        raise


def _check_header(file: IO[bytes], size: int) -> None:
    """Raise ValueError if the header of an array claims more numbers than `size` bytes hold."""
    shape, _, dtype = array_header(file)
    if len(shape) > limits.ARRAY_AXES or (not dtype.hasobject and math.prod(shape) * dtype.itemsize > size):
        raise ValueError(f"it claims an array of shape {str(shape)[:60]}, and holds {size:,} bytes")


def read_npy(data: bytes, source: str) -> npt.NDArray[np.generic]:
    """Return the array in the bytes of a .npy file. Raises AttnctlError if it is damaged or holds pickled objects."""
    with telling_unsound(source, ".npy"):
        _check_header(io.BytesIO(data), len(data))
        array: npt.NDArray[np.generic] = np.load(io.BytesIO(data), allow_pickle=False)
    return with_bfloat16(array)
