"""What the heads of a model learned of the bundled English: a line a relation."""

from __future__ import annotations

from collections.abc import Sequence

from attnctl.render.forms import Column, Form, Table
from attnctl.text import Document, percent

NOTE = (
    "How often a word's largest weight on another word is on the right one, in the one head (layer.head) that does "
    "best on other sentences. held out: no subject-verb-object combination was in training; unseen: nor were the "
    "names and nouns; by hand: sentences marked by hand before training, and kept out of it. Beside it: the network "
    "before training, the best fixed offset, the nearest and the first word of the right kind."
)


def relations_forms(rows: Sequence[Document]) -> list[Form]:
    """What the heads have learned, and how to read it."""
    return [relations_table(rows), "", (NOTE, "dim")]


def relations_table(rows: Sequence[Document], indent: int = 0) -> Table:
    """A line a relation; the rows are those that a training writes into its weights."""

    def column(heading: str, name: str, rank: int | None = None) -> Column:
        return Column(heading, [row.get(name) for row in rows], "share", rank=rank)

    offsets = [f"{percent(row['by_offset'], 1)} ({row['offset']:+d})" for row in rows]
    goals = ["" if row["goal"] is None else percent(row["goal"]) for row in rows]
    return Table(
        [
            Column("relation", [row["relation"] for row in rows], "text", cut="below"),
            Column("head", [f"{row['layer']}.{row['head']}" for row in rows]),
            column("held out", "held_out"),
            column("unseen", "unseen"),
            column("by hand", "by_hand", 7),
            Column("goal", goals, rank=5),
            column("untrained", "untrained", 6),
            Column("offset", offsets, rank=3),
            column("nearest", "by_nearest", 4),
            column("first", "by_first", 2),
            Column("n", [row["links"] for row in rows], rank=1),
        ],
        indent=indent,
    )
