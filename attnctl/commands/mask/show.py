"""Show the masks of a model: a line for each, what crosses them, and a grid of queries × keys, pooled if it is long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnctl.blockwise import even_edges
from attnctl.commands.mask.intervals import IntervalMask, interval_mask
from attnctl.commands.mask.result import (
    NO_MASK,
    MaskCheck,
    MaskGroup,
    MaskViolation,
    group_line,
    outcome,
    place_of,
    violation_lines,
)
from attnctl.commands.mask.sentence import ranges
from attnctl.render import Column, Form, Grid, Line, Table, token_label
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import counted, visible_text

if TYPE_CHECKING:
    from attnctl.formats import Look
    from attnctl.render import Panels

IN_TERMINAL, POOLED, IN_PICTURE = 24, 12, 64  # rows and columns of a grid; a longer mask is pooled
DRAWN = 6  # masks that are drawn
LISTED = 12  # violations in a terminal


def mask_forms(check: MaskCheck) -> Iterator[Form]:
    """Return the outcome, the violations, a table of the masks, and a grid of each."""
    yield Line(f"{visible_text(check.model.name)}, {check.kernel}: {outcome(check)}", "bold")
    lines = violation_lines(check)
    yield from (Line(line, indent=2, hanging=2, mark="✗ ") for line in lines[:LISTED])
    if len(lines) > LISTED:
        yield f"  … {len(lines) - LISTED} more: --json has them all"
    if check.groups:
        yield ""
        yield masks_table(check)
    drawn = [group for group in check.groups if not (interval_mask(group.mask).is_full and group.holds)]
    for group in drawn[:DRAWN]:
        yield ""
        yield Line(_group_title(check, group), "accent")
        yield _grid(check, group)
    if len(drawn) > DRAWN:
        yield f"  … {len(drawn) - DRAWN} more masks: --json has them all"
    yield ""
    yield Line(_how_checked(check), "dim")
    yield from (Line(f"Not checked: {reason}.", "dim") for reason in _together(check.unchecked))


def masks_table(check: MaskCheck) -> Table:
    """Return a table with the layers, the mask in words, and what is expected of each group."""
    groups = check.groups
    rows = [ranges(group.rows) for group in groups]
    several = len({row for group in groups for row in group.rows}) > 1
    return Table(
        [
            Column("layers", [f"{_kind_before(group)}{ranges(group.layers)}" for group in groups], "text", cut="end"),
            Column("heads", [None if group.heads is None else ranges(group.heads) for group in groups], "text"),
            Column("rows", rows if several else [None] * len(groups), "text"),
            Column("", ["✓" if group.holds else "✗" for group in groups], "text", name="holds"),
            Column("mask", [group.sentence for group in groups], "text", cut="below"),
            Column("expected", [group.expected for group in groups], "text", cut="below"),
        ],
        indent=2,
    )


def _kind_before(group: MaskGroup) -> str:
    return "" if group.kind == "self" else f"{group.kind} "


def _group_title(check: MaskCheck, group: MaskGroup) -> str:
    """Return the heading of a group's grid: its layers, its rows, and how it is pooled."""
    size = max(group.mask.shape)
    pooled = f"; {size:,} tokens, share of pairs visible, from each token on" if size > IN_TERMINAL else ""
    return f"{group_line(check, group)}{pooled}"


def _how_checked(check: MaskCheck) -> str:
    noise = "the same to the last bit" if not check.floor else f"up to {check.floor:.1e} apart"
    if not check.exchanges:
        return "No tokens were exchanged."
    return (
        f"Checked by exchanging the tokens that a query should not see, {counted(check.exchanges, 'time')}: its output must "
        "stay the same. "
        f"Two runs of the same input are {noise}; changes by up to {check.limit:.1e} of an output are rounding."
    )


def _together(reasons: Sequence[str]) -> list[str]:
    return [*reasons[:3], *([f"{len(reasons) - 3} more layers"] if len(reasons) > 3 else [])]


# --- as a grid -------------------------------------------------------------------------------------------------------


def pooled_mask(mask: Bools | IntervalMask, cells: int) -> tuple[Floats, list[int], list[int]]:
    """Return the share of visible pairs in at most `cells` × `cells` blocks, and the first query and key of each block."""
    rows, columns = (even_edges(size, cells) for size in mask.shape)
    return interval_mask(mask).pooled(rows, columns), rows[:-1], columns[:-1]


