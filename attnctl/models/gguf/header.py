"""Read the header of a GGUF file without a library; compare every length and offset in it with the file's size."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from attnctl.checks import limits
from attnctl.errors import AttnctlError
from attnctl.runtime.files import check_regular, open_regular, said_plainly, state_of_files

# type of a value → its struct format
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# bytes of memory that are needed for each, however short it is in the file
ENTRY_BYTES, STRING_BYTES, NUMBER_BYTES, ARRAY_BYTES, TENSOR_BYTES = 600, 120, 40, 80, 800
ALIGNMENT = 32  # bytes, by default
LENGTH = struct.Struct("<Q")  # of a text


class BlockFormat(NamedTuple):
    """How a type of tensor is stored: its name in ggml.h, the numbers in a block, and the bytes of a block."""

    name: str
    numbers: int
    bytes: int


# type of a tensor in ggml.h → its blocks
BLOCKS = {
    number: BlockFormat(*form)
    for number, form in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
        28: ("F64", 1, 8), 30: ("BF16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
        29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
    }.items()
}  # fmt: skip

Value = int | float | bool | str | tuple[int | float | bool, ...]


class TensorPlace(NamedTuple):
    """Where a tensor lies in its file: its shape in torch's order, its type, and its first byte."""

    name: str
    shape: tuple[int, ...]
    form: BlockFormat
    begin: int  # bytes after the beginning of the file

    @property
    def size(self) -> int:
        """Return the bytes of the tensor."""
        return math.prod(self.shape) * self.form.bytes // self.form.numbers


class ValuePlace(NamedTuple):
    """Where a text or an array lies in its file; `kind` and `length` are of its items (of a text: 1)."""

    kind: int
    length: int
    begin: int


@dataclass
class Metadata:
    """The header of a GGUF file: entries by name (without long texts and arrays), lengths of arrays, tensors by name."""

    path: Path
    entries: dict[str, Value] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, TensorPlace] = field(default_factory=dict)
    places: dict[str, ValuePlace] = field(default_factory=dict)  # of texts and arrays

    def array(self, name: str) -> tuple[int | float | bool, ...] | tuple[str, ...]:
        """Return an array of numbers or of texts, however long; () if the file has none of this name."""
        place = self.places.get(name)
        if place is None or name not in self.lengths:
            return ()
        with _mapped(self.path) as data:
            walk = _Walk(data, place.begin)
            if place.kind == STRING:
                return tuple(walk.texts(place.length))
            return walk.numbers(place.kind, place.length) if place.kind in FORMATS else ()

    def text(self, name: str) -> str | None:
        """Return a text, however long; None if the file has none of this name."""
        place = self.places.get(name)
        if place is None or name in self.lengths:
            return None
        with _mapped(self.path) as data:
            return next(_Walk(data, place.begin).texts(1))


def read_header(path: Path) -> Metadata:
    """Return the header of a GGUF file (versions 2 and 3 of ggml's gguf.md), which is read once as long as it is the same.

    Raises AttnctlError if the header claims more entries, longer texts or more tensors than the file can hold.
    """
    return _read_once(path, state_of_files(path))


