"""A census as JSON, written and read (schema `attnctl.census/1`), and as a table: a line a relation, direction and head."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from msgspec import field

from attnctl.commands.evaluate.counting import MENTION_COUNTS
from attnctl.commands.evaluate.result import Best, CensusTable, HeadRow, LayerRow, Relation, Trees
from attnctl.document_fields import ALWAYS, Count, Index, Part, about
from attnctl.files import need_pyarrow, parse_json, read_bytes
from attnctl.formats.documents.json_documents import DocumentModel, JsonDocument, document_of, document_read, reading_of
from attnctl.text import csv_table

if TYPE_CHECKING:
    from attnctl.arrays import Ints
    from attnctl.text import Document


class SentencesRead(Part, kw_only=True):
    """Sentences of the corpus; of those skipped, how many for each reason."""

    read: Annotated[Index | None, ALWAYS] = None
    used: Index
    skipped: dict[str, Count]


class WordCounts(Part):
    """Words, those that share a piece taken together, and dependencies inside of one, which no head can show."""

    used: Index
    dependencies_within: Index


class CensusDocument(JsonDocument, kw_only=True, tag="attnctl.census/1"):
    """Which words each head finds in a corpus of parsed sentences, for every relation and direction.

    The best head is chosen on one half of the sentences, and scored on the other as the rules beside it are.
    """

    model: str
    corpus: str
    causal: bool
    sentences: SentencesRead
    words: WordCounts
    relations: tuple[Relation, ...]
    trees: Trees = field(name="uuas")
    layers: tuple[LayerRow, ...]
    heads: tuple[HeadRow, ...]
    untrained: bool = field(name="compared_with_untrained")
    mentions: Annotated[
        dict[str, Index],
        about(
            "Of documents that were read in windows, for coreference: new are the first of their entity, outside those "
            "whose antecedents stand before the window, unread those of sentences that are too long.",
            propertyNames={"enum": list(MENTION_COUNTS)},
            required=list(MENTION_COUNTS),
        ),
    ] = field(default_factory=dict)
    info: DocumentModel | None = field(name="model_info", default=None)


def census_document(census: CensusTable) -> CensusDocument:
    """The document of a census."""
    sentences = SentencesRead(read=census.sentences_read, used=census.used, skipped=census.skipped)
    return document_of(CensusDocument, census, sentences=sentences, words=WordCounts(census.words, census.within))


def read_census(path: str) -> CensusTable:
    """The census in a file that `evaluate` wrote. Raises AttnctlError where it is none or is damaged."""
    source = "standard input" if path == "-" else path
    document = parse_json(read_bytes(path), source)
    with document_read(CensusDocument, document, source, "a census", "damaged") as told:
        return reading_of(
            CensusTable,
            told,
            used=told.sentences.used,
            skipped=told.sentences.skipped,
            words=told.words.used,
            within=told.words.dependencies_within,
        )


# --- as a table ---------------------------------------------------------------------------------------------------

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