def _labels(check: MaskCheck, group: MaskGroup, axis: int, starts: Sequence[int]) -> list[str]:
    """Return the names of rows or columns: tokens if each is one and its name is known, else their numbers."""
    count = group.mask.shape[axis]
    alone = len(starts) == count
    if alone and group.kind == "self" and len(check.tokens) == count and not any(group.rows):
        return [token_label(token) for token in check.tokens]
    return [f"{start:,}" for start in starts]


def _grid(check: MaskCheck, group: MaskGroup) -> Grid:
    """Return a group's mask as a grid of ✓, pooled as a grid of shares."""
    shares, rows, columns = pooled_mask(group.mask, IN_TERMINAL if max(group.mask.shape) <= IN_TERMINAL else POOLED)
    whole = shares.shape == group.mask.shape
    wrong = sorted({
        _cell_of(rows, violation.query)
        for violation in check.violations
        if _is_of_group(violation, group)
    })  # fmt: skip
    names = _labels(check, group, 0, rows), _labels(check, group, 1, columns)
    cells = shares > 0 if whole else shares
    return Grid(cells, *names, mask=shares > 0, heat=not whole, marks=tuple(wrong), indent=2)


def _is_of_group(violation: MaskViolation, group: MaskGroup) -> bool:
    """Return whether a violation is one of a group's layers, heads and rows of the batch."""
    is_of_heads = violation.heads in (None, group.heads)
    is_of_layers = violation.kind == group.kind and violation.layer in group.layers
    return is_of_heads and is_of_layers and violation.row in group.rows


def _cell_of(starts: Sequence[int], position: int) -> int:
    """Return the row or column of a grid in which a token is."""
    return int(np.searchsorted(starts, position, "right")) - 1


def mask_panels(check: MaskCheck) -> tuple[Panels, Look]:
    """Return a picture of the masks, a panel for each group of layers, with the wrong pairs outlined, and its look."""
    from matplotlib.colors import Normalize

    from attnctl.errors import AttnctlError
    from attnctl.formats import CMAP, Look
    from attnctl.render import Panel, Panels, Scale, colour_map

    if not check.groups:
        name = check.model.name
        why = f"the masks of {name} cannot be read" if check.attends else f"{name} has {NO_MASK}"
        raise AttnctlError(f"{why}, and there is no picture: ask for text or JSON")
    shapes = [group.mask.shape for group in check.groups]
    shape = max(shapes, key=lambda one: (shapes.count(one), one))
    groups = [group for group in check.groups if group.mask.shape == shape][:DRAWN]
    panels, pooled = [], max(shape) > IN_PICTURE
    for index, group in enumerate(groups):
        shares, rows, columns = pooled_mask(group.mask, IN_PICTURE)
        worst = next(
            (
                violation
                for violation in check.violations
                if _is_of_group(violation, group) and violation.key is not None
            ),
            None,
        )
        ring = None if worst is None else (_cell_of(rows, worst.query), _cell_of(columns, worst.key or 0))
        name = f"{place_of(check, group)}\n{group.sentence}"
        wrong = None if group.wrong is None else pooled_mask(group.wrong, IN_PICTURE)[0] > 0
        ring = ring if wrong is None else None
        panels.append(
            Panel(index // 3, index % 3, name, shares, shares > 0 if pooled else None, ring=ring, outlined=wrong)
        )
    left_out = len(check.groups) - len(groups)
    notes = [group_line(check, groups[0])] * (len(groups) == 1)  # a picture of one panel shows no name
    notes += [f"{line[0].lower()}{line[1:]}" for line in violation_lines(check)[:2]]  # parts of one sentence
    notes += [f"{counted(left_out, 'mask')} more: see --json"] * bool(left_out)
    picture = Panels(
        panels=tuple(panels),
        rows=tuple(_labels(check, groups[0], 0, rows)),
        columns=tuple(_labels(check, groups[0], 1, columns)),
        scales=(Scale(Normalize(0, 1), colour_map(CMAP), "share of pairs visible"),),
        title=f"{check.model.name}: {outcome(check)}",
        notes=tuple(notes),
        below="dark: the query sees the key" + "; outlined: not as expected" * (check.holds is False),
        each_named=True,
        hidden="hidden",
        cited=check.model.citation,
    )
    return picture, Look(values=False, colorbar=pooled)
