"""`attnctl ablate`: what each head, edge or part of a text does for a prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnctl.cli import options as o
from attnctl.cli.output import put_bytes, show_renderable
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.readings.effects.effects import Effects

OWN = ("off", "target", "predict", "generate", "layers", "heads")  # words that mean something of their own here


@o.with_options({name: option for name, option in o.MODEL_OPTIONS.items() if name not in OWN})
def ablate_command(
    text: o.Text = None,
    *,
    file: o.File = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            help='What the model is to write: the word watched (" Mary") [default: the likeliest].',
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option("--against", help="Measure logits above this word.", show_default=False)
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query",
            "-q",
            help="Query token: the word watched is predicted from it [default: the last, or the mask].",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        str | None, typer.Option("--layer", help="Layers: 3, 0-5, 1,4,7, -1 or all [default: all].", show_default=False)
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", help="Heads: 3, 0-5, 1,4,7, -1 or all [default: all].", show_default=False)
    ] = None,
    how: Annotated[str, typer.Option("--how", help="zero, mean, or resample (from --reference).")] = "zero",
    reference: Annotated[
        str | None, typer.Option("--reference", help="A file of texts, one a line, for mean or resample.")
    ] = None,
    edges: Annotated[bool, typer.Option("--edges", help="Cut each key from the watched token instead.")] = False,
    edge: Annotated[
        list[str] | None,
        typer.Option("--edge", help='Cut this edge, "gave→Mary" or "11>2"; several: also all at once.'),
    ] = None,
    spans: o.Spans = None,
    last_only: Annotated[bool, typer.Option("--last-only", help="Cut --spans from the watched token alone.")] = False,
    off: Annotated[
        str | None,
        typer.Option(
            "--off", help="Heads that are off, layer.head: throughout, while others are measured.", show_default=False
        ),
    ] = None,
    pooled: Annotated[bool, typer.Option("--pooled", help="Without predictions: compare the mean state.")] = False,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Gradient × activation: everything from one forward and backward.")
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            help="Only so many, the strongest: heads, edges or parts; without it a table has 10 heads.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", help="How many share one pass: interventions.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON: one line.")] = False,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="Where to write: .json, .txt, .png, .svg or .pdf.", show_default=False),
    ] = None,
    **options: Any,
) -> None:
    """Tell what matters: every head ablated in turn, or edges of attention cut, and what that does to a prediction.

    A head looks (its largest weight from the watched token), writes (its direct contribution to the logit), and does (how
    the prediction changes without it; after minus before, in nats and logits).
    """
    form = _effects_format(output, json)
    from attnctl.cli.inputs.interventions import AblationChoice, measured_effects
    from attnctl.cli.inputs.prompts import text_or_conversation

    read, opened = text_or_conversation(text, file, options)
    cut = edges, edge or [], spans, last_only
    choice = AblationChoice(
        target, against, query, layer, head, how, reference, *cut, off, pooled, approximate, batch_size
    )
    found = measured_effects(read, options, choice, opened)
    o.say_notes(found.notes)
    _write_effects(found, form, output, top)


def _write_effects(found: Effects, form: str, output: str | None, top: int | None) -> None:
    if form == "json":
        from attnctl.formats.documents.effects_json import effects_to_json

        put_bytes(effects_to_json(found, top) + b"\n", output)
    elif form in ("terminal", "txt"):
        from attnctl.render.terminal.effects.effects import EffectsTable

        table = EffectsTable(found, top)
        if form == "terminal":
            show_renderable(table)
            return
        from attnctl.render.terminal.console import as_text

        put_bytes(as_text(table).encode(), output)
    else:
        from attnctl.formats.pictures import figure_bytes
        from attnctl.render.figure.effects import effects_drawing

        drawing = effects_drawing(found)
        o.say_notes(drawing.notes)
        put_bytes(figure_bytes(drawing.figure, form), output)


def _effects_format(output: str | None, json: bool) -> str:
    if output is None or output == "-":
        return "json" if json else "terminal"
    from attnctl.files import check_writable
    from attnctl.formats.pictures import format_names, suffixes_listed

    suffix = Path(output).suffix.lower()[1:]
    if suffix not in ("json", "txt", *format_names()) or (json and suffix != "json"):
        raise UsageError(f"-o {output}: ablate writes .json, .txt, {suffixes_listed()}")
    check_writable(output)
    return suffix
