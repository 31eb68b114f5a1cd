"""Write a batch to a folder, by one run at a time, so that an interrupted run can be continued.

One rule: a text is done if its line of the manifest is whole (its check says so), was written for the same request, and
lists files that still have the bytes that were written; for texts that share a file, if this holds for all of them. Texts
that are not done are run again. Nothing else is touched: results of texts that are no longer in the input stay.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from attnctl.batching.formats import FILES, SHARED, BatchFormat
from attnctl.batching.items import Item, Result
from attnctl.batching.manifest import (
    MANIFEST,
    RUN,
    AppendedFile,
    ManifestGroup,
    check_run,
    input_paths,
    is_as_written,
    read_groups,
    read_line,
    sealed_line,
)
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.documents.model_documents import ManifestFile, ManifestLine
from attnctl.registry import SUFFIXES
from attnctl.runtime.files import LOCK, TEMPORARY, check_no_links, lock_folder, said_plainly, write_whole
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.batching.texts import InputFiles
    from attnctl.text import Document

GROUP = 192  # items that are done or not done together, if a format holds many in one file
LINES = "traces.jsonl"  # the file of the format json, which grows by a line for each item


def file_patterns(forms: Iterable[str]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of the files, and of the folders inside, of a batch with these shared formats.

    A file is of one text (`Item.file_stem`), of several, or made of all at the end of a run.
    """
    names = "|".join(map(re.escape, forms))
    shared = rf"(traces|weights)\.parquet|\.tallies|\.({names})"
    of_texts = rf"(\d{{7,}}/)?\d{{7,}}(-[a-z0-9-]+)?\.({'|'.join((*FILES, *SUFFIXES))})"
    of_all = rf"{re.escape(LINES)}|({names})(-means)?\.(csv|jsonl?)|aligned\.({names})"
    return re.compile(rf"{of_texts}|({shared})/\d{{7,}}[-.][a-z0-9.]+|{of_all}"), re.compile(rf"\d{{7,}}|{shared}")


