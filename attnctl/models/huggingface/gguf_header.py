"""Read the header of a GGUF file without a library; compare every length and offset in it with the file's size."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.files import check_regular, open_regular

# type of a value → its struct format
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# bytes of memory that the gguf library needs for each, however short it is in the file (measured, gguf 0.19)
ENTRY_BYTES, STRING_BYTES, NUMBER_BYTES, ARRAY_BYTES, TENSOR_BYTES = 3100, 1600, 700, 1300, 5300
ALIGNMENT = 32  # bytes, by default
# type of a tensor in ggml.h → numbers in a block, bytes of a block
BLOCKS = {
    0: (1, 4), 1: (1, 2), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2), 2: (32, 18),
    3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40), 20: (32, 18), 39: (32, 17), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 19: (256, 50), 21: (256, 110), 22: (256, 82), 23: (256, 136), 29: (256, 56), 34: (256, 54),
    35: (256, 66), 40: (64, 36), 41: (128, 18),
}  # fmt: skip

Value = int | float | bool | str | tuple[int | float | bool, ...]


@dataclass
class Metadata:
    """The metadata of a GGUF file: its entries by name (without long texts and arrays), and the lengths of arrays."""

    entries: dict[str, Value] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)


def read_header(path: Path) -> Metadata:
    """Return the metadata of a GGUF file (versions 2 and 3 of ggml's gguf.md).

    Raises AttnctlError if the header claims more entries, longer texts or more tensors than the file can hold.
    """
    size = check_regular(path)
    with open_regular(path) as file:
        try:
            return _Header(file, size).whole_metadata()
        except (ValueError, struct.error) as error:
            reason = "it is cut short" if isinstance(error, struct.error) else error
            raise AttnctlError(f"cannot read {path}: it is not a valid GGUF file: {reason}") from error


class _Header:
    """A walk through the header; `memory` is what the gguf library will need for the entries so far, in bytes."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size, self.memory = file, size, 0
        self.metadata = Metadata()

    def whole_metadata(self) -> Metadata:
        magic, version, tensors, entries = struct.unpack("<4sIQQ", self.file.read(24))
        if magic != b"GGUF" or not 2 <= version <= 3:
            raise ValueError("it does not begin with GGUF, or has another version than 2 and 3")
        self._check_count(tensors, 24, TENSOR_BYTES)
        self._check_count(entries, 12, ENTRY_BYTES)
        for _ in range(entries):
            name = self._string() or ""
            value = self._walk_value(name, *struct.unpack("<I", self.file.read(4)))
            if value is not None:
                self.metadata.entries[name] = value
        ends = [self._tensor() for _ in range(tensors)]
        self._check_ends(ends)
        return self.metadata

    def _walk_value(self, name: str, kind: int, depth: int = 0) -> Value | None:
        """Return one value; None if it is too long to be kept."""
        if kind == STRING:
            return self._string()
        if kind == ARRAY and depth < limits.GGUF_NESTING:
            return self._array(name, depth)
        if kind not in FORMATS:
            raise ValueError(f"a value has the type {kind}")
        return self._read_numbers(kind, 1)[0]

    def _array(self, name: str, depth: int) -> Value | None:
        inner, count = struct.unpack("<IQ", self.file.read(12))
        number_bytes = struct.calcsize(FORMATS[inner]) if inner in FORMATS else 8
        self._check_count(count, number_bytes, {STRING: STRING_BYTES, ARRAY: ARRAY_BYTES}.get(inner, NUMBER_BYTES))
        if depth == 0:
            self.metadata.lengths[name] = count
        if inner in FORMATS and count <= limits.GGUF_KEPT:
            return self._read_numbers(inner, count)
        if inner in FORMATS:
            self._skip_bytes(number_bytes * count)
        else:
            for _ in range(count):
                self._walk_value(name, inner, depth + 1)
        return None

    def _read_numbers(self, kind: int, count: int) -> tuple[int | float | bool, ...]:
        form = f"<{count}{FORMATS[kind]}"
        return struct.unpack(form, self.file.read(struct.calcsize(form)))

    def _string(self) -> str | None:
        (length,) = struct.unpack("<Q", self.file.read(8))
        if length > limits.GGUF_KEPT:
            self._skip_bytes(length)
            return None
        text = self.file.read(length)
        if len(text) < length:
            raise ValueError("its metadata is longer than the file")
        return text.decode("utf-8", "replace")

    def _tensor(self) -> tuple[str, int]:
        """Return the name of a tensor, and its end in bytes after the beginning of the tensors."""
        name = self._string() or "a tensor"
        (axes,) = struct.unpack("<I", self.file.read(4))
        if axes > limits.ARRAY_AXES:
            raise ValueError(f"a tensor has {axes} axes")
        shape = struct.unpack(f"<{axes}Q", self.file.read(8 * axes))
        kind, start = struct.unpack("<IQ", self.file.read(12))
        if kind not in BLOCKS:
            raise ValueError(f"the tensor {name} has the type {kind}, which attnctl does not know")
        numbers, size = BLOCKS[kind]
        return name, start + math.prod(shape) * size // numbers

    def _check_ends(self, ends: list[tuple[str, int]]) -> None:
        """Raise ValueError if a tensor ends beyond the file."""
        alignment = self.metadata.entries.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or isinstance(alignment, bool) or not 1 <= alignment <= 1 << 20:
            raise ValueError(f"its alignment is {str(alignment)[:40]}")
        begin = -(-self.file.tell() // alignment) * alignment
        for name, end in ends:
            if begin + end > self.size:
                raise ValueError(f"the tensor {name[:80]} ends {begin + end - self.size:,} bytes beyond the file")

    def _check_count(self, count: int, smallest: int, memory: int) -> None:
        """Count entries of at least `smallest` bytes in the file, and of `memory` bytes each in memory.

        Raises ValueError if the file cannot hold them, or if they would need too much memory.
        """
        self.memory += count * memory
        if count * smallest > self.size - self.file.tell():
            raise ValueError(f"it claims {count:,} entries where {self.size - self.file.tell():,} bytes are left")
        if self.memory > limits.GGUF_BYTES:
            limit = limits.bytes_text(limits.GGUF_BYTES)
            raise ValueError(f"its metadata takes {limits.bytes_text(self.memory)} of memory, more than {limit}")

    def _skip_bytes(self, count: int) -> None:
        if count > self.size - self.file.tell():
            raise ValueError("its metadata is longer than the file")
        self.file.seek(count, 1)
