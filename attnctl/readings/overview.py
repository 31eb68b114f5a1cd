"""What is kept of a long text instead of its weights: a pooled grid, the statistics of each head, the strongest links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from attnctl.checks.document_fields import Count, Index, Part, about
from attnctl.errors import UsageError
from attnctl.readings.head_statistics import HeadStatistics
from attnctl.text import counted, quoted_beginning
from attnctl.text.tokens import Token
from attnctl.trace.subject import HoldsSubject, Subject

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attnctl.runtime.arrays import Bools, Floats


class TextPart(Part, frozen=True):  # type: ignore[misc]  # a rule of dataclasses, which a Struct is none of
    """A row or a column of a grid."""

    name: str
    ranges: Annotated[
        tuple[tuple[Index, Count], ...], Meta(min_length=1), about("Tokens [first, last), one stretch or several.")
    ]

    @property
    def first_token(self) -> int:
        """Return the number of its first token."""
        return self.ranges[0][0]

    @property
    def token_count(self) -> int:
        """Return the number of its tokens."""
        return sum(b - a for a, b in self.ranges)


@dataclass(frozen=True, slots=True)
class PooledGrid:
    """The pooled weights between parts of a text: the kind of pooling, (rows, columns), and masks of the visible cells."""

    pool: str  # mean, max, mass
    rows: tuple[TextPart, ...]
    columns: tuple[TextPart, ...]
    weights: dict[tuple[int, int], Floats]  # (layer, head) → (rows, columns)
    masks: dict[int, Bools]  # layer → (rows, columns), false if no query of the row sees a key of the column


@dataclass(frozen=True, slots=True)
class Links:
    """The keys that each query attends to most, strongest first, and their weights: (n_q, count) each."""

    keys: npt.NDArray[np.int64]
    weights: Floats

    @property
    def mass_covered(self) -> float:
        """Return the share of all weight that these links hold."""
        return float(self.weights.sum(-1).mean())


@dataclass(frozen=True, slots=True, repr=False)
class Overview(HoldsSubject):
    """A long text, its model, and the parts of its attention that were kept: a grid, statistics or links."""

    subject: Subject
    grid: PooledGrid | None = None
    head_statistics: tuple[HeadStatistics, ...] = ()
    links: dict[tuple[int, int], Links] = field(default_factory=dict)

    def __repr__(self) -> str:
        contents = {
            "a grid": self.grid is not None,
            "statistics": bool(self.head_statistics),
            "links": bool(self.links),
        }
        names = ", ".join(name for name, is_held in contents.items() if is_held) or "nothing"
        tokens = counted(len(self.tokens), "token")
        return f"Overview of {quoted_beginning(self.text)} by {self.model.name}: {tokens}, {names}"

    def narrowed(self, includes: Callable[[int, int], bool]) -> Overview:
        """Return the overview with only the layers and heads for which `includes` returns true."""
        grid = self.grid
        if grid is not None:
            weights = {place: cells for place, cells in grid.weights.items() if includes(*place)}
            masks = {layer: mask for layer, mask in grid.masks.items() if any(layer == place[0] for place in weights)}
            grid = replace(grid, weights=weights, masks=masks)
        statistics = tuple(measured for measured in self.head_statistics if includes(measured.layer, measured.head))
        return replace(
            self,
            grid=grid,
            head_statistics=statistics,
            links={place: links for place, links in self.links.items() if includes(*place)},
        )

    def without_keys(self, out: Sequence[int], name: str) -> Overview:
        """Return the grid without the columns of some keys. Raises UsageError if a key of `name` is pooled with others."""
        grid = self.grid
        assert grid is not None
        gone = {
            column
            for column, part in enumerate(grid.columns)
            for a, b in part.ranges
            if any(a <= key < b for key in out)
        }
        if any(grid.columns[column].token_count > 1 for column in gone):
            raise UsageError(f"cannot be combined with {name}: the key is pooled with others already", option="drop")
        columns = [column for column in range(len(grid.columns)) if column not in gone]
        narrowed = replace(
            grid,
            columns=tuple(grid.columns[column] for column in columns),
            weights={place: cells[:, columns] for place, cells in grid.weights.items()},
            masks={layer: mask[:, columns] for layer, mask in grid.masks.items()},
        )
        return replace(self, grid=narrowed, links={}, head_statistics=())


@dataclass(frozen=True, slots=True, repr=False)
class LongRow(HoldsSubject):
    """One query of a long text: its exact weights on every key, for each chosen head."""

    subject: Subject
    query: int
    weights: dict[tuple[int, int], Floats]  # (layer, head) → (n_k,)

    def __repr__(self) -> str:
        heads = counted(len(self.weights), "head")
        return f"LongRow {self.query} of {quoted_beginning(self.text)} by {self.model.name}: {heads}"

    def narrowed(self, includes: Callable[[int, int], bool]) -> LongRow:
        """Return the row with only the layers and heads for which `includes` returns true."""
        return replace(self, weights={place: row for place, row in self.weights.items() if includes(*place)})


def part_snippet(tokens: Sequence[Token], a: int, b: int, text: str, limit: int, number: int) -> str:
    """Return a label of at most `limit` characters for tokens [a, b): the number of the first, and how their text begins."""
    start = next((token.start for token in tokens[a:b] if token.start is not None and not token.special), None)
    end = next((token.end for token in reversed(tokens[a:b]) if token.end is not None and not token.special), None)
    label = " ".join(token.text for token in tokens[a : min(b, a + limit)])
    if start is not None and end is not None and end > start:
        label = text[start : min(end, start + 4 * limit)]
    label = f"{number} {' '.join(label.split())}".rstrip()
    if len(label) > limit:
        label = label[: limit + 1].rsplit(" ", 1)[0] if " " in label[limit // 2 : limit + 1] else label[:limit]
    return label
