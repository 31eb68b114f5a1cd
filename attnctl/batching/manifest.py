"""run.json: what a batch was asked for, so that going on with something else is refused, and which items are done."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict, TypeGuard

from attnctl.errors import AttnctlError, UsageError
from attnctl.files import said_plainly, write_whole
from attnctl.text import as_json

if TYPE_CHECKING:
    from attnctl.text import Document


RUN = "run.json"
SCHEMA = "attnctl.batch/1"
WEIGHTS = (".safetensors", ".npz", ".gguf")


def check_run(folder: Path, said: Document, *, is_new: bool) -> None:
    """Hold `said`, what is asked for now, against the folder's run.json; a new folder gets one.

    Raises AttnctlError where it is damaged, UsageError where the folder holds a batch of something else.
    """
    import orjson

    from attnctl import __version__

    run = folder / RUN
    said = orjson.loads(as_json(said))
    weights = fingerprint_model(said["model"].get("name"))
    if not run.exists():
        if not is_new:
            raise UsageError(f"{folder} has a manifest but no run.json: give a new folder")
        document = {"schema": SCHEMA, "attnctl": __version__, "said": said, "weights": weights}
        write_whole(run, orjson.dumps(orjson.loads(as_json(document)), option=orjson.OPT_INDENT_2) + b"\n")
        return
    try:
        before = orjson.loads(run.read_bytes())
    except orjson.JSONDecodeError:
        before = None
    theirs = before.get("said") if isinstance(before, dict) else None
    if not isinstance(before, dict) or not isinstance(theirs, dict) or not isinstance(theirs.get("input", []), list):
        raise AttnctlError(f"{run} is damaged: give a new folder")
    theirs = said | theirs  # older runs do not say all
    if before.get("schema") != SCHEMA:
        raise AttnctlError(f"{run} has schema {before.get('schema')!r}; this attnctl writes {SCHEMA!r}")
    if theirs["input"] != said["input"]:
        paths = (os.path.normpath(folder / str(path)) if path != "-" else "standard input" for path in theirs["input"])
        raise UsageError(f"{folder} holds results of {', '.join(paths)}: give a new folder, or --replace")
    if theirs != said:
        names = sorted(name for name in theirs if theirs[name] != said.get(name))
        raise UsageError(f"{folder} holds a batch that differs in {', '.join(names)}: give a new folder, or --replace")
    if before.get("weights", weights) != weights:
        raise UsageError(f"{folder} holds a batch with other files of the model: give a new folder, or --replace")


def input_paths(paths: Iterable[str], folder: str | Path) -> list[str]:
    """The files of an input as they are seen from the folder of its results; "-" for standard input."""
    return [
        path if path == "-" else os.path.relpath(os.path.realpath(path), os.path.realpath(folder)) for path in paths
    ]


def fingerprint_model(name: str | None) -> str | None:
    """A hash of names, sizes and times of the files that a model is read from; None where its name is no path."""
    from attnctl.models import REGISTRY
    from attnctl.models.huggingface.hub import KNOWN

    if name is None or name in REGISTRY or name in KNOWN or not (path := Path(name)).exists():
        return None
    with said_plainly("read", path):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        kept = [
            (file.name, (stat := file.stat()).st_size, stat.st_mtime_ns)
            for file in files
            if (file.suffix.lower() in WEIGHTS or file.name in ("config.json", "tokenizer.json")) and file.is_file()
        ]
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]


MANIFEST = "manifest.jsonl"
PIECE_BYTES = 1 << 20  # of a file that are read at a time


class FileEntry(TypedDict, total=False):
    """A file of an item, or of its group: its name in the folder, its size, and where in it the item's part begins."""

    file: str
    offset: int  # only of a file that grows
    bytes: int
    sha256: str


class Entry(TypedDict, total=False):
    """One line of a manifest."""

    number: int
    id: str | int
    status: Literal["done", "failed"]
    where: str
    error: str
    input: str  # the item's fingerprint
    time: str
    seconds: float
    tokens: int
    files: list[FileEntry]
    group: int  # of the last line of a group: how many lines it has


