"""Reading and writing files: whole or not at all, and one clear line when it cannot be."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from attnctl.errors import AttnctlError, in_one_line


@contextlib.contextmanager
def said_plainly(doing: str, path: str | Path) -> Iterator[None]:
    """Turn an OSError met while `doing` something to `path` into one line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AttnctlError(f"cannot {doing} {path}: {(error.strerror or str(error)).lower()}") from error


def write_whole(path: str | Path, write: bytes | Callable[[IO[bytes]], Any]) -> None:
    """Put bytes (or what `write` puts into a binary file) at `path`, whole or not at all.

    A temporary file beside it is renamed over it at the end, so a failure leaves what stood there before. A path that is no
    regular file (a device, a named pipe) is written straight. Raises AttnctlError where it cannot be written.
    """
    path = Path(path)
    with said_plainly("write", path):
        if path.exists() and not path.is_file():
            with path.open("wb") as straight:
                _fill(straight, write)
            return
        target = path.resolve()  # a link is written through, not replaced
        temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.part")
        try:
            with temporary.open("xb") as file:
                _fill(file, write)
            if target.exists():
                temporary.chmod(target.stat().st_mode & 0o7777)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _fill(file: IO[bytes], write: bytes | Callable[[IO[bytes]], Any]) -> None:
    if isinstance(write, bytes):
        file.write(write)
    else:
        write(file)
    file.flush()


def check_writable(path: str | Path) -> None:
    """Raise AttnctlError where `path` plainly cannot be written, before long work is done for it."""
    path = Path(path)
    if path.is_dir():
        raise AttnctlError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise AttnctlError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise AttnctlError(f"cannot write {path}: permission denied")


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file, or of standard input for "-". Raises AttnctlError where it cannot be read."""
    with said_plainly("read", path):
        return sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()


def decode(data: bytes, where: str) -> str:
    """UTF-8 text of `data`, a byte-order mark dropped. Raises AttnctlError naming the first bad byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = data[error.start]
        raise AttnctlError(f"{where} is not UTF-8 text: byte 0x{bad:02x} at offset {error.start}") from error


def parse_json(data: bytes | str, source: str) -> Any:
    """JSON of any origin, lone surrogates made readable. Raises AttnctlError naming `source` and the position."""
    import orjson

    try:
        return orjson.loads(data.removeprefix(b"\xef\xbb\xbf") if isinstance(data, bytes) else data)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in str(error):
            raise AttnctlError(f"{source} is not JSON: {error}") from error
    import json  # reads what orjson refuses; the halves become U+FFFD

    try:
        loaded = json.loads(data, parse_constant=_refuse_constant)
        text = json.dumps(loaded, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AttnctlError(f"{source} is not JSON: {in_one_line(error)}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")
