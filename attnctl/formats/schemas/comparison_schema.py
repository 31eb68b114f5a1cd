"""The JSON Schemas of a comparison, and of what the lessons ask and work out: a softmax, a quiz."""

from __future__ import annotations

from attnctl.formats.schemas.schema_parts import (
    INDEX,
    MASK,
    SHARE,
    TEXT,
    VERSION,
    Schema,
    document_schema,
    list_schema,
    object_schema,
    plain_document_schema,
    tuple_schema,
)

_NUMBER: Schema = {"type": "number"}
_NUMBERS = list_schema(_NUMBER)
_NUMBERS_OR_NULL = list_schema({"type": ["number", "null"]})


def schema_of_comparison() -> Schema:
    """The schema of two runs side by side, `attnctl.comparison/1`."""
    side = object_schema({"name": TEXT, "text": TEXT, "model": {"$ref": "#/$defs/model"}}, ["name", "text", "model"])
    matrix: Schema = {"$ref": "#/$defs/matrix"}
    head = {
        "head": INDEX,
        "a": {**matrix, "description": "Weights of A (rows, columns)."},
        "b": {**matrix, "description": "Weights of B."},
        "difference": {**matrix, "description": "B minus A."},
        "hidden_in_one": {**MASK, "description": "True where one of the two alone hides the key."},
    }
    layer = {"layer": INDEX, "heads": list_schema(object_schema(head, ["head", "a", "b", "difference"]))}
    place = {"layer": INDEX, "head": INDEX, "query": INDEX, "key": INDEX}
    largest = {**place, **dict.fromkeys(("a", "b", "difference"), _NUMBER)}
    pairs = list_schema(tuple_schema(INDEX, INDEX), "(index in A, index in B) of each that both have.")
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "a": side,
        "b": side,
        "aligned": {
            **object_schema({"queries": pairs, "keys": pairs}, ["queries", "keys"]),
            "description": "Which tokens are compared, where some are not with the one at their own place.",
        },
        "tokens": list_schema(TEXT, "What a row of a grid is: the token, or A's/B's where they differ."),
        "key_tokens": list_schema(TEXT, "What its columns are."),
        "largest": {**object_schema(largest), "description": "Where the two differ most."},
        "layers": list_schema(object_schema(layer, ["layer", "heads"])),
    }
    required = [name for name in properties if name != "aligned"]
    said = "The weights of two runs, and their difference: B minus A, for each head that both have."
    return document_schema("comparison", said, properties, required)


def schema_of_softmax() -> Schema:
    """The schema of a softmax worked out, `attnctl.softmax/1`."""
    scale = object_schema({"scale": _NUMBER, "weights": _NUMBERS}, ["scale", "weights"])
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "labels": list_schema(TEXT, "Names of the scores."),
        "scores": {**_NUMBERS_OR_NULL, "description": "As they were given; null where masked."},
        "scale": {**_NUMBER, "description": "The factor on the scores."},
        "temperature": _NUMBER,
        "scaled_scores": {**_NUMBERS_OR_NULL, "description": "Scores × scale / temperature; null where masked."},
        "shift": {**_NUMBER, "description": "Taken off the scaled scores before the exponential."},
        "exponentials": _NUMBERS,
        "sum": {**_NUMBER, "description": "Of the exponentials."},
        "weights": list_schema(SHARE, "The softmax."),
        "entropy": {**_NUMBER, "description": "Of the weights, nats."},
        "divided_by_sum": {
            "type": ["array", "null"],
            "items": _NUMBER,
            "description": "Each score divided by the plain sum; null where that is 0.",
        },
        "scales": list_schema(scale, "The weights under other factors."),
    }
    required = [name for name in properties if name != "labels"]
    return plain_document_schema("softmax", "The softmax of a few scores, step by step.", properties, required)


def schema_of_quiz() -> Schema:
    """The schema of the questions of a quiz, `attnctl.quiz/1`."""
    question = {
        "kind": {**TEXT, "description": "What is asked for: a weight, the strongest key, …"},
        "question": TEXT,
        "facts": list_schema(TEXT, "The numbers that it takes."),
        "answer": {"type": ["string", "number"], "description": "One of choices, or a number."},
        "choices": list_schema(TEXT),
        "tolerance": {"type": "number", "minimum": 0, "description": "How far off a number may be."},
    }
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "text": TEXT,
        "model": {"$ref": "#/$defs/model"},
        "questions": list_schema(object_schema(question, ["kind", "question", "facts", "answer"])),
    }
    said = "Questions about the attention of a sentence, each with its answer."
    return document_schema("quiz", said, properties)
