"""A census as JSON, written and read: schema `attnctl.census/1`."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from msgspec import field
from msgspec.structs import asdict

from attnctl.attention import Array
from attnctl.files import parse_json, read_bytes
from attnctl.formats.documents.json_documents import (
    ALWAYS,
    Amount,
    Count,
    DocumentModel,
    Index,
    JsonDocument,
    Part,
    Portion,
    Share,
    about,
    check_schema,
    model_document,
    plain,
    read_as,
    read_model,
    telling_damage,
    write_json,
)
from attnctl.readings.census.census import MENTION_COUNTS
from attnctl.readings.census.census_table import Best, CensusTable, HeadRow, LayerRow, Relation, Rule, Trees
from attnctl.text import Document

Correct = Annotated[
    tuple[tuple[Index, ...], ...],
    about("Cases in which a head finds the word: [[count a head] a layer]; 0 of heads that are not in heads."),
]


class BestHead(Part):
    """A head chosen on one half of the cases and scored on the other."""

    layer: Index
    head: Index
    chosen_on: Index
    scored_on: Index
    accuracy: Portion
    interval: tuple[Portion, Portion]


class BestOfRelation(BestHead):
    """The best head of a relation."""

    beats_rules: Annotated[bool, ALWAYS] = field(default_factory=bool)


class RuleEntry(Part, kw_only=True):
    """What a rule that needs no attention finds."""

    offset: int | None = None
    tag: str | None = None
    side: Annotated[str | None, about("", enum=["before", "behind", "either"])] = None
    accuracy: Portion


class RelationEntry(Part, kw_only=True):
    """One relation in one direction: how often each head finds the word, and rules that need no attention."""

    relation: Annotated[str, about("The corpus's label; without its subtypes it counts all of them.")]
    direction: Annotated[str, about("", enum=["dependent→head", "head→dependent", "mention→antecedent"])]
    cases: Index
    ahead: Annotated[
        Index, about("Of a causal model, and beside the cases: the word stands ahead, where no head looks.")
    ]
    correct: Correct
    subtype: bool = False
    best: BestOfRelation | None = None
    rules: Annotated[
        dict[str, RuleEntry], about("", propertyNames={"enum": ["offset", "nearest", "head_match", "first"]})
    ]
    untrained: BestHead | None = None


class BestLayer(Part):
    """The layer whose mean weights give the best trees."""

    layer: Index
    accuracy: Portion


class TreesEntry(Part, kw_only=True):
    """Undirected dependency trees read off the attention, against the corpus's own."""

    edges: Index
    right_branching: Portion
    correct: Correct
    best_head: BestHead | None = None
    best_layer: BestLayer | None = None
    untrained: BestHead | None = None


class LayerEntry(Part):
    """The heads of a layer together."""

    layer: Index
    dependency_mass: Share
    distance: Amount
    entropy: Amount
    uuas: Portion


class PositionalHead(Part):
    """The offset at which a head looks most often."""

    offset: int
    share: Portion


class FoundRelation(Part):
    """A relation that a head finds."""

    relation: str
    direction: str
    accuracy: Portion


class HeadEntry(Part, kw_only=True):
    """What one head does over the corpus."""

    layer: Index
    head: Index
    entropy: Annotated[Amount, about("Of a word's weights, mean, nats.")]
    own: Annotated[Share, about("Mass on the word itself.")]
    special: Annotated[Share, about("Mass on tokens that are no word's.")]
    distance: Annotated[Amount, about("Words, mean over the mass on other words.")]
    dependency_mass: Annotated[Share, about("Of the mass on other words, that on words joined by a dependency.")]
    uuas: Portion | None = None
    positional: PositionalHead | None = None
    syntactic: Annotated[
        tuple[FoundRelation, ...],
        about("Relations of which its accuracy is 10 points above the best fixed offset (Voita et al. 2019)."),
    ]


class SentenceCounts(Part, kw_only=True):
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
    sentences: SentenceCounts
    words: WordCounts
    relations: tuple[RelationEntry, ...]
    uuas: TreesEntry
    layers: tuple[LayerEntry, ...]
    heads: tuple[HeadEntry, ...]
    compared_with_untrained: bool
    mentions: Annotated[
        dict[str, Index],
        about(
            "Of documents that were read in windows, for coreference: new are the first of their entity, outside those "
            "whose antecedents stand before the window, unread those of sentences that are too long.",
            propertyNames={"enum": list(MENTION_COUNTS)},
        ),
    ] = field(default_factory=dict)
    model_info: DocumentModel | None = None


# --- writing -----------------------------------------------------------------------------------------------------


def census_to_json(census: CensusTable) -> bytes:
    """One line of JSON, without the newline. What was not measured is absent."""
    return write_json(_document_of(census), "census")


def census_document(census: CensusTable) -> Document:
    """The census as a JSON object."""
    return plain(_document_of(census))


