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
        elif what == "head" and (pair := re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", part)):
            raise UsageError(f"--head {part}: head {pair[2]} of layer {pair[1]} is --layer {pair[1]} --head {pair[2]}")
        else:
            raise UsageError(f"--{what} {spec[:40]!r}: it reads 3, 0-5, 1,4,7, -1 or all")
    return list(chosen_indices(wanted, count, what, of))


def token_range(spec: str | None, n: int, option: str) -> tuple[int, int]:
    """Tokens [A, B) of n that `3-9` (the last one included), `3-` (to the end), `3` or `-1` names; None means all.

    Raises UsageError where it is no range or its tokens are not there.
    """
    if spec is None or spec.strip() == "all":
        return 0, n
    match = re.fullmatch(r"(-?[0-9]{1,15})(?:(-)([0-9]{1,15})?)?", spec.strip())
    if not match or (match[1].startswith("-") and match[2]):
        raise UsageError(f"{option} {spec[:40]!r}: it reads 3, 3000-3099 (the last one too), 3000-, -1 or all")
    first = int(match[1]) + (n if match[1].startswith("-") else 0)
    last = first if match[2] is None else int(match[3] or n - 1)
    if last < first:
        raise UsageError(f"{option} {spec}: from {first} down to {last} is no range")
    if first < 0 or last >= n:
        raise UsageError(f"{option} {spec}: the text has tokens 0 to {n - 1}")
    return first, last + 1
