"""Define the formats of a batch that hold many texts in a file: one class each, found by its name.

A group begins at the same item in every run, so that its files are the same however often a run was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from attnctl.batching.items import Item
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.pictures import format_names
from attnctl.models import Model
from attnctl.readings.head_statistics import STATISTICS, head_statistics
from attnctl.registry import ALIGNED_FORMATS, BATCH_FORMATS, PROMPT_FORMATS
from attnctl.runtime.files import write_whole
from attnctl.text import as_json, csv_table
from attnctl.trace import Trace

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PICTURES = format_names()
FILES = (*PICTURES, "npz")  # formats with a file for each text; json has a line for each text
# formats that hold many texts in a file → "module:class"; packages add others (attnctl.batch_formats)
SHARED = {
    "parquet": "attnctl.batching.columns:Tables",
    "headlines": "attnctl.batching.tables:Headlines",
    "statistics": "attnctl.batching.formats:Statistics",
    "weights": "attnctl.batching.tables:Weights",
    "weights-parquet": "attnctl.batching.columns:WeightTables",
}
SHARED |= BATCH_FORMATS | PROMPT_FORMATS | ALIGNED_FORMATS
# in --format → its format; and the format if a trace keeps its weights alone
TABLES = {"csv": ("headlines", "weights"), "parquet": ("parquet", "weights-parquet")}

NamedFiles = list[tuple[str, bytes]]


class BatchFormat:
    """A format that holds many texts in a file: it makes something of each text, and files of several texts.

    `make` runs in the process that has the model; all other methods run in the process that writes the folder.
    """

    form = ""  # the name in --format
    prefix = ""  # the beginning of its file names, before the number of the first text in each; `.FORM/` if empty
    task: Any = None  # for a format that is not made of traces: the class that makes it, a Task
    reads_sounds = False  # whether a folder's texts are its sounds
    first: int | None = None  # number of the first item that is not in a file yet

    @classmethod
    def folder(cls) -> str:
        """Return the beginning of the names of its files."""
        return cls.prefix or f".{cls.form}/"

    @classmethod
    def heading(cls) -> bytes:
        """Return the line before all rows, for a format that may go to standard output."""
        return b""

    @staticmethod
    def make(item: Item, trace: Trace, model: Model) -> Any:
        """Return the result for a text, from its trace without predictions. Raises AttnctlError if there can be none."""
        raise NotImplementedError

    @staticmethod
    def failed(item: Item, why: str) -> Any | None:
        """Return the result for a text that failed for the reason `why`; None to keep nothing."""
        return None

    def add(self, made: Any) -> NamedFiles | None:
        """Take in what was made of a text; return the files that are full."""
        raise NotImplementedError

    def rest(self) -> NamedFiles:
        """Return the files of the remaining results at the end of a group."""
        raise NotImplementedError

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """Make FORM.csv, FORM.json or FORM.jsonl at the end of a run, of the bytes of all files in their order."""

    def take(self, number: int, made: Any) -> NamedFiles:
        """Take in what was made of the text of this number; return the files that are full."""
        self.first = number if self.first is None else self.first
        return self.add(made) or []

    def end(self) -> NamedFiles:
        """End a group; return the files of its remaining results."""
        files = [] if self.first is None else self.rest()
        self.first = None
        return files

    def name_of_part(self, suffix: str) -> str:
        """Return the name of the file that begins with the first text which is in none yet."""
        return f"{self.folder()}{self.first:07d}{suffix}"


@cache
def format_named(name: str) -> type[BatchFormat]:
    """Return the format of this name.

    Raises UsageError if there is none, and AttnctlError if the package that adds it cannot be imported.
    """
    if name in SHARED:
        format_class: type[BatchFormat] = resolve_name(SHARED[name])
        return format_class
    from attnctl.plugins import load_entry

    of_packages = formats_of_packages()
    if name not in of_packages:
        raise UsageError(
            f"it is one or more of {', '.join((*known_formats(), *of_packages))}", option="format", value=name
        )
    return load_entry(of_packages[name], load_format)


def known_formats() -> tuple[str, ...]:
    """Return the names of attnctl's own formats."""
    return ("json", "npz", *TABLES, *PICTURES, "statistics", *BATCH_FORMATS, *PROMPT_FORMATS, *ALIGNED_FORMATS)


