"""The table of what heads learned: a model's shares beside the untrained model's, and those of simple rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]  # the fields of training.relations.Measured


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "head": lambda row: f"{row['layer']}.{row['head']}",
    "held out": lambda row: _percent(row["held_out"]),
    "unseen": lambda row: _percent(row["unseen"]),
    "goal": lambda row: "" if row["goal"] is None else f"{100 * row['goal']:.0f}%",
    "untrained": lambda row: _percent(row["untrained"]),
    "offset": lambda row: f"{_percent(row['by_offset'])} ({row['offset']:+d})",
    "nearest": lambda row: _percent(row["by_nearest"]),
    "first": lambda row: _percent(row["by_first"]),
    "n": lambda row: f"{row['links']:,}",
}

NOTE = (
    "How often a word's largest weight on another word is on the right one, in the\n"
    "one head (layer.head) that does best on other sentences. held out: no\n"
    "subject-verb-object combination was in training; unseen: nor were the names and\n"
    "nouns. Beside it: the network before training, the best fixed offset, the\n"
    "nearest and the first word of the right kind."
)


def relations_lines(rows: Sequence[Row], width: int) -> list[str]:
    """The table as lines. Where `width` columns are too few, each relation has a line to itself above its numbers."""
    cells = [[name, *(cell(row) for row in rows)] for name, cell in COLUMNS.items()]
    wide = [max(map(len, column)) for column in cells]
    numbers = ["  ".join(c.rjust(w) for c, w in zip(line, wide, strict=True)) for line in zip(*cells, strict=True)]
    names = ["relation", *(row["relation"] for row in rows)]
    longest = max(map(len, names))
    if longest + 2 + len(numbers[0]) <= width:
        return [f"{name:{longest}}  {line}" for name, line in zip(names, numbers, strict=True)]
    below = [part for pair in zip(names[1:], numbers[1:], strict=True) for part in (pair[0], f"  {pair[1]}")]
    return [f"  {numbers[0]}", *below]
