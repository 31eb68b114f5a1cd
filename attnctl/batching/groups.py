"""Formats that hold many texts in one file: tables, contact sheets, statistics over the corpus.

Each takes the results of a group in and gives its files out; a group begins at the same item in every run, so that its
files are the same however often a run was interrupted.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from attnctl.batching.corpus.prompt_sources import PromptSources
from attnctl.batching.corpus.treebank import MEASURES, Tally, add_measurements, merge_tallies, tally_csv
from attnctl.batching.engines import SHARED
from attnctl.batching.folder import Folder, damaged_part
from attnctl.batching.manifest import input_paths
from attnctl.batching.texts import TextStream
from attnctl.batching.work import Result, Work
from attnctl.files import said_plainly, write_whole
from attnctl.models import DEFAULT
from attnctl.readings.head_statistics import STATISTICS
from attnctl.text import as_json

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST = 64 << 20  # bytes of a table in memory


class Tables:
    """`traces.parquet/NUMBER.parquet`, NUMBER that of the first text in it."""

    form, prefix = "parquet", "traces.parquet/"

    def __init__(self) -> None:
        self._rows: list[pa.Table] = []
        self._first: int | None = None
        self._bytes = 0

    def take_result(self, result: Result) -> Iterator[tuple[str, bytes]]:
        """Take an item in; a file where they have become many."""
        if self.form in result.made:
            import pyarrow as pa

            self._first = result.item.number if self._first is None else self._first
            with pa.ipc.open_stream(result.made[self.form]) as stream:
                self._rows.append(stream.read_all())
            self._bytes += len(result.made[self.form])
            if self._bytes > LARGEST:
                yield from self.end_group()

    def end_group(self) -> Iterator[tuple[str, bytes]]:
        """The file of what is left."""
        if self._first is not None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            out = io.BytesIO()
            pq.write_table(pa.concat_tables(self._rows), out, compression="zstd")
            yield f"{self.prefix}{self._first:07d}.parquet", out.getvalue()
            self._rows, self._first, self._bytes = [], None, 0

    def finish_run(self, folder: Path, files: Sequence[str]) -> None:
        """Nothing: the folder is read as one table."""


class Contacts:
    """`contact-sheet/NUMBER-PAGE.png`, NUMBER that of the first text of the group, and all of them as contact-sheet.pdf."""

    form, prefix = "contact-sheet", "contact-sheet/"

    def __init__(self, heading: str) -> None:
        self.heading = heading
        self._tiles: list[Any] = []
        self._first: int | None = None
        self._page = 0

    def take_result(self, result: Result) -> Iterator[tuple[str, bytes]]:
        """Take an item in; the pages that are full."""
        if self.form in result.made:
            from attnctl.render.figure.contact_sheet import SHAPE, unpacked_tiles

            self._first = result.item.number if self._first is None else self._first
            self._tiles += list(unpacked_tiles(result.made[self.form]))
            full = SHAPE[0] * SHAPE[1]
            while len(self._tiles) >= full:
                yield self._contact_page(full)

    def end_group(self) -> Iterator[tuple[str, bytes]]:
        """The page of what is left."""
        if self._tiles:
            yield self._contact_page(len(self._tiles))
        self._first, self._page = None, 0

    def _contact_page(self, count: int) -> tuple[str, bytes]:
        from attnctl.render.figure.contact_sheet import sheet_page

        tiles, self._tiles = self._tiles[:count], self._tiles[count:]
        self._page += 1
        return f"{self.prefix}{self._first:07d}-{self._page:03d}.png", sheet_page(tiles, self.heading)

    def finish_run(self, folder: Path, files: Sequence[str]) -> None:
        """All pages as one PDF."""
        from attnctl.render.figure.contact_sheet import sheet_pdf

        if files:
            from PIL import Image

            read = [""]  # the page that is being read

            def page_bytes() -> Iterator[bytes]:
                for read[0] in files:
                    data = (folder / read[0]).read_bytes()
                    with Image.open(io.BytesIO(data)) as picture:
                        picture.verify()  # a page cut short would be drawn as far as it goes
                    yield data

            def write_pages(file: IO[bytes]) -> None:
                try:
                    sheet_pdf(page_bytes(), file)
                except (OSError, SyntaxError, ValueError) as error:  # as its library says that a PNG is none
                    if isinstance(error, OSError) and error.errno is not None:
                        raise
                    raise damaged_part(folder / read[0]) from error

            write_whole(folder / "contact-sheet.pdf", write_pages)


class Statistics:
    """`statistics.csv`: mean, spread and number of each statistic of each head; tallies of the groups are kept beside it."""

    form, prefix = "statistics", ".tallies/"
    measures: Sequence[str] = tuple(STATISTICS)
    spread = "spread"

    def __init__(self) -> None:
        self._tally: Tally = {}
        self._first: int | None = None

    def take_result(self, result: Result) -> Iterator[tuple[str, bytes]]:
        """Take an item in."""
        if self.form in result.made:
            import orjson

            self._first = result.item.number if self._first is None else self._first
            add_measurements(self._tally, orjson.loads(result.made[self.form]), self.measures)
        yield from ()

    def end_group(self) -> Iterator[tuple[str, bytes]]:
        """The group's tally."""
        if self._first is not None:
            rows = [[*key, *value] for key, value in self._tally.items()]
            yield f"{self.prefix}{self._first:07d}.json", as_json(rows)
            self._tally, self._first = {}, None

    def finish_run(self, folder: Path, files: Sequence[str]) -> None:
        """All tallies as one table."""
        import orjson

        tally: Tally = {}
        for name in files:
            with said_plainly("read", folder / name):
                data = (folder / name).read_bytes()
            try:
                if not isinstance(rows := orjson.loads(data), list):
                    raise TypeError(rows)
                entries = [_tally_row(row, self.measures) for row in rows]
            except (ValueError, TypeError) as error:
                raise damaged_part(folder / name) from error
            tally = merge_tallies(tally, dict(entries))
        write_whole(folder / f"{self.form}.csv", tally_csv(tally, self.measures, self.spread).encode())


