"""A weights file, `.safetensors` or `.npz`, as it is read: tensors by name, metadata beside them, nothing ever unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl import limits
from attnctl.arrays import Floats
from attnctl.attention import Array
from attnctl.errors import AttnctlError, in_one_line
from attnctl.files import open_regular, read_bytes
from attnctl.formats.arrays import finite_numbers
from attnctl.formats.safetensors_header import check_readable_tensors
from attnctl.formats.validation import read_npz

if TYPE_CHECKING:
    from attnctl.text import Document

LAYER_TENSORS = ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
MODEL_TENSORS = ("embedding", "pieces", "positions", "unembedding")
TABLES = ("embedding", "pieces", "unembedding")  # one row, or column, a word: of thousands, a text needs a few


@dataclass(frozen=True)
class WeightFile:
    """A weights file as read: tensors by name, metadata as strings."""

    path: str
    tensors: dict[str, Floats]
    metadata: dict[str, str]

    def metadata_number(self, name: str, kind: type = int) -> Any:
        """Metadata `name` as a number, or None. Raises AttnctlError where it is none."""
        if name not in self.metadata:
            return None
        read = limits.whole_number if kind is int else limits.decimal_number
        try:
            return read(self.metadata[name])
        except ValueError as error:
            raise AttnctlError(f"{self.path}: metadata {name} is {self.metadata[name][:40]!r}, not a number") from error

    def metadata_switch(self, name: str) -> bool:
        """Whether metadata `name` says yes; no where there is none. Raises AttnctlError where it says neither."""
        said = self.metadata.get(name, "").strip().lower()
        if said not in ("true", "1", "yes", "false", "0", "no", ""):
            raise AttnctlError(f"{self.path}: metadata {name} is {self.metadata[name][:40]!r}, not true or false")
        return said in ("true", "1", "yes")


def read_weights(path: str | Path) -> WeightFile:
    """Read a weights file. Raises AttnctlError where it is missing, damaged, or holds NaN or infinity."""
    path = str(path)
    with open_regular(path) as file:
        start = file.read(2)
    if start == b"PK":
        arrays = read_npz(read_bytes(path), path)
        metadata = {
            name: json.dumps(array.tolist()) if array.ndim else str(array)
            for name, array in arrays.items()
            if array.dtype.kind in "US" or (array.ndim == 0 and not _tensor_name(name))
        }
        tensors = {name: array for name, array in arrays.items() if name not in metadata}
    elif Path(path).suffix.lower() == ".npz":
        raise AttnctlError(f"{path} is not a sound .npz file (nothing is ever unpickled)")
    else:
        tensors, metadata = read_safetensors(path, TABLES)
    checked = {}
    for name, tensor in tensors.items():
        on_disk = name in TABLES and isinstance(tensor, np.memmap)  # its rows are checked as they are looked up
        checked[name] = tensor if on_disk else finite_numbers(tensor, f"{path}: {name}")
    return WeightFile(path, checked, metadata)


def looked_up(table: Array, rows: Array, what: str) -> Floats:
    """These rows of a table of numbers in float32 → (len(rows), width). Raises AttnctlError where one is NaN or infinite."""
    return finite_numbers(np.asarray(table[rows]), what)  # (rows, width)


def read_safetensors(path: str, mapped: Sequence[str] = ()) -> tuple[dict[str, Floats], dict[str, str]]:
    """Tensors and metadata of a .safetensors file; the `mapped` ones stay on disk where they can, and are read row by row.

    Raises AttnctlError where it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    check_readable_tensors(path)
    try:
        with safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            names = list(file.keys())
            if any(file.get_slice(name).get_dtype() in ("BF16", "F8_E4M3", "F8_E5M2") for name in names):
                with safe_open(path, framework="pt") as wide:  # NumPy lacks these types
                    return {name: wide.get_tensor(name).float().numpy() for name in names}, metadata
            tables = {name for name in mapped if name in names and file.get_slice(name).get_dtype() in _MAPPED}
            found = {name: file.get_tensor(name) for name in names if name not in tables}
        return found | _map_tensors(path, tables), metadata
    except SafetensorError as error:
        raise AttnctlError(f"{path} is not a sound .safetensors file: {in_one_line(error)}") from error
    except (TypeError, MemoryError) as error:
        raise AttnctlError(f"{path} cannot be read: {error}") from error


_MAPPED = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


def _map_tensors(path: str, names: Collection[str]) -> dict[str, Floats]:
    """These tensors of a sound .safetensors file, mapped from disk: its header tells where each begins."""
    if not names:
        return {}
    with Path(path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    found: dict[str, Floats] = {}
    for name in names:
        one: Document = header[name]
        shape, at = tuple(one["shape"]), 8 + length + one["data_offsets"][0]
        dtype: Any = _MAPPED[one["dtype"]]
        found[name] = np.memmap(path, dtype, "r", at, shape) if 0 not in shape else np.zeros(shape, np.float32)
    return found


def _tensor_name(name: str) -> bool:
    return re.sub(r"^layers\.\d+\.", "", name) in LAYER_TENSORS or name in MODEL_TENSORS
