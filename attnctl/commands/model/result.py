"""The JSON of a model: the sizes of its attention, and the card of a trained one."""

from __future__ import annotations

from typing import Annotated, Literal

from attnctl.checks.document_fields import Count, Index, Part, Whole, about
from attnctl.formats import JsonDocument
from attnctl.models.sizes import CachedLayers
from attnctl.text import Document

Named = dict[str, Whole]
Free = Annotated[Document, about("", additionalProperties=True)]


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


class Parameters(Part):
    """Parameters by the name of the matrix."""

    all: Named
    layer: Named
    head: Named | None = None


class Sizes(JsonDocument, kw_only=True, tag="attnctl.sizes/2"):
    """The sizes of a model's attention, from its configuration, and the memory that follows from them."""

    name: str
    architecture: str
    layers: Annotated[Count, about("Calls of attention, one on another; one that reads an encoder is another.")]
    heads: Count
    kv_heads: Count
    d_k: Count
    d_v: Count
    d_model: Count
    vocabulary: Count | None = None
    context: Annotated[Whole | None, about("Tokens of the longest text.")] = None
    window: Count | None = None
    source: Annotated[str | None, about("Where the configuration stands.")] = None
    file_facts: Annotated[
        dict[str, str] | None, about("Of a GGUF file: how its matrices are stored, how far its reading was checked.")
    ] = None
    built: Annotated[bool, about("Of a network that transformers built; else of four matrices a layer.")]
    groups: Annotated[tuple[AttentionGroup, ...], about("The layers, those of the same sizes together.")]
    cache: Annotated[tuple[CachedLayers, ...] | None, about("What it keeps of each token; absent: not counted.")] = None
    parameters: Annotated[
        Parameters, about("Of the whole model, one head, one layer, by the name of the matrix; without biases.")
    ]
    embedding: Annotated[Whole | None, about("Parameters of the table.")] = None
    cache_bytes_per_token: Annotated[Whole | None, about("16 bits a number.")] = None
    tokens: Annotated[Whole, about("For how many the bytes below are.")]
    cache_bytes: Whole | None = None
    cross_cache_bytes: Annotated[Whole | None, about("What cross attention keeps of a text of so many tokens.")] = None
    grid_bytes: Annotated[Whole | None, about("Of one n × n, 32 bits a number.")] = None
    grids_bytes: Annotated[Whole | None, about("Of every head's.")] = None
    unfactored_bytes: Annotated[Whole | None, about("Of a d_model × d_model matrix for every two tokens.")] = None


class Card(JsonDocument, kw_only=True, tag="attnctl.card/1"):
    """The metadata of a weights file."""

    name: str
    shapes: Annotated[dict[str, tuple[Index, ...]], about("Of each tensor.")]
    metadata: Annotated[
        Free,
        about("Entries of the file's own metadata: text, and recipe, figures and tokens as the JSON in them."),
    ]
