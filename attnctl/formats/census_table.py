"""Every number of a census as a table, a line a relation, direction, layer and head; mentions of entities."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from attnctl.files import need_pyarrow
from attnctl.readings.census.census_table import Best, CensusTable, Relation
from attnctl.readings.census.words import Mention
from attnctl.text import csv_table

if TYPE_CHECKING:
    from attnctl.arrays import Ints
    from attnctl.text import Document


PART = re.compile(r"\(([^()]+)(\))?|([^()]+)\)")
PIECE = re.compile(r"(.+)\[(\d+)/(\d+)\]")  # of a mention in several pieces: e3[1/2]
FIELDS = ("eid", "etype", "head", "other")  # of a file that does not say: # global.Entity = …

Node = tuple[str, int | None]  # its Entity, "" where there is none; its word, None of an empty node


class _Bracket(NamedTuple):
    """One pair of brackets: the entity, which piece of how many, the number of its head, its first and last node."""

    entity: str
    piece: int
    pieces: int
    head: str
    first: int
    last: int


def mention_parts(said: str | None) -> tuple[str, ...]:
    """The parts of a mention by the value of `# global.Entity`."""
    return FIELDS if not said else tuple(said.split("-"))


def mentions_of(nodes: Sequence[Node], heads: Sequence[int], fields: Sequence[str] = ()) -> tuple[Mention, ...]:
    """The mentions that open and close within a sentence, in the order of their heads.

    `nodes` are the words and empty nodes as they stand, `heads` the words' heads, -1 for the root. What does not close,
    closes unopened, lacks one of its pieces, or has an empty node for its head (a zero) is no mention.
    """
    found: dict[tuple[str, int], Mention] = {}
    pieces: dict[str, list[_Bracket]] = {}
    for bracket in _brackets(nodes, fields or FIELDS):
        so_far = pieces.get(bracket.entity, []) if bracket.piece > 1 else []
        if len(so_far) != bracket.piece - 1:
            continue
        so_far = [*so_far, bracket]
        if bracket.piece < bracket.pieces:
            pieces[bracket.entity] = so_far
            continue
        pieces.pop(bracket.entity, None)
        mention = _mention_of_pieces(so_far, nodes, heads)
        if mention is not None:
            found[mention.entity, mention.head] = mention
    return tuple(sorted(found.values(), key=lambda mention: (mention.head, mention.first)))


def _brackets(nodes: Sequence[Node], fields: Sequence[str]) -> Iterator[_Bracket]:
    """The pairs of brackets, in the order in which they close."""
    opened: dict[str, list[tuple[int, str]]] = {}
    for at, (value, _) in enumerate(nodes):
        for part in PART.finditer(value):
            begins: str = part[1] or ""
            ends: str = part[3] or ""
            if begins:
                said = dict(zip(fields, begins.split("-"), strict=False))
                name, which = said.get("eid", begins), said.get("head", "")
                opened.setdefault(name, []).append((at, which))
            else:
                name = ends.split("-")[0]
            if (part[2] or not begins) and opened.get(name):
                first, which = opened[name].pop()
                piece = PIECE.fullmatch(name)
                entity, number, of = (piece[1], int(piece[2]), int(piece[3])) if piece else (name, 1, 1)
                yield _Bracket(entity, number, of, which, first, at)


def _mention_of_pieces(pieces: Sequence[_Bracket], nodes: Sequence[Node], heads: Sequence[int]) -> Mention | None:
    """The mention of some pieces, its head as the corpus says, or the first word whose own head lies outside."""
    own = [range(piece.first, piece.last + 1) for piece in pieces]
    first = next((word for at in chain(*own) if (word := nodes[at][1]) is not None), None)
    last = next((word for at in chain(*map(reversed, own[::-1])) if (word := nodes[at][1]) is not None), None)
    if first is None or last is None:
        return None
    which = int(pieces[0].head) if pieces[0].head.isdecimal() else 0
    if 1 <= which <= sum(map(len, own)):
        head = nodes[next(islice(chain(*own), which - 1, None))][1]
    else:
        words = {word for at in chain(*own) if (word := nodes[at][1]) is not None}
        head = next((word for word in sorted(words) if heads[word] not in words), last)
    return None if head is None else Mention(pieces[0].entity, first, last, head)


# name, kind: what each head finds, then what is the same for all heads of a relation and direction
TEXT, WHOLE, REAL, TRUTH = "text", "whole", "real", "truth"
COLUMNS = {
    "relation": TEXT, "direction": TEXT, "layer": WHOLE, "head": WHOLE, "cases": WHOLE, "correct": WHOLE, "accuracy": REAL,
    "best": TRUTH, "best_scored_on": WHOLE, "best_accuracy": REAL, "best_low": REAL, "best_high": REAL, "beats_rules": TRUTH,
    "best_rule": TEXT, "best_rule_accuracy": REAL, "offset": WHOLE, "offset_accuracy": REAL, "nearest_tag": TEXT,
    "nearest_side": TEXT, "nearest_accuracy": REAL, "head_match_accuracy": REAL, "first_accuracy": REAL,
    "untrained_best": REAL,
}  # fmt: skip
UUAS = "(tree)"  # under this relation stand the edges that each head's maximum spanning tree finds


def census_rows(census: CensusTable) -> Iterator[Document]:
    """One row a relation, direction, layer and head; `best` says whether it is the head chosen."""
    for relation in census.relations:
        about = _best_columns(relation.best, relation.untrained) | _rule_columns(relation)
        yield from _head_rows(relation.relation, relation.direction, relation.cases, relation.correct, about)
    trees = census.trees
    about = _best_columns(trees.best_head, trees.untrained)
    about |= {"best_rule": "right-branching", "best_rule_accuracy": trees.right_branching}
    if trees.best_head is not None:
        about["beats_rules"] = trees.best_head.interval[0] > trees.right_branching
    yield from _head_rows(UUAS, "undirected", trees.edges, trees.correct, about)


def _head_rows(relation: str, direction: str, cases: int, correct: Ints, about: Document) -> Iterator[Document]:
    """A row a head; `about` holds what they share, `best` in it the layer and head chosen."""
    for layer, heads in enumerate(correct.tolist()):
        for head, count in enumerate(heads):
            own = {"relation": relation, "direction": direction, "layer": layer, "head": head, "cases": cases}
            own |= {"correct": count, "accuracy": count / cases if cases else None}
            yield dict.fromkeys(COLUMNS) | about | own | {"best": about["best"] == (layer, head)}


def _best_columns(best: Best | None, untrained: Best | None) -> Document:
    """The head chosen, and how well it does on the other half."""
    about: Document = {"best": None, "untrained_best": None if untrained is None else untrained.accuracy}
    if best is not None:
        about |= {"best": (best.layer, best.head), "best_scored_on": best.scored_on, "best_accuracy": best.accuracy}
        about |= {"best_low": best.interval[0], "best_high": best.interval[1]}
    return about


def _rule_columns(relation: Relation) -> Document:
    """Every rule beside a relation."""
    best = relation.best_rule
    about: Document = {} if relation.best is None else {"beats_rules": relation.beats_rules}
    about |= {} if best is None else {"best_rule": best, "best_rule_accuracy": relation.rules[best].accuracy}
    for name, rule in relation.rules.items():
        about[f"{name}_accuracy"] = rule.accuracy
        if rule.offset is not None:
            about["offset"] = rule.offset
        if rule.tag is not None:
            about |= {"nearest_tag": rule.tag, "nearest_side": rule.side}
    return about


def census_csv(census: CensusTable) -> bytes:
    """The table as CSV; what has no value is empty."""
    rows = ([row[name] for name in COLUMNS] for row in census_rows(census))
    return csv_table(COLUMNS, rows, digits=6).encode()


def census_parquet(census: CensusTable) -> bytes:
    """The table as Parquet. Raises AttnctlError where pyarrow is not installed."""
    need_pyarrow("Parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {TEXT: pa.string(), WHOLE: pa.int64(), REAL: pa.float64(), TRUTH: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(census_rows(census)), schema), out, compression="zstd")
    return out.getvalue()
