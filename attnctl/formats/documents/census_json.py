"""A census as JSON, written and read: schema `attnctl.census/1`."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from attnctl.document_fields import ALWAYS, Count, Index, Part, about
from attnctl.files import parse_json, read_bytes
from attnctl.formats.documents.json_documents import (
    DocumentModel,
    JsonDocument,
    document_of,
    document_read,
    reading_of,
    write_json,
)
from attnctl.readings.census.census import MENTION_COUNTS
from attnctl.readings.census.census_table import CensusTable, HeadRow, LayerRow, Relation, Trees


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


def census_to_json(census: CensusTable) -> bytes:
    """One line of JSON, without the newline. What was not measured is absent."""
    return write_json(census_document(census), "census")


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
