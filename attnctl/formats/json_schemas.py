"""The JSON Schemas (draft 2020-12) of what attnctl writes, made from the tables of arrays and of head statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from attnctl.readings.trace import ModelInfo
from attnctl.readings.trace_arrays import TRACE_ARRAYS, Level, TraceArray

if TYPE_CHECKING:
    from attnctl.readings.head_statistics import Statistic

Schema = dict[str, Any]

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
    "rope_pairs": {"enum": ["half", "interleaved"]},
    "seed": {"type": ["integer", "null"]},
}


def trace_schema() -> Schema:
    """The schema of a trace, `attnctl.trace/1`."""
    properties: dict[str, Schema] = {
        "schema": {"const": "attnctl.trace/1"},
        "id": {"type": ["string", "integer"], "description": "The item's own name, in a batch."},
        **_opening_properties(),
        **_array_properties("text"),
        "layers": _list_of({"$ref": "#/$defs/layer"}),
        "predictions": _list_of(
            _object(
                {"position": INDEX, "text": TEXT, "id": INDEX, "probability": {**SHARE, "maximum": 1}},
                ["position", "text", "id", "probability"],
            )
        ),
        "measure": {
            "enum": ["value-norm", "rollout"],
            "description": "What stands in place of the weights: shares of the weighted values' lengths, or rollout over "
            "the layers.",
        },
        "notes": _list_of(TEXT, "What a reader must know about these numbers."),
    }
    layer = {
        "layer": INDEX,
        "rows": _list_of(INDEX, "The queries that the arrays hold, where not all."),
        **_array_properties("layer"),
        "heads": _list_of({"$ref": "#/$defs/head"}),
    }
    head = {"head": INDEX, "kv_head": INDEX, **_array_properties("head")}
    return _document(
        "trace",
        "One text through one model, every intermediate of self-attention. i is the query (row), j the key (column). What "
        "the source cannot give is absent. Every number is finite and reads back to the same float32.",
        _object(properties, ["schema", "text", "tokens", "model", "layers"]),
        {"layer": _object(layer, ["layer", "heads"]), "head": _object(head, ["head", "kv_head"])},
    )


def overview_schema() -> Schema:
    """The schema of an overview, or of one query's weights, of a long text: `attnctl.overview/1`."""
    from attnctl.readings.head_statistics import STATISTICS  # which computes them, too: NumPy

    properties = {
        "schema": {"const": "attnctl.overview/1"},
        **_opening_properties(),
        "pool": {
            "enum": ["mean", "max", "mass"],
            "description": "What a number of a grid is: the mean or the largest of the weights between row and column, or "
            "the mass that a query of the row gives to the column, on average.",
        },
        "rows": _list_of({"$ref": "#/$defs/part"}, "What the rows of a grid are."),
        "columns": _list_of({"$ref": "#/$defs/part"}, "What its columns are."),
        "layers": _list_of(
            _object({"layer": INDEX, "mask": MASK}, ["layer", "mask"]), "Where a grid has hidden cells."
        ),
        "heads": _list_of({"$ref": "#/$defs/head"}),
        "notes": _list_of(TEXT),
    }
    head = {
        "layer": INDEX,
        "head": INDEX,
        **{statistic.name: _statistic_schema(statistic) for statistic in STATISTICS.values()},
        "names": _list_of(TEXT, "What kind of head it looks like, by the usual thresholds."),
        "coverage": {**SHARE, "description": "The mass that the links hold, mean over the queries."},
        "links": _list_of(
            _list_of(_tuple_of(INDEX, SHARE)), "For each query its strongest keys, [key, weight], strongest first."
        ),
        "grid": {"$ref": "#/$defs/matrix", "description": "Pooled weights (rows, columns)."},
        "query": {**INDEX, "description": "The query whose weights follow."},
        "weights": {"$ref": "#/$defs/vector", "description": "That query's exact weights on every key."},
    }
    stretches = _list_of(_tuple_of(INDEX, COUNT), "Tokens [first, last), one stretch or several.")
    return _document(
        "overview",
        "What is known of the attention over a text whose weights are too many to keep: statistics of each head, the "
        "strongest links of each query, pooled grids, single rows. What was not asked for is absent.",
        _object(properties, ["schema", "text", "tokens", "model", "heads"]),
        {
            "part": _object({"name": TEXT, "ranges": {**stretches, "minItems": 1}}, ["name", "ranges"]),
            "head": _object(head, ["layer", "head"]),
        },
    )


