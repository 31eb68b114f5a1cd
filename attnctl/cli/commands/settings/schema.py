"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from attnctl.cli.output import print_lines
from attnctl.errors import UsageError


def schema_command(
    what: Annotated[
        str,
        typer.Argument(
            help="trace, overview (of a long text), effects (of ablate), comparison, census (of a corpus), sources (of an "
            "answer), needle, needles (all of a run), batch (its run.json), manifest (a line of it), sizes (of a model), "
            "card (of a trained one), relation (of the built-in grammar), report (of training), lesson (one step of it), "
            "softmax or quiz."
        ),
    ] = "trace",
) -> None:
    """Print the JSON Schema (draft 2020-12) of what attnctl writes."""
    from attnctl.formats.schemas.json_schemas import SCHEMAS

    if what not in SCHEMAS:
        raise UsageError(f"no schema {what!r}: there is {', '.join(SCHEMAS)}")
    print_lines(json.dumps(SCHEMAS[what](), indent=2, ensure_ascii=False))
