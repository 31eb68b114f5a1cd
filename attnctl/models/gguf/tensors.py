"""Map the tensors of a GGUF file, or of all parts of a split one, and dequantise the rows that are asked for."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnctl.errors import AttnctlError
from attnctl.models.gguf.blocks import IN_PLACE
from attnctl.models.gguf.header import BlockFormat, Metadata, TensorPlace, Value, read_header
from attnctl.models.gguf.weights import Rows, Weight
from attnctl.runtime import core_count
from attnctl.runtime.arrays import Floats
from attnctl.runtime.files import check_regular, open_regular, said_plainly
from attnctl.runtime.two_at_once import works_with_another

Bytes = npt.NDArray[np.uint8]

# numbers that are dequantised together: their steps stay in a processor's cache
TOGETHER = 1 << 17
# stored kinds whose bytes are the numbers of a type of NumPy
PLAIN: Mapping[str, npt.DTypeLike] = {
    "F32": "<f4",
    "F16": "<f2",
    "F64": "<f8",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
}


@dataclass(frozen=True, eq=False)
class StoredTensor(Weight):
    """A tensor of a GGUF file: its shape in torch's order, its `kind` (Q4_K, F32, …), its bytes, mapped from the file.

    Its rows go along its first axis. `names` are the file's names for what it is made of.
    """

    name: str
    shape: tuple[int, ...]
    form: BlockFormat
    stored: Bytes  # of the whole tensor

    @property
    def kind(self) -> str:
        """Return the name of the type in ggml.h: Q4_K, F32, …."""
        return self.form.name

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        """Return the tensors of the file that this weight is made of: itself."""
        return (self,)

    def rows(self, which: Rows) -> Floats:
        """Return rows of the tensor in float32, dequantised."""
        return dequantised(self._bytes(which), self.form).reshape(-1, *self.shape[1:]) if self.shape else self.array()

    def fill(self, out: Floats, which: Rows) -> None:
        """Write rows to `out`."""
        dequantise(self._bytes(which), self.form, out.reshape(-1))

    def _bytes(self, which: Rows) -> Bytes:
        """Return the bytes of rows: a copy, if `which` are numbers of rows."""
        return self.stored.reshape(self.shape[0] if self.shape else 1, -1)[which]

    def array(self) -> Floats:
        """Return the whole tensor in float32, dequantised."""
        return dequantised(self.stored, self.form).reshape(self.shape)


def dequantised(stored: Bytes, form: BlockFormat) -> Floats:
    """Return the numbers of whole blocks in float32 (numbers,); those that are stored in float32 are not copied.

    Raises AttnctlError for a type that the gguf library cannot dequantise.
    """
    flat = stored.reshape(-1)
    if form.name in PLAIN:
        return flat.view(PLAIN[form.name]).astype(np.float32, copy=False)
    out = np.empty(len(flat) // form.bytes * form.numbers, np.float32)
    dequantise(flat, form, out)
    return out


def dequantise(stored: Bytes, form: BlockFormat, out: Floats) -> None:
    """Write the numbers of whole blocks to `out` (numbers,), in all threads of this process. Raises as `dequantised`."""
    flat = stored.reshape(-1)
    if form.name in PLAIN:
        out[...] = flat.view(PLAIN[form.name])
        return
    blocks, numbers = flat.reshape(-1, form.bytes), out.reshape(-1, form.numbers)
    fill_blocks, step = _function_of(form), max(TOGETHER // form.numbers, 1)

    def fill(begin: int) -> None:
        fill_blocks(blocks[begin : begin + step], numbers[begin : begin + step])

    begins = range(0, len(blocks), step)
    shares = len(begins) > 1 and may_share_rows()
    for _ in _workers().map(fill, begins) if shares else map(fill, begins):
        pass


@cache
def _function_of(form: BlockFormat) -> Callable[[Bytes, Floats], None]:
    """Return the function that writes blocks (blocks, bytes) to (blocks, numbers): this program's or the gguf library's."""
    from attnctl.models.huggingface.hub import import_extra

    if form.name in IN_PLACE:
        return IN_PLACE[form.name]
    kind: Any = getattr(import_extra("gguf.quants"), form.name, None)
    if not hasattr(kind, "dequantize_blocks"):
        raise AttnctlError(f"its tensors are stored as {form.name}, which the installed gguf library cannot dequantise")
    kind.init_grid()

    def fill(blocks: Bytes, out: Floats) -> None:
        out[...] = kind.dequantize_blocks(blocks)

    return fill


@cache
def worker_count() -> int:
    """Return how many threads dequantise together: as OMP_NUM_THREADS or the cores of this process say, 8 at most."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(stated) if stated.isdecimal() and int(stated) else core_count(), 8)


def may_share_rows() -> bool:
    """Return whether another core may dequantise rows for this thread: two forwards at once keep two cores busy."""
    return worker_count() > (2 if works_with_another() else 1)


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(worker_count(), "dequantise")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file, or all parts of a split one: its metadata, its tensors by name, and its paths, the first part first."""

    paths: tuple[Path, ...]
    header: Metadata  # of the first part
    tensors: Mapping[str, StoredTensor] = field(repr=False)

    @property
    def metadata(self) -> Mapping[str, Value]:
        """Return the metadata by name, without long texts and arrays: `header.array` and `header.text` read those."""
        return self.header.entries

    @classmethod
    def open(cls, path: Path | Sequence[Path]) -> GgufFile:
        """Open a file, or the parts of a split one in their order.

        Raises AttnctlError for a damaged file, and for a tensor that stands in two parts.
        """
        paths = (path,) if isinstance(path, Path) else tuple(path)
        headers = [read_header(part) for part in paths]
        tensors: dict[str, StoredTensor] = {}
        for part, header in zip(paths, headers, strict=True):
            mapped = _mapped_bytes(part)
            for name, place in header.tensors.items():
                if name in tensors:
                    raise AttnctlError(f"cannot read {part}: the tensor {name[:80]} stands in an earlier part too")
                tensors[name] = _stored(place, mapped)
        return cls(paths, headers[0], tensors)


def _stored(place: TensorPlace, mapped: Bytes) -> StoredTensor:
    return StoredTensor(place.name, place.shape, place.form, mapped[place.begin : place.begin + place.size])


def _mapped_bytes(path: Path) -> Bytes:
    """Return the bytes of a file, mapped: pages are read when they are used; what is written to them stays in memory."""
    check_regular(path)
    with open_regular(path) as file, said_plainly("read", path):
        with suppress(OSError):  # the system may refuse to set memory aside for the copies of a large file
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
