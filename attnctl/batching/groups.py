"""Formats that hold many texts in one file: tables and contact sheets; the folder of a batch with all of its formats.

A group begins at the same item in every run, so that its files are the same however often a run was interrupted.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl import find_named
from attnctl.batching.engines import SHARED
from attnctl.batching.folder import Folder, NamedFiles, SharedFormat
from attnctl.batching.manifest import input_paths
from attnctl.batching.tallies import MeanTallies
from attnctl.batching.texts import TextStream
from attnctl.batching.work import Work
from attnctl.commands import BATCH_FORMATS, PROMPT_FORMATS
from attnctl.files import write_whole
from attnctl.models import DEFAULT
from attnctl.readings.head_statistics import STATISTICS

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST = 64 << 20  # bytes of a table in memory


class Tables(SharedFormat):
    """`traces.parquet/NUMBER.parquet`: the folder is read as one table."""

    form, prefix = "parquet", "traces.parquet/"

    def __init__(self) -> None:
        self._rows: list[pa.Table] = []
        self._bytes = 0

    def add(self, made: bytes) -> NamedFiles:
        """Take a trace's rows in; a file where they have become many."""
        import pyarrow as pa

        with pa.ipc.open_stream(made) as stream:
            self._rows.append(stream.read_all())
        self._bytes += len(made)
        return self.end() if self._bytes > LARGEST else []

    def rest(self) -> NamedFiles:
        """The file of what is left."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        out = io.BytesIO()
        pq.write_table(pa.concat_tables(self._rows), out, compression="zstd")
        self._rows, self._bytes = [], 0
        return [(f"{self.prefix}{self.first:07d}.parquet", out.getvalue())]


class Contacts(SharedFormat):
    """`contact-sheet/NUMBER-PAGE.png`, NUMBER that of the first text of the group, and all of them as contact-sheet.pdf."""

    form, prefix = "contact-sheet", "contact-sheet/"

    def __init__(self, heading: str) -> None:
        self.heading = heading
        self._tiles: list[Any] = []
        self._page = 0

    def add(self, made: bytes) -> NamedFiles:
        """Take a text's tiles in; the pages that are full."""
        from attnctl.render.figure.contact_sheet import SHAPE, unpacked_tiles

        self._tiles += list(unpacked_tiles(made))
        full = SHAPE[0] * SHAPE[1]
        return [self._contact_page(full) for _ in range(len(self._tiles) // full)]

    def rest(self) -> NamedFiles:
        """The page of what is left."""
        pages = [self._contact_page(len(self._tiles))] if self._tiles else []
        self._page = 0
        return pages

    def _contact_page(self, count: int) -> tuple[str, bytes]:
        from attnctl.render.figure.contact_sheet import sheet_page

        tiles, self._tiles = self._tiles[:count], self._tiles[count:]
        self._page += 1
        return f"{self.prefix}{self.first:07d}-{self._page:03d}.png", sheet_page(tiles, self.heading)

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """All pages as one PDF."""
        from attnctl.render.figure.contact_sheet import sheet_pdf

        if first := next(parts, None):
            write_whole(
                folder / "contact-sheet.pdf", lambda file: sheet_pdf(chain([first], parts), file), inside=folder
            )


def batch_folder(work: Work, source: TextStream, path: str, *, start_anew: bool = False) -> Folder:
    """The folder of a batch, with what holds many of its items in a file."""
    said: dict[str, Any] = {"input": input_paths([source.path], path), "input_form": source.form}
    said |= {"column": source.column, "id_column": source.id_column}
    said |= work.said()
    name = "standard input" if source.path == "-" else Path(source.path).name
    made: dict[str, Callable[[], SharedFormat]] = {
        "parquet": Tables,
        "contact-sheet": partial(Contacts, f"{name}, {work.options.get('name', DEFAULT)}"),
        "statistics": partial(MeanTallies, "statistics", ".tallies/", tuple(STATISTICS), "spread"),
    }
    made |= {
        form: find_named(place) for form, place in (BATCH_FORMATS | PROMPT_FORMATS).items() if form in work.formats
    }
    shared: list[SharedFormat] = [made[form]() for form in work.formats if form in made]
    together = SHARED if work.batch_size > 1 else 1
    return Folder(path, said, work.formats, shared, together, start_anew=start_anew)
