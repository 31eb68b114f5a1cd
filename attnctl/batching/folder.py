"""The folder that a batch is written to, by one run at a time, so that any interruption can be gone on from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from attnctl.batching.items import Item
from attnctl.batching.manifest import MANIFEST, AppendedFile, Entry, FileEntry, Manifest, file_entry
from attnctl.batching.resume import FILES, LINES, Resumption
from attnctl.batching.run_description import check_run
from attnctl.batching.work import Result
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import LOCK, lock_folder, said_plainly

if TYPE_CHECKING:
    from attnctl.text import Document

GROUP = 192  # items that are done or not done together, where a format holds many in one file


class Writer(Protocol):
    """A format that holds many items in a file, whose name begins with `prefix`; it is written before they count as done."""

    prefix: str

    def take_result(self, result: Result) -> Iterator[tuple[str, bytes]]:
        """Take an item in; the files that are full."""

    def end_group(self) -> Iterator[tuple[str, bytes]]:
        """The files that are left at the end of a group."""

    def finish_run(self, folder: Path, files: Sequence[str]) -> None:
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
        said: Document,
        formats: Sequence[str],
        writers: Sequence[Writer] = (),
        together: int = 1,
    ) -> None:
        self.path, self.said, self.writers = Path(path), said, writers
        self.formats = formats
        self.done = self.failed = 0  # in this run
        self._size = max(GROUP, together) if writers else together  # of a group
        self._files: list[AppendedFile] = []  # those open
        self._lines: dict[str, AppendedFile] = {}  # those that grow by a line an item, by format
        self._resumption: Resumption | None = None
        self._group: list[Entry] = []  # of items whose group is not full
        self._shared: list[FileEntry] = []  # files of the group that is not full
        self._corrected: dict[int, list[FileEntry]] = {}  # of items made again that came out otherwise than before

    @property
    def kept_before(self) -> int:
        """How many items were there before."""
        return 0 if self._resumption is None else self._resumption.kept

    @property
    def failed_before(self) -> int:
        """How many of them had failed."""
        return 0 if self._resumption is None else self._resumption.failed

    def damage_sentence(self) -> str:
        """Which files were not, to the byte, what had been written, and were made again; "" where all were."""
        damaged = [] if self._resumption is None else list(dict.fromkeys(self._resumption.damaged))
        if not damaged:
            return ""
        more = f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else ""
        return f"{damaged[0]}{more} damaged or gone, and made again"

    # --- opening and closing ---------------------------------------------------------------------------------------

    def __enter__(self) -> Folder:
        with said_plainly("write", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_files()
            self._lock = lock_folder(self.path)
            try:
                self._manifest = Manifest(self.path / MANIFEST)
                self._files.append(self._manifest)
                check_run(self.path, self.said, is_new=self._manifest.has_no_entry())
                for part in (self.path / ".part", *self.path.glob(".*.part")):  # of a run that was killed as it wrote
                    part.unlink(missing_ok=True)
                self._lines = {form: AppendedFile(self.path / LINES[form]) for form in self._growing_files()}
                self._files += self._lines.values()
            except BaseException:
                self._release_lock()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release_lock()

    def _release_lock(self) -> None:
        for file in self._files:
            file.close_file()
        self._lock.release()

    def _growing_files(self) -> list[str]:
        return [form for form in self.formats if form in LINES]

    def _check_files(self) -> None:
        """Raise UsageError where the folder holds something else, AttnctlError where a file of it is none."""
        if not (self.path / MANIFEST).exists() and any(
            path.name not in ("run.json", LOCK) for path in self.path.iterdir()
        ):
            raise UsageError(f"{self.path} is not empty and holds no batch: give a new folder")
        for name in (MANIFEST, LOCK, "run.json", *(LINES[form] for form in self._growing_files())):
            path = self.path / name
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise AttnctlError(f"{path} is no regular file: give a new folder")

    def items_to_do(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items that are still to be done; what is there already and is not what it was is done again."""
        prefixes = tuple(writer.prefix for writer in self.writers)
        self._resumption = Resumption(self._manifest, self._lines, self.formats, prefixes, self._size)
        yield from self._resumption.items_not_done(items)

    # --- writing --------------------------------------------------------------------------------------------------

    def write_results(self, results: Sequence[Result]) -> None:
        """Write what was made of some items, in their order, then their lines into the manifest."""
        grown: dict[str, bytearray] = {form: bytearray() for form in self._lines}
        entries: list[Entry] = []
        for result in results:
            if (before := self._entry_before(result.item)) is not None:
                self._write_again(result, before)
                continue
            entry = self._write_item(result)
            for form, lines in grown.items():
                if form in result.made:
                    offset = self._lines[form].end + len(lines)
                    entry["files"].append(file_entry(LINES[form], result.made[form], offset))
                    lines += result.made[form]
            entries.append(entry)
            self.done += result.error is None
            self.failed += result.error is not None
            for writer in self.writers:
                self._write_shared(writer.take_result(result))
            if self._size > 1 and (result.item.number + 1) % self._size == 0:
                self._append_grown(grown)
                self._end_group([*self._group, *entries])
                entries = []
        self._append_grown(grown)
        if self._size > 1:
            self._group += entries
        else:
            self._commit_entries(entries)

    def finish_run(self) -> None:
        """End the run: what waits for its group to fill is written as it is."""
        if self._group:
            self._end_group(self._group)
        if self._corrected:
            self._manifest.correct_entries(self._corrected)
        files = {writer.prefix: dict[str, None]() for writer in self.writers}
        for entry, _ in self._manifest.read_entries() if files else ():
            for name in (file["file"] for file in entry.get("files", ())):
                for prefix in files:
                    if name.startswith(prefix):
                        files[prefix][name] = None
        for writer in self.writers:
            writer.finish_run(self.path, list(files[writer.prefix]))

    def _entry_before(self, item: Item) -> Entry | None:
        """The entry of an item that was done before and whose files alone are to be written again: once for each."""
        return None if self._resumption is None else self._resumption.again.pop(item.number, None)

    def _write_again(self, result: Result, before: Entry) -> None:
        """Write an item's files once more, and its part of the files that grow over the damaged one."""
        if result.error is not None:
            self.failed += 1
            return
        files = list(self._own_files(result))
        for form, grown in self._lines.items():
            kept = next((file for file in before["files"] if file["file"] == LINES[form]), None)
            if kept is None:
                continue
            if len(result.made[form]) != kept["bytes"]:
                raise AttnctlError(
                    f"{grown.path} is damaged at item {result.item.number}, which comes out otherwise now: give a new folder"
                )
            grown.overwrite_part(kept["offset"], result.made[form])
            files.append(file_entry(LINES[form], result.made[form], kept["offset"]))
        if files != before["files"]:
            self._corrected[result.item.number] = files

    def _write_item(self, result: Result) -> Entry:
        item = result.item
        entry: Entry = {"number": item.number}
        if item.id is not None:
            entry["id"] = item.id
        entry["status"] = "failed" if result.error is not None else "done"
        entry["where"] = item.where
        if result.error is not None:
            entry["error"] = result.error
        entry["input"] = item.content_fingerprint
        entry["time"] = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        entry["seconds"] = round(result.seconds, 6)
        if result.error is None:
            entry["tokens"] = result.tokens
            entry["files"] = list(self._own_files(result))
        return entry

    def _own_files(self, result: Result) -> Iterator[FileEntry]:
        """The item's own files, written."""
        for form in FILES:
            if form in result.made:
                name = f"{result.item.file_stem}.{form}"
                self._write_file(name, result.made[form])
                yield file_entry(name, result.made[form])

    def _write_file(self, name: str, data: bytes) -> None:
        path, part = self.path / name, self.path / ".part"
        with said_plainly("write", path):
            try:
                part.write_bytes(data)
                if "/" in name:
                    path.parent.mkdir(parents=True, exist_ok=True)
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise

    def _append_grown(self, grown: dict[str, bytearray]) -> None:
        for form, lines in grown.items():
            self._lines[form].append_bytes(bytes(lines))
            lines.clear()

    def _write_shared(self, files: Iterable[tuple[str, bytes]]) -> None:
        for name, data in files:
            self._write_file(name, data)
            self._shared.append(file_entry(name, data))

    def _end_group(self, entries: list[Entry]) -> None:
        for writer in self.writers:
            self._write_shared(writer.end_group())
        if self._shared:  # a group is done or not as one: its last line tells
            entries[-1].setdefault("files", []).extend(self._shared)
        self._commit_entries(entries)
        self._group, self._shared = [], []

    def _commit_entries(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._manifest.append_entries(entries)
            for file in self._lines.values():
                file.keep_written()
