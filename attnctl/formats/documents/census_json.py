"""A census as JSON, written and read: schema `attnctl.census/1`."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from attnctl import __version__
from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.files import parse_json, read_bytes
from attnctl.formats.documents.json_documents import (
    DAMAGED,
    check_schema,
    damage_of,
    model_document,
    read_model,
    write_json,
)
from attnctl.formats.validation import checked_number, checked_whole_number
from attnctl.readings.census.census_table import Best, CensusTable, HeadRow, LayerRow, Relation, Rule, Trees
from attnctl.text import Document

SCHEMA = "attnctl.census/1"
LAYER_NUMBERS = ("dependency_mass", "distance", "entropy")
HEAD_NUMBERS = ("entropy", "own", "special", "distance", "dependency_mass")


def census_to_json(census: CensusTable) -> bytes:
    """One line of JSON, without the newline. What was not measured is absent."""
    return write_json(census_document(census), "census")


def census_document(census: CensusTable) -> Document:
    """The census as a JSON object."""
    document: Document = {
        "schema": SCHEMA,
        "attnctl": __version__,
        "model": census.model,
        "corpus": census.corpus,
        "causal": census.causal,
        "sentences": {"read": census.sentences_read, "used": census.used, "skipped": census.skipped},
        "words": {"used": census.words, "dependencies_within": census.within},
        "relations": [_relation_document(relation) for relation in census.relations],
        "uuas": _trees_document(census.trees),
        "layers": [{**asdict(row), "uuas": census.trees.layers[row.layer]} for row in census.layers],
        "heads": [_census_head(head) for head in census.heads],
        "compared_with_untrained": census.untrained,
    }
    document |= {"mentions": census.mentions} if census.mentions else {}
    return document | ({} if census.info is None else {"model_info": model_document(census.info)})


def _relation_document(relation: Relation) -> Document:
    document: Document = {
        "relation": relation.relation,
        "direction": relation.direction,
        "cases": relation.cases,
        "ahead": relation.ahead,
        "correct": np.ascontiguousarray(relation.correct),
    }
    if relation.subtype:
        document["subtype"] = True
    if relation.best is not None:
        document["best"] = asdict(relation.best) | {"beats_rules": relation.beats_rules}
    document["rules"] = {rule.name: _rule_document(rule) for rule in relation.rules}
    if relation.untrained is not None:
        document["untrained"] = asdict(relation.untrained)
    return document


def _rule_document(rule: Rule) -> Document:
    told = {"offset": rule.offset, "tag": rule.tag, "side": rule.side}
    return {name: value for name, value in told.items() if value is not None} | {"accuracy": rule.accuracy}


def _trees_document(trees: Trees) -> Document:
    document: Document = {
        "edges": trees.edges,
        "right_branching": trees.right_branching,
        "correct": np.ascontiguousarray(trees.correct),
    }
    if trees.best_head is not None:
        document["best_head"] = asdict(trees.best_head)
    if trees.best_layer is not None:
        document["best_layer"] = {"layer": trees.best_layer[0], "accuracy": trees.best_layer[1]}
    if trees.untrained is not None:
        document["untrained"] = asdict(trees.untrained)
    return document


def _census_head(head: HeadRow) -> Document:
    document: Document = {"layer": head.layer, "head": head.head}
    document |= {name: getattr(head, name) for name in HEAD_NUMBERS}
    if head.uuas is not None:
        document["uuas"] = head.uuas
    if head.positional is not None:
        document["positional"] = {"offset": head.positional[0], "share": head.positional[1]}
    names = ("relation", "direction", "accuracy")
    document["syntactic"] = [dict(zip(names, found, strict=True)) for found in head.syntactic]
    return document


# --- reading -----------------------------------------------------------------------------------------------------


def read_census(path: str) -> CensusTable:
    """The census in a file that `evaluate` wrote. Raises AttnctlError where it is none or is damaged."""
    source = "standard input" if path == "-" else path
    document = check_schema(parse_json(read_bytes(path), source), SCHEMA, source, "a census")
    try:
        return _read_census(document)
    except DAMAGED as error:
        raise AttnctlError(f"{source} is damaged: {damage_of(error)}") from error


def _read_census(document: Document) -> CensusTable:
    sentences, words = document["sentences"], document["words"]
    return CensusTable(
        str(document["model"]),
        str(document["corpus"]),
        bool(document["causal"]),
        checked_whole_number(sentences["used"], "used"),
        {str(reason): checked_whole_number(count, "a count") for reason, count in sentences["skipped"].items()},
        checked_whole_number(words["used"], "used"),
        checked_whole_number(words["dependencies_within"], "dependencies_within"),
        tuple(_relation_of(relation) for relation in document["relations"]),
        _trees_of(document["uuas"], document["layers"]),
        tuple(_head_of(head) for head in document["heads"]),
        tuple(
            LayerRow(
                checked_whole_number(layer["layer"], "layer"),
                *(checked_number(layer[name], name) for name in LAYER_NUMBERS),
            )
            for layer in document["layers"]
        ),
        bool(document["compared_with_untrained"]),
        {str(name): checked_whole_number(count, "a count") for name, count in document.get("mentions", {}).items()},
        read_model(document["model_info"]) if "model_info" in document else None,
    )


def _relation_of(said: Document) -> Relation:
    rules = tuple(
        Rule(name, checked_number(rule["accuracy"], "accuracy"), rule.get("offset"), rule.get("tag"), rule.get("side"))
        for name, rule in said["rules"].items()
    )
    return Relation(
        str(said["relation"]),
        str(said["direction"]),
        checked_whole_number(said["cases"], "cases"),
        _read_counts(said["correct"]),
        checked_whole_number(said["ahead"], "ahead"),
        _best_of(said.get("best")),
        rules,
        _best_of(said.get("untrained")),
        bool(said.get("subtype", False)),
    )


def _read_counts(rows: list[list[int]]) -> Array:
    counts = np.array(rows, np.int64)  # (layers, heads)
    if counts.ndim != 2:
        raise ValueError("the counts of a relation are no table of layers and heads")
    return counts


def _best_of(said: Document | None) -> Best | None:
    if said is None:
        return None
    low, high = (checked_number(end, "interval") for end in said["interval"])
    layer, head, chosen_on, scored_on = (
        checked_whole_number(said[name], name) for name in ("layer", "head", "chosen_on", "scored_on")
    )
    return Best(layer, head, chosen_on, scored_on, checked_number(said["accuracy"], "accuracy"), (low, high))


def _trees_of(said: Document, layers: list[Document]) -> Trees:
    best, correct = said.get("best_layer"), _read_counts(said["correct"])
    found = {checked_whole_number(layer["layer"], "layer"): checked_number(layer["uuas"], "uuas") for layer in layers}
    return Trees(
        checked_whole_number(said["edges"], "edges"),
        checked_number(said["right_branching"], "right_branching"),
        _best_of(said.get("best_head")),
        None
        if best is None
        else (checked_whole_number(best["layer"], "layer"), checked_number(best["accuracy"], "accuracy")),
        correct,
        tuple(found.get(layer, 0.0) for layer in range(len(correct))),
        _best_of(said.get("untrained")),
    )


def _head_of(said: Document) -> HeadRow:
    positional = said.get("positional")
    return HeadRow(
        checked_whole_number(said["layer"], "layer"),
        checked_whole_number(said["head"], "head"),
        **{name: checked_number(said[name], name) for name in HEAD_NUMBERS},
        uuas=None if "uuas" not in said else checked_number(said["uuas"], "uuas"),
        positional=None
        if positional is None
        else (checked_whole_number(positional["offset"], "offset"), checked_number(positional["share"], "share")),
        syntactic=tuple(
            (str(one["relation"]), str(one["direction"]), checked_number(one["accuracy"], "accuracy"))
            for one in said["syntactic"]
        ),
    )
