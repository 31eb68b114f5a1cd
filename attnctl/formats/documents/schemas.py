"""The JSON Schemas (draft 2020-12) of what attnctl writes, made from the types of its documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from attnctl.registry import DOCUMENTS

if TYPE_CHECKING:
    from msgspec import Struct

    from attnctl.text import Document as Schema


def make_schema(name: str) -> Schema:
    """Return the schema of a document, by its name in DOCUMENTS."""
    return schema_of(resolve_name(DOCUMENTS[name]), name)


def schema_of(kind: type[Struct], name: str) -> Schema:
    """Return the schema of a document type; its id has a version, as `attnctl.<name>/1`."""
    from msgspec.json import schema_components

    _, parts = schema_components((kind,), schema_hook=lambda array: {}, ref_template="#/$defs/{name}")
    for part in parts.values():
        _finish_object(part)
    schema = parts.pop(kind.__name__)
    tag = kind.__struct_config__.tag or f"attnctl.{name}/1"
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": tag}
    return {**named, "title": f"attnctl {name}", **schema} | ({"$defs": parts} if parts else {})


def _finish_object(part: Schema) -> None:
    """Finish the schema of an object: forbid other fields, drop null for absent fields, and mark required fields."""
    del part["title"]
    part["description"] = " ".join(part["description"].split())
    part["additionalProperties"] = False
    for name, field in part["properties"].items():
        if field.pop("default", "") is None:
            kinds = [kind for kind in field.pop("anyOf", ()) if kind != {"type": "null"}]
            field |= kinds[0] | field if len(kinds) == 1 else {"anyOf": kinds} if kinds else {}
        if field.pop("always", False):
            part["required"].append(name)


SCHEMAS: dict[str, Callable[[], Schema]] = {name: partial(make_schema, name) for name in DOCUMENTS}