def effects_schema() -> Schema:
    """The schema of what heads and edges do for a prediction: `attnctl.effects/1`."""
    delta: Schema = {"type": "number", "description": "After minus before."}
    nats: Schema = {"type": "number", "description": "After minus before, in nats."}
    best = _object({"text": TEXT, "probability": SHARE}, ["text", "probability"])
    changes = {
        "log_probability": nats,
        "logit_difference": delta,
        "distance": {"type": "number", "description": "1 - cosine of the final states, where nothing is predicted."},
        "probability": {**SHARE, "description": "Of the target, under the intervention."},
        "best": {**best, "description": "The likeliest first token, under the intervention."},
    }
    word = _object({"text": TEXT, "id": INDEX, "ids": _list_of(INDEX, "Where it is several tokens.")}, ["text", "id"])
    baseline = {**changes, "log_probability": {"type": "number"}, "logit": {"type": "number"}, "best": best}
    looks = _object({"key": INDEX, "weight": SHARE}, ["key", "weight"])
    place = {"layer": INDEX, "head": INDEX}
    writes: Schema = {"type": "number", "description": "Direct contribution to the logit, or the logit difference."}
    part = {"part": {"enum": ["embedding", "head", "mlp", "bias"]}, **place, "value": {"type": "number"}}
    part["keys"] = _list_of({"type": "number"}, "Of a head, by source token.")
    total = {"logit": {"type": "number", "description": "The model's own."}, "sum": {"type": "number"}}
    properties = {
        "schema": {"const": "attnctl.effects/1"},
        **_opening_properties(),
        "how": {"enum": ["zero", "mean", "resample"]},
        "query": {**INDEX, "description": "The watched position."},
        "target": word,
        "against": word,
        "baseline": _object(baseline, []),
        "heads": _list_of(_object({**place, "looks": looks, "writes": writes, **changes}, ["layer", "head", "looks"])),
        "edges": _list_of(_object({"key": INDEX, "query": INDEX, "together": {"const": True}, **changes}, [])),
        "spans": _list_of(_object({"name": TEXT, "start": INDEX, "end": COUNT, **changes}, ["name", "start", "end"])),
        "agreement": _object({"kendall_tau": {"type": "number", "minimum": -1, "maximum": 1}}, []),
        "approximation": _object(
            {"rank_correlation": {"type": "number"}, "heads": COUNT}, ["rank_correlation", "heads"]
        ),
        "contributions": _object(
            {**total, "parts": _list_of(_object(part, ["part", "value"]))}, ["logit", "sum", "parts"]
        ),
        "notes": _list_of(TEXT),
    }
    return _document(
        "effects",
        "What the attention over one text does for one prediction: each head ablated in turn, each edge cut, parts of the "
        "text cut off. Δ is after minus before, in nats. What was not measured is absent.",
        _object(properties, ["schema", "text", "tokens", "model", "how", "query", "baseline", "notes"]),
        {},
    )


def census_schema() -> Schema:
    """The schema of a census, `attnctl.census/1`."""
    from attnctl.formats.census_schema import census_schema

    return census_schema()


