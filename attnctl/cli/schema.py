"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations

from typing import Annotated

import typer

from attnctl.errors import UsageError

WHAT = ("trace", "overview")


def schema(
    what: Annotated[str, typer.Argument(help="trace, or overview: what is written of a long text.")] = "trace",
) -> None:
    """Print the JSON Schema (draft 2020-12) of a trace, or of an overview."""
    from importlib.resources import files

    if what not in WHAT:
        raise UsageError(f"no schema {what!r}: there is {' and '.join(WHAT)}")
    print(files("attnctl.formats").joinpath(f"{what}.schema.json").read_text(encoding="utf-8"), end="")
