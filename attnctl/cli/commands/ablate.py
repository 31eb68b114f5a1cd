"""`attnctl ablate`: what each head, edge or part of a text does for a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.inputs.interventions import AblationChoice, measured_effects
from attnctl.cli.inputs.prompts import text_or_conversation
from attnctl.cli.output import output_format, put_bytes, write_renderable
from attnctl.formats.pictures import figure_bytes, format_names

if TYPE_CHECKING:
    from attnctl.readings.effects.effects import Effects


def ablate_command(
    *, text: str | None, file: str | None, top: int | None, json: bool, output: str | None, **options: object
) -> None:
    """Tell what matters: every head ablated in turn, or edges of attention cut, and what that does to a prediction."""
    choice = o.taken(AblationChoice, options)
    form = output_format("ablate", output, ("json", "txt", *format_names()), "json" if json else "")
    if form in format_names():
        arguments.check_mode("ablate", "a picture")
    read, opened = text_or_conversation(text, file, options)
    found = measured_effects(read, options, choice, opened)
    arguments.say_notes(found.notes)
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
        arguments.say_notes(drawing.notes)
        put_bytes(figure_bytes(drawing.figure, form), output)
