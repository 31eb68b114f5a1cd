"""What a safetensors file says it holds, read from its header alone: names, types and shapes held against its size."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.files import check_regular, open_regular

if TYPE_CHECKING:
    from attnctl.text import Document

# bytes of a number of each type that attnctl reads
TYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}
TYPES |= {f"{sign}{8 * size}": size for sign in "IU" for size in (1, 2, 4, 8)}


def safetensors_header(path: str | Path) -> Document:
    """The header of a file: each tensor's dtype, shape and data_offsets by its name, and "__metadata__".

    Raises AttnctlError where it is damaged, or claims tensors that the file does not hold.
    """
    size = check_regular(path)
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, limits.HEADER_BYTES):
            raise AttnctlError(f"{path} is not a sound .safetensors file: its header is longer than the file")
        data = file.read(length)
    try:
        header = json.loads(data)
        if not isinstance(header, dict) or len(header) > limits.TENSORS:
            raise ValueError("its header names no tensors, or too many")
        for name, entry in header.items():
            if name != "__metadata__":
                _check_tensor(name, entry, size - 8 - length)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise AttnctlError(f"{path} is not a sound .safetensors file: {in_one_line(error)}") from error
    return header


def _check_tensor(name: str, entry: Document, room: int) -> None:
    """Raise ValueError where a tensor's shape and place do not fit each other, or the file."""
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    whole = all(isinstance(side, int) and not isinstance(side, bool) and side >= 0 for side in (*shape, start, end))
    if not whole or len(shape) > limits.ARRAY_AXES or not start <= end <= room:
        raise ValueError(f"{name[:60]} has shape {str(shape)[:60]}, which its file cannot hold")
    size = TYPES.get(entry["dtype"])
    if size is not None and math.prod(shape) * size != end - start:
        raise ValueError(f"{name[:60]} has shape {str(shape)[:60]}, and {end - start:,} bytes")


def check_readable_tensors(path: str | Path) -> None:
    """Raise AttnctlError where a file holds a type that attnctl does not read, or more than fits into the memory."""
    header = safetensors_header(path)
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] not in TYPES:
            kind = str(entry["dtype"])[:20]
            raise AttnctlError(f"{path}: {name[:60]} holds {kind}, which attnctl does not read: convert it to F32")
    limits.check_memory(3.0 * check_regular(path), f"reading {path}", "give a smaller file")
