"""Going on with a batch: which items a folder holds already, and how far its files are to be cut back."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from attnctl.batching.items import Item
from attnctl.batching.manifest import MANIFEST, AppendedFile, Entry, FileEntry, Manifest
from attnctl.files import said_plainly
from attnctl.formats.pictures import format_names

LINES = {"json": "traces.jsonl"}  # formats that grow by a line an item
FILES = (*format_names(), "npz")  # formats with a file an item
PIECE = 1 << 20  # bytes of a file that are read at a time


class Resumption:
    """What stands in a folder, held against the items of a run.

    `lines` are its files that grow, by format; `prefixes` begin the names of files that a group of `size` items shares.
    After `items_not_done` has come to the first item that is to be done, `kept` and `failed` count those before it. `again`
    holds the entries of those of them whose files are to be written once more, by number, and `damaged` the names of files
    that are not, to the byte, what was written.
    """

    def __init__(
        self,
        manifest: Manifest,
        lines: Mapping[str, AppendedFile],
        formats: Sequence[str],
        prefixes: tuple[str, ...],
        size: int,
    ) -> None:
        self.kept = self.failed = 0
        self.again: dict[int, Entry] = {}
        self.damaged: list[str] = []
        self._manifest, self._lines, self._prefixes, self._size = manifest, lines, prefixes, size
        self._folder = manifest.path.parent
        self._formats = formats
        self._grows = {LINES[form]: form for form in lines}
        self._ends = dict.fromkeys(lines, 0)  # where the files that grow end

    def items_not_done(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items that are still to be done; the rest is found in the manifest, item by item.

        Where an item is not what it was, everything from there on is done again.
        """
        mark, group = (0, dict(self._ends), 0, 0), list[Item]()
        entries, items = self._manifest.read_entries(), iter(items)
        end, entry, done = 0, None, False
        for item in items:
            if item.number % self._size == 0:
                mark, group, done = (end, dict(self._ends), self.kept, self.failed), [], False
            group.append(item)
            entry, after = next(entries, (None, 0))
            if entry is None or not self._is_of(entry, item):
                break
            done |= entry["status"] == "done"
            if (item.number + 1) % self._size == 0 and done and not self._ends_group(entry):
                break
            end = after
            self._keep_entry(entry)
            if item.number in self.again:
                yield item
        else:
            if not done or entry is None or self._ends_group(entry):
                self._cut_manifest(end)
                return
        end, self._ends, self.kept, self.failed = mark
        self._cut_manifest(end)
        yield from group
        yield from items

    def _keep_entry(self, entry: Entry) -> None:
        self.kept += 1
        self.failed += entry["status"] != "done"
        for file in entry.get("files", ()):
            if "offset" in file:
                self._ends[self._grows[file["file"]]] = file["offset"] + file["bytes"]

    def _is_of(self, entry: Entry, item: Item) -> bool:
        """Whether an entry is that of this very item, and all it lists is there; the item's own files can be made again."""
        if entry["input"] != item.content_fingerprint or entry["number"] != item.number:
            return False
        files = entry.get("files", ())
        own = {file["file"] for file in files if not file["file"].startswith(self._prefixes)}
        wanted = {*self._grows, *(f"{item.file_stem}.{form}" for form in FILES if form in self._formats)}
        if own != (wanted if entry["status"] == "done" else set()):
            return False
        again = False
        for file in files:
            grows = file["file"] in self._grows or "offset" in file
            if grows and not self._continues_file(file):
                return False
            if self._is_as_written(file):
                continue
            self.damaged.append(file["file"])
            if self._size > 1 or not (grows or file["file"].startswith(f"{item.file_stem}.")):
                return False
            again = True
        if again:
            self.again[item.number] = entry
        return True

    def _is_as_written(self, file: FileEntry) -> bool:
        """Whether a file of the folder, or the part of it that is an item's, is to the byte what was written."""
        try:
            opened = os.open(self._folder / file["file"], os.O_RDONLY | os.O_NONBLOCK)  # a pipe is not waited for
        except OSError:
            return False
        try:
            found, offset = os.fstat(opened), file.get("offset", 0)
            fits = found.st_size == file["bytes"] if "offset" not in file else found.st_size >= offset + file["bytes"]
            return (
                stat.S_ISREG(found.st_mode)
                and fits
                and _digest_of_part(opened, offset, file["bytes"]) == file.get("sha256")
            )
        except OSError:
            return False
        finally:
            os.close(opened)

    def _continues_file(self, file: FileEntry) -> bool:
        """Whether an item's part of a file that grows begins where the part before it ends, and is there."""
        form = self._grows.get(file["file"])
        if form is None or file.get("offset") != self._ends[form]:
            return False
        return self._lines[form].path.stat().st_size >= self._ends[form] + file["bytes"]

    def _ends_group(self, entry: Entry) -> bool:
        """Whether the last entry of a group lists what the group shares."""
        names = [file["file"] for file in entry.get("files", ())]
        return all(any(name.startswith(prefix) for name in names) for prefix in self._prefixes)

    def _cut_manifest(self, end: int) -> None:
        """Forget what stands in the manifest after `end`, and cut what grows to what is left."""
        with said_plainly("write", self._folder):
            root = Path(os.path.realpath(self._folder))
            gone = {os.path.realpath(self._folder / name): name for name in self._manifest.files_between(start=end)}
            for name in (*LINES.values(), MANIFEST, "run.json"):
                gone.pop(str(root / name), None)
            for name in self._manifest.files_between(end=end) if gone else ():
                gone.pop(os.path.realpath(self._folder / name), None)
            self._manifest.cut_after(end)
            for form, file in self._lines.items():
                file.cut_after(self._ends[form])
            for real, name in gone.items():
                if Path(real).is_relative_to(root):  # a manifest that was tampered with may put it elsewhere
                    with contextlib.suppress(OSError):  # or name a folder; what stays is listed nowhere
                        (self._folder / name).unlink()


def _digest_of_part(opened: int, offset: int, size: int) -> str:
    """SHA-256 of `size` bytes of an open file, from `offset` on."""
    found = hashlib.sha256()
    while size and (piece := os.pread(opened, min(size, PIECE), offset)):
        found.update(piece)
        size, offset = size - len(piece), offset + len(piece)
    return found.hexdigest()
