"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from attnctl.cli import command, completing, print_lines
from attnctl.errors import UsageError
from attnctl.registry import DOCUMENTS


@command(example="attnctl schema trace")
def schema_command(
    what: Annotated[
        str,
        Argument(
            help=f"The document: {', '.join(DOCUMENTS)}.",
            metavar="[WHAT]",
            autocompletion=completing("attnctl.registry:DOCUMENTS"),
        ),
    ] = "trace",
) -> None:
    """Print the JSON Schema (draft 2020-12) of a document that attnctl writes."""
    import json

    from attnctl.formats import SCHEMAS, schema_of

    if what in SCHEMAS:
        schema = SCHEMAS[what]()
    else:
        from attnctl.plugins import entries, load_entry

        plugin_documents = entries("attnctl.documents", DOCUMENTS)
        if what not in plugin_documents:
            raise UsageError(f"no schema {what!r}: there is {', '.join([*SCHEMAS, *plugin_documents])}")
        schema = load_entry(plugin_documents[what], lambda entry: schema_of(entry.load(), what))
    print_lines(json.dumps(schema, indent=2, ensure_ascii=False))
