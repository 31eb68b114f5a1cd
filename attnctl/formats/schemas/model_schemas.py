"""JSON Schemas of what is told of models and batches: sizes, cards, relations, reports, a lesson, manifests."""

from __future__ import annotations

from attnctl.formats.schemas.schema_parts import (
    COUNT,
    INDEX,
    SHARE,
    TEXT,
    VERSION,
    Schema,
    list_schema,
    object_schema,
    plain_document_schema,
    tuple_schema,
)

_NUMBER: Schema = {"type": "number"}
_FLAG: Schema = {"type": "boolean"}
_UNIT_SHARE: Schema = {**SHARE, "maximum": 1}
_MATRICES: Schema = {"type": "object", "additionalProperties": INDEX}
_BYTES: Schema = {"type": "integer", "minimum": 0}


def schema_of_sizes() -> Schema:
    """The schema of the sizes of a model's attention, `attnctl.sizes/1`."""
    widths = dict.fromkeys(("heads", "kv_heads", "d_k", "d_v"), COUNT)
    group = {
        "layers": {**COUNT, "description": "How many."},
        **{name: widths[name] for name in ("heads", "kv_heads", "d_k")},
        "window": {"type": ["integer", "null"], "description": "Tokens whose keys and values are kept; null: all."},
        "own_keys": {**_FLAG, "description": "False: it reads the keys of another layer."},
        "own_values": {**_FLAG, "description": "False: its values are its keys."},
    }
    built = {
        "layers": list_schema(INDEX),
        "kind": {"enum": ["self", "encoder", "decoder", "cross"]},
        **{name: {"type": ["integer", "null"], "minimum": 1} for name in ("heads", "kv_heads", "d_k", "d_v")},
        "matrices": {**_MATRICES, "description": "Parameters of one layer, by the name of the matrix."},
        "distinct": {**INDEX, "description": "How many layers have parameters of their own."},
        "kept": {**INDEX, "description": "Numbers that a cache keeps of each token in each layer."},
        "window": group["window"],
    }
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "name": TEXT,
        "architecture": TEXT,
        "layers": {**COUNT, "description": "Calls of attention, one on another; one that reads an encoder is another."},
        "cached_layers": {**INDEX, "description": "Those whose keys and values a cache keeps."},
        "heads": COUNT,
        "kv_heads": COUNT,
        "d_model": COUNT,
        "d_k": COUNT,
        "d_v": COUNT,
        "vocabulary": COUNT,
        "context": {**COUNT, "description": "Tokens of the longest text."},
        "window": COUNT,
        "latent": {**COUNT, "description": "Numbers that the cache keeps instead of keys and values."},
        "source": {**TEXT, "description": "Where the configuration stands."},
        "windowed_layers": {**INDEX, "description": "Those that keep a window of keys and values alone."},
        "gated": {**_FLAG, "description": "Whether queries come with a gate of the same size."},
        "counted": {**_FLAG, "description": "Whether this family was held against built networks."},
        "groups": list_schema(object_schema(group), "Where layers differ in size."),
        "stored_layer": {**COUNT, "description": "Parameters of a layer as they are stored, where that is less."},
        "built": list_schema(object_schema(built), "Layers as transformers builds them."),
        "embedding": {**COUNT, "description": "Parameters of the table."},
        "cache_told": {**_FLAG, "description": "Whether the cache is of a kind that is known."},
        "distinct_layers": {**COUNT, "description": "That have parameters of their own, where several share them."},
        "parameters": {
            **object_schema(dict.fromkeys(("all", "head", "layer"), _MATRICES), ["all"]),
            "description": "Of the whole model, one head, one layer, by the name of the matrix; without biases.",
        },
        "cache_bytes_per_token": {**_BYTES, "description": "16 bits a number."},
        "tokens": {**COUNT, "description": "For how many the bytes below are."},
        "cache_bytes": _BYTES,
        "cross_cache_bytes": {**_BYTES, "description": "What cross attention keeps of a text of so many tokens."},
        "grid_bytes": {**_BYTES, "description": "Of one n × n, 32 bits a number."},
        "grids_bytes": {**_BYTES, "description": "Of every head's."},
        "unfactored_bytes": {**_BYTES, "description": "Of a d_model × d_model matrix for every two tokens."},
    }
    required = ["attnctl", "name", "architecture", "layers", "heads", "kv_heads", "d_model", "d_k", "d_v"]
    said = "The sizes of a model's attention, from its configuration, and what follows from them."
    return plain_document_schema("sizes", said, properties, [*required, "parameters", "tokens"])