def sources_schema() -> Schema:
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
        "writes": {"type": "number", "description": "Direct contribution to the answer's log-probability, nats."},
        "matters": {**change, "description": f"{change['description']} Nothing behind the part can see it."},
        "removed": {**change, "description": f"{change['description']} The prompt is rendered without the part."},
        "alone": {
            "type": "boolean",
            "description": "False: measured with its neighbours, together they do not matter.",
        },
    }
    token = {**_token_schema()["properties"], "log_probability": {"type": "number"}}
    token["source"] = {**INDEX, "description": "The part, by its place in parts, whose loss costs this token most."}
    answer = {
        "text": TEXT,
        "given": {"type": "boolean", "description": "False: the model's own, the likeliest token each time."},
        "tokens": _list_of(_object(token, ["index", "text", "special", "log_probability"])),
        "log_probability": {"type": "number", "description": "Of the whole answer, nats."},
    }
    tau = {"type": "number", "minimum": -1, "maximum": 1}
    properties: dict[str, Schema] = {
        "schema": {"const": "attnctl.sources/1"},
        "id": {"type": ["string", "integer"], "description": "The item's own name, in a batch."},
        "prompt": {**TEXT, "description": "The prompt as the model read it."},
        "model": {"$ref": "#/$defs/model"},
        "answer": _object(answer, list(answer)),
        "parts": _list_of(
            _object(part, ["name", "start", "end", "looks", "matters", "alone"]), "What matters most first."
        ),
        "apart": {
            "type": "object",
            "additionalProperties": SHARE,
            "description": "Attention that no part has, by name.",
        },
        "agreement": {"type": "object", "additionalProperties": tau, "description": "Kendall's τ between two columns."},
        "forwards": {**INDEX, "description": "Passes through the network beside the first."},
        "notes": _list_of(TEXT),
    }
    said = "Which part of a prompt an answer came from: what is looked at, what writes, what matters."
    return _document("sources", said, _object(properties, [name for name in properties if name != "id"]), {})


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "trace": trace_schema,
    "overview": overview_schema,
    "effects": effects_schema,
    "census": census_schema,
    "sources": sources_schema,
}


def _document(what: str, description: str, body: Schema, definitions: dict[str, Schema]) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"attnctl.{what}/1",
        "title": f"attnctl {what}",
        "description": description,
        **body,
        "$defs": {
            "vector": _list_of({"type": "number"}),
            "matrix": _list_of({"$ref": "#/$defs/vector"}),
            "tokens": {**_list_of(_token_schema()), "minItems": 1},
            "model": _model_schema(),
            **definitions,
        },
    }


def _object(properties: dict[str, Schema], required: Sequence[str]) -> Schema:
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": properties}


def _list_of(items: Schema, description: str | None = None) -> Schema:
    return {"type": "array", "items": items} | ({} if description is None else {"description": description})


def _tuple_of(*items: Schema) -> Schema:
    return {"type": "array", "prefixItems": list(items), "minItems": len(items), "maxItems": len(items)}


MASK = _list_of(_list_of({"type": "boolean"}))


def _opening_properties() -> dict[str, Schema]:
    about = "The tokens of the key axis, where it is another text's (cross attention)."
    return {
        "text": TEXT,
        "tokens": {"$ref": "#/$defs/tokens"},
        "key_tokens": {"$ref": "#/$defs/tokens", "description": about},
        "model": {"$ref": "#/$defs/model"},
    }


def _token_schema() -> Schema:
    properties = {
        "index": INDEX,
        "text": TEXT,
        "id": {"type": "integer"},
        "start": {**INDEX, "description": "First character in text."},
        "end": {**INDEX, "description": "One past the last."},
        "special": {"type": "boolean"},
        "unknown": {"const": True, "description": "The model has no such word and reads its unknown token."},
    }
    return _object(properties, ["index", "text", "special"])


def _model_schema() -> Schema:
    """The fields of ModelInfo: those that are never absent are required."""
    hints = get_type_hints(ModelInfo)
    required = [name for name, hint in hints.items() if not isinstance(hint, UnionType) or name == "seed"]
    return _object({name: MODEL_LIMITS.get(name) or _type_schema(hint) for name, hint in hints.items()}, required)


def _type_schema(hint: Any) -> Schema:
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    return {"type": JSON_TYPES[kind]}


def _array_properties(level: Level) -> dict[str, Schema]:
    return {array.name: _array_schema(array) for array in TRACE_ARRAYS if array.level == level}


def _array_schema(array: TraceArray) -> Schema:
    shape = f"({', '.join(array.axes)})"
    form = MASK if array.boolean else {"$ref": f"#/$defs/{'matrix' if len(array.axes) == 2 else 'vector'}"}
    return {**form, "description": f"{array.meaning} {shape}.".lstrip()}


def _statistic_schema(statistic: Statistic) -> Schema:
    form = SHARE if statistic.is_share else {"type": "number", "minimum": 0}
    return {**form, "description": statistic.title}
