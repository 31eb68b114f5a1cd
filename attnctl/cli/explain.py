"""`attnctl explain`: every step of self-attention, from tokens to context."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from attnctl.cli import options as o


@o.with_model_options
def explain(
    text: o.Text = None,
    *,
    file: o.File = None,
    layer: o.LayerChoice = None,
    head: o.HeadChoice = None,
    query: o.Query = None,
    json: Annotated[bool, typer.Option("--json", help="Write the trace as one line of JSON.")] = False,
    output: o.Output = None,
    **options: Any,
) -> None:
    """Show every step of self-attention on a text: tokens, queries and keys, scores, softmax, context."""
    from attnctl.models import record

    model = o.model_of(options)
    trace = record(model, o.text_of(text, file))
    sys.stdout.write(trace.to_json() + "\n")
