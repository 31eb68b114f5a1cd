"""Read and write run.json (the request of a batch) and manifest.jsonl (a line for each text, with its own check)."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.formats.documents.model_documents import ManifestFile, ManifestLine
from attnctl.runtime.files import open_to_append, said_plainly, write_whole
from attnctl.text import as_json

if TYPE_CHECKING:
    from attnctl.text import Document

MANIFEST, RUN = "manifest.jsonl", "run.json"
SCHEMA = "attnctl.batch/2"
WEIGHTS = (".safetensors", ".npz", ".gguf")
PIECE_BYTES = 1 << 20  # of a file, read at a time


def check_run(folder: Path, request: Document, *, is_new: bool) -> bytes:
    """Compare the `request` with run.json, which a new folder gets; return the key of the manifest's lines.

    Raises AttnctlError if run.json is damaged, UsageError if the folder holds another batch.
    """
    import orjson

    from attnctl.version import __version__

    run = folder / RUN
    request = orjson.loads(as_json(request))
    decides: Document = {"said": request, "weights": fingerprint_model(request["model"].get("name"))}
    if not run.exists():
        if not is_new:
            raise UsageError(f"{folder} has a manifest but no run.json: give a new folder")
        document = {"schema": SCHEMA, "attnctl": __version__} | decides
        write_whole(run, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n", inside=folder)
    try:
        before = orjson.loads(run.read_bytes())
        schema, earlier = before["schema"], before["said"]
        names = sorted(name for name in earlier | request if earlier.get(name) != request.get(name))
        paths = [str(path) for path in earlier["input"]]
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        raise AttnctlError(f"{run} is damaged: give a new folder") from None
    new = f"give a new folder, or {option_name('replace', True)}"
    if schema != SCHEMA:
        raise AttnctlError(f"{run} has schema {schema!r}; this attnctl writes {SCHEMA!r}: {new}")
    if "input" in names:
        of = ", ".join(os.path.normpath(folder / path) if path != "-" else "standard input" for path in paths)
        raise UsageError(f"{folder} holds results of {of}: {new}")
    if names:
        raise UsageError(f"{folder} holds a batch that differs in {', '.join(names)}: {new}")
    if before.get("weights") != decides["weights"]:
        raise UsageError(f"{folder} holds a batch with other files of the model: {new}")
    return as_json(decides)


def input_paths(paths: Iterable[str], folder: str | Path) -> list[str]:
    """Return the input files relative to the folder of their results; "-" for standard input."""
    with said_plainly("write", folder):
        whole = os.path.realpath(folder)
    return [path if path == "-" else os.path.relpath(os.path.realpath(path), whole) for path in paths]


def fingerprint_model(name: str | None) -> str | None:
    """Return a hash of names, sizes and times of the model's files; None if `name` is not a path."""
    from attnctl.models import BUILT_IN
    from attnctl.models.gguf.ollama import SCHEME, find_model
    from attnctl.models.huggingface.hub import known_checkpoint

    if name is None or name in BUILT_IN or known_checkpoint(name):
        return None
    path = find_model(name).path if name.startswith(SCHEME) else Path(name)
    if not path.exists():
        return None
    with said_plainly("read", path):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        states = [
            (file.name, (state := file.stat()).st_size, state.st_mtime_ns)
            for file in files
            if (file == path or file.suffix.lower() in WEIGHTS or file.name in ("config.json", "tokenizer.json"))
            and file.is_file()
        ]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


# --- lines --------------------------------------------------------------------------------------------------------

SEAL = b',"check":"'  # begins the last field of a line: the check of everything before it and of the key


def sealed_line(entry: ManifestLine, key: bytes) -> bytes:
    """Return a line of a manifest, with a check of its content."""
    body = as_json(msgspec.to_builtins(entry)).removesuffix(b"}")
    return body + SEAL + _check_of(body, key)


def read_line(line: bytes, key: bytes) -> ManifestLine | None:
    """Return the content of a line; None if it is not exactly what was written with this key."""
    body, _, check = line.rpartition(SEAL)
    return msgspec.json.decode(body + b"}", type=ManifestLine) if check == _check_of(body, key) else None


def _check_of(body: bytes, key: bytes) -> bytes:
    return hashlib.sha256(key + body).hexdigest()[:16].encode() + b'"}\n'


class ManifestGroup(NamedTuple):
    """Entries that were done together, and the bytes of the manifest that they are in."""

    entries: list[ManifestLine]
    start: int
    end: int

    @property
    def files(self) -> list[ManifestFile]:
        """Return the files of all entries."""
        return [file for entry in self.entries for file in entry.files]


def read_groups(path: Path, key: bytes, *, end: int | None = None, single: bool) -> Iterator[ManifestGroup]:
    """Yield the whole groups of a manifest, up to byte `end`; with `single` each line is a group."""
    entries: list[tuple[ManifestLine, int]] = []
    position = 0
    with path.open("rb") as lines:
        while (end is None or position < end) and (line := lines.readline(limits.LINE_BYTES)):
            start, position = position, position + len(line)
            if (entry := read_line(line, key)) is None:
                entries = []
                continue
            entries.append((entry, start))
            count = 1 if single else entry.group or 0
            if count and len(entries) >= count:  # more entries remain if a run was killed while it wrote them
                yield ManifestGroup([entry for entry, _ in entries[-count:]], entries[-count][1], position)
            if count:
                entries = []


# --- files --------------------------------------------------------------------------------------------------------


class AppendedFile:
    """A file that grows at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open_to_append(path)
        self.end = self.file.seek(0, os.SEEK_END)
        self._waiting: list[bytes] = []  # of this many bytes, not written yet
        self._bytes_waiting = 0

    def add_bytes(self, data: bytes) -> int:
        """Keep `data` until `write_added`: one write for many texts. Return the place that it will have in the file."""
        place = self.end + self._bytes_waiting
        self._waiting.append(data)
        self._bytes_waiting += len(data)
        return place

    def write_added(self) -> None:
        """Write what was added, or nothing. Raises AttnctlError if the disk is full or the file was removed."""
        waiting, self._waiting, self._bytes_waiting = self._waiting, [], 0
        if waiting:
            self.append_bytes(b"".join(waiting))

    def append_bytes(self, data: bytes) -> None:
        """Write all of `data`, or nothing. Raises AttnctlError if the disk is full or the file was removed."""
        view = memoryview(data)
        try:
            with said_plainly("write", self.path):
                while view:
                    view = view[self.file.write(view) :]
                self.path.stat()  # raises if the file was removed: writing to it would lose data silently
        except BaseException:
            self.cut_after(self.end)
            raise
        self.end += len(data)

    def cut_after(self, end: int) -> None:
        """Remove the bytes from `end` on."""
        self.file.truncate(end)
        self.end = end

    def close_file(self) -> None:
        """Close the file."""
        self.file.close()


def is_as_written(folder: Path, file: ManifestFile) -> bool:
    """Return whether a file of the folder, or an item's part of it, has exactly the bytes that were written."""
    try:
        # O_NONBLOCK: do not wait for a pipe
        with open(folder / file.file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:  # noqa: PTH123
            state = os.fstat(opened.fileno())
            if not stat.S_ISREG(state.st_mode) or (file.offset is None and state.st_size != file.bytes):
                return False
            opened.seek(file.offset or 0)
            digest, remaining = hashlib.sha256(), file.bytes
            while remaining and (piece := opened.read(min(remaining, PIECE_BYTES))):
                digest.update(piece)
                remaining -= len(piece)
            return digest.hexdigest() == file.sha256
    except OSError:
        return False
