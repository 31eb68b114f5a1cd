"""The word lists of the grammar, read from `tables.txt`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def _tables() -> dict[str, tuple[str, ...]]:
    """Each table's lines by its name."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in files("attnctl.training.english").joinpath("tables.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]") and len(line) > 2 and " ]" not in line:
            name = line[1:-1]
        elif line and not line.startswith("# "):
            found.setdefault(name, []).append(line)
    return {name: tuple(lines) for name, lines in found.items()}


def lines_of(table: str) -> tuple[str, ...]:
    """A table line by line."""
    return _tables()[table]


def words_of(table: str) -> list[str]:
    """The words of a table in their order; one that stands several times is drawn so much oftener."""
    return [word for line in _tables()[table] for word in line.split()]


def pairs_of(table: str) -> dict[str, str]:
    """A table of keys and their words; the key - is the empty word."""
    pairs = (line.partition(": ") for line in _tables()[table])
    return {"" if key == "-" else key: words for key, _, words in pairs}
