"""Every number of a census as a table, one line a relation, direction, layer and head: CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError
from attnctl.readings.census.census_table import CensusTable

if TYPE_CHECKING:
    from attnctl.arrays import Ints
    from attnctl.text import Document

COLUMNS = (
    "relation", "direction", "layer", "head", "cases", "correct", "accuracy", "best", "best_rule", "best_rule_accuracy",
    "untrained_best",
)  # fmt: skip
UUAS = "(tree)"  # under this relation stand the edges that each head's maximum spanning tree finds


def census_rows(census: CensusTable) -> Iterator[Document]:
    """One row a relation, direction, layer and head; `best` says whether it is the head chosen."""
    for relation in census.relations:
        rule, best = relation.best_rule, relation.best
        about = {
            "best_rule": None if rule is None else rule.name,
            "best_rule_accuracy": None if rule is None else rule.accuracy,
            "untrained_best": None if relation.untrained is None else relation.untrained.accuracy,
        }
        at = None if best is None else (best.layer, best.head)
        yield from _census_rows(relation.relation, relation.direction, relation.cases, relation.correct, at, about)
    trees = census.trees
    at = None if trees.best_head is None else (trees.best_head.layer, trees.best_head.head)
    about = {"best_rule": "right-branching", "best_rule_accuracy": trees.right_branching}
    about |= {"untrained_best": None if trees.untrained is None else trees.untrained.accuracy}
    yield from _census_rows(UUAS, "undirected", trees.edges, trees.correct, at, about)


def _census_rows(
    relation: str, direction: str, cases: int, correct: Ints, best: tuple[int, int] | None, about: Document
) -> Iterator[Document]:
    for layer, heads in enumerate(correct.tolist()):
        for head, count in enumerate(heads):
            yield {
                "relation": relation,
                "direction": direction,
                "layer": layer,
                "head": head,
                "cases": cases,
                "correct": count,
                "accuracy": count / cases if cases else None,
                "best": (layer, head) == best,
            } | about


def census_csv(census: CensusTable) -> bytes:
    """The table as CSV; what has no value is empty."""
    page = io.StringIO()
    writer = csv.DictWriter(page, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in census_rows(census):
        writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    return page.getvalue().encode()


def census_parquet(census: CensusTable) -> bytes:
    """The table as Parquet. Raises AttnctlError where pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AttnctlError("Parquet needs pyarrow: pip install 'attnctl[batch]'") from None
    text, whole, real = pa.string(), pa.int64(), pa.float64()
    kinds = dict(
        zip(COLUMNS, (text, text, whole, whole, whole, whole, real, pa.bool_(), text, real, real), strict=True)
    )
    out = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist(list(census_rows(census)), pa.schema(list(kinds.items()))), out, compression="zstd"
    )
    return out.getvalue()
