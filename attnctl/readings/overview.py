"""What is kept of a long text instead of its weights: a pooled grid, facts of each head, strongest links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnctl.arrays import Bools, Floats
from attnctl.errors import AttnctlError
from attnctl.readings.head_statistics import HeadStatistics
from attnctl.readings.trace import ModelInfo, opening
from attnctl.tokens import Token

SCHEMA = "attnctl.overview/1"


@dataclass(frozen=True, slots=True)
class Part:
    """A row or a column of a grid: its name, and the tokens [a, b) in it, one stretch or several."""

    name: str
    ranges: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        """Its first token."""
        return self.ranges[0][0]

    @property
    def size(self) -> int:
        """How many tokens it holds."""
        return sum(b - a for a, b in self.ranges)


@dataclass(frozen=True, slots=True)
class Grid:
    """The weights between parts of the text, pooled: how they were, (rows, columns), and where anything can be seen."""

    pool: str  # mean, max, mass
    rows: tuple[Part, ...]
    columns: tuple[Part, ...]
    weights: dict[tuple[int, int], Floats]  # (layer, head) → (rows, columns)
    masks: dict[int, Bools]  # layer → (rows, columns), false where no query sees any key


@dataclass(frozen=True, slots=True)
class Links:
    """The keys that each query attends to most, strongest first, and their weights: (n_q, count) each."""

    keys: Any
    weights: Floats

    @property
    def coverage(self) -> float:
        """The mass that these links hold, of all there is."""
        return float(self.weights.sum(-1).mean())


@dataclass(frozen=True, slots=True)
class Overview:
    """A long text through a model, and what was asked about its attention."""

    text: str
    tokens: tuple[Token, ...]
    model: ModelInfo
    key_tokens: tuple[Token, ...] | None = None
    grid: Grid | None = None
    facts: tuple[HeadStatistics, ...] = ()
    links: dict[tuple[int, int], Links] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def keys_of(self) -> tuple[Token, ...]:
        """The tokens of the key axis."""
        return self.tokens if self.key_tokens is None else self.key_tokens


@dataclass(frozen=True, slots=True)
class LongRow:
    """Where one query of a long text looks: its exact weights on every key, for each head that was asked for."""

    text: str
    tokens: tuple[Token, ...]
    keys: tuple[Token, ...]
    model: ModelInfo
    query: int
    weights: dict[tuple[int, int], Floats]  # (layer, head) → (n_k,)
    notes: tuple[str, ...] = ()


# --- JSON --------------------------------------------------------------------------------------------------------


def to_json(overview: Overview | LongRow) -> bytes:
    """One line of JSON (schema `attnctl.overview/1`), without the newline. What was not asked for is absent."""
    import orjson

    document = as_document(overview) if isinstance(overview, Overview) else row_document(overview)
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise AttnctlError(f"this overview cannot be written as JSON: {error}") from error


def as_document(overview: Overview) -> dict[str, Any]:
    """The JSON document, arrays still arrays."""
    document = opening(SCHEMA, overview.text, overview.tokens, overview.model, overview.key_tokens)
    if (grid := overview.grid) is not None:
        document |= {
            "pool": grid.pool,
            "rows": [{"name": part.name, "ranges": part.ranges} for part in grid.rows],
            "columns": [{"name": part.name, "ranges": part.ranges} for part in grid.columns],
        }
    document["heads"] = [_head_document(overview, *place) for place in places(overview)]
    if overview.notes:
        document["notes"] = list(overview.notes)
    return document


def places(overview: Overview) -> list[tuple[int, int]]:
    """Every (layer, head) that something is known of, in the order it was asked for."""
    known = [(fact.layer, fact.head) for fact in overview.facts]
    known += [*overview.links, *(overview.grid.weights if overview.grid is not None else ())]
    return list(dict.fromkeys(known))


def _head_document(overview: Overview, layer: int, head: int) -> dict[str, Any]:
    document: dict[str, Any] = {"layer": layer, "head": head}
    for fact in overview.facts:
        if (fact.layer, fact.head) == (layer, head):
            document |= fact.document()
    if (links := overview.links.get((layer, head))) is not None:
        document["coverage"] = links.coverage
        document["links"] = [
            [[key, weight] for key, weight in zip(keys, weights, strict=True) if weight > 0]
            for keys, weights in zip(links.keys.tolist(), _short(links.weights), strict=True)
        ]
    if overview.grid is not None and (layer, head) in overview.grid.weights:
        document["grid"] = np.ascontiguousarray(overview.grid.weights[layer, head], np.float32)
    return document


def _short(weights: Floats) -> list[list[float]]:
    """Weights as the shortest decimals that read back to the same float32."""
    return [[float(str(weight)) for weight in row] for row in weights]


def row_document(row: LongRow) -> dict[str, Any]:
    """One query's exact weights as a JSON document of the same schema."""
    document = opening(SCHEMA, row.text, row.tokens, row.model, None if row.keys == row.tokens else row.keys)
    document["heads"] = [
        {"layer": layer, "head": head, "query": row.query, "weights": np.ascontiguousarray(weights, np.float32)}
        for (layer, head), weights in row.weights.items()
    ]
    return document | ({"notes": list(row.notes)} if row.notes else {})


# --- parts of a text ---------------------------------------------------------------------------------------------


def snippet(tokens: Sequence[Token], a: int, b: int, text: str, most: int = 18) -> str:
    """What tokens [a, b) are called: the position of the first, and the beginning of their text; `most` characters."""
    start = next((token.start for token in tokens[a:b] if token.start is not None and not token.special), None)
    end = next((token.end for token in reversed(tokens[a:b]) if token.end is not None and not token.special), None)
    said = " ".join(token.text for token in tokens[a : min(b, a + most)])
    if start is not None and end is not None and end > start:
        said = text[start : min(end, start + 4 * most)]
    said = f"{a} {' '.join(said.split())}".rstrip()
    if len(said) > most:
        said = said[: most + 1].rsplit(" ", 1)[0] if " " in said[most // 2 : most + 1] else said[:most]
    return said
