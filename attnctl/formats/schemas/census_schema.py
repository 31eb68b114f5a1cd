"""The JSON Schema of a census."""

from __future__ import annotations

from attnctl.formats.schemas.schema_parts import (
    COUNT,
    INDEX,
    SHARE,
    TEXT,
    VERSION,
    Schema,
    list_schema,
    model_schema,
    object_schema,
    plain_document_schema,
    tuple_schema,
)
from attnctl.readings.census.windows import MENTION_COUNTS

PLACE: dict[str, Schema] = {"layer": INDEX, "head": INDEX}
PORTION: Schema = {**SHARE, "maximum": 1}
AMOUNT: Schema = {"type": "number", "minimum": 0}
BEST: dict[str, Schema] = {
    **PLACE,
    "chosen_on": COUNT,
    "scored_on": COUNT,
    "accuracy": PORTION,
    "interval": tuple_schema(PORTION, PORTION),
}
SENTENCES = {"read": INDEX, "used": INDEX, "skipped": {"type": "object", "additionalProperties": COUNT}}
CORRECT = list_schema(
    list_schema(INDEX),
    "Cases in which a head finds the word: [[count a head] a layer]; 0 of heads that are not in heads.",
)


def schema_of_census() -> Schema:
    """The schema of a census, `attnctl.census/1`."""
    head = _head_fields()
    layer = {"layer": INDEX, **{name: head[name] for name in ("dependency_mass", "distance", "entropy", "uuas")}}
    optional = ("uuas", "positional")
    required: dict[str, Schema] = {
        "attnctl": VERSION,
        "model": TEXT,
        "corpus": TEXT,
        "causal": {"type": "boolean"},
        "sentences": object_schema(SENTENCES),
        "words": object_schema({"used": INDEX, "dependencies_within": INDEX}, ["used", "dependencies_within"]),
        "relations": list_schema(_relation_schema()),
        "uuas": object_schema(_tree_fields(), ["edges", "right_branching", "correct"]),
        "layers": list_schema(object_schema(layer)),
        "heads": list_schema(object_schema(head, [name for name in head if name not in optional])),
        "compared_with_untrained": {"type": "boolean"},
    }
    mentions = {
        **object_schema(dict.fromkeys(MENTION_COUNTS, INDEX), MENTION_COUNTS),
        "description": "Of documents that were read in windows, for coreference: new are the first of their entity, outside "
        "those whose antecedents stand before the window, unread those of sentences that are too long.",
    }
    every = {**required, "model_info": {"$ref": "#/$defs/model"}, "mentions": mentions}
    about = (
        "Which words each head finds in a corpus of parsed sentences, for every relation and direction. The best head is "
        "chosen on one half of the sentences, and scored on the other as the rules beside it are."
    )
    return {
        **plain_document_schema("census", about, every, list(required)),
        "$defs": {"best": object_schema(BEST), "model": model_schema()},
    }


def _relation_schema() -> Schema:
    """One relation in one direction: how often each head finds the word, and rules that need no attention."""
    rule: dict[str, Schema] = {
        "accuracy": PORTION,
        "offset": {"type": "integer"},
        "tag": TEXT,
        "side": {"enum": ["before", "behind", "either"]},
    }
    relation: dict[str, Schema] = {
        "relation": {**TEXT, "description": "The corpus's label; without its subtypes it counts all of them."},
        "direction": {"enum": ["dependent→head", "head→dependent", "mention→antecedent"]},
        "subtype": {"const": True},
        "cases": INDEX,
        "ahead": {
            **INDEX,
            "description": "Of a causal model, and beside the cases: the word stands ahead, where no head looks.",
        },
        "correct": CORRECT,
        "best": object_schema({**BEST, "beats_rules": {"type": "boolean"}}, [*BEST, "beats_rules"]),
        "rules": {
            "type": "object",
            "propertyNames": {"enum": ["offset", "nearest", "head_match", "first"]},
            "additionalProperties": object_schema(rule, ["accuracy"]),
        },
        "untrained": {"$ref": "#/$defs/best"},
    }
    return object_schema(relation, ["relation", "direction", "cases", "ahead", "correct", "rules"])


def _tree_fields() -> dict[str, Schema]:
    """Undirected dependency trees read off the attention, against the corpus's own."""
    return {
        "edges": INDEX,
        "right_branching": PORTION,
        "correct": CORRECT,
        "best_head": {"$ref": "#/$defs/best"},
        "best_layer": object_schema({"layer": INDEX, "accuracy": PORTION}, ["layer", "accuracy"]),
        "untrained": {"$ref": "#/$defs/best"},
    }


def _head_fields() -> dict[str, Schema]:
    """What one head does over the corpus."""
    found = {"relation": TEXT, "direction": TEXT, "accuracy": PORTION}
    return {
        **PLACE,
        "entropy": {**AMOUNT, "description": "Of a word's weights, mean, nats."},
        "own": {**SHARE, "description": "Mass on the word itself."},
        "special": {**SHARE, "description": "Mass on tokens that are no word's."},
        "distance": {**AMOUNT, "description": "Words, mean over the mass on other words."},
        "dependency_mass": {
            **SHARE,
            "description": "Of the mass on other words, that on words joined by a dependency.",
        },
        "uuas": PORTION,
        "positional": object_schema({"offset": {"type": "integer"}, "share": PORTION}, ["offset", "share"]),
        "syntactic": list_schema(
            object_schema(found),
            "Relations of which its accuracy is 10 points above the best fixed offset (Voita et al. 2019).",
        ),
    }