def schema_of_card() -> Schema:
    """The schema of a trained model's card, `attnctl.card/1`."""
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "name": TEXT,
        "shapes": {"type": "object", "additionalProperties": list_schema(INDEX), "description": "Of each tensor."},
        "metadata": {
            "type": "object",
            "additionalProperties": True,
            "description": "Entries of the file's own metadata: text, and recipe, figures and tokens as the JSON in them.",
        },
    }
    said = "What a file of weights says of itself."
    return plain_document_schema("card", said, properties)


def schema_of_relation() -> Schema:
    """The schema of one relation of the built-in grammar, `attnctl.relation/1`."""
    share_or_null: Schema = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "model": TEXT,
        "relation": TEXT,
        "layer": INDEX,
        "head": {**INDEX, "description": "The head that did best on the validation sentences."},
        "validation": {**_UNIT_SHARE, "description": "Share of links whose word it finds, on those sentences."},
        "held_out": {**_UNIT_SHARE, "description": "No subject-verb-object combination was in training."},
        "unseen": {**_UNIT_SHARE, "description": "Nor were the names and nouns."},
        "by_hand": {**share_or_null, "description": "On the sentences that were marked by hand."},
        "weight": {**SHARE, "description": "Mean weight on the right word, held-out sentences."},
        "untrained": {**share_or_null, "description": "The best head of the same network before training."},
        "offset": {"type": "integer", "description": "The fixed offset that fits the validation sentences best."},
        "by_offset": _UNIT_SHARE,
        "by_nearest": {**_UNIT_SHARE, "description": "The nearest word of the right kind."},
        "by_first": _UNIT_SHARE,
        "links": {**INDEX, "description": "In the held-out sentences."},
        "links_by_hand": INDEX,
        "goal": share_or_null,
    }
    said = (
        "How often one head finds the word that a relation of the built-in grammar joins; `evaluate` writes one a line."
    )
    return plain_document_schema("relation", said, properties)


def schema_of_report() -> Schema:
    """The schema of a report of training, `attnctl.report/1`."""
    properties: dict[str, Schema] = {
        "step": INDEX,
        "loss": {"type": ["number", "null"], "description": "Mean since the last report; null where no word counted."},
        "lr": _NUMBER,
        "tokens_per_second": INDEX,
        "seconds": {**_NUMBER, "minimum": 0, "description": "Since this run began."},
        "watch": _watch_schema(),
    }
    said = "How training gets on; `train --json` writes one a line, and so does a run's metrics.jsonl."
    return plain_document_schema("report", said, properties, [name for name in properties if name != "watch"])


def schema_of_lesson() -> Schema:
    """The schema of one step of gradient descent with its numbers, `attnctl.lesson/1`."""
    matrix: Schema = list_schema(list_schema(_NUMBER))
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "sentence": TEXT,
        "vocabulary": {**COUNT, "description": "How many words."},
        "predictions": list_schema(
            tuple_schema(TEXT, TEXT, _UNIT_SHARE), "What was seen, the true word, its probability."
        ),
        "loss": _NUMBER,
        "loss_after": _NUMBER,
        "lr": {**_NUMBER, "description": "The learning rate."},
        "layer": INDEX,
        "head": INDEX,
        "gradient_norm": _NUMBER,
        "weights": {**matrix, "description": "W_Q of that layer and head (d_model, d_k)."},
        "gradient": {**matrix, "description": "Of W_Q (d_model, d_k)."},
        "after": {**matrix, "description": "W_Q after the step (d_model, d_k)."},
        "falls": {
            "type": "object",
            "additionalProperties": _NUMBER,
            "description": "Each tensor's part of the loss's fall, to first order: learning rate × |gradient|².",
        },
        "watch": _watch_schema(),
    }
    said = "One step of gradient descent on one sentence, with every number kept."
    return plain_document_schema("lesson", said, properties)


def _watch_schema() -> Schema:
    """Where the words of the watched sentence look."""
    properties: dict[str, Schema] = {
        "query": TEXT,
        "key": {**TEXT, "description": "The word on which the query's weight grew most."},
        "layer": INDEX,
        "head": INDEX,
        "before": {**SHARE, "description": "Its weight at the start."},
        "weight": {**SHARE, "description": "Its weight now."},
        "tokens": list_schema(TEXT),
        "row": list_schema(SHARE, "The query's weights now."),
    }
    return object_schema(properties)


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
