"""What is told of models and batches as JSON: sizes, cards, relations, reports, a lesson, what a batch was asked for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from attnctl.document_fields import ALWAYS, Amount, Count, Index, Part, Portion, Sha256, Whole, about
from attnctl.formats.documents.json_documents import JsonDocument

Named = dict[str, Whole]
Free = Annotated[dict[str, Any], about("", additionalProperties=True)]


class AttentionGroup(Part):
    """Layers of the same sizes."""

    layers: Annotated[Count, about("How many.")]
    kind: Literal["self", "encoder", "decoder", "cross"]
    heads: Count
    kv_heads: Count
    d_k: Count
    d_v: Count
    matrices: Annotated[Named, about("Parameters of one layer, by the name of the matrix.")]
    distinct: Annotated[Index, about("How many layers have parameters of their own.")]


class CacheGroup(Part):
    """Layers of which a cache keeps the same for each token."""

    layers: Annotated[Count, about("How many.")]
    heads: Count
    d_k: Count
    d_v: Count
    indexer: Annotated[Index, about("Numbers of the key by which an indexer finds a token.")]
    window: Annotated[int | None, about("Tokens that are kept; null: all.")]
    of_source: Annotated[bool, about("Whether of the text that an encoder read.")]


class Parameters(Part):
    """Parameters by the name of the matrix."""

    all: Named
    head: Named | None = None
    layer: Named | None = None


class SizesDocument(JsonDocument, kw_only=True, tag="attnctl.sizes/2"):
    """The sizes of a model's attention, from its configuration, and what follows from them."""

    name: str
    architecture: str
    layers: Annotated[Count, about("Calls of attention, one on another; one that reads an encoder is another.")]
    heads: Count
    kv_heads: Count
    d_model: Count
    d_k: Count
    d_v: Count
    vocabulary: Count | None = None
    context: Annotated[Whole | None, about("Tokens of the longest text.")] = None
    window: Count | None = None
    source: Annotated[str | None, about("Where the configuration stands.")] = None
    built: Annotated[bool, about("Of a network that transformers built; else of four matrices a layer.")]
    groups: Annotated[tuple[AttentionGroup, ...], about("The layers, those of the same sizes together.")]
    cache: Annotated[tuple[CacheGroup, ...] | None, about("What it keeps of each token; absent: not counted.")] = None
    embedding: Annotated[Whole | None, about("Parameters of the table.")] = None
    parameters: Annotated[
        Parameters, about("Of the whole model, one head, one layer, by the name of the matrix; without biases.")
    ]
    cache_bytes_per_token: Annotated[Whole | None, about("16 bits a number.")] = None
    tokens: Annotated[Whole, about("For how many the bytes below are.")]
    cache_bytes: Whole | None = None
    cross_cache_bytes: Annotated[Whole | None, about("What cross attention keeps of a text of so many tokens.")] = None
    grid_bytes: Annotated[Whole | None, about("Of one n × n, 32 bits a number.")] = None
    grids_bytes: Annotated[Whole | None, about("Of every head's.")] = None
    unfactored_bytes: Annotated[Whole | None, about("Of a d_model × d_model matrix for every two tokens.")] = None


class CardDocument(JsonDocument, kw_only=True, tag="attnctl.card/1"):
    """What a file of weights says of itself."""

    name: str
    shapes: Annotated[dict[str, tuple[Index, ...]], about("Of each tensor.")]
    metadata: Annotated[
        Free,
        about("Entries of the file's own metadata: text, and recipe, figures and tokens as the JSON in them."),
    ]


class RelationDocument(JsonDocument, kw_only=True, tag="attnctl.relation/1"):
    """How often one head finds the word that a relation of the bundled corpus joins; `evaluate` writes one a line.

    Shares of its links where the word found is the right one.
    """

    model: str
    relation: str
    layer: Index
    head: Annotated[Index, about("The head that did best on the validation sentences.")]
    validation: Annotated[Portion, about("Share of links whose word it finds, on those sentences.")]
    held_out: Annotated[Portion, about("No subject-verb-object combination was in training.")]
    unseen: Annotated[Portion, about("Nor were the names and nouns.")]
    by_hand: Annotated[Portion | None, about("On the sentences that were marked by hand.")]
    untrained: Annotated[Portion | None, about("The best head of the same network before training.")]
    offset: Annotated[int, about("The fixed offset that fits the validation sentences best.")]
    by_offset: Portion
    by_nearest: Annotated[Portion, about("The nearest word of the right kind.")]
    by_first: Portion
    links: Annotated[Index, about("In the held-out sentences.")]
    links_by_hand: Index
    goal: Portion | None


class BatchAsked(Part, kw_only=True):
    """What decides the outcome of a batch."""

    input: Annotated[tuple[str, ...], about("The files of texts, as seen from the folder.")]
    input_form: str | None
    column: str | None
    id_column: str | None
    formats: tuple[str, ...]
    model: Annotated[Free, about("Its name and options, as the command line had them.")]
    look: Annotated[Free, about("How pictures look.")]
    layer: str | None
    head: str | None
    query: str | None
    parameters: bool
    max_tokens: Index
    batch_size: Index
    words: bool
    measure: str | None
    prompts: Annotated[Free | None, about("What is said of prompts (sources).")] = None
    steps: Annotated[tuple[str, ...], about("The steps that are in each trace.")] = ()
    precision: Annotated[Index | None, about("Decimals of the numbers in JSON.")] = None


class BatchDocument(JsonDocument, kw_only=True, tag="attnctl.batch/2"):
    """What a batch was asked for: run.json in its folder."""

    said: Annotated[BatchAsked, about("What decides the outcome: going on with something else is refused.")]
    weights: Annotated[str | None, about("Fingerprint of the model's files; null where it has none here.")]


class ManifestFile(Part, kw_only=True):
    """A file of an item, or the part of a file that is an item's."""

    file: Annotated[str, about("Its name in the folder.")]
    offset: Annotated[Whole | None, about("Where in it the item's part begins, of a file that grows.")] = None
    bytes: Whole
    sha256: Annotated[Sha256, about("Of these bytes.")]


class ManifestLine(Part, kw_only=True):
    """What became of each text of a batch, in the order of being done: a line of manifest.jsonl."""

    number: Annotated[Whole, about("Of the item in the folder, from 0, in the order of being done.")]
    id: Annotated[str | int | None, about("Its own name, where it has one.")] = None
    status: Literal["done", "failed"]
    where: Annotated[str, about("Where in the input it stands.")]
    error: Annotated[str | None, about("Why it failed.")] = None
    input: Annotated[str, about("Fingerprint of the item, by which it is known wherever it stands.")]
    time: Annotated[str, about("When it was done, UTC.")]
    seconds: Amount
    tokens: Index | None = None
    files: tuple[ManifestFile, ...] = ()
    group: Annotated[
        Index | None, about("Of the last line of a group that was done as one: how many lines it has.")
    ] = None
    check: Annotated[
        str,
        about("Of the line before it, for what was asked and the model's files: a line that was changed is none."),
        ALWAYS,
    ] = ""
