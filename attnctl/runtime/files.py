"""Read and write files: whole or not at all, with one clear line if that is impossible."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line, waiting
from attnctl.runtime.interrupts import removed_at_end, tidied_up
from attnctl.text import visible_text

if TYPE_CHECKING:
    from io import BufferedReader

    from filelock import BaseFileLock

# other things at a path than a file, which are not read
KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, 'a named pipe: write "-" and pipe into it'),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)
LOCK = ".lock"  # the lock file of a folder, held by the process that writes there
OPEN_ALREADY = ("/dev/fd/", "/proc/self/fd/")


@contextlib.contextmanager
def said_plainly(doing: str, path: str | Path) -> Iterator[None]:
    """Turn an OSError while `doing` something to `path`, or an impossible file name, into one line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except UnicodeEncodeError:
        _check_name(doing, path)
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AttnctlError(f"cannot {doing} {path}: {reason}", value=path) from error


def write_whole(path: str | Path, write: bytes | Callable[[IO[bytes]], object], *, inside: Path | None = None) -> None:
    """Write bytes (or what `write` writes into a binary file) to `path`, whole or not at all.

    A temporary file beside it is renamed to it at the end, so a failure leaves the earlier file; its permissions stay. A
    path that is not a regular file (a device, a named pipe) is written directly, and a link is written through. `inside` a
    folder that this program fills, the file replaces a link, and no link on the way there is followed. Raises AttnctlError
    if it cannot be written.
    """
    path = Path(path)
    _check_name("write", path)
    if inside is not None:
        check_no_links(path.parent, inside)
    with said_plainly("write", path):
        if inside is not None and path.is_symlink():
            path.unlink()
        if path.exists() and not path.is_file():
            with open(path, "wb", opener=_opened_for_reader) as straight:  # noqa: PTH123
                _fill_file(straight, write)
            return
        path.parent.stat()  # raises for a loop of links
        with contextlib.suppress(FileNotFoundError):
            path.stat()
        target = path if inside is not None else Path(os.path.realpath(path))
        mode = target.stat().st_mode & 0o7777 if target.exists() else None
        temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.part")
        try:
            with removed_at_end(temporary):
                opener = None if mode is None else lambda name, flags: os.open(name, flags, mode & 0o777)
                with tidied_up(), open(temporary, "xb", opener=opener) as file:  # noqa: PTH123
                    _fill_file(file, write)
                if mode is not None:
                    temporary.chmod(mode)
                temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


TEMPORARY = re.compile(
    r"\.(.+)\.[0-9a-f]{8}\.part"
)  # the name of a temporary file of `write_whole`, around the file's name


