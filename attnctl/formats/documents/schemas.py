"""The JSON Schemas (draft 2020-12) of what attnctl writes, made from the types of its documents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from attnctl import find_named

if TYPE_CHECKING:
    from msgspec import Struct

    from attnctl.text import Document as Schema

HERE = "attnctl.formats.documents"
# the document of each name
DOCUMENTS = {
    "trace": f"{HERE}.trace_json:TraceDocument",
    "overview": f"{HERE}.overview_json:OverviewDocument",
    "effects": f"{HERE}.readings_json:EffectsDocument",
    "comparison": f"{HERE}.readings_json:ComparisonDocument",
    "census": "attnctl.formats.census_table:CensusDocument",
    "sources": f"{HERE}.readings_json:SourcesDocument",
    "needle": f"{HERE}.readings_json:NeedleDocument",
    "needles": f"{HERE}.readings_json:NeedlesDocument",
    "alignment": f"{HERE}.readings_json:AlignmentDocument",
    "text-alignment": f"{HERE}.readings_json:TextAlignmentDocument",
    "leaks": f"{HERE}.readings_json:LeaksDocument",
    "batch": f"{HERE}.model_documents:BatchDocument",
    "manifest": f"{HERE}.model_documents:ManifestLine",
    "sizes": f"{HERE}.model_documents:SizesDocument",
    "card": f"{HERE}.model_documents:CardDocument",
    "relation": f"{HERE}.model_documents:RelationDocument",
    "report": f"{HERE}.model_documents:ReportDocument",
    "lesson": f"{HERE}.model_documents:Lesson",
    "softmax": f"{HERE}.readings_json:SoftmaxDocument",
    "quiz": f"{HERE}.readings_json:QuizDocument",
}


def make_schema(name: str) -> Schema:
    """The schema of the documents of a name in DOCUMENTS."""
    return schema_of(find_named(DOCUMENTS[name]), name)


def schema_of(kind: type[Struct], name: str) -> Schema:
    """The schema of the documents of a type, with the number of its version, as `attnctl.<name>/1`."""
    from msgspec.json import schema_components

    _, parts = schema_components((kind,), schema_hook=lambda array: {}, ref_template="#/$defs/{name}")
    for part in parts.values():
        _finish_object(part)
    own = parts.pop(kind.__name__)
    tag = kind.__struct_config__.tag or f"attnctl.{name}/1"
    named = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": tag}
    return {**named, "title": f"attnctl {name}", **own} | ({"$defs": parts} if parts else {})


def _finish_object(part: Schema) -> None:
    """Of an object: it holds nothing else than its fields; what may be absent is never null; some are always there."""
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
