"""`attnctl schema`: the JSON Schema of what attnctl writes."""

from __future__ import annotations


def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of a trace."""
    from importlib.resources import files

    print(files("attnctl").joinpath("trace.schema.json").read_text(encoding="utf-8"), end="")
