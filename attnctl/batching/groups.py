"""Formats that hold many texts in one file; the folder of a batch with all of its formats.

A group begins at the same item in every run, so that its files are the same however often a run was interrupted.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from attnctl import find_named
from attnctl.batching.engines import SHARED
from attnctl.batching.folder import Folder, NamedFiles, SharedFormat
from attnctl.batching.manifest import input_paths
from attnctl.batching.tallies import MeanTallies
from attnctl.batching.texts import TextStream
from attnctl.batching.work import Work
from attnctl.commands import BATCH_FORMATS, PROMPT_FORMATS
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


def batch_folder(work: Work, source: TextStream, path: str, *, start_anew: bool = False) -> Folder:
    """The folder of a batch, with what holds many of its items in a file."""
    said: dict[str, Any] = {"input": input_paths([source.path], path), "input_form": source.form}
    said |= {"column": source.column, "id_column": source.id_column}
    said |= work.said()
    made: dict[str, Callable[[], SharedFormat]] = {
        "parquet": Tables,
        "statistics": partial(MeanTallies, "statistics", ".tallies/", tuple(STATISTICS), "spread"),
    }
    made |= {
        form: find_named(place) for form, place in (BATCH_FORMATS | PROMPT_FORMATS).items() if form in work.formats
    }
    shared: list[SharedFormat] = [made[form]() for form in work.formats if form in made]
    together = SHARED if work.batch_size > 1 else 1
    return Folder(path, said, work.formats, shared, together, start_anew=start_anew)
