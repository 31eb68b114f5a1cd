"""`attnctl ablate`: what each head, edge or part of a text does for a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnctl.cli import options as o
from attnctl.cli.inputs.interventions import AblationChoice, measured_effects
from attnctl.cli.inputs.prompts import text_or_conversation
from attnctl.cli.option_values import with_options, with_values
from attnctl.cli.output import output_format, put_bytes, write_renderable
from attnctl.formats.pictures import figure_bytes, format_names

if TYPE_CHECKING:
    from attnctl.readings.effects.effects import Effects

OWN = ("off", "target", "predict", "generate", "layers", "heads")  # words that mean something of their own here


@with_options({name: option for name, option in o.MODEL_OPTIONS.items() if name not in OWN})
@with_values(choice=AblationChoice)
def ablate_command(
    text: o.Text = None,
    *,
    file: o.File = None,
    choice: AblationChoice,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            help="Only so many, the strongest: heads, edges or parts; without it a table has 10 heads.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write JSON: one line.")] = False,
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", help="Where to write: .json, .txt, .png, .svg or .pdf.", show_default=False),
    ] = None,
    **options: object,
) -> None:
    """Tell what matters: every head ablated in turn, or edges of attention cut, and what that does to a prediction.

    A head looks (its largest weight from the watched token), writes (its direct contribution to the logit), and does (how
    the prediction changes without it; after minus before, in nats and logits).
    """
    form = output_format("ablate", output, ("json", "txt", *format_names()), "json" if json else "")
    read, opened = text_or_conversation(text, file, options)
    found = measured_effects(read, options, choice, opened)
    o.say_notes(found.notes)
    _write_effects(found, form, output, top)


def _write_effects(found: Effects, form: str, output: str | None, top: int | None) -> None:
    if form == "json":
        from attnctl.formats.documents.effects_json import effects_to_json

        put_bytes(effects_to_json(found, top) + b"\n", output)
    elif form in ("terminal", "txt"):
        from attnctl.render.terminal.effects.effects import EffectsTable

        write_renderable(EffectsTable(found, top), form, output)
    else:
        from attnctl.render.figure.effects import effects_drawing

        drawing = effects_drawing(found)
        o.say_notes(drawing.notes)
        put_bytes(figure_bytes(drawing.figure, form), output)