def check_no_links(path: Path, inside: Path) -> None:
    """Raise AttnctlError if `path`, or a folder between it and the folder `inside`, is a link."""
    while path != inside:
        if path.is_symlink():
            raise AttnctlError(f"{path} is a link, which is not followed: give a new folder")
        path = path.parent


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file of a folder that this program fills, unbuffered and at its end. Raises AttnctlError if it is a link."""
    check_no_links(path, path.parent)
    with said_plainly("write", path):
        return open(  # noqa: PTH123
            path,
            "a+b",
            buffering=0,
            opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666),
        )


def _opened_for_reader(path: str, flags: int) -> int:
    """Return a file descriptor for writing; for a named pipe wait for a reader, limits.READER_SECONDS at most.

    Raises OSError if no reader comes: the system itself would wait for ever.
    """
    if not stat.S_ISFIFO(Path(path).stat().st_mode) or path.startswith(OPEN_ALREADY):
        return os.open(path, flags)
    end = time.monotonic() + limits.READER_SECONDS
    while True:
        try:
            opened = os.open(path, flags | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(errno.ENXIO, "nothing reads from this named pipe", path) from None
            time.sleep(0.02)
        else:
            os.set_blocking(opened, True)
            return opened


def _fill_file(file: IO[bytes], write: bytes | Callable[[IO[bytes]], object]) -> None:
    if isinstance(write, bytes):
        file.write(write)
    else:
        write(file)
    file.flush()


def state_of_files(path: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, sizes and times of a file, or of the files of a folder: they change with it. () if it does not exist."""
    try:
        top = Path(path)
        files = [top, *(sorted(islice(top.rglob("*"), limits.WATCHED_FILES)) if top.is_dir() else ())]
        return tuple((str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in files)
    except (OSError, ValueError):  # it is not a file name, or the file was removed
        return ()


def check_writable(path: str | Path) -> None:
    """Raise AttnctlError if `path` clearly cannot be written, before long work is done for it."""
    path = Path(path)
    _check_name("write", path)
    if path.is_dir():
        raise AttnctlError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise AttnctlError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise AttnctlError(f"cannot write {path}: permission denied")


def is_possible_name(path: str | Path) -> bool:
    """Return whether a file can have this name: no NUL in it, and no half of a character."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def _check_name(doing: str, path: str | Path) -> None:
    """Raise AttnctlError if no file can have this name."""
    if not is_possible_name(path):
        raise AttnctlError(f"cannot {doing} {visible_text(str(path))}: no file has such a name")


def check_regular(path: str | Path) -> int:
    """Return the size in bytes of a regular file. Raises AttnctlError for a folder, a pipe, a device or a loop of links.

    A pipe that is open already (/dev/fd/63, as the shell's <(…) makes it) is accepted: it has a writer, and an end.
    """
    _check_name("read", path)
    with said_plainly("read", path):
        state = Path(path).stat()
    if stat.S_ISREG(state.st_mode) and state.st_dev in _systems_own():
        raise AttnctlError(f"cannot read {path}: it is a file of the system's own")
    if stat.S_ISREG(state.st_mode) or (stat.S_ISFIFO(state.st_mode) and str(path).startswith(OPEN_ALREADY)):
        return state.st_size
    kind = next((words for is_kind, words in KINDS if is_kind(state.st_mode)), "no regular file")
    raise AttnctlError(f"cannot read {path}: it is {kind}")


def _systems_own() -> set[int]:
    """Return the devices of files that the system makes up: some claim terabytes, some never end."""
    devices = set()
    for folder in ("/proc", "/sys"):
        with contextlib.suppress(OSError):
            if (device := Path(folder).stat().st_dev) != Path("/").stat().st_dev:
                devices.add(device)
    return devices


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading. Raises AttnctlError if it is not one, cannot be read, or stands for another."""
    check_regular(path)
    with said_plainly("read", path):
        file = Path(path).open("rb")  # noqa: SIM115 the caller closes it
    try:
        _check_fetched(file, path)
    except BaseException:
        file.close()
        raise
    return file


POINTER = b"version https://git-lfs.github.com/spec/"  # how the file of a Git LFS clone begins that was not fetched


def _check_fetched(file: BufferedReader, path: str | Path) -> None:
    """Raise AttnctlError if an open file is a pointer of Git LFS; it stays at its beginning, and a pipe is not looked at."""
    if not file.seekable():
        return
    with said_plainly("read", path):
        begins = file.raw.read(len(POINTER))  # past the buffer: what it kept now may have changed when the file is read
        file.raw.seek(0, os.SEEK_SET)
    if begins.startswith(POINTER):
        raise AttnctlError(
            f"cannot read {path}: it is a pointer of Git LFS, not the file itself: git lfs pull fetches it"
        )


def read_bytes(path: str | Path, max_bytes: int = limits.DATA_BYTES) -> bytes:
    """Return the bytes of a regular file, `max_bytes` at most, or of standard input for "-".

    Raises AttnctlError if it cannot be read, is larger, or would fill the memory.
    """
    if str(path) == "-":
        return read_standard_input(lambda _: max_bytes)
    size = check_regular(path)
    check_size(size, max_bytes, str(path))
    limits.check_memory(2.0 * size, f"reading {path}", "give a smaller file")
    with open_regular(path) as file, said_plainly("read", path):
        return _read_at_most(file, lambda _: max_bytes, str(path))


def read_standard_input(most_of: Callable[[bytes], int]) -> bytes:
    """Return the bytes of standard input; `most_of` its first megabyte is the limit.

    Raises AttnctlError if there are more.
    """
    if sys.stdin.isatty():
        waiting.close()
    with said_plainly("read", "standard input"):
        return _read_at_most(sys.stdin.buffer, most_of, "standard input")


def standard_input_is_piped() -> bool:
    """Return whether standard input is a pipe or a file; a command without other input reads it."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or not a file of the system
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_at_most(file: IO[bytes], limit_of: Callable[[bytes], int], where: str) -> bytes:
    whole, limit = io.BytesIO(), 0
    while piece := file.read(1 << 20):
        limit = limit or limit_of(piece)
        whole.write(piece)
        check_size(whole.tell(), limit, where)
    return whole.getvalue()


def check_size(size: int, max_bytes: int, where: str) -> None:
    """Raise AttnctlError if an input has more than `max_bytes` bytes."""
    if size > max_bytes:
        raise AttnctlError(f"{where} is larger than the {limits.bytes_text(max_bytes)} that are read of such input")


def decode_text(data: bytes, where: str) -> str:
    """Return `data` as UTF-8 text, without a byte-order mark. Raises AttnctlError that names the first bad byte."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = data[error.start]
        raise AttnctlError(f"{where} is not UTF-8 text: byte 0x{bad:02x} at offset {error.start}") from error


def check_json_memory(data: bytes | str, source: str) -> None:
    """Raise AttnctlError if JSON would fill the memory when it is read: "[]," takes 72 bytes there."""
    if len(data) < limits.ALWAYS_FREE_BYTES // 100:
        return
    text = data if isinstance(data, bytes) else data.encode(errors="surrogatepass")
    need = len(text) + 32.0 * text.count(b",") + 72.0 * text.count(b"[") + 200.0 * text.count(b"{")
    limits.check_memory(need, f"reading {source}", "give a smaller file")


def parse_json(data: bytes | str, source: str) -> Any:
    """Return the value of JSON from any source; lone surrogates become readable.

    Raises AttnctlError with `source` and the position, or if it would fill the memory.
    """
    import orjson

    check_json_memory(data, source)
    try:
        return orjson.loads(data.removeprefix(b"\xef\xbb\xbf") if isinstance(data, bytes) else data)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in str(error):
            raise AttnctlError(f"{source} is not JSON: {error}") from error
    import json  # json reads what orjson refuses; halves of pairs become U+FFFD

    try:
        loaded = json.loads(data, parse_constant=_refuse_constant)
        text = json.dumps(loaded, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnicodeDecodeError) and isinstance(data, bytes):
            decode_text(data, source)  # raises with the bad byte
        raise AttnctlError(f"{source} is not JSON: {in_one_line(error)}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def need_pyarrow(what: str) -> None:
    """Raise AttnctlError if pyarrow, which `what` needs, is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise AttnctlError(f"{what} needs pyarrow: pip install 'attnctl[batch]'") from None


def lock_folder(folder: Path) -> BaseFileLock:
    """Return the lock of a folder, held until it is released or this process ends in any way.

    Raises AttnctlError if another process holds it.
    """
    return _lock(folder / LOCK, folder, "folder", 0)


def lock_file(path: Path, seconds: float = 0) -> BaseFileLock:
    """Return the lock of a file, in a file beside it, as `lock_folder`; wait for it up to `seconds`."""
    target = Path(os.path.realpath(path))  # two links to one file share a lock
    return _lock(target.with_name(f".{target.name[:100]}{LOCK}"), path, "file", seconds)


def _lock(lock_path: Path, locked: Path, kind: str, seconds: float) -> BaseFileLock:
    from filelock import FileLock, Timeout

    # a soft lock (the existence of a file) would outlive a process that is killed
    lock = FileLock(lock_path, timeout=seconds, fallback_to_soft=False)
    with said_plainly("lock", locked):
        try:
            lock.acquire()
        except Timeout:
            raise AttnctlError(
                f"{locked} is being written by another run: wait for it, or give another {kind}"
            ) from None
    return lock


_PICTURE = re.compile(r"\S.*\.(jpe?g|png|webp|bmp|tiff?|gif)", re.IGNORECASE)
SOUND = re.compile(r"\S.*\.(wav|flac|ogg|opus|mp3|aif[fc]?|caf|au)", re.IGNORECASE)


def names_picture(text: str) -> bool:
    """Return whether a text is the name of an existing picture file."""
    return _names_file(text, _PICTURE)


def names_sound(text: str) -> bool:
    """Return whether a text is the name of an existing sound file."""
    return _names_file(text, SOUND)


def _names_file(text: str, called: re.Pattern[str]) -> bool:
    if len(text) > limits.NAME_BYTES or not called.fullmatch(text):
        return False
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False
