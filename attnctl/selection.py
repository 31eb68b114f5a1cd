"""Layers and heads of a model, rows and columns of a text: selections parsed and checked, in one place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnctl.errors import UsageError


def chosen_indices(wanted: Sequence[int] | None, count: int, what: str, of: str) -> tuple[int, ...]:
    """Selected layers or heads as indices from 0, None meaning all. Raises UsageError naming what there is."""
    if wanted is None:
        return tuple(range(count))
    for index in wanted:
        if not -count <= index < count:
            has = f"{what} 0 only" if count == 1 else f"{what}s 0 to {count - 1}"
            raise UsageError(f"no {what} {index} in {of}: it has {has}")
    return tuple(dict.fromkeys(index % count for index in wanted))


def parse_selection(spec: str, count: int, what: str, of: str) -> list[int]:
    """Indices that `3`, `0-5`, `1,4,7` or `-1` select from `count`.

    Raises UsageError where it is no selection or one is not there.
    """
    wanted: list[int] = []
    for part in spec.split(","):
        part = part.strip()
        if match := re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", part):
            first, last = int(match[1]), int(match[2])
            if last < first:
                raise UsageError(f"--{what} {part}: from {first} down to {last} is no range")
            wanted += range(first, min(last, first + count) + 1)
        elif re.fullmatch(r"-?[0-9]{1,18}", part):
            wanted.append(int(part))
        else:
            raise UsageError(f"--{what} {spec[:40]!r}: it reads 3, 0-5, 1,4,7, -1 or all")
    return list(chosen_indices(wanted, count, what, of))


def token_range(spec: str | None, n: int, option: str) -> tuple[int, int]:
    """Tokens [A, B) of n, as A:B, A: or :B name them; None means all. Raises UsageError where there are none such."""
    if spec is None:
        return 0, n
    match = re.fullmatch(r"(-?[0-9]{1,15})?:(-?[0-9]{1,15})?", spec.strip())
    if not match:
        raise UsageError(f"{option} {spec[:40]!r}: it is FIRST:LAST, like 3000:3100, LAST not included")
    a, b = int(match[1] or 0), int(match[2] or n)
    a, b = (a + n if a < 0 else a), (b + n if b < 0 else b)
    if not 0 <= a < b <= n:
        raise UsageError(f"{option} {spec}: the text has tokens 0 to {n - 1}, so it is within 0:{n}")
    return a, b
