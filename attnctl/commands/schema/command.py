"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from attnctl.cli.command import command
from attnctl.cli.output import print_lines
from attnctl.cli.suggestions import completing
from attnctl.commands.schema.documents import DOCUMENTS
from attnctl.errors import UsageError


@command(example="attnctl schema trace")
def schema_command(
    what: Annotated[
        str,
        Argument(
            help=f"{', '.join(DOCUMENTS)}.",
            metavar="[WHAT]",
            autocompletion=completing("attnctl.commands.schema.documents:DOCUMENTS"),
        ),
    ] = "trace",
) -> None:
    """Print the JSON Schema (draft 2020-12) of what attnctl writes."""
    import json

    from attnctl.commands.schema.documents import SCHEMAS

    if what not in SCHEMAS:
        raise UsageError(f"no schema {what!r}: there is {', '.join(SCHEMAS)}")
    print_lines(json.dumps(SCHEMAS[what](), indent=2, ensure_ascii=False))
