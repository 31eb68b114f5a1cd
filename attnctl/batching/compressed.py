"""Files as streams of bytes: a path or standard input, with gzip or zstd taken off as they are read."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Callable
from typing import IO, Any, cast

from attnctl.files import need_pyarrow, open_regular

DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)  # what reading a damaged compressed file raises


def open_stream(path: str) -> IO[bytes]:
    """A regular file, or of "-" a stream on standard input that leaves it open. Raises AttnctlError for no regular file."""
    if path != "-":
        return open_regular(path)
    if _real_stdin():
        return open(0, "rb", closefd=False)  # noqa: SIM115
    return io.BufferedReader(_SmallReads(sys.stdin.buffer.read, 8192))


def _real_stdin() -> bool:
    try:
        return sys.stdin.fileno() == 0
    except (OSError, AttributeError):
        return False


def first_bytes(file: IO[bytes]) -> bytes:
    """The first bytes of a buffered file, still to be read."""
    return cast(io.BufferedReader, file).peek(64)[:64]


def decompressed(raw: IO[bytes], name: str) -> IO[bytes]:
    """The file with gzip or zstd taken off, told by its first bytes. Reading on may raise one of DAMAGE."""
    magic = first_bytes(raw)[:4]
    if magic[:2] == b"\x1f\x8b":
        return io.BufferedReader(_SmallReads(gzip.GzipFile(fileobj=raw).read1, 8192))
    if magic == b"\x28\xb5\x2f\xfd":
        need_pyarrow(f"{name} is zstd, which")
        import pyarrow as pa

        return io.BufferedReader(_SmallReads(pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd").read, 256))
    return raw


class _SmallReads(io.RawIOBase):
    """A decompressed stream, read a little at a time: what stands before a damage is handed out before the error is."""

    def __init__(self, read_some: Callable[[int], bytes], most: int) -> None:
        self.read_some, self.most = read_some, most

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, into: Any) -> int:
        """Bytes read into a buffer, `most` at most; 0 at the end."""
        data = self.read_some(min(len(into), self.most))
        into[: len(data)] = data
        return len(data)
