"""Write tests/training/constructions*.txt: `python -m tests.tools.constructions`.

constructions-fitted.txt    by templates, to fit the certainty of headlines
constructions.txt           by templates with other words, and by hand, to measure it
constructions-last.txt      by hand, to measure the whole of it once
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.tools.constructions.notation import marked_line
from tests.tools.constructions.templates import FIT, KINDS, MEASURE, written

FOLDER, HERE = Path(__file__).parents[2] / "training", Path(__file__).parent
EACH = 100  # sentences of a kind by templates
KIND = "# kind: "


def by_hand(name: str) -> dict[str, list[str]]:
    """Return kind → sentences of a file in the notation; those before the first kind have the kind ""."""
    kinds, kind = defaultdict[str, list[str]](list), ""
    for line in HERE.joinpath(name).read_text(encoding="utf-8").splitlines():
        if line.startswith(KIND):
            kind = line.removeprefix(KIND)
        elif line and not line.startswith("#"):
            kinds[kind].append(line)
    return kinds


def lines(part: str) -> Iterator[str]:
    """Yield the lines of a file: a comment with each kind, and its marked sentences."""
    hand = by_hand("by_hand.txt") if part == MEASURE else {}
    for kind in KINDS:
        yield KIND + kind
        yield from map(marked_line, [*hand.get(kind, ()), *written(part, kind, EACH)])


def files() -> dict[str, str]:
    """Return the text of each file, by its name."""
    rows_of_file = {
        "constructions-fitted.txt": ["# Sentences by templates, to fit the certainty of headlines.", *lines(FIT)],
        "constructions.txt": ["# Sentences by hand and by templates; nothing is fitted to them.", *lines(MEASURE)],
        "constructions-last.txt": [
            "# Sixty sentences by hand, to measure the first screen with once; nothing is fitted to them.",
            *map(marked_line, by_hand("last.txt")[""]),
        ],
    }
    return {name: "\n".join(rows) + "\n" for name, rows in rows_of_file.items()}


def main() -> None:
    """Write the three files."""
    for name, text in files().items():
        FOLDER.joinpath(name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
