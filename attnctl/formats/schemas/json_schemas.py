"""The JSON Schemas (draft 2020-12) of what attnctl writes, made from the tables of arrays and of head statistics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from attnctl import call_named
from attnctl.formats.schemas.schema_parts import (
    COUNT,
    INDEX,
    MASK,
    NOTES,
    SHARE,
    TEXT,
    Schema,
    document_schema,
    list_schema,
    object_schema,
    opening_properties,
    tuple_schema,
)
from attnctl.readings.traces.trace import TRACE_ARRAYS, Level

if TYPE_CHECKING:
    from attnctl.readings.head_statistics import Statistic


def trace_schema() -> Schema:
    """The schema of a trace, `attnctl.trace/1`."""
    properties: dict[str, Schema] = {
        "id": {"type": ["string", "integer"], "description": "The item's own name, in a batch."},
        **opening_properties(),
        **_array_properties("text"),
        "layers": list_schema({"$ref": "#/$defs/layer"}),
        "predictions": list_schema(
            object_schema(
                {"position": INDEX, "text": TEXT, "id": INDEX, "probability": {**SHARE, "maximum": 1}},
                ["position", "text", "id", "probability"],
            )
        ),
        "measure": {
            "enum": ["value-norm", "rollout"],
            "description": "What stands in place of the weights: shares of the weighted values' lengths, or rollout over "
            "the layers.",
        },
        **NOTES,
    }
    layer = {
        "layer": INDEX,
        "rows": list_schema(INDEX, "The queries that the arrays hold, where not all."),
        **_array_properties("layer"),
        "heads": list_schema({"$ref": "#/$defs/head"}),
    }
    head = {"head": INDEX, "kv_head": INDEX, **_array_properties("head")}
    return document_schema(
        "trace",
        "One text through one model, every intermediate of self-attention. i is the query (row), j the key (column). What "
        "the source cannot give is absent. Every number is finite and reads back to the same float32.",
        properties,
        ["text", "tokens", "model", "layers"],
        {"layer": object_schema(layer, ["layer", "heads"]), "head": object_schema(head, ["head", "kv_head"])},
    )


def overview_schema() -> Schema:
    """The schema of an overview, or of one query's weights, of a long text: `attnctl.overview/1`."""
    from attnctl.readings.head_statistics import STATISTICS

    properties = {
        **opening_properties(),
        "pool": {
            "enum": ["mean", "max", "mass"],
            "description": "What a number of a grid is: the mean or the largest of the weights between row and column, or "
            "the mass that a query of the row gives to the column, on average.",
        },
        "rows": list_schema({"$ref": "#/$defs/part"}, "What the rows of a grid are."),
        "columns": list_schema({"$ref": "#/$defs/part"}, "What its columns are."),
        "layers": list_schema(
            object_schema({"layer": INDEX, "mask": MASK}, ["layer", "mask"]), "Where a grid has hidden cells."
        ),
        "heads": list_schema({"$ref": "#/$defs/head"}),
        **NOTES,
    }
    head = {
        "layer": INDEX,
        "head": INDEX,
        **{statistic.name: _statistic_schema(statistic) for statistic in STATISTICS.values()},
        "names": list_schema(
            TEXT,
            "What kind of head it looks like, by the usual thresholds; with a ? where the text is too short to tell.",
        ),
        "coverage": {**SHARE, "description": "The mass that the links hold, mean over the queries."},
        "links": list_schema(
            list_schema(tuple_schema(INDEX, SHARE)),
            "For each query its strongest keys, [key, weight], strongest first.",
        ),
        "grid": {"$ref": "#/$defs/matrix", "description": "Pooled weights (rows, columns)."},
        "query": {**INDEX, "description": "The query whose weights follow."},
        "weights": {"$ref": "#/$defs/vector", "description": "That query's exact weights on every key."},
    }
    stretches = list_schema(tuple_schema(INDEX, COUNT), "Tokens [first, last), one stretch or several.")
    return document_schema(
        "overview",
        "What is known of the attention over a text whose weights are too many to keep: statistics of each head, the "
        "strongest links of each query, pooled grids, single rows. What was not asked for is absent.",
        properties,
        ["text", "tokens", "model", "heads"],
        {
            "part": object_schema({"name": TEXT, "ranges": {**stretches, "minItems": 1}}, ["name", "ranges"]),
            "head": object_schema(head, ["layer", "head"]),
        },
    )


