"""A GGUF file's metadata walked through before the library parses it: every length it claims is held against its size."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import IO

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.files import check_regular, open_regular

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
STRING, ARRAY = 8, 9
NESTED = 4  # arrays in arrays


def check_header(path: Path) -> None:
    """Raise AttnctlError where a GGUF file (versions 2 and 3 of ggml's gguf.md) claims what it cannot hold."""
    size = check_regular(path)
    with open_regular(path) as file:
        try:
            _Header(file, size).walk()
        except (ValueError, struct.error) as error:
            what = "it is cut short" if isinstance(error, struct.error) else error
            raise AttnctlError(f"cannot read {path}: it is no sound GGUF file: {what}") from error


class _Header:
    """A walk through the metadata; it counts what it meets."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.size, self.met = file, size, 0

    def walk(self) -> None:
        magic, version, tensors, entries = struct.unpack("<4sIQQ", self._read(24))
        if magic != b"GGUF" or not 2 <= version <= 3:
            raise ValueError("it is none, or of another version than 2 and 3")
        self._count(tensors, 24)
        self._count(entries, 12)
        for _ in range(entries):
            self._skip(self._number())
            self._value(*struct.unpack("<I", self._read(4)))
        for _ in range(tensors):
            self._skip(self._number())
            (axes,) = struct.unpack("<I", self._read(4))
            if axes > limits.ARRAY_AXES:
                raise ValueError(f"a tensor has {axes} axes")
            self._skip(8 * axes + 12)

    def _value(self, kind: int, depth: int = 0) -> None:
        if kind == STRING:
            self._skip(self._number())
        elif kind == ARRAY and depth < NESTED:
            inner, count = struct.unpack("<IQ", self._read(12))
            self._count(count, SIZES.get(inner, 8))
            if inner in SIZES:
                self._skip(SIZES[inner] * count)
            else:
                for _ in range(count):
                    self._value(inner, depth + 1)
        elif kind in SIZES:
            self._skip(SIZES[kind])
        else:
            raise ValueError(f"a value has the type {kind}")

    def _count(self, count: int, least: int) -> None:
        """Count entries of `least` bytes or more each. Raises ValueError where they cannot be there."""
        self.met += count
        if count * least > self.size - self.file.tell():
            raise ValueError(f"it claims {count:,} entries where {self.size - self.file.tell():,} bytes are left")
        if self.met > limits.GGUF_ENTRIES:
            raise ValueError(f"it claims more than {limits.GGUF_ENTRIES:,} entries")

    def _number(self) -> int:
        (number,) = struct.unpack("<Q", self._read(8))
        return int(number)

    def _read(self, count: int) -> bytes:
        return self.file.read(count)

    def _skip(self, count: int) -> None:
        if count > self.size - self.file.tell():
            raise ValueError("its metadata is longer than the file")
        self.file.seek(count, 1)
