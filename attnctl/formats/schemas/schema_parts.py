"""What the JSON Schemas are put together from: objects, lists, tokens and models as they stand in every document."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import get_args, get_type_hints

from attnctl.readings.traces.trace import ModelInfo, NoteKind
from attnctl.text import Document

Schema = Document

INDEX: Schema = {"type": "integer", "minimum": 0}
COUNT: Schema = {"type": "integer", "minimum": 1}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1.00001}  # sums of float32
TEXT: Schema = {"type": "string"}
JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


# what the type of a field of ModelInfo does not say
MODEL_LIMITS: dict[str, Schema] = {
    **dict.fromkeys(("d_model", "d_k", "d_v", "n_heads", "n_kv_heads", "n_layers", "window"), COUNT),
    "kind": {"enum": ["demo", "random", "dot", "weights", "checkpoint", "matrix"]},
    "scale": {"type": "number", "description": "The factor on the scores."},
    "temperature": {"type": "number", "exclusiveMinimum": 0},
    "dropout": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
    "positions": {"enum": ["learned", "sinusoidal"]},
    "off": {**TEXT, "description": "Heads whose context goes nowhere, layer.head: 1.2, 0.5."},
    "finds": TEXT,
    "final_norm": {"type": "boolean", "description": "Whether the residual stream is normalised before the head."},
    "rope_pairs": {"enum": ["half", "interleaved"]},
    "source": {**TEXT, "description": "What the name stands for: a repository, a file, the version that it came with."},
    "revision": {**TEXT, "description": "The commit of a repository."},
    "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "Of the weights file."},
    "quantised": {**TEXT, "description": "How most of the weights were stored."},
    "seed": {"type": ["integer", "null"]},
}


def document_schema(
    what: str,
    description: str,
    properties: dict[str, Schema],
    required: Sequence[str] | None = None,
    definitions: dict[str, Schema] | None = None,
) -> Schema:
    """The schema `attnctl.<what>/1` of these properties, with the definitions that every document of a text shares."""
    return {
        **plain_document_schema(what, description, properties, required),
        "$defs": {
            "vector": list_schema({"type": "number"}),
            "matrix": list_schema({"$ref": "#/$defs/vector"}),
            "tokens": {**list_schema(token_schema()), "minItems": 1},
            "model": model_schema(),
            **(definitions or {}),
        },
    }


def plain_document_schema(
    what: str, description: str, properties: dict[str, Schema], required: Sequence[str] | None = None
) -> Schema:
    """The schema `attnctl.<what>/1` of `schema` and these properties, which hold no tokens and no model."""
    named = {"schema": {"const": f"attnctl.{what}/1"}, **properties}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"attnctl.{what}/1",
        "title": f"attnctl {what}",
        "description": description,
        **object_schema(named, None if required is None else ["schema", *required]),
    }


def object_schema(properties: dict[str, Schema], required: Sequence[str] | None = None) -> Schema:
    """A JSON object with these properties and no others; `required` are those that are never absent (None: all)."""
    needed = list(properties if required is None else required)
    return {"type": "object", "required": needed, "additionalProperties": False, "properties": properties}


def list_schema(items: Schema, description: str | None = None) -> Schema:
    """A JSON list of such items."""
    return {"type": "array", "items": items} | ({} if description is None else {"description": description})


def tuple_schema(*items: Schema) -> Schema:
    """A JSON list of exactly these items, in order."""
    return {"type": "array", "prefixItems": list(items), "minItems": len(items), "maxItems": len(items)}


VERSION: Schema = {**TEXT, "description": "The version of attnctl that wrote this."}
MASK = list_schema(list_schema({"type": "boolean"}))


def opening_properties() -> dict[str, Schema]:
    """What every document of a text begins with."""
    about = "The tokens of the key axis, where it is another text's (cross attention)."
    return {
        "attnctl": VERSION,
        "text": TEXT,
        "tokens": {"$ref": "#/$defs/tokens"},
        "key_tokens": {"$ref": "#/$defs/tokens", "description": about},
        "model": {"$ref": "#/$defs/model"},
    }


NOTES: dict[str, Schema] = {
    "notes": list_schema(TEXT, "What a reader must know about these numbers."),
    "note_kinds": list_schema({"enum": list(get_args(NoteKind))}, "What each note tells of; empty: of none of these."),
}


def token_schema() -> Schema:
    """A token as it stands in JSON."""
    properties = {
        "index": INDEX,
        "text": TEXT,
        "id": {"type": "integer"},
        "start": {**INDEX, "description": "First character in text."},
        "end": {**INDEX, "description": "One past the last."},
        "special": {"type": "boolean"},
        "unknown": {"const": True, "description": "The model has no such word and reads its unknown token."},
    }
    return object_schema(properties, ["index", "text", "special"])


def model_schema() -> Schema:
    """The fields of ModelInfo: those that are never absent are required."""
    hints = get_type_hints(ModelInfo)
    required = [name for name, hint in hints.items() if not isinstance(hint, UnionType) or name == "seed"]
    # X | None is X, as what is not known is absent
    types = {name: get_args(hint)[0] if isinstance(hint, UnionType) else hint for name, hint in hints.items()}
    schemas = {name: MODEL_LIMITS.get(name) or {"type": JSON_TYPES[kind]} for name, kind in types.items()}
    return object_schema(schemas, required)
