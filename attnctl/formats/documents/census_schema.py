"""The JSON Schema of a census."""

from __future__ import annotations

from attnctl.formats.documents.schema_parts import (
    COUNT,
    INDEX,
    SHARE,
    TEXT,
    VERSION,
    Schema,
    list_schema,
    model_schema,
    object_schema,
    tuple_schema,
)
from attnctl.readings.census.windows import MENTION_COUNTS


def schema_of_census() -> Schema:
    """The schema of a census, `attnctl.census/1`."""
    place = {"layer": INDEX, "head": INDEX}
    share = {**SHARE, "maximum": 1}
    best = {**place, "chosen_on": COUNT, "scored_on": COUNT, "accuracy": share, "interval": tuple_schema(share, share)}
    found = list_schema(
        object_schema({"relation": TEXT, "direction": TEXT, "accuracy": share}, ["relation", "direction", "accuracy"]),
        "Relations of which its accuracy is 10 points above the best fixed offset (Voita et al. 2019).",
    )
    counts = list_schema(list_schema(INDEX), "Cases in which a head finds the word: [[count a head] a layer].")
    rule = {
        "accuracy": share,
        "offset": {"type": "integer"},
        "tag": TEXT,
        "side": {"enum": ["before", "behind", "either"]},
    }
    relation = {
        "relation": {**TEXT, "description": "The corpus's label; without its subtypes it counts all of them."},
        "direction": {"enum": ["dependent→head", "head→dependent", "mention→antecedent"]},
        "subtype": {"const": True},
        "cases": INDEX,
        "ahead": {
            **INDEX,
            "description": "Of a causal model, and beside the cases: the word stands ahead, where no head looks.",
        },
        "correct": counts,
        "best": object_schema({**best, "beats_rules": {"type": "boolean"}}, [*best, "beats_rules"]),
        "rules": {
            "type": "object",
            "propertyNames": {"enum": ["offset", "nearest", "head_match", "first"]},
            "additionalProperties": object_schema(rule, ["accuracy"]),
        },
        "untrained": {"$ref": "#/$defs/best"},
    }
    trees = {
        "edges": INDEX,
        "right_branching": share,
        "correct": counts,
        "best_head": {"$ref": "#/$defs/best"},
        "best_layer": object_schema({"layer": INDEX, "accuracy": share}, ["layer", "accuracy"]),
        "untrained": {"$ref": "#/$defs/best"},
    }
    amount = {"type": "number", "minimum": 0}
    head: dict[str, Schema] = {
        **place,
        "entropy": {**amount, "description": "Of a word's weights, mean, nats."},
        "own": {**SHARE, "description": "Mass on the word itself."},
        "special": {**SHARE, "description": "Mass on tokens that are no word's."},
        "distance": {**amount, "description": "Words, mean over the mass on other words."},
        "dependency_mass": {
            **SHARE,
            "description": "Of the mass on other words, that on words joined by a dependency.",
        },
        "uuas": share,
        "positional": object_schema({"offset": {"type": "integer"}, "share": share}, ["offset", "share"]),
        "syntactic": found,
    }
    sentences = {"read": INDEX, "used": INDEX, "skipped": {"type": "object", "additionalProperties": COUNT}}
    layer: dict[str, Schema] = {
        "layer": INDEX,
        **{name: head[name] for name in ("dependency_mass", "distance", "entropy")},
    }
    layer["uuas"] = share
    properties: dict[str, Schema] = {
        "schema": {"const": "attnctl.census/1"},
        "attnctl": VERSION,
        "model": TEXT,
        "corpus": TEXT,
        "causal": {"type": "boolean"},
        "sentences": object_schema(sentences, list(sentences)),
        "words": object_schema({"used": INDEX, "dependencies_within": INDEX}, ["used", "dependencies_within"]),
        "relations": list_schema(
            object_schema(relation, ["relation", "direction", "cases", "ahead", "correct", "rules"])
        ),
        "uuas": object_schema(trees, ["edges", "right_branching", "correct"]),
        "layers": list_schema(object_schema(layer, list(layer))),
        "heads": list_schema(object_schema(head, [*(name for name in head if name not in ("uuas", "positional"))])),
        "compared_with_untrained": {"type": "boolean"},
    }
    required = list(properties)
    properties["model_info"] = {"$ref": "#/$defs/model"}
    properties["mentions"] = {
        **object_schema(dict.fromkeys(MENTION_COUNTS, INDEX), MENTION_COUNTS),
        "description": "Of documents that were read in windows, for coreference: new are the first of their entity, outside "
        "those whose antecedents stand before the window, unread those of sentences that are too long.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "attnctl.census/1",
        "title": "attnctl census",
        "description": "Which words each head finds in a corpus of parsed sentences, for every relation and direction. The "
        "best head is chosen on one half of the sentences, and scored on the other as the rules beside it are.",
        **object_schema(properties, required),
        "$defs": {"best": object_schema(best, list(best)), "model": model_schema()},
    }
