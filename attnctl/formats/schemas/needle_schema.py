"""The JSON Schemas of needles: of one, and of what all of a run come to."""

from __future__ import annotations

from attnctl.formats.schemas.schema_parts import (
    INDEX,
    SHARE,
    TEXT,
    VERSION,
    Schema,
    document_schema,
    list_schema,
    object_schema,
)

_RUN: dict[str, Schema] = {
    "attnctl": VERSION,
    "model": {"$ref": "#/$defs/model"},
    "needle": {**TEXT, "description": "The fact that was planted."},
    "question": TEXT,
    "expect": {**TEXT, "description": "What an answer must hold, letter case aside."},
    "haystack": {
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "description": "SHA-256 of the haystack's text; absent: made sentences.",
    },
    "seed": {**INDEX, "description": "Of the made sentences, and of the heads switched off at random."},
}


def schema_of_needle() -> Schema:
    """The schema of one needle, `attnctl.needle/1`."""
    properties: dict[str, Schema] = {
        **_RUN,
        "length": {**INDEX, "description": "Tokens of the prompt that were asked for."},
        "depth": {**SHARE, "maximum": 1, "description": "Where the needle stands: 0 first, 1 last."},
        "tokens": {**INDEX, "description": "Tokens of the prompt as it was."},
        "answer": TEXT,
        "answered": {"type": "boolean"},
        "found": {
            **SHARE,
            "description": "Share of the answer's attention on the needle, over all heads and layers.",
        },
        "scores": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": list_schema(SHARE),
            "description": "Of each layer, each head's retrieval score on this needle (Wu et al. 2024); empty where it "
            "was not answered.",
        },
    }
    said = "A fact planted in a prompt, and what came of it; a run writes one a line."
    required = [name for name in properties if name != "haystack"]
    return document_schema("needle", said, properties, required)


def schema_of_needles() -> Schema:
    """The schema of what all needles of a run come to, `attnctl.needles/1`."""
    place = {"layer": INDEX, "head": INDEX}
    off = object_schema(
        {"heads": list_schema(object_schema(place)), "answered": INDEX, "asked": INDEX},
        ["heads", "answered", "asked"],
    )
    properties: dict[str, Schema] = {
        **_RUN,
        "asked": INDEX,
        "answered": INDEX,
        "retrieval_heads": list_schema(
            object_schema({**place, "score": SHARE}, [*place, "score"]),
            "Heads that on 10 % of the answers' tokens or more look at that very token inside the needle, best first.",
        ),
        "off": {**off, "description": "Answered needles asked again with the best of these heads switched off."},
        "random_off": {**off, "description": "The same with as many other heads, drawn at random."},
        "notes": list_schema(TEXT),
    }
    required = [name for name in properties if name not in ("haystack", "off", "random_off")]
    said = "What the needles of one run come to: which heads fetch them; the last line of `needle --json`."
    return document_schema("needles", said, properties, required)