@lru_cache(maxsize=8)
def _read_once(path: Path, state: object) -> Metadata:
    with _mapped(path) as data:
        try:
            return _Header(data, path).whole_metadata()
        except (ValueError, struct.error) as error:
            reason = "it is cut short" if isinstance(error, struct.error) else error
            raise AttnctlError(f"cannot read {path}: it is not a valid GGUF file: {reason}") from error


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Yield the bytes of a file, mapped."""
    size = check_regular(path)
    with open_regular(path) as file:
        if not size:
            yield b""
            return
        with said_plainly("read", path):
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with data:
            yield data


class _Walk:
    """A walk through the bytes of a file; `at` is the next one. Raises struct.error at the end of the file."""

    def __init__(self, data: mmap.mmap | bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def take(self, form: str) -> tuple[int | float | bool, ...]:
        """Return the next values of a struct format, little-endian."""
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values

    def whole(self, form: str) -> tuple[int, ...]:
        """Return the next whole numbers of a struct format."""
        return tuple(map(int, self.take(form)))

    def numbers(self, kind: int, count: int) -> tuple[int | float | bool, ...]:
        """Return the next numbers of a type of value."""
        return self.take(f"{count}{FORMATS[kind]}")

    def texts(self, count: int) -> Iterator[str]:
        """Yield the next texts."""
        at, length_at, data = self.at, LENGTH.unpack_from, self.data
        for _ in range(count):
            begin = at + 8
            at = begin + length_at(data, at)[0]
            yield data[begin:at].decode("utf-8", "replace")

    def skip_texts(self, count: int) -> None:
        """Go behind the next texts. Raises ValueError if they end beyond the file."""
        at, length_at, data = self.at, LENGTH.unpack_from, self.data
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
        self.at = at
        self.skip_bytes(0)

    def skip_bytes(self, count: int) -> None:
        """Go `count` bytes on. Raises ValueError if the file has fewer."""
        self.at += count
        if self.at > len(self.data):
            raise ValueError("its metadata is longer than the file")


class _Header(_Walk):
    """A walk through the header; `memory` is what the entries so far will need, in bytes."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        super().__init__(data)
        self.size, self.memory = len(data), 0
        self.metadata = Metadata(path)

    def whole_metadata(self) -> Metadata:
        magic = self.data[:4]
        self.skip_bytes(4)
        (version,) = self.whole("I")
        if magic == b"GGUF" and 2 <= int.from_bytes(version.to_bytes(4, "little"), "big") <= 3:
            raise ValueError(
                "it is a big-endian GGUF file, for other processors: gguf-convert-endian of the Python package gguf "
                "changes it to little"
            )
        if magic != b"GGUF" or not 2 <= version <= 3:
            raise ValueError("it does not begin with GGUF, or has another version than 2 and 3")
        tensors, entries = self.whole("QQ")
        self._check_count(tensors, 24, TENSOR_BYTES)
        self._check_count(entries, 12, ENTRY_BYTES)
        for _ in range(entries):
            name = self._string() or ""
            value = self._walk_value(name, *self.whole("I"))
            if value is not None:
                self.metadata.entries[name] = value
        self._keep_tensors([self._tensor() for _ in range(tensors)])
        return self.metadata

    def _walk_value(self, name: str, kind: int, depth: int = 0) -> Value | None:
        """Return one value; None if it is too long to be kept."""
        if kind == STRING:
            if depth == 0:
                self.metadata.places[name] = ValuePlace(STRING, 1, self.at)
            return self._string()
        if kind == ARRAY and depth < limits.GGUF_NESTING:
            return self._array(name, depth)
        if kind not in FORMATS:
            raise ValueError(f"a value has the type {kind}")
        return self.numbers(kind, 1)[0]

    def _array(self, name: str, depth: int) -> Value | None:
        inner, count = self.whole("IQ")
        number_bytes = struct.calcsize(FORMATS[inner]) if inner in FORMATS else 8
        self._check_count(count, number_bytes, {STRING: STRING_BYTES, ARRAY: ARRAY_BYTES}.get(inner, NUMBER_BYTES))
        if depth == 0:
            self.metadata.lengths[name] = count
            self.metadata.places[name] = ValuePlace(inner, count, self.at)
        if inner in FORMATS and count <= limits.GGUF_KEPT:
            return self.numbers(inner, count)
        if inner in FORMATS:
            self.skip_bytes(number_bytes * count)
        elif inner == STRING:
            self.skip_texts(count)
        else:
            for _ in range(count):
                self._walk_value(name, inner, depth + 1)
        return None

    def _string(self) -> str | None:
        """Return a text; None if it is too long to be kept."""
        begin = self.at + 8
        self.skip_texts(1)
        if self.at - begin > limits.GGUF_KEPT:
            return None
        return self.data[begin : self.at].decode("utf-8", "replace")

    def _tensor(self) -> TensorPlace:
        """Return a tensor; its first byte is counted from the beginning of the tensors."""
        name = self._string() or "a tensor"
        (axes,) = self.whole("I")
        if axes > limits.ARRAY_AXES:
            raise ValueError(f"a tensor has {axes} axes")
        shape = self.whole(f"{axes}Q")
        kind, begin = self.whole("IQ")
        if kind not in BLOCKS:
            raise ValueError(f"the tensor {name[:80]} has the type {kind}, which attnctl does not know")
        if shape and shape[0] % BLOCKS[kind].numbers:
            raise ValueError(f"the tensor {name[:80]} has rows of {shape[0]}, no whole blocks of {BLOCKS[kind].name}")
        return TensorPlace(name, shape[::-1], BLOCKS[kind], begin)

    def _keep_tensors(self, tensors: list[TensorPlace]) -> None:
        """Keep the tensors with their places in the file. Raises ValueError if one ends beyond the file."""
        alignment = self.metadata.entries.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or isinstance(alignment, bool) or not 1 <= alignment <= 1 << 20:
            raise ValueError(f"its alignment is {str(alignment)[:40]}")
        begin = -(-self.at // alignment) * alignment
        for tensor in tensors:
            placed = tensor._replace(begin=begin + tensor.begin)
            if (beyond := placed.begin + placed.size - self.size) > 0:
                raise ValueError(f"the tensor {tensor.name[:80]} ends {beyond:,} bytes beyond the file")
            self.metadata.tensors[tensor.name] = placed

    def _check_count(self, count: int, smallest: int, memory: int) -> None:
        """Count entries of at least `smallest` bytes in the file, and of `memory` bytes each in memory.

        Raises ValueError if the file cannot hold them, or if they would need too much memory.
        """
        self.memory += count * memory
        if count * smallest > self.size - self.at:
            raise ValueError(f"it claims {count:,} entries where {self.size - self.at:,} bytes are left")
        if self.memory > limits.GGUF_BYTES:
            limit = limits.bytes_text(limits.GGUF_BYTES)
            raise ValueError(f"its metadata takes {limits.bytes_text(self.memory)} of memory, more than {limit}")
