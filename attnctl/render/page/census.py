"""A census as one HTML file: the table of relations, and for the chosen one the map of layers × heads with its numbers."""

from __future__ import annotations

import html
from functools import cache
from importlib.resources import files
from typing import Any

from attnctl import __version__
from attnctl.formats.documents.census_json import census_document
from attnctl.readings.census.census_table import CensusTable, Relation
from attnctl.render.page.document import as_data, colour_maps, security_policy
from attnctl.text import visible_text


def census_page(census: CensusTable) -> str:
    """The HTML: it needs nothing else, and connects nowhere."""
    style, script = _web_text("page.css") + _web_text("census.css"), _web_text("census.js")
    document = _plain_lists(census_document(census)) | {"maps": colour_maps()["heat"]}
    for relation, said in zip(census.relations, document["relations"], strict=True):
        said["rule_texts"] = {rule.name: visible_text(str(rule)) for rule in relation.rules}
        said["relation"] = visible_text(said["relation"])
        said["best_rule"] = _best_rule(relation)
    for head in document["heads"]:
        for found in head["syntactic"]:
            found["relation"] = visible_text(found["relation"])
    document["model"], document["corpus"] = visible_text(census.model), visible_text(census.corpus)
    parts = {
        "cited": html.escape(f"attnctl {__version__}, {document['model']} on {document['corpus']}"),
        "title": html.escape(f"{document['model']} on {document['corpus']} · attnctl"),
        "policy": security_policy(style, script),
        "style": style,
        "script": script,
        "data": as_data(document),
    }
    pieces = _web_text("census.html").split("{{")  # not replace(): what was put in is never searched again
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        out += [parts[name], rest]
    return "".join(out)


def _best_rule(relation: Relation) -> str | None:
    return None if relation.best_rule is None else relation.best_rule.name


def _plain_lists(value: object) -> Any:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {name: _plain_lists(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_lists(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


@cache
def _web_text(name: str) -> str:
    return files("attnctl.render.page").joinpath("web", name).read_text(encoding="utf-8")