def _document_of(census: CensusTable) -> CensusDocument:
    uuas = census.trees.layers
    return CensusDocument(
        model=census.model,
        corpus=census.corpus,
        causal=census.causal,
        sentences=SentenceCounts(read=census.sentences_read, used=census.used, skipped=census.skipped),
        words=WordCounts(census.words, census.within),
        relations=tuple(map(_relation_entry, census.relations)),
        uuas=_trees_entry(census.trees),
        layers=tuple(LayerEntry(**vars(row), uuas=uuas[row.layer]) for row in census.layers),
        heads=tuple(map(_head_entry, census.heads)),
        compared_with_untrained=census.untrained,
        mentions=census.mentions,
        model_info=None if census.info is None else model_document(census.info),
    )


def _relation_entry(relation: Relation) -> RelationEntry:
    best = relation.best
    return RelationEntry(
        relation=relation.relation,
        direction=relation.direction,
        cases=relation.cases,
        ahead=relation.ahead,
        correct=_counts(relation.correct),
        subtype=relation.subtype,
        best=None if best is None else BestOfRelation(**vars(best), beats_rules=relation.beats_rules),
        rules={
            rule.name: RuleEntry(offset=rule.offset, tag=rule.tag, side=rule.side, accuracy=rule.accuracy)
            for rule in relation.rules
        },
        untrained=_best_entry(relation.untrained),
    )


def _counts(correct: Array) -> Any:
    return np.ascontiguousarray(correct)  # which JSON has as lists


def _best_entry(best: Best | None) -> BestHead | None:
    return None if best is None else BestHead(**vars(best))


def _trees_entry(trees: Trees) -> TreesEntry:
    return TreesEntry(
        edges=trees.edges,
        right_branching=trees.right_branching,
        correct=_counts(trees.correct),
        best_head=_best_entry(trees.best_head),
        best_layer=None if trees.best_layer is None else BestLayer(*trees.best_layer),
        untrained=_best_entry(trees.untrained),
    )


def _head_entry(head: HeadRow) -> HeadEntry:
    positional = None if head.positional is None else PositionalHead(*head.positional)
    syntactic = tuple(FoundRelation(*found) for found in head.syntactic)
    return HeadEntry(**vars(head) | {"positional": positional, "syntactic": syntactic})


# --- reading -----------------------------------------------------------------------------------------------------


def read_census(path: str) -> CensusTable:
    """The census in a file that `evaluate` wrote. Raises AttnctlError where it is none or is damaged."""
    source = "standard input" if path == "-" else path
    document = parse_json(read_bytes(path), source)
    check_schema(document, CensusDocument, source, "a census")
    with telling_damage(f"{source} is damaged"):
        return _read_census(read_as(CensusDocument, document))


def _read_census(told: CensusDocument) -> CensusTable:
    return CensusTable(
        told.model,
        told.corpus,
        told.causal,
        told.sentences.used,
        told.sentences.skipped,
        told.words.used,
        told.words.dependencies_within,
        tuple(map(_read_relation, told.relations)),
        _read_trees(told.uuas, {row.layer: row.uuas for row in told.layers}),
        tuple(map(_read_head, told.heads)),
        tuple(LayerRow(row.layer, row.dependency_mass, row.distance, row.entropy) for row in told.layers),
        told.compared_with_untrained,
        told.mentions,
        None if told.model_info is None else read_model(told.model_info),
    )


def _read_relation(told: RelationEntry) -> Relation:
    rules = tuple(Rule(name, rule.accuracy, rule.offset, rule.tag, rule.side) for name, rule in told.rules.items())
    return Relation(
        told.relation,
        told.direction,
        told.cases,
        _read_counts(told.correct),
        told.ahead,
        _read_best(told.best),
        rules,
        _read_best(told.untrained),
        told.subtype,
    )


def _read_counts(rows: tuple[tuple[int, ...], ...]) -> Array:
    counts = np.array(rows, np.int64)  # (layers, heads)
    if counts.ndim != 2:
        raise ValueError("the counts of a relation are no table of layers and heads")
    return counts


def _read_best(told: BestHead | None) -> Best | None:
    if told is None:
        return None
    return Best(told.layer, told.head, told.chosen_on, told.scored_on, told.accuracy, told.interval)


def _read_trees(told: TreesEntry, uuas: dict[int, float]) -> Trees:
    correct = _read_counts(told.correct)
    return Trees(
        told.edges,
        told.right_branching,
        _read_best(told.best_head),
        None if told.best_layer is None else (told.best_layer.layer, told.best_layer.accuracy),
        correct,
        tuple(uuas.get(layer, 0.0) for layer in range(len(correct))),
        _read_best(told.untrained),
    )


def _read_head(told: HeadEntry) -> HeadRow:
    positional = None if told.positional is None else (told.positional.offset, told.positional.share)
    syntactic = tuple((one.relation, one.direction, one.accuracy) for one in told.syntactic)
    return HeadRow(**asdict(told) | {"positional": positional, "syntactic": syntactic})