class Folder:
    """A folder that only this process writes to; to be used in a `with`. `fill` writes the results of an input.

    `request` is everything that decides the output, a folder with another one is refused: `input`, the paths of its files,
    `formats`, `model`, with the name of the model, and any others. `formats` are the names of the formats, `shared` those
    that make files of several items. `together` is the number of items, counted from a multiple of it, that are done or not
    done as one. `start_anew` removes the results of an earlier batch first. Raises AttnctlError if another run writes the
    folder, UsageError if it holds something else.

    `done` and `failed` count the texts of this run; `kept_before` and `failed_before` the texts of its input that were done
    before; `gone` the results whose texts are not in its input; `moved` the texts whose number in the folder is no longer
    their place in the input. `damaged` maps the files that had changed to whether they were made again.
    """

    def __init__(
        self,
        path: str | Path,
        request: Document,
        formats: Sequence[str],
        shared: Sequence[BatchFormat] = (),
        together: int = 1,
        *,
        start_anew: bool = False,
    ) -> None:
        self.path, self.shared, self.start_anew = Path(path), shared, start_anew
        self.request = request | {"input": input_paths(request["input"], path)}
        self.formats = formats
        self._own_file, self._own_folder = file_patterns([*SHARED, *(shared_format.form for shared_format in shared)])
        self.done = self.failed = self.kept_before = self.failed_before = self.gone = self.moved = 0
        self.damaged: dict[str, bool] = {}
        self._size = max(GROUP, together) if shared else together  # of a group
        self._last, self._next = -1, 0  # the highest number in the manifest, and the next unused number
        # numbers below it that are not done → fingerprint of the text, "" if unknown
        self._lost: dict[int, str] = {}
        self._is_in_order = True  # whether this run wrote the manifest by number
        self._group: list[ManifestLine] = []  # lines of items whose group is not full
        self._group_files: list[ManifestFile] = []  # files that these items share

    def damage_sentence(self) -> str:
        """Return which files had changed, and which of them were made again; "" if none had."""
        parts = []
        for is_new, status in ((True, "damaged or gone, and made again"), (False, "damaged or gone")):
            first, *more_names = [name for name, is_made in self.damaged.items() if is_made == is_new] or [""]
            more = f" and {len(more_names):,} more" if more_names else ""
            parts += [f"{first}{more} {status}"] if first else []
        return ", ".join(parts)

    def summary_sentence(self) -> str:
        """Return what was done, what the folder holds, and where to read more."""
        parts = [f"{self.done:,} done"] + ([f"{self.failed:,} failed"] if self.failed else [])
        failed = f" ({self.failed_before:,} of them failed)" if self.failed_before else ""
        parts += [f"{self.kept_before:,} finished before{failed}"] if self.kept_before else []
        parts += [f"{self.gone:,} kept for texts that are no longer in the input"] if self.gone else []
        parts += [f"{self.moved:,} with another number than their place in the input"] if self.moved else []
        parts += [damage] if (damage := self.damage_sentence()) else []
        return f"{', '.join(parts)}: see {self.path}/{MANIFEST}"

    @contextmanager
    def _kept_on_interrupt(self) -> Iterator[None]:
        """Within this context, let a KeyboardInterrupt say how many texts the folder keeps, and how to go on."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            kept = self.kept_before + self.done + self.failed - len(self._group)
            if not kept:
                raise
            sentence = f"{self.path} keeps {counted(kept, 'text')} of the input: the same command goes on from there"
            raise KeyboardInterrupt(sentence) from interrupt

    # --- opening and closing ---------------------------------------------------------------------------------------

    def __enter__(self) -> Folder:
        with said_plainly("write", self.path), ExitStack() as resources:
            self.path.mkdir(parents=True, exist_ok=True)
            self._check_files()
            resources.callback(lock_folder(self.path).release)
            if self.start_anew:
                self._remove_results()
            is_new = not (manifest := self.path / MANIFEST).exists() or not manifest.stat().st_size
            self._key = check_run(self.path, self.request, is_new=is_new)
            self._remove_temporaries()
            self._open_files()
            resources.callback(self._close_files)
            self._drop_damaged()
            self._held = resources.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _open_files(self) -> None:
        self._manifest = AppendedFile(self.path / MANIFEST)
        self._lines = AppendedFile(self.path / LINES) if "json" in self.formats else None

    def _close_files(self) -> None:
        self._manifest.close_file()
        if self._lines is not None:
            self._lines.close_file()

    def _check_files(self) -> None:
        """Raise UsageError if the folder holds something else, AttnctlError if a file of the batch is not a regular file."""
        if not (self.path / MANIFEST).exists() and any(path.name not in (RUN, LOCK) for path in self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and holds no batch: give a new folder")
        for path in self.path.iterdir():
            if self._own_folder.fullmatch(path.name):
                check_no_links(path, self.path)
        for name in (MANIFEST, LOCK, RUN, LINES):
            path = self.path / name
            check_no_links(path, self.path)
            if path.exists() and not path.is_file():  # reading a pipe would wait
                raise AttnctlError(f"{path} is not a regular file: give a new folder")

    def _remove_temporaries(self) -> None:
        """Remove the temporary files of a run that was killed, and no other files."""
        for pattern in (".*.part", "*/.*.part"):
            for path in self.path.glob(pattern):
                written = TEMPORARY.fullmatch(path.name)
                name = path.with_name(written[1]).relative_to(self.path).as_posix() if written else ""
                if name in (MANIFEST, RUN) or self._is_own(name):
                    path.unlink(missing_ok=True)

    def _is_own(self, name: str) -> bool:
        return self._own_file.fullmatch(name) is not None

    def _remove_results(self) -> None:
        with suppress(OSError, ValueError, TypeError, KeyError):  # a package may have added formats to that run
            forms = msgspec.json.decode((self.path / RUN).read_bytes())["said"]["formats"]
            self._own_file, _ = file_patterns([*SHARED, *map(str, forms)])
        for path in self.path.rglob("*"):
            if self._is_own(path.relative_to(self.path).as_posix()) and not path.is_dir():
                path.unlink()
        for name in (MANIFEST, RUN):  # last: they mark the folder as a batch
            (self.path / name).unlink(missing_ok=True)

    # --- what is there ---------------------------------------------------------------------------------------------

    def _groups(self, end: int | None = None) -> Iterator[ManifestGroup]:
        return read_groups(self.path / MANIFEST, self._key, end=end, single=self._size == 1)

    def _drop_damaged(self) -> None:
        """Remove what is not done from the manifest, and what the manifest does not list from growing files."""
        damaged: set[int] = set()  # starts of damaged groups in the manifest
        end, lines_end, is_in_order = 0, 0, True
        for group in self._groups():
            numbers = [entry.number for entry in group.entries]
            is_twice = any(number < self._next and number not in self._lost for number in numbers)
            wrong = [file.file for file in group.files if not is_as_written(self.path, file)]
            self.damaged |= dict.fromkeys(wrong, False)
            self._lost |= dict.fromkeys(range(self._next, max(numbers) + 1), "")
            self._next = max(self._next, max(numbers) + 1)
            if wrong or is_twice:
                damaged.add(group.start)
                self._lost |= {} if is_twice else {entry.number: entry.input for entry in group.entries}
                continue
            is_in_order &= group.start == end and min(numbers) > self._last
            end, self._last = group.end, max(self._last, *numbers)
            for entry in group.entries:
                del self._lost[entry.number]
                for file in entry.files:
                    if file.offset is not None:
                        is_in_order &= file.offset == lines_end
                        lines_end = file.offset + file.bytes
        if not is_in_order:
            self._put_in_order(damaged)
            return
        self._manifest.cut_after(end)
        if self._lines is not None:
            self._lines.cut_after(lines_end)

    def _put_in_order(self, without: Container[int] = ()) -> None:
        """Write the manifest and the growing files again, by number, without the groups that begin at `without`."""
        groups = (group for group in self._groups() if group.start not in without)
        spans = sorted((min(entry.number for entry in group.entries), group.start, group.end) for group in groups)

        def write_both(lines: IO[bytes], manifest: IO[bytes]) -> None:
            for _, start, end in spans:
                self._manifest.file.seek(start)
                for line in self._manifest.file.read(end - start).splitlines(keepends=True):
                    entry = read_line(line, self._key)
                    assert entry is not None
                    for file in entry.files:
                        if file.offset is not None and self._lines is not None:
                            self._lines.file.seek(file.offset)
                            file.offset = lines.tell()
                            lines.write(self._lines.file.read(file.bytes))
                    manifest.write(sealed_line(entry, self._key))

        def write_manifest(lines: IO[bytes]) -> None:
            write_whole(self._manifest.path, partial(write_both, lines), inside=self.path)

        if self._lines is None:
            write_manifest(io.BytesIO())
        else:
            write_whole(self._lines.path, write_manifest, inside=self.path)
        self._close_files()
        self._open_files()

    def items_to_do(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items that are not done yet.

        The manifest is read only as far as the items are found in it, so that a continued run holds nothing in memory. An
        item whose result was lost keeps its earlier number, or gets its position in the input if that is unknown. A new item
        gets the next number.
        """
        entries = (entry for group in self._groups(self._manifest.end) for entry in group.entries)
        done: dict[str, list[tuple[int, bool]]] = {}  # fingerprint → number, and whether it failed, of the entries read
        lost: dict[str, list[int]] = {}  # fingerprint → numbers
        for number, fingerprint in sorted(self._lost.items(), reverse=True):
            lost.setdefault(fingerprint or str(number), []).append(number)
        for item in items:
            fingerprint = item.content_fingerprint
            while fingerprint not in done and (entry := next(entries, None)) is not None:
                done.setdefault(entry.input, []).append((entry.number, entry.status == "failed"))
            if fingerprint in done:
                number, has_failed = done[fingerprint].pop(0)
                self.kept_before += 1
                self.failed_before += has_failed
                self.moved += number != item.number
                if not done[fingerprint]:
                    del done[fingerprint]
                continue
            numbers = lost.get(fingerprint) or lost.get(str(item.number)) or [self._next]
            number = numbers.pop()
            self._next = max(self._next, number + 1)
            self.moved += number != item.number
            yield item if item.number == number else replace(item, number=number)
        self.gone = sum(map(len, done.values())) + sum(1 for _ in entries)

    # --- writing --------------------------------------------------------------------------------------------------

    def fill(
        self,
        items: InputFiles,
        results_of: Callable[[Iterator[Item]], Iterable[list[Result]]],
        hear: Callable[[Result], object],
        tick: Callable[[int], object],
    ) -> None:
        """Write the results of the items that are not done yet, chunk by chunk; then the files that are made from all.

        `results_of` returns the results of items, in order. Each result is passed to `hear` before it is written: if that
        raises AttnctlError, the results before it are written, and the run ends. `tick` receives the number of results
        that were written. A KeyboardInterrupt says how many texts the folder keeps.
        """
        with self._kept_on_interrupt():
            for chunk in results_of(items.items_left(self.items_to_do)):
                for index, result in enumerate(chunk):
                    try:
                        hear(result)
                    except AttnctlError:
                        self.write_results(chunk[:index])
                        raise
                self.write_results(chunk)
                items.note_done(result.item for result in chunk)
                tick(len(chunk))
            self.finish_run()

    def write_results(self, results: Sequence[Result]) -> None:
        """Write the results of some items, in order, then their lines into the manifest."""
        for result in results:
            self._group.append(self._written_entry(result))
            self.done += result.error is None
            self.failed += result.error is not None
            for shared in self.shared:
                if shared.form in result.outputs:
                    self._write_shared(shared.take(result.item.number, result.outputs[shared.form]))
            if self._size > 1 and (result.item.number + 1) % self._size == 0:
                self._end_group()
        self._write_lines()
        if self._size == 1:
            self._commit()

    def finish_run(self) -> None:
        """End the run: write the last group, even if it is small, then the files that are made from all other files."""
        if self._group:
            self._end_group()
        if not self._is_in_order:
            self._put_in_order()
        for shared in self.shared:
            files = [file for group in self._groups() for file in group.files if file.file.startswith(shared.folder())]
            listed = {file.file for file in files}
            # files of a killed run: a reader would take them for files of this one
            for path in (self.path / shared.folder()).glob("*"):
                if (
                    self._own_file.fullmatch(name := shared.folder() + path.name)
                    and name not in listed
                    and not path.is_dir()
                ):
                    path.unlink()
            with said_plainly("read", self.path):
                shared.finish(self.path, ((self.path / file.file).read_bytes() for file in files))

    def _written_entry(self, result: Result) -> ManifestLine:
        """Write the item's own files, and return its line of the manifest."""
        item, files = result.item, list[ManifestFile]()
        for form in FILES:
            if form in result.outputs:
                name = f"{item.file_stem}.{form}"
                files.append(self._write_file(name, result.outputs[form]))
        if self._lines is not None and "json" in result.outputs:
            place = self._lines.add_bytes(result.outputs["json"])
            files.append(self._entry_of(LINES, result.outputs["json"], place))
        return ManifestLine(
            number=item.number,
            id=item.id,
            status="done" if result.error is None else "failed",
            where=item.where,
            error=result.error,
            input=item.content_fingerprint,
            time=datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            seconds=round(result.seconds, 6),
            tokens=result.tokens if result.error is None else None,
            files=tuple(files),
        )

    def _write_file(self, name: str, data: bytes) -> ManifestFile:
        path = self.path / name
        with said_plainly("write", path):
            if "/" in name:
                path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # a pipe would receive the bytes
                path.unlink()
        write_whole(path, data, inside=self.path)
        return self._entry_of(name, data)

    def _entry_of(self, name: str, data: bytes, offset: int | None = None) -> ManifestFile:
        """Return the entry of a file of this run, or of the part of it that begins at `offset`."""
        if name in self.damaged:
            self.damaged[name] = True
        return ManifestFile(file=name, offset=offset, bytes=len(data), sha256=sha256(data).hexdigest())

    def _write_shared(self, files: Iterable[tuple[str, bytes]]) -> None:
        self._group_files += [self._write_file(name, data) for name, data in files]

    def _end_group(self) -> None:
        for shared in self.shared:
            self._write_shared(shared.end())
        last = self._group[-1]  # a group is done or not done as one: its last line says so
        last.files, last.group = (*last.files, *self._group_files), len(self._group)
        self._commit()
        self._group_files = []

    def _write_lines(self) -> None:
        if self._lines is not None:
            self._lines.write_added()

    def _commit(self) -> None:
        """Write the lines of the current items, after their files."""
        if self._group:
            self._write_lines()
            self._manifest.append_bytes(b"".join(sealed_line(entry, self._key) for entry in self._group))
            numbers = [entry.number for entry in self._group]
            self._is_in_order &= numbers == sorted(numbers) and numbers[0] > self._last
            self._last = max(self._last, *numbers)
            self._group = []