def formats_of_packages() -> dict[str, EntryPoint]:
    """Return the formats of installed packages by name."""
    from attnctl.plugins import entries

    return entries("attnctl.batch_formats", known_formats())


def load_format(entry: EntryPoint) -> type[BatchFormat]:
    """Return the format of an entry point. Raises TypeError if it is not a format, ValueError if its name differs."""
    kind = entry.load()
    if not isinstance(kind, type) or not issubclass(kind, BatchFormat):
        raise TypeError(f"{entry.value} is not a class below BatchFormat")
    if kind.form != entry.name or not entry.name.replace("-", "").isalnum():
        raise ValueError(f"{entry.value} is called {kind.form!r}")
    return kind


# --- means over the texts ------------------------------------------------------------------------------------------

# layer, head, measure (or other parts of a key) → n, mean, sum of squares around it
Tally = dict[tuple[Any, Any, str], tuple[int, float, float]]


def tally_of_values(values: Iterable[tuple[Any, Any, str, float | None]]) -> Tally:
    """Return the tally of single numbers, each after its key; None and numbers that are not finite are left out."""
    return {(*key, name): (1, value, 0.0) for *key, name, value in values if value is not None and math.isfinite(value)}


def merge_means(tally: Tally, other: Tally) -> None:
    """Add the second tally to the first (Chan, Golub and LeVeque 1983)."""
    for key, (n, mean, squares) in other.items():
        m, before, around = tally.get(key, (0, 0.0, 0.0))
        off, total = mean - before, m + n
        tally[key] = total, before + off * n / total, around + squares + off * off * m * n / total


def tally_csv(
    tally: Tally, names: Sequence[str], spread: str, columns: Sequence[str] = ("layer", "head", "measure")
) -> str:
    """Return CSV, one line for each key, with the last part of the keys in the order of `names`: mean, spread, count.

    `spread` is "standard_error", that of the mean, or "spread", the standard deviation between the texts.
    """
    rows = []
    for key, (n, mean, squares) in sorted(tally.items(), key=lambda entry: (*entry[0][:2], names.index(entry[0][2]))):
        count = n if spread == "standard_error" else 1
        width = math.sqrt(squares / (n - 1) / count) if n > 1 else None
        rows.append([*key, mean, width, n])
    return csv_table([*columns, "mean", spread, "n"], rows, digits=9)


class MeanFormat(BatchFormat):
    """The format `FORM.csv`: mean, spread and count of each measurement of each head; `make` returns the tally of a text."""

    measures: Sequence[str] = ()  # names in the third part of a tally's keys, in the order of the table
    spread = "spread"  # or "standard_error"

    def __init__(self) -> None:
        self._tally: Tally = {}

    def add(self, made: Tally) -> None:
        """Take the measurements of a text in."""
        merge_means(self._tally, made)

    def rest(self) -> NamedFiles:
        """Return the tally of the group."""
        rows = [[*key, *value] for key, value in self._tally.items()]
        self._tally = {}
        return [(self.name_of_part(".json"), as_json(rows))]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """Write all tallies as one table."""
        import orjson

        tally: Tally = {}
        for part in parts:
            # a part of an earlier version may have other measures
            rows = [row for row in orjson.loads(part) if row[2] in self.measures]
            merge_means(tally, {(layer, head, name): tuple(m) for layer, head, name, *m in rows})
        write_whole(folder / f"{self.form}.csv", tally_csv(tally, self.measures, self.spread).encode(), inside=folder)


class Statistics(MeanFormat):
    """The format `statistics.csv`: the means of STATISTICS of each head, without numbers of tokens and offsets.

    A mean of the offsets -1 and 3 is no offset at which a head looks; the means of previous, self and next say this.
    """

    form, prefix = "statistics", ".tallies/"
    measures = tuple(name for name, statistic in STATISTICS.items() if statistic.unit not in ("token", "places"))

    @staticmethod
    def make(item: Item, trace: Trace, model: Model) -> Tally:
        """Return the statistics of every head of a trace. Raises AttnctlError if it lacks the weights of some query."""
        if not trace.layers:
            raise AttnctlError("this trace holds no weights: write it without narrowing its steps")
        return tally_of_values(
            (head.layer, head.head, name, head[name])
            for layer in trace.layers
            for head in head_statistics(layer, trace.tokens, trace.key_tokens)
            for name in Statistics.measures
        )
