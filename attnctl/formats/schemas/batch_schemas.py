"""The JSON Schemas of what a batch says of itself: run.json, and the lines of manifest.jsonl."""

from __future__ import annotations

from attnctl.formats.schemas.schema_parts import (
    INDEX,
    TEXT,
    VERSION,
    Schema,
    list_schema,
    object_schema,
    plain_document_schema,
)

_SHA256: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def schema_of_batch() -> Schema:
    """The schema of what a batch was asked for, `attnctl.batch/1`."""
    options: Schema = {"type": "object", "additionalProperties": True}
    said = {
        "input": {**list_schema(TEXT), "description": "The files of texts, as seen from the folder."},
        "input_form": _TEXT_OR_NULL,
        "column": _TEXT_OR_NULL,
        "id_column": _TEXT_OR_NULL,
        "formats": list_schema(TEXT),
        "model": {**options, "description": "Its name and options, as the command line had them."},
        "look": {**options, "description": "How pictures look."},
        "layer": _TEXT_OR_NULL,
        "head": _TEXT_OR_NULL,
        "query": _TEXT_OR_NULL,
        "parameters": {"type": "boolean"},
        "max_tokens": INDEX,
        "batch_size": INDEX,
        "words": {"type": "boolean"},
        "measure": _TEXT_OR_NULL,
    }
    where_given = {
        "prompts": {**options, "description": "What is said of prompts (sources)."},
        "steps": {**list_schema(TEXT), "description": "The steps that are in each trace."},
        "precision": {**INDEX, "description": "Decimals of the numbers in JSON."},
    }
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "said": {
            **object_schema(said | where_given, list(said)),
            "description": "What decides the outcome: going on with something else is refused.",
        },
        "weights": {**_TEXT_OR_NULL, "description": "Fingerprint of the model's files; null where it has none here."},
    }
    about = "What a batch was asked for: run.json in its folder."
    return plain_document_schema("batch", about, properties)


def schema_of_manifest() -> Schema:
    """The schema of a line of manifest.jsonl."""
    file = {
        "file": {**TEXT, "description": "Its name in the folder."},
        "offset": {**INDEX, "description": "Where in it the item's part begins, of a file that grows."},
        "bytes": INDEX,
        "sha256": {**_SHA256, "description": "Of these bytes."},
    }
    properties: dict[str, Schema] = {
        "number": {**INDEX, "description": "Of the item in the folder, from 0, in the order of being done."},
        "id": {"type": ["string", "integer"], "description": "Its own name, where it has one."},
        "status": {"enum": ["done", "failed"]},
        "where": {**TEXT, "description": "Where in the input it stands."},
        "error": {**TEXT, "description": "Why it failed."},
        "input": {**TEXT, "description": "Fingerprint of the item, by which it is known wherever it stands."},
        "time": {**TEXT, "description": "When it was done, UTC."},
        "seconds": {"type": "number", "minimum": 0},
        "tokens": INDEX,
        "files": list_schema(object_schema(file, ["file", "bytes", "sha256"])),
        "group": {**INDEX, "description": "Of the last line of a group that was done as one: how many lines it has."},
    }
    required = ["number", "status", "where", "input", "time", "seconds"]
    about = "What became of each text of a batch, in the order of being done: a line of manifest.jsonl."
    return {**plain_document_schema("manifest", about, {}), **object_schema(properties, required)}