class Group(NamedTuple):
    """Entries that were done together, and the bytes of the manifest that hold them."""

    entries: list[Entry]
    start: int
    end: int


class AppendedFile:
    """A file that grows at its end and is cut back to where what is done ends."""

    def __init__(self, path: Path) -> None:
        self.path, self.end = path, 0
        self.file = path.open("a+b", buffering=0)
        self._kept: int | None = None  # where what is done ends; None before anybody knows

    def append_bytes(self, data: bytes) -> None:
        """Write all of `data`. Raises AttnctlError where the disk is full, or the file was removed; `end` is as it was."""
        view = memoryview(data)
        with said_plainly("write", self.path):
            while view:
                view = view[self.file.write(view) :]
            self.path.stat()  # what is written to a file that was removed is lost without a word
        self.end += len(data)

    def cut_after(self, end: int) -> None:
        """Forget what stands after `end`; what stands before it is done."""
        self.file.truncate(end)
        self.end = self._kept = end

    def keep_written(self) -> None:
        """All that was written is done."""
        self._kept = self.end

    def close_file(self) -> None:
        """Close the file, without what is not done: half a line after a full disk. After kill -9 the next run cuts it."""
        if self._kept is not None:
            with contextlib.suppress(OSError):
                self.file.truncate(self._kept)
        self.file.close()


def read_groups(path: Path, end: int, *, single: bool) -> Iterator[Group]:
    """The groups in the first `end` bytes of a manifest, lines that are none passed over; `single`: each line is one."""
    group: list[tuple[Entry, int]] = []
    at = 0
    with path.open("rb") as lines:
        for line in lines:
            start, at = at, at + len(line)
            if at > end:
                return
            if (entry := read_entry(line)) is None:
                group = []
                continue
            group.append((entry, start))
            count = 1 if single else entry.get("group", 0)
            if count and len(group) >= count:  # more are left of a run that was killed as it wrote them
                yield Group([entry for entry, _ in group[-count:]], group[-count][1], at)
            if count:
                group = []


def file_entry(name: str, data: bytes, offset: int | None = None) -> FileEntry:
    """The entry of a file, or of the part of a file that begins at `offset`."""
    size: FileEntry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"file": name, **size} if offset is None else {"file": name, "offset": offset, **size}


def is_as_written(folder: Path, file: FileEntry) -> bool:
    """Whether a file of the folder, or the part of it that is an item's, is to the byte what was written."""
    try:
        opened = os.open(folder / file["file"], os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
    except OSError:
        return False
    try:
        found, offset = os.fstat(opened), file.get("offset", 0)
        fits = found.st_size >= offset + file["bytes"] if "offset" in file else found.st_size == file["bytes"]
        return stat.S_ISREG(found.st_mode) and fits and _digest(opened, offset, file["bytes"]) == file.get("sha256")
    except OSError:
        return False
    finally:
        os.close(opened)


def _digest(opened: int, offset: int, size: int) -> str:
    """SHA-256 of `size` bytes of an open file, from `offset` on."""
    found = hashlib.sha256()
    while size and (piece := os.pread(opened, min(size, PIECE_BYTES), offset)):
        found.update(piece)
        size, offset = size - len(piece), offset + len(piece)
    return found.hexdigest()


def read_entry(line: bytes) -> Entry | None:
    """The entry that a line of a manifest holds; None where it is not whole."""
    import orjson

    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return entry if line.endswith(b"\n") and _is_entry(entry) else None


def _is_entry(entry: object) -> TypeGuard[Entry]:
    return (
        isinstance(entry, dict)
        and _is_count(entry.get("number"))
        and _is_count(entry.get("group", 0))
        and isinstance(entry.get("input"), str)
        and entry.get("status") in ("done", "failed")
    )


def has_files(entry: Entry) -> bool:
    """Whether an entry's files are said as `file_entry` says them."""
    files: object = entry.get("files", [])
    return isinstance(files, list) and all(
        isinstance(file, dict)
        and isinstance(file.get("file"), str)
        and "\0" not in file["file"]
        and _is_count(file.get("bytes"))
        and _is_count(file.get("offset", 0))
        for file in files
    )


def _is_count(number: object) -> bool:
    return type(number) is int and number >= 0