def effects_schema() -> Schema:
    """The schema of what heads and edges do for a prediction: `attnctl.effects/1`."""
    delta: Schema = {"type": "number", "description": "After minus before."}
    nats: Schema = {"type": "number", "description": "After minus before, in nats."}
    best = object_schema({"text": TEXT, "probability": SHARE}, ["text", "probability"])
    changes = {
        "log_probability": nats,
        "logit_difference": delta,
        "distance": {"type": "number", "description": "1 - cosine of the final states, where nothing is predicted."},
        "probability": {**SHARE, "description": "Of the target, under the intervention."},
        "best": {**best, "description": "The likeliest first token, under the intervention."},
    }
    word = object_schema(
        {"text": TEXT, "id": INDEX, "ids": list_schema(INDEX, "Where it is several tokens.")}, ["text", "id"]
    )
    baseline = {**changes, "log_probability": {"type": "number"}, "logit": {"type": "number"}, "best": best}
    looks = object_schema({"key": INDEX, "weight": SHARE}, ["key", "weight"])
    place = {"layer": INDEX, "head": INDEX}
    writes: Schema = {"type": "number", "description": "Direct contribution to the logit, or the logit difference."}
    part = {"part": {"enum": ["embedding", "head", "mlp", "bias"]}, **place, "value": {"type": "number"}}
    part["keys"] = list_schema({"type": "number"}, "Of a head, by source token.")
    total = {"logit": {"type": "number", "description": "The model's own."}, "sum": {"type": "number"}}
    properties = {
        **opening_properties(),
        "how": {"enum": ["zero", "mean", "resample"]},
        "query": {**INDEX, "description": "The watched position."},
        "target": word,
        "against": word,
        "baseline": object_schema(baseline, []),
        "heads": list_schema(
            object_schema({**place, "looks": looks, "writes": writes, **changes}, ["layer", "head", "looks"])
        ),
        "edges": list_schema(object_schema({"key": INDEX, "query": INDEX, "together": {"const": True}, **changes}, [])),
        "spans": list_schema(
            object_schema({"name": TEXT, "start": INDEX, "end": COUNT, **changes}, ["name", "start", "end"])
        ),
        "agreement": object_schema({"kendall_tau": {"type": "number", "minimum": -1, "maximum": 1}}, []),
        "approximation": object_schema(
            {"rank_correlation": {"type": "number"}, "heads": COUNT}, ["rank_correlation", "heads"]
        ),
        "contributions": object_schema(
            {**total, "parts": list_schema(object_schema(part, ["part", "value"]))}, ["logit", "sum", "parts"]
        ),
        "notes": list_schema(TEXT),
    }
    return document_schema(
        "effects",
        "What the attention over one text does for one prediction: each head ablated in turn, each edge cut, parts of the "
        "text cut off. Δ is after minus before, in nats. What was not measured is absent.",
        properties,
        ["text", "tokens", "model", "how", "query", "baseline", "notes"],
    )


def _schema_of(name: str, module: str) -> Callable[[], Schema]:
    """What makes the schema of `name`, in a module that is imported when it is called."""
    return partial(call_named, f"attnctl.formats.schemas.{module}:schema_of_{name}")


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "trace": trace_schema,
    "overview": overview_schema,
    "effects": effects_schema,
    "comparison": _schema_of("comparison", "reading_schemas"),
    "census": _schema_of("census", "reading_schemas"),
    "sources": _schema_of("sources", "reading_schemas"),
    "needle": _schema_of("needle", "reading_schemas"),
    "needles": _schema_of("needles", "reading_schemas"),
    "batch": _schema_of("batch", "model_schemas"),
    "manifest": _schema_of("manifest", "model_schemas"),
    "sizes": _schema_of("sizes", "model_schemas"),
    "card": _schema_of("card", "model_schemas"),
    "relation": _schema_of("relation", "model_schemas"),
    "report": _schema_of("report", "model_schemas"),
    "lesson": _schema_of("lesson", "model_schemas"),
    "softmax": _schema_of("softmax", "reading_schemas"),
    "quiz": _schema_of("quiz", "reading_schemas"),
}


def _array_properties(level: Level) -> dict[str, Schema]:
    found = {}
    for array in (one for one in TRACE_ARRAYS if one.level == level):
        form = MASK if array.boolean else {"$ref": f"#/$defs/{'matrix' if len(array.axes) == 2 else 'vector'}"}
        found[array.name] = {**form, "description": f"{array.meaning} ({', '.join(array.axes)}).".lstrip()}
    return found


def _statistic_schema(statistic: Statistic) -> Schema:
    form: Schema = SHARE if statistic.is_share else {"type": "number", "minimum": 0}
    if statistic.unit == "places":
        form = {"type": "integer"}
    return {**form, "description": statistic.title_with_unit}
