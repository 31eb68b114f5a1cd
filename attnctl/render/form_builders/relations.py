"""Show what the heads of a model learned from the bundled English: a table with a row for each relation."""

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
    """Return the table of what the heads have learned, and a note on how to read it."""
    return [relations_table(rows), "", (NOTE, "dim")]


def relations_table(rows: Sequence[Document], indent: int = 0) -> Table:
    """Return a table with a row for each relation, from the rows that a training writes into its weights file."""

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
