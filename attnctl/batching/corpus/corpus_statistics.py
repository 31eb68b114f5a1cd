"""What each head does over a whole corpus: the statistics of every text, their mean, spread and number."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from attnctl.readings.head_statistics import head_statistics
from attnctl.readings.statistic_table import STATISTICS
from attnctl.readings.traces.record import stored_layer
from attnctl.readings.traces.trace import Trace

Tally = dict[tuple[int, int, str], tuple[int, float, float]]  # layer, head, measure → n, mean, sum of squares around it


def of_trace(trace: Trace) -> list[list[Any]]:
    """Layer, head, and each of STATISTICS (None where it has no meaning), for every head of a trace.

    Raises AttnctlError where the trace does not hold every query's weights.
    """
    rows = []
    for layer in trace.layers:
        for measured in head_statistics(stored_layer(layer), trace.tokens, trace.key_tokens):
            rows.append([measured.layer, measured.head, *(measured[name] for name in STATISTICS)])
    return rows


def add_measurements(tally: Tally, rows: Iterable[list[Any]], names: Iterable[str]) -> None:
    """Take the statistics of one text into a tally (Welford 1962); `names` are those of a row's numbers."""
    for layer, head, *values in rows:
        for name, value in zip(names, values, strict=True):
            if value is not None:
                n, mean, squares = tally.get((layer, head, name), (0, 0.0, 0.0))
                off = value - mean
                mean += off / (n + 1)
                tally[layer, head, name] = n + 1, mean, squares + off * (value - mean)


def merge_tallies(one: Tally, other: Tally) -> Tally:
    """Two tallies as one (Chan, Golub and LeVeque 1983)."""
    both = dict(one)
    for key, (n, mean, squares) in other.items():
        m, before, around = both.get(key, (0, 0.0, 0.0))
        off, total = mean - before, m + n
        both[key] = total, before + off * n / total, around + squares + off * off * m * n / total
    return both


def tally_csv(tally: Tally, names: Sequence[str], spread: str) -> str:
    """CSV, one line a layer, head and measure, in the order of `names`: mean over the texts, spread, how many they are.

    `spread` is "standard_error", that of the mean, or "spread", the standard deviation between the texts.
    """
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["layer", "head", "measure", "mean", spread, "n"])
    order = {name: at for at, name in enumerate(names)}
    for (layer, head, name), (n, mean, squares) in sorted(tally.items(), key=lambda e: (*e[0][:2], order[e[0][2]])):
        count = n if spread == "standard_error" else 1
        width = f"{math.sqrt(squares / (n - 1) / count):.9g}" if n > 1 else ""
        lines.writerow([layer, head, name, f"{mean:.9g}", width, n])
    return out.getvalue()
