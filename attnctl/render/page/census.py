"""A census as one HTML file: the table of relations, and for the chosen one the map of layers × heads with its numbers."""

from __future__ import annotations

import html
from functools import cache
from importlib.resources import files
from typing import Any

from attnctl.formats.documents.census_json import census_document
from attnctl.readings.census.census_table import CensusTable, Relation
from attnctl.render.page.document import as_data, maps, policy
from attnctl.text import shown


def census_page(census: CensusTable) -> str:
    """The HTML: it needs nothing else, and connects nowhere."""
    style, script = _read("page.css") + _read("census.css"), _read("census.js")
    document = _plain(census_document(census)) | {"maps": maps()["heat"]}
    for relation, said in zip(census.relations, document["relations"], strict=True):
        said["rule_texts"] = {rule.name: shown(str(rule)) for rule in relation.rules}
        said["relation"] = shown(said["relation"])
        said["best_rule"] = _best_rule(relation)
    document["model"], document["corpus"] = shown(census.model), shown(census.corpus)
    parts = {
        "title": html.escape(f"{document['model']} on {document['corpus']} · attnctl"),
        "policy": policy(style, script),
        "style": style,
        "script": script,
        "data": as_data(document),
    }
    pieces = _read("census.html").split("{{")  # not replace(): what was put in is never searched again
    out = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        out += [parts[name], rest]
    return "".join(out)


def _best_rule(relation: Relation) -> str | None:
    return None if relation.best_rule is None else relation.best_rule.name


def _plain(value: Any) -> Any:
    """Arrays as lists."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


@cache
def _read(name: str) -> str:
    return files("attnctl.render.page").joinpath("web", name).read_text(encoding="utf-8")
