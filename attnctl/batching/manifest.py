"""The manifest of a batch: a line of JSON an item, in the order of the input, that says what became of it.

Results come in the order of the input, so a manifest is always that of a prefix: what follows its last whole line has not
been done. Files are written before their line.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, TypedDict, TypeGuard

from attnctl.files import said_plainly, write_whole
from attnctl.text import as_json

MANIFEST = "manifest.jsonl"


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

    def overwrite_part(self, offset: int, data: bytes) -> None:
        """Write `data` over the bytes from `offset` on, which stand in what is done. Raises AttnctlError where it cannot."""
        with said_plainly("write", self.path), self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def keep_written(self) -> None:
        """All that was written is done."""
        self._kept = self.end

    def close_file(self) -> None:
        """Close the file, without what is not done: half a line after a full disk. After kill -9 the next run cuts it."""
        if self._kept is not None:
            with contextlib.suppress(OSError):
                self.file.truncate(self._kept)
        self.file.close()


class Manifest(AppendedFile):
    """manifest.jsonl, read up to its first line that is not whole."""

    def read_entries(self) -> Iterator[tuple[Entry, int]]:
        """Each entry and where its line ends."""
        self.file.seek(0)
        end = 0
        with open(self.file.fileno(), "rb", closefd=False) as lines:
            for line in lines:
                end += len(line)
                entry = read_entry(line)
                if entry is None:
                    return
                yield entry, end

    def files_between(self, start: int = 0, end: int | None = None) -> Iterator[str]:
        """The names of the files in the lines from `start` to `end`, but for those that grow."""
        for entry, after in self.read_entries():
            if end is not None and after > end:
                return
            if after > start:
                yield from (file["file"] for file in entry.get("files", ()) if "offset" not in file)

    def append_entries(self, entries: Sequence[Entry]) -> None:
        """Append a line an entry; they are done."""
        self.append_bytes(b"".join(as_json(entry) + b"\n" for entry in entries))
        self.keep_written()

    def correct_entries(self, files: Mapping[int, list[FileEntry]]) -> None:
        """Put other files into the entries of these numbers: the manifest is written anew, whole or not at all."""

        def write_lines(out: IO[bytes]) -> None:
            for entry, _ in self.read_entries():
                known = files.get(entry["number"])
                out.write(as_json(entry if known is None else {**entry, "files": known}) + b"\n")

        self.file.flush()
        write_whole(self.path, write_lines)
        self.file.close()
        self.file, self._kept = self.path.open("a+b", buffering=0), None

    def has_no_entry(self) -> bool:
        """Whether nothing stands in it."""
        return not self.file.seek(0, 2)


def file_entry(name: str, data: bytes, offset: int | None = None) -> FileEntry:
    """The entry of a file, or of the part of a file that begins at `offset`."""
    size: FileEntry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {"file": name, **size} if offset is None else {"file": name, "offset": offset, **size}


def read_entry(line: bytes) -> Entry | None:
    """The entry that a line of a manifest holds; None where it is not whole."""
    import orjson

    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return entry if line.endswith(b"\n") and _is_entry(entry) else None


def _is_entry(entry: object) -> TypeGuard[Entry]:
    if not isinstance(entry, dict) or not {"number", "input"} <= entry.keys():
        return False
    files = entry.get("files", [])
    return isinstance(files, list) and all(map(_is_file_entry, files)) and entry.get("status") in ("done", "failed")


def _is_file_entry(file: object) -> bool:
    """Whether an entry's file is said as `file_entry` says it."""
    return (
        isinstance(file, dict)
        and isinstance(file.get("file"), str)
        and "\0" not in file["file"]
        and all(type(size) is int and size >= 0 for size in (file.get("bytes"), file.get("offset", 0)))
    )
