"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from attnctl.cli.command import command
from attnctl.cli.output import print_lines
from attnctl.cli.suggestions import completing
from attnctl.errors import UsageError


@command(example="attnctl schema trace")
def schema_command(
    what: Annotated[
        str,
        Argument(
            help="trace, overview (of a long text), effects (of ablate), comparison, census (of a corpus), "
            "sources (of an answer), needle, needles (all of a run), alignment (of speech), text-alignment, "
            "leaks (of a packed batch), batch (its run.json), manifest (a line of it), "
            "sizes (of a model), card (of a trained one), relation (of the bundled corpus), report (of training), "
            "lesson (one step of it), softmax or quiz.",
            metavar="[WHAT]",
            autocompletion=completing("attnctl.formats.documents.schemas:SCHEMAS"),
        ),
    ] = "trace",
) -> None:
    """Print the JSON Schema (draft 2020-12) of what attnctl writes."""
    import json

    from attnctl.formats.documents.schemas import SCHEMAS

    if what not in SCHEMAS:
        raise UsageError(f"no schema {what!r}: there is {', '.join(SCHEMAS)}")
    print_lines(json.dumps(SCHEMAS[what](), indent=2, ensure_ascii=False))
