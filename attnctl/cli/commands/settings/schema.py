"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from attnctl.cli.output import print_lines
from attnctl.errors import UsageError


def schema(
    what: Annotated[
        str, typer.Argument(help="trace, overview (of a long text), effects (of ablate), or census (of a corpus).")
    ] = "trace",
) -> None:
    """Print the JSON Schema (draft 2020-12) of a trace, an overview, effects, or a census."""
    from attnctl.formats.documents.json_schemas import SCHEMAS

    if what not in SCHEMAS:
        raise UsageError(f"no schema {what!r}: there is {', '.join(SCHEMAS)}")
    print_lines(json.dumps(SCHEMAS[what](), indent=2, ensure_ascii=False))
