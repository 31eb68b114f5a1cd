"""What adds up over the texts of a batch: means of what is measured of each head, or of parts of prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnctl.batching.folder import NamedFiles, SharedFormat
from attnctl.batching.items import Item
from attnctl.files import write_whole
from attnctl.readings.head_statistics import STATISTICS, head_statistics
from attnctl.text import as_json, csv_table
from attnctl.trace import Trace

# layer, head, measure (or what else is told apart) → n, mean, sum of squares around it
Tally = dict[tuple[Any, Any, str], tuple[int, float, float]]


def tally_of_values(values: Iterable[tuple[Any, Any, str, float | None]]) -> Tally:
    """The tally of single numbers, each behind its key; None, and what is not finite, is none."""
    found = ((one, other, name, value) for one, other, name, value in values if value is not None)
    return {(one, other, name): (1, value, 0.0) for one, other, name, value in found if math.isfinite(value)}


def merge_means(tally: Tally, other: Tally) -> None:
    """Take another tally into one (Chan, Golub and LeVeque 1983)."""
    for key, (n, mean, squares) in other.items():
        m, before, around = tally.get(key, (0, 0.0, 0.0))
        off, total = mean - before, m + n
        tally[key] = total, before + off * n / total, around + squares + off * off * m * n / total


def tally_csv(
    tally: Tally, names: Sequence[str], spread: str, columns: Sequence[str] = ("layer", "head", "measure")
) -> str:
    """CSV, a line a key, its last part in the order of `names`: mean over the texts, spread, how many they are.

    `spread` is "standard_error", that of the mean, or "spread", the standard deviation between the texts.
    """
    rows = []
    for key, (n, mean, squares) in sorted(tally.items(), key=lambda entry: (*entry[0][:2], names.index(entry[0][2]))):
        count = n if spread == "standard_error" else 1
        width = math.sqrt(squares / (n - 1) / count) if n > 1 else None
        rows.append([*key, mean, width, n])
    return csv_table([*columns, "mean", spread, "n"], rows, digits=9)


class MeanTallies(SharedFormat):
    """`FORM.csv`: mean, spread and number of what is measured of each head; tallies of the groups are kept beside it."""

    def __init__(self, form: str, prefix: str, measures: Sequence[str], spread: str) -> None:
        self.form, self.prefix, self.measures, self.spread = form, prefix, measures, spread
        self._tally: Tally = {}

    def add(self, made: Tally) -> None:
        """Take a text's measurements in."""
        merge_means(self._tally, made)

    def rest(self) -> NamedFiles:
        """The group's tally."""
        rows = [[*key, *value] for key, value in self._tally.items()]
        self._tally = {}
        return [(f"{self.prefix}{self.first:07d}.json", as_json(rows))]

    def finish(self, folder: Path, parts: Iterator[bytes]) -> None:
        """All tallies as one table."""
        import orjson

        tally: Tally = {}
        for part in parts:
            merge_means(tally, {(layer, head, name): tuple(m) for layer, head, name, *m in orjson.loads(part)})
        write_whole(folder / f"{self.form}.csv", tally_csv(tally, self.measures, self.spread).encode(), inside=folder)


class MeasuredMeans(MeanTallies):
    """The means of a format that a command measures of each text, with the model, instead of reading its trace."""

    @staticmethod
    def measure(model: Any, item: Item, layers: list[int] | None, heads: list[int] | None) -> Tally:
        """What is measured of the chosen heads over one text."""
        raise NotImplementedError


def statistics_of_trace(trace: Trace) -> Tally:
    """STATISTICS of every head of a trace. Raises AttnctlError where it does not hold every query's weights."""
    return tally_of_values(
        (one.layer, one.head, name, one[name])
        for layer in trace.layers
        for one in head_statistics(layer, trace.tokens, trace.key_tokens)
        for name in STATISTICS
    )
