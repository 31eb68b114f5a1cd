"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations

import json

from attnctl.cli.output import print_lines
from attnctl.errors import UsageError
from attnctl.formats.documents.schemas import SCHEMAS


def schema_command(*, what: str) -> None:
    """Print the JSON Schema (draft 2020-12) of what attnctl writes."""
    if what not in SCHEMAS:
        raise UsageError(f"no schema {what!r}: there is {', '.join(SCHEMAS)}")
    print_lines(json.dumps(SCHEMAS[what](), indent=2, ensure_ascii=False))