def _tally_row(row: Any, names: Iterable[str]) -> tuple[tuple[int, int, str], tuple[int, float, float]]:
    """Key and value of a line of a tally's file. Raises ValueError or TypeError where it is none."""
    layer, head, name, n, mean, squares = row
    whole = all(isinstance(number, int) and number >= least for number, least in ((layer, 0), (head, 0), (n, 1)))
    if not whole or name not in names or not (math.isfinite(mean) and math.isfinite(squares) and squares >= 0):
        raise ValueError(row)
    return (layer, head, name), (n, mean, squares)


class EffectMeans(Statistics):
    """`effects.csv`: mean, standard error and number of what each head's removal does; tallies as of statistics."""

    form, prefix = "effects", ".effects/"
    measures, spread = MEASURES, "standard_error"


def batch_folder(work: Work, source: TextStream, path: str, *, start_anew: bool = False) -> Folder:
    """The folder of a batch, with what holds many of its items in a file."""
    said: dict[str, Any] = {"input": input_paths([source.path], path), "input_form": source.form}
    said |= {"column": source.column, "id_column": source.id_column}
    said |= work.said()
    name = "standard input" if source.path == "-" else Path(source.path).name
    made: dict[str, Callable[[], Any]] = {
        "parquet": Tables,
        "contact-sheet": partial(Contacts, f"{name}, {work.options.get('name', DEFAULT)}"),
        "statistics": Statistics,
        "effects": EffectMeans,
        "sources": PromptSources,
    }
    writers: list[Any] = [made[form]() for form in work.formats if form in made]
    together = SHARED if work.batch_size > 1 else 1
    return Folder(path, said, work.formats, writers, together, start_anew=start_anew)
