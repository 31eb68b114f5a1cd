"""The folder that a batch is written to, by one run at a time, so that any interruption can be gone on from.

A text counts as done where the manifest has its fingerprint and every file listed there is to the byte what was written.
Whatever does not is done again, and nothing else is touched: results of texts that are no longer in the input stay.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Protocol

from attnctl.batching.items import Item
from attnctl.batching.manifest import (
    MANIFEST,
    RUN,
    AppendedFile,
    Entry,
    FileEntry,
    Group,
    check_run,
    file_entry,
    has_files,
    is_as_written,
    read_entry,
    read_groups,
)
from attnctl.batching.work import Result
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import LOCK, lock_folder, said_plainly, write_whole
from attnctl.formats.pictures import format_names
from attnctl.text import as_json

if TYPE_CHECKING:
    from attnctl.text import Document

GROUP = 192  # items that are done or not done together, where a format holds many in one file
LINES = {"json": "traces.jsonl"}  # formats that grow by a line an item
FILES = (*format_names(), "npz")  # formats with a file an item
OWN_NAME = re.compile(r"(?:\d{7,}/)?(\d{7,})(?:-[a-z0-9-]+)?\.([a-z]+)")  # as of Item.file_stem: number, format
SUMMARIES = (  # what is made of all files at the end of a run
    *("statistics.csv", "effects.csv", "contact-sheet.pdf", "census.json"),
    *("sources.jsonl", "sources.csv", "sources-means.csv"),
)


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

    `said` is what decides the outcome (input, formats, model, look): going on with something else is refused. `together`:
    how many items, from a multiple of it on, are done or not done as one. `start_anew`: what a batch left there is removed
    first. Raises AttnctlError where another run writes it, UsageError where it holds something else.

    `done` and `failed` count the texts of this run, `kept_before` and `failed_before` those of its input that were there,
    `gone` the results there whose texts are not in its input; `damaged` names the files that were made again.
    """

    def __init__(
        self,
        path: str | Path,
        said: Document,
        formats: Sequence[str],
        writers: Sequence[Writer] = (),
        together: int = 1,
        *,
        start_anew: bool = False,
    ) -> None:
        self.path, self.said, self.writers, self.start_anew = Path(path), said, writers, start_anew
        self.formats = formats
        self.done = self.failed = self.kept_before = self.failed_before = self.gone = 0
        self.damaged: dict[str, None] = {}
        self._size = max(GROUP, together) if writers else together  # of a group
        self._prefixes = tuple(writer.prefix for writer in writers)
        self._lines: dict[str, AppendedFile] = {}  # those that grow by a line an item, by format
        self._next = 0  # the number of the next text that is not in the manifest
        self._is_in_order = True  # the manifest: whole lines, by number
        self._again: set[int] = set()  # numbers of texts whose results were damaged
        self._damaged: set[int] = set()  # where groups begin in the manifest whose results are
        self._group: list[Entry] = []  # of items whose group is not full
        self._shared: list[FileEntry] = []  # files of the group that is not full

    def damage_sentence(self) -> str:
        """Which files were not, to the byte, what had been written, and were made again; "" where all were."""
        if not self.damaged:
            return ""
        more = f" and {len(self.damaged) - 1:,} more" if len(self.damaged) > 1 else ""
        return f"{next(iter(self.damaged))}{more} damaged or gone, and made again"

    # --- opening and closing ---------------------------------------------------------------------------------------

    def summary_sentence(self) -> str:
        """What was done, what is there, and where to read more."""
        parts = [f"{self.done:,} done"] + ([f"{self.failed:,} failed"] if self.failed else [])
        failed = f" ({self.failed_before:,} of them failed)" if self.failed_before else ""
        parts += [f"{self.kept_before:,} there before{failed}"] if self.kept_before else []
        parts += [f"{self.gone:,} there of texts that are not in it now"] if self.gone else []
        parts += [damage] if (damage := self.damage_sentence()) else []
        return f"{', '.join(parts)}: see {self.path}/manifest.jsonl"

    def __enter__(self) -> Folder:
        with said_plainly("write", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_files()
            self._lock = lock_folder(self.path)
            self._files: list[AppendedFile] = []  # those open
            try:
                if self.start_anew:
                    self._remove_results()
                self._manifest = AppendedFile(self.path / MANIFEST)
                self._files.append(self._manifest)
                check_run(self.path, self.said, is_new=not self._manifest.path.stat().st_size)
                for part in self.path.glob(".*.part"):  # of a run that was killed as it wrote
                    part.unlink(missing_ok=True)
                self._lines = {form: AppendedFile(self.path / LINES[form]) for form in self.formats if form in LINES}
                self._files += self._lines.values()
                self._cut_unfinished()
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

    def _check_files(self) -> None:
        """Raise UsageError where the folder holds something else, AttnctlError where a file of it is none."""
        if not (self.path / MANIFEST).exists() and any(path.name not in (RUN, LOCK) for path in self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and holds no batch: give a new folder")
        for name in (MANIFEST, LOCK, RUN, *(LINES[form] for form in self.formats if form in LINES)):
            path = self.path / name
            if path.exists() and not path.is_file():  # a pipe would be waited for
                raise AttnctlError(f"{path} is no regular file: give a new folder")

    def _remove_results(self) -> None:
        names = [*LINES.values(), *SUMMARIES]
        for group in self._groups() if (self.path / MANIFEST).exists() else ():
            names += (file["file"] for entry in group.entries if has_files(entry) for file in entry.get("files", ()))
        self._unlink_files({*names} - {LOCK})
        for name in (MANIFEST, RUN):  # last: with them the folder is known for what it is
            (self.path / name).unlink(missing_ok=True)

    def _unlink_files(self, names: Iterable[str]) -> None:
        """Remove files of the folder; a manifest that was tampered with may put them elsewhere, or name folders."""
        root = os.path.realpath(self.path)
        for name in names:
            if Path(os.path.realpath(self.path / name)).is_relative_to(root):
                with contextlib.suppress(OSError):
                    (self.path / name).unlink()

    def _groups(self) -> Iterator[Group]:
        path = self.path / MANIFEST
        return read_groups(path, path.stat().st_size, single=self._size == 1)

    def _cut_unfinished(self) -> None:
        """Forget what a run that was killed had written of texts that are not in the manifest."""
        end, ends = 0, dict.fromkeys(LINES.values(), 0)
        for group in self._groups():
            self._is_in_order &= group.start == end
            end = group.end
            for entry in group.entries:
                self._is_in_order &= entry["number"] >= self._next
                self._next = max(self._next, entry["number"] + 1)
                for file in entry.get("files", ()) if has_files(entry) else ():
                    if file["file"] in ends:
                        ends[file["file"]] = max(ends[file["file"]], file.get("offset", 0) + file["bytes"])
        self._manifest.cut_after(end)
        for form, lines in self._lines.items():
            lines.cut_after(min(ends[LINES[form]], lines.path.stat().st_size))

    # --- what is there ---------------------------------------------------------------------------------------------

    def items_to_do(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items that are still to be done; what is there already and is not what it was is done again.

        The manifest is read no further than to where the items are found: of a run that is gone on with, nothing is held.
        One that is new has the next number, one whose files are damaged its own.
        """
        entries = self._entries_there(self._manifest.end)
        known: dict[
            str, list[tuple[Entry, bool]]
        ] = {}  # by fingerprint: the entries read so far, and whether they hold
        for item in items:
            own = item.content_fingerprint
            while own not in known and (found := next(entries, None)) is not None:
                known.setdefault(found[0]["input"], []).append(found)
            if own not in known:
                number, self._next = self._next, self._next + 1
            else:
                entry, holds = known[own].pop(0)
                if not known[own]:
                    del known[own]
                if holds:
                    self.kept_before += 1
                    self.failed_before += entry["status"] == "failed"
                    continue
                number = entry["number"]
                self._again.add(number)
            yield item if item.number == number else replace(item, number=number)
        self.gone = sum(map(len, known.values())) + sum(1 for _ in entries)

    def _entries_there(self, end: int) -> Iterator[tuple[Entry, bool]]:
        """Each entry in the first `end` bytes of the manifest, and whether all of its group is as it was written."""
        for group in read_groups(self._manifest.path, end, single=self._size == 1):
            wrong = None
            if self._has_form(group):
                files = [file for entry in group.entries for file in entry.get("files", ())]
                wrong = [file["file"] for file in files if not is_as_written(self.path, file)]
                self.damaged |= dict.fromkeys(wrong)
            if wrong != []:
                self._damaged.add(group.start)
                self._is_in_order &= wrong is not None
            yield from ((entry, wrong == []) for entry in group.entries)

    def _has_form(self, group: Group) -> bool:
        """Whether the entries of a group list what they should, and nothing else."""
        wanted = sorted(form for form in self.formats if form in (*LINES, *FILES))
        shared: list[str] = []
        for entry in group.entries:
            if not has_files(entry):
                return False
            own = []
            for file in entry.get("files", ()):
                name = file["file"]
                match = OWN_NAME.fullmatch(name)
                if name.startswith(self._prefixes) and ".." not in Path(name).parts:
                    shared.append(name)
                elif "offset" in file and name in LINES.values():
                    own.append(next(form for form in LINES if LINES[form] == name))
                elif "offset" not in file and match is not None and int(match[1]) == entry["number"]:
                    own.append(match[2])
                else:
                    return False
            if sorted(own) != (wanted if entry["status"] == "done" else []):
                return False
        none_done = all(entry["status"] == "failed" for entry in group.entries)
        return none_done or all(any(name.startswith(prefix) for name in shared) for prefix in self._prefixes)

    # --- writing --------------------------------------------------------------------------------------------------

    def write_results(self, results: Sequence[Result]) -> None:
        """Write what was made of some items, in their order, then their lines into the manifest."""
        grown: dict[str, bytearray] = {form: bytearray() for form in self._lines}
        entries: list[Entry] = []
        for result in results:
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
        if self._again or not self._is_in_order:
            self._put_in_order()
        files = {prefix: dict[str, None]() for prefix in self._prefixes}
        for group in self._groups() if files else ():
            for name in _names(group):
                for prefix in files:
                    if name.startswith(prefix):
                        files[prefix][name] = None
        for writer in self.writers:
            writer.finish_run(self.path, list(files[writer.prefix]))

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
        path = self.path / name
        with said_plainly("write", path):
            if "/" in name:
                path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a pipe would be written into
                path.unlink()
        write_whole(path, data)

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
        entries[-1]["group"] = len(entries)
        self._commit_entries(entries)
        self._group, self._shared = [], []

    def _commit_entries(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._manifest.append_bytes(b"".join(as_json(entry) + b"\n" for entry in entries))
            self._manifest.keep_written()
            for file in self._lines.values():
                file.keep_written()

    def _put_in_order(self) -> None:
        """Write the manifest and what grows anew, by number, without what was done again and lines that are no result."""
        kept: list[tuple[int, Group]] = []
        seen: set[int] = set()
        replaced: set[str] = set()
        for group in self._groups():
            numbers = {entry["number"] for entry in group.entries}
            if not self._has_form(group) or numbers & seen or (group.start in self._damaged and numbers & self._again):
                replaced.update(_names(group))
                continue
            seen |= numbers
            kept.append((min(numbers), group._replace(entries=[])))
        kept.sort()
        with self._manifest.path.open("rb") as manifest:

            def entries() -> Iterator[Entry]:
                for _, group in kept:
                    manifest.seek(group.start)
                    lines = manifest.read(group.end - group.start).splitlines(keepends=True)
                    yield from (entry for line in lines if (entry := read_entry(line)) is not None)

            for name in (LINES[form] for form in self._lines):
                self._write_parts(name, entries())
            ends = dict.fromkeys(LINES.values(), 0)

            def write_lines(out: IO[bytes]) -> None:
                for entry in entries():
                    for file in entry.get("files", ()):
                        if "offset" in file:
                            file["offset"] = ends[file["file"]]
                            ends[file["file"]] += file["bytes"]
                        replaced.discard(file["file"])
                    out.write(as_json(entry) + b"\n")

            write_whole(self._manifest.path, write_lines)
        self._unlink_files(name for name in replaced if name.startswith(self._prefixes))

    def _write_parts(self, name: str, entries: Iterable[Entry]) -> None:
        """Write a file that grows anew: the entries' parts of it, in their order."""

        def write_parts(out: IO[bytes]) -> None:
            for file in (file for entry in entries for file in entry.get("files", ()) if file["file"] == name):
                parts.seek(file["offset"])
                out.write(parts.read(file["bytes"]))

        with (self.path / name).open("rb") as parts:
            write_whole(self.path / name, write_parts)


def _names(group: Group) -> Iterator[str]:
    """The files that a group's entries list, but for those that grow."""
    for entry in group.entries:
        for file in entry.get("files", ()) if has_files(entry) else ():
            if "offset" not in file:
                yield file["file"]


def damaged_part(path: Path) -> AttnctlError:
    """What is said of a file of a group that was written whole, and is none any more."""
    return AttnctlError(f"{path} is damaged: take it away and run again, which makes it anew")
