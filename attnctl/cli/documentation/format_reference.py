"""The reference of the files that attnctl writes, made from their JSON Schemas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnctl.formats.schemas.schema_parts import Schema


INTRODUCTION = """# Formats

attnctl writes JSON, one document a line. Numbers are the shortest text that reads back to the same float32; no NaN and no
Infinity appears. What a source cannot give is absent, not null. Each document names its schema, as `attnctl.trace/1`; the
number after the slash rises only where a reader of the old one would break. `attnctl schema NAME` prints the JSON Schema
(draft 2020-12), from which this page is made.

An `.npz` file (`explain -o run.npz`) holds the same arrays under the same names, for NumPy. `attnctl.load` reads both, and
so does every command that takes a trace."""


def formats_page() -> str:
    """The Markdown of every format, field by field; a part that several have stands once, at the end."""
    from attnctl.formats.schemas.json_schemas import SCHEMAS

    schemas = {name: make() for name, make in SCHEMAS.items()}
    shared = shared_parts(list(schemas.values()))
    parts = [INTRODUCTION, *(schema_section(name, schema, shared) for name, schema in schemas.items())]
    if shared:
        parts.append("## Parts that several formats share")
        parts += [part_described(name, name, definition) for name, definition in shared.items()]
    return "\n\n".join(parts) + "\n"


def shared_parts(schemas: list[Schema]) -> dict[str, Schema]:
    """The definitions that more than one schema has, and all alike."""
    found: dict[str, list[Schema]] = {}
    for schema in schemas:
        for name, definition in schema.get("$defs", {}).items():
            found.setdefault(name, []).append(definition)
    return {name: same[0] for name, same in found.items() if len(same) > 1 and all(one == same[0] for one in same)}


def schema_section(name: str, schema: Schema, shared: dict[str, Schema]) -> str:
    """The Markdown of one schema: what it is, its fields, and the parts that it alone has."""
    parts = [f"## {name}", schema.get("description", ""), field_list(schema)]
    own = {part: definition for part, definition in schema.get("$defs", {}).items() if part not in shared}
    parts += [part_described(f"{name}: {part}", part, definition) for part, definition in own.items()]
    return "\n\n".join(part for part in parts if part)


def part_described(heading: str, name: str, definition: Schema) -> str:
    """The Markdown of a part that fields name: its fields, or what kind of value it is."""
    fields = field_list(definition.get("items", definition))
    parts = [f"### {heading}", definition.get("description", ""), fields or f"A {name} is a {type_of(definition)}."]
    return "\n\n".join(part for part in parts if part)


def field_list(schema: Schema, depth: int = 0) -> str:
    """The fields of an object, each with its type, whether it is always there, and what it means; inner ones indented."""
    required = schema.get("required", [])
    lines = []
    for name, field in schema.get("properties", {}).items():
        always = "" if name in required else ", optional"
        meaning = f": {field['description']}" if "description" in field else ""
        lines.append(f"{'    ' * depth}- `{name}` ({type_of(field)}{always}){meaning}")
        inner = field.get("items", field)
        if isinstance(inner, dict) and "properties" in inner:
            lines.append(field_list(inner, depth + 1))
    return "\n".join(lines)


def type_of(field: Schema) -> str:
    """The type of a field, in words."""
    if "const" in field:
        return f"always `{json.dumps(field['const']).strip(chr(34))}`"
    if "enum" in field:
        return "one of " + ", ".join(f"`{choice}`" for choice in field["enum"])
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    kind = field.get("type", "any value")
    if kind == "array" and isinstance(field.get("items"), dict):
        return f"list of {type_of(field['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else {"array": "list"}.get(kind, str(kind))
