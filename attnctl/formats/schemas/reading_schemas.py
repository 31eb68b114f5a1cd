"""JSON Schemas of readings: comparisons, effects, sources, needles, censuses."""

from __future__ import annotations

from attnctl.formats.schemas.schema_parts import (
    COUNT,
    INDEX,
    MASK,
    SHARE,
    TEXT,
    VERSION,
    Schema,
    document_schema,
    list_schema,
    model_schema,
    object_schema,
    plain_document_schema,
    token_schema,
    tuple_schema,
)
from attnctl.readings.census.census import MENTION_COUNTS

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
