"""The JSON Schema of where an answer came from."""

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
    token_schema,
)


def schema_of_sources() -> Schema:
    """The schema of where an answer came from, `attnctl.sources/1`."""
    change: Schema = {
        "type": "number",
        "description": "Change of the answer's log-probability, after minus before, nats.",
    }
    part = {
        "name": TEXT,
        "start": {**INDEX, "description": "First character of the rendered prompt."},
        "end": {**INDEX, "description": "One past the last."},
        "looks": {**SHARE, "description": "Share of the answer's attention, over all heads and layers."},
        "writes": {
            "type": "number",
            "description": "What all heads add to the answer's log-probability by reading the part directly, nats, to first "
            "order. Absent where the architecture's logits are no sum over its heads.",
        },
        "matters": {**change, "description": f"{change['description']} Nothing behind the part can see it."},
        "removed": {**change, "description": f"{change['description']} The prompt is rendered without the part."},
        "alone": {
            "type": "boolean",
            "description": "False: measured with its neighbours, together they do not matter.",
        },
    }
    token = {**token_schema()["properties"], "log_probability": {"type": "number"}}
    token["source"] = {**INDEX, "description": "The part, by its place in parts, whose loss costs this token most."}
    answer = {
        "text": TEXT,
        "given": {"type": "boolean", "description": "False: the model's own, the likeliest token each time."},
        "tokens": list_schema(object_schema(token, ["index", "text", "special", "log_probability"])),
        "log_probability": {"type": "number", "description": "Of the whole answer, nats."},
    }
    tau = {"type": "number", "minimum": -1, "maximum": 1}
    properties: dict[str, Schema] = {
        "attnctl": VERSION,
        "id": {"type": ["string", "integer"], "description": "The item's own name, in a batch."},
        "prompt": {**TEXT, "description": "The prompt as the model read it."},
        "model": {"$ref": "#/$defs/model"},
        "answer": object_schema(answer),
        "parts": list_schema(
            object_schema(part, ["name", "start", "end", "looks", "matters", "alone"]), "What matters most first."
        ),
        "apart": {
            "type": "object",
            "additionalProperties": SHARE,
            "description": "Attention that no part has, by name.",
        },
        "agreement": {"type": "object", "additionalProperties": tau, "description": "Kendall's τ between two columns."},
        "forwards": {**INDEX, "description": "Passes through the network beside the first."},
        "notes": list_schema(TEXT),
    }
    said = "Which part of a prompt an answer came from: what is looked at, and what matters."
    required = [name for name in properties if name != "id"]
    return document_schema("sources", said, properties, required)
