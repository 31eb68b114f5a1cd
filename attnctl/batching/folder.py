"""The folder that a batch is written to: its manifest, what it takes to go on after any interruption, and the lock.

Results come in the order of the input, so the manifest is always that of a prefix: what follows its last whole line has not
been done. Files are written before their line; the files that grow are cut back to where the last line says they end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Protocol

from attnctl.batching.items import Item
from attnctl.batching.work import Result
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import locked, said_plainly, write_whole
from attnctl.formats.pictures import format_names
from attnctl.text import as_json

SCHEMA = "attnctl.batch/1"
GROUP = 192  # items that are done or not done together, where a format holds many in one file
LINES = {"json": "traces.jsonl"}  # formats that grow by a line an item
FILES = (*format_names(), "npz")  # formats with a file an item
WEIGHTS = (".safetensors", ".npz", ".gguf")

Entry = dict[str, Any]


class Writer(Protocol):
    """A format that holds many items in a file, whose name begins with `prefix`; it is written before they count as done."""

    prefix: str

    def add(self, result: Result) -> Iterator[tuple[str, bytes]]:
        """Take an item in; the files that are full."""

    def end(self) -> Iterator[tuple[str, bytes]]:
        """The files that are left at the end of a group."""

    def finish(self, folder: Path, files: Sequence[str]) -> None:
        """What is made of all files, in their order, at the end of the run."""


class Folder:
    """A folder being written by this process alone; to be used in a `with`.

    `said` is what decides the outcome (formats, model, look): going on with something else is refused. `together`: how many
    items, from a multiple of it on, are done or not done as one. Raises
    AttnctlError where another run writes it, UsageError where it holds something else.
    """

    def __init__(
        self,
        path: str | Path,
        said: dict[str, Any],
        formats: Sequence[str],
        writers: Sequence[Writer] = (),
        together: int = 1,
    ) -> None:
        self.path, self.said, self.writers = Path(path), said, writers
        self._size = GROUP if writers else together  # of a group
        self.formats = formats
        self.done = self.failed = 0  # in this run
        self.kept = self.failed_before = 0
        self._grows = {LINES[form]: form for form in self._growing()}
        self._ends: dict[str, int] = {}  # where the files that grow end
        self._safe: tuple[int, dict[str, int]] | None = None  # where manifest and files end, as far as they are done
        self._again: set[int] = set()  # items done before whose own files went missing
        self._group: list[Entry] = []  # of items whose group is not full
        self._shared: list[Entry] = []  # files of the group that is not full

    # --- opening and closing ---------------------------------------------------------------------------------------

    def __enter__(self) -> Folder:
        with said_plainly("write", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            manifest, run = self.path / "manifest.jsonl", self.path / "run.json"
            if not manifest.exists() and any(name.name != "run.json" for name in self.path.iterdir()):
                raise UsageError(f"{self.path} is not empty and holds no batch: give a new folder")
            for path in (manifest, run, *(self.path / LINES[form] for form in self._growing())):
                if path.exists() and not path.is_file():  # a pipe would be waited for
                    raise AttnctlError(f"{path} is no regular file: give a new folder")
            self._manifest = manifest.open("a+b", buffering=0)
            try:
                if not locked(self._manifest):
                    raise AttnctlError(
                        f"{self.path} is being written by another run: wait for it, or give another folder"
                    )
                self._compare(run)
                for part in (self.path / ".part", *self.path.glob(".*.part")):  # of a run that was killed as it wrote
                    part.unlink(missing_ok=True)
                self._lines = {form: (self.path / LINES[form]).open("a+b", buffering=0) for form in self._growing()}
            except BaseException:
                self._manifest.close()
                raise
        return self

    def __exit__(self, *error: Any) -> None:
        with contextlib.suppress(OSError):
            if self._safe is not None:  # half a line after a full disk; what follows kill -9 is cut by the next run
                self._manifest.truncate(self._safe[0])
                for form, file in self._lines.items():
                    file.truncate(self._safe[1][form])
        for file in self._lines.values():
            file.close()
        self._manifest.close()  # and the lock goes with it

    def _growing(self) -> list[str]:
        return [form for form in self.formats if form in LINES]

    def _compare(self, run: Path) -> None:
        """Going on is for the same work: run.json says what it is."""
        import orjson

        from attnctl import __version__

        said = orjson.loads(as_json(self.said))
        weights = _model_files(said["model"].get("name"))
        if run.exists():
            try:
                before = orjson.loads(run.read_bytes())
            except orjson.JSONDecodeError:
                before = None
            theirs = before.get("said") if isinstance(before, dict) else None
            if not isinstance(before, dict) or not isinstance(theirs, dict):
                raise AttnctlError(f"{run} is damaged: give a new folder")
            if before.get("schema") != SCHEMA:
                raise AttnctlError(f"{run} has schema {before.get('schema')!r}; this attnctl writes {SCHEMA!r}")
            if theirs != said:
                names = sorted(name for name in {*theirs, *said} if theirs.get(name) != said.get(name))
                raise UsageError(f"{self.path} holds a batch with another {', '.join(names)}: give a new folder")
            if before.get("weights", weights) != weights:  # older runs do not say
                raise UsageError(f"{self.path} holds a batch with other files of the model: give a new folder")
        elif self._manifest.seek(0, 2):
            raise UsageError(f"{self.path} has a manifest but no run.json: give a new folder")
        else:
            document = {"schema": SCHEMA, "attnctl": __version__, "said": said, "weights": weights}
            write_whole(run, orjson.dumps(orjson.loads(as_json(document)), option=orjson.OPT_INDENT_2) + b"\n")

    # --- what is there already ------------------------------------------------------------------------------------

    def missing(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items that are still to be done; the rest is found in the manifest, item by item.

        Where an item is not what it was, everything from there on is done again.
        """
        self._ends = dict.fromkeys(self._lines, 0)
        mark, group = (0, dict(self._ends), 0, 0), list[Item]()
        entries, items = self._entries(), iter(items)
        end, entry, done = 0, None, False
        for item in items:
            if item.number % self._size == 0:
                mark, group, done = (end, dict(self._ends), self.kept, self.failed_before), [], False
            group.append(item)
            entry, after = next(entries, (None, 0))
            if entry is None or not self._is_of(entry, item):
                break
            done |= entry["status"] == "done"
            if (item.number + 1) % self._size == 0 and done and not self._ends_group(entry):
                break
            end = after
            self._kept(entry)
            if item.number in self._again:
                yield item
        else:
            if not done or entry is None or self._ends_group(entry):
                self._cut(end)
                return
        end, self._ends, self.kept, self.failed_before = mark
        self._cut(end)
        yield from group
        yield from items

    def _entries(self) -> Iterator[tuple[Entry, int]]:
        """Each line of the manifest and where it ends, up to the first that is not whole."""
        self._manifest.seek(0)
        end = 0
        with open(self._manifest.fileno(), "rb", closefd=False) as file:
            for line in file:
                end += len(line)
                entry = _read(line)
                if entry is None:
                    return
                yield entry, end

    def _kept(self, entry: Entry) -> None:
        self.kept += 1
        self.failed_before += entry["status"] != "done"
        for file in entry.get("files", ()):
            if "offset" in file:
                self._ends[self._grows[file["file"]]] = file["offset"] + file["bytes"]

    def _is_of(self, entry: Entry, item: Item) -> bool:
        """Whether an entry is that of this very item, and all it lists is there; the item's own files can be made again."""
        if entry["input"] != item.fingerprint or entry["number"] != item.number:
            return False
        files, again = entry.get("files", ()), False
        wanted = {*self._grows, *(f"{item.stem}.{form}" for form in FILES if form in self.formats)}
        prefixes = tuple(writer.prefix for writer in self.writers)
        if {file["file"] for file in files if not file["file"].startswith(prefixes)} != (
            wanted if entry["status"] == "done" else set()
        ):
            return False
        for file in files:
            try:
                size = (self.path / file["file"]).stat().st_size
            except OSError:
                size = -1
            if (form := self._grows.get(file["file"])) is not None or "offset" in file:
                if form is None or file.get("offset") != self._ends[form] or size < self._ends[form] + file["bytes"]:
                    return False
            elif size != file["bytes"]:
                if self._size > 1 or not file["file"].startswith(f"{item.stem}."):
                    return False
                again = True
        if again:
            self._again.add(item.number)
        return True

    def _ends_group(self, entry: Entry) -> bool:
        """Whether the last entry of a group lists what the group shares."""
        names = [file["file"] for file in entry.get("files", ())]
        return all(any(name.startswith(writer.prefix) for name in names) for writer in self.writers)

    def _cut(self, end: int) -> None:
        """Forget what stands in the manifest after `end`, and cut what grows to what is left."""
        with said_plainly("write", self.path):
            root = Path(os.path.realpath(self.path))
            gone = {os.path.realpath(path): path for path in self._listed(end, None)}
            for name in (*LINES.values(), "manifest.jsonl", "run.json"):
                gone.pop(str(root / name), None)
            for path in self._listed(0, end) if gone else ():
                gone.pop(os.path.realpath(path), None)
            self._manifest.truncate(end)
            for form, file in self._lines.items():
                file.truncate(self._ends[form])
            self._safe = end, dict(self._ends)
            for real, path in gone.items():
                if Path(real).is_relative_to(root):  # a manifest that was tampered with may put it elsewhere
                    with contextlib.suppress(OSError):  # or name a folder; what stays is listed nowhere
                        path.unlink()

    def _listed(self, start: int, end: int | None) -> Iterator[Path]:
        """The files in the lines of the manifest from `start` to `end`, but for those that grow."""
        for entry, after in self._entries():
            if end is not None and after > end:
                return
            if after > start:
                yield from (self.path / file["file"] for file in entry.get("files", ()) if "offset" not in file)

    # --- writing --------------------------------------------------------------------------------------------------

    def add(self, results: Sequence[Result]) -> None:
        """Write what was made of some items, in their order, then their lines into the manifest."""
        grown: dict[str, list[bytes]] = {form: [] for form in self._lines}
        entries = []
        for result in results:
            if result.item.number in self._again:
                self._again.discard(result.item.number)
                list(self._own(result))
                continue
            entry = self._entry(result)
            for form, lines in grown.items():
                if form in result.made:
                    data = result.made[form]
                    entry["files"].append(_listed(LINES[form], data, offset=self._ends[form]))
                    self._ends[form] += len(data)
                    lines.append(data)
            entries.append(entry)
            self.done += result.error is None
            self.failed += result.error is not None
            for writer in self.writers:
                self._share(writer.add(result))
            if self._size > 1 and (result.item.number + 1) % self._size == 0:
                self._append(grown)
                self._end_group([*self._group, *entries])
                entries = []
        self._append(grown)
        if self._size > 1:
            self._group += entries
        else:
            self._commit(entries)

    def finish(self) -> None:
        """End the run: what waits for its group to fill is written as it is."""
        if self._group:
            self._end_group(self._group)
        files = {writer.prefix: dict[str, None]() for writer in self.writers}
        for entry, _ in self._entries() if files else ():
            for name in (file["file"] for file in entry.get("files", ())):
                for prefix in files:
                    if name.startswith(prefix):
                        files[prefix][name] = None
        for writer in self.writers:
            writer.finish(self.path, list(files[writer.prefix]))

    def _entry(self, result: Result) -> Entry:
        item = result.item
        entry: Entry = {"number": item.number} | ({} if item.id is None else {"id": item.id})
        entry |= {"status": "failed" if result.error is not None else "done", "where": item.where}
        if result.error is not None:
            entry["error"] = result.error
        now = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        entry |= {"input": item.fingerprint, "time": now, "seconds": round(result.seconds, 6)}
        return (
            entry if result.error is not None else entry | {"tokens": result.tokens, "files": list(self._own(result))}
        )

    def _own(self, result: Result) -> Iterator[Entry]:
        """The item's own files, written."""
        for form in FILES:
            if form in result.made:
                name = f"{result.item.stem}.{form}"
                self._write(name, result.made[form])
                yield _listed(name, result.made[form])

    def _write(self, name: str, data: bytes) -> None:
        path, part = self.path / name, self.path / ".part"
        with said_plainly("write", path):
            try:
                part.write_bytes(data)
                if "/" in name:
                    path.parent.mkdir(parents=True, exist_ok=True)
                part.replace(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise

    def _append(self, grown: dict[str, list[bytes]]) -> None:
        for form, lines in grown.items():
            _append(self._lines[form], b"".join(lines), self.path / LINES[form])
            lines.clear()

    def _share(self, files: Iterable[tuple[str, bytes]]) -> None:
        for name, data in files:
            self._write(name, data)
            self._shared.append(_listed(name, data))

    def _end_group(self, entries: list[Entry]) -> None:
        for writer in self.writers:
            self._share(writer.end())
        if self._shared:  # a group is done or not as one: its last line tells
            entries[-1].setdefault("files", []).extend(self._shared)
        self._commit(entries)
        self._group, self._shared = [], []

    def _commit(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return

        lines = b"".join(as_json(entry) + b"\n" for entry in entries)
        _append(self._manifest, lines, self.path / "manifest.jsonl")
        assert self._safe is not None
        self._safe = self._safe[0] + len(lines), dict(self._ends)


def _listed(name: str, data: bytes, **more: Any) -> Entry:
    return {"file": name, **more, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _read(line: bytes) -> Entry | None:
    """The entry that a line of the manifest holds; None where it is not whole."""
    import orjson

    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not line.endswith(b"\n") or not isinstance(entry, dict) or not {"number", "input"} <= entry.keys():
        return None
    files = entry.get("files", [])
    sound = isinstance(files, list) and all(map(_is_file, files)) and entry.get("status") in ("done", "failed")
    return entry if sound else None


def _is_file(file: Any) -> bool:
    """Whether an entry's file is said as `_listed` says it."""
    return (
        isinstance(file, dict)
        and isinstance(file.get("file"), str)
        and "\0" not in file["file"]
        and all(type(size) is int and size >= 0 for size in (file.get("bytes"), file.get("offset", 0)))
    )


def _model_files(name: str | None) -> str | None:
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


def _append(file: IO[bytes], data: bytes, path: Path) -> None:
    view = memoryview(data)
    with said_plainly("write", path):
        while view:
            view = view[file.write(view) :]
