"""A screen taken apart, for tests that assert numbers, columns and order: the cells of its lines, numbers as they are told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

BARS = re.compile("[▏▎▍▌▋▊▉█│┃]")


def cells(screen: str) -> list[list[str]]:
    """Return the cells of each line that is not empty: two spaces or a rule part them, bars and marks are left out."""
    lines = (BARS.sub("  ", line).strip(" ▸\n") for line in screen.splitlines())
    return [re.split(r"\s{2,}", line) for line in lines if line]


def rows_below(screen: str, heading: Sequence[str]) -> list[list[str]]:
    """Return the cells of all lines below the one that holds these cells, which must be there."""
    lines = cells(screen)
    assert list(heading) in lines, (heading, screen)
    return lines[lines.index(list(heading)) + 1 :]


def marked(screen: str) -> list[str]:
    """Return the first cell of each line that is marked as the chosen one, each once, in their order."""
    lines = (line for line in screen.splitlines() if line.lstrip().startswith("▸"))
    return list(dict.fromkeys(cells(line)[0][0] for line in lines))


def told(numbers: Iterable[float | None], form: str = ".2f") -> list[str]:
    """Return numbers as a grid tells them: rounded, no minus before a zero, a dot for what is hidden."""
    return ["·" if x is None else re.sub(r"^-(0\.?0*)$", r"\1", format(x, form)) for x in numbers]
