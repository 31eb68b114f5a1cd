"""Read a soft alignment of Marian, and recognise a hard one, which has no weights.

A soft one is a line with a group of weights for each target token, one weight for each source token: `marian-decoder
--alignment soft` writes `das ||| 0.7,0.2,0.1 0.0,0.1,0.9`. The last source token is the end of the text, </s>, and so is the
last target token unless the translation was cut off. With `--n-best` the translation's number stands before it, and its
scores behind the weights.
"""

from __future__ import annotations

import re

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.runtime.arrays import Floats
from attnctl.text import counted, for_pasting

BETWEEN, END = " ||| ", "</s>"
_NUMBER = rb"\d(?:\.\d+)?(?:e-?\d+)?"
_GROUP = rb"(%s(?:,%s)+)" % (_NUMBER, _NUMBER)
# behind a translation; or two groups, which no row of a table has
_BEGINS = re.compile(rb"[^\n]*?\|\|\| %s(?: |\r?\n|$)|%s %s," % (_GROUP, _GROUP, _NUMBER))
_LINKS = re.compile(rb"(?:[^\n]*\|\|\| )?\d+-\d+(?: \d+[-p]\d+)*[ \r]*(?:\n|$)")
NEAR_ONE = 0.01  # six digits are written of each weight


def begins_as_soft_alignment(start: bytes) -> bool:
    """Return whether bytes begin with a soft alignment: weights that sum to 1, with commas between them."""
    match = _BEGINS.match(start)
    return match is not None and _sums_to_one(match[1] or match[2])


def begins_as_hard_alignment(start: bytes) -> bool:
    """Return whether bytes begin with a line of links of words, as 0-0 1-2 (Pharaoh), and hold several."""
    return _LINKS.match(start) is not None and len(start.split()) > 1


def _sums_to_one(group: bytes) -> bool:
    return abs(sum(map(float, group.split(b","))) - 1) < NEAR_ONE


def read_soft_alignment(text: str, path: str) -> tuple[Floats, tuple[str, ...]]:
    """Return the weights of a soft alignment (target, source), and the words of the target if there are as many.

    Raises AttnctlError for several lines, for other text, and for groups of different lengths.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        name = "soft.txt" if path == "standard input" else for_pasting(path)
        raise AttnctlError(
            f"{path} holds {len(lines):,} alignments, one a line; choose one: sed -n 1p {name} | attnctl … -"
        )
    parts = [part.strip() for part in lines[0].split(BETWEEN.strip())]
    first = ((index, part.split(" ", 1)[0].encode()) for index, part in enumerate(parts))
    place = next((index for index, group in first if re.fullmatch(_GROUP, group) and _sums_to_one(group)), 0)
    try:
        rows = [[float(number) for number in group.split(",")] for group in parts[place].split()]
    except ValueError as error:
        raise AttnctlError(f"{path} is not a sound soft alignment: {error}") from error
    if len({len(row) for row in rows}) > 1:
        raise AttnctlError(f"{path}: its groups have {counted(len(rows[0]), 'weight')} and other numbers of them")
    words = parts[place - 1].split() if place else []
    names = (*words, *[END] * (len(rows) - len(words) == 1)) if words else ()
    return np.asarray(rows, np.float32), names if len(names) == len(rows) else ()
