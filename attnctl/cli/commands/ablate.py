"""`attnctl ablate`: what each head, edge or part of a text does for a prediction."""

from __future__ import annotations

from typing import Any

from attnctl import api, inputs
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import output_format, put_bytes, write_renderable
from attnctl.cli.progress import cost_progress
from attnctl.formats.pictures import format_names
from attnctl.readings.effects.ablation import chosen_heads, measure_effects
from attnctl.source.cells import LESS_HEADS, cost_of_passes
from attnctl.text import counted


def ablate_command(
    *, text: str | None, file: str | None, top: int | None, json: bool, output: str | None, **options: Any
) -> None:
    """Tell what matters: every head ablated in turn, or edges of attention cut, and what that does to a prediction."""
    asked = o.arguments_of(api.ablation_of_text, options)
    form = output_format("ablate", output, ("json", "txt", "html", *format_names()), "json" if json else "")
    chat, image = options.pop("chat", None), options.get("image")
    read, opened = inputs.text_or_conversation(text, file, chat, lambda: arguments.model_of(options))
    modes = {
        "a picture": form in format_names(),
        "--edge": asked.get("edge"),
        "--spans": "spans" in asked,
        "--how zero": asked["how"] == "zero",
        "cuts, without --off": "off" not in asked and (asked["edges"] or asked.get("edge") or "spans" in asked),
    }
    for mode, wanted in modes.items():
        if wanted:
            arguments.check_mode("ablate", mode)
    watched, ask = api.ablation_of_text(
        read,
        lambda: arguments.model_of(options) if opened is None else opened,
        cross=options.get("attention") is None,
        **asked,
    )
    if not ask.approximate:
        passes = len(chosen_heads(watched, ask)) if ask.sweep_heads else 0
        cuts = len(ask.edges) + len(ask.spans) + (len(watched.tokens) if ask.every_edge else 0)
        fewer = LESS_HEADS if not cuts else "longer parts take fewer" if ask.spans else "--edge and --spans take fewer"
        n = len(watched.tokens)
        arguments.say_cost(cost_of_passes(watched.info, n, passes + cuts, cuts=cuts > 0, fewer=fewer))
    with cost_progress(counted(len(watched.tokens), "token")) as tick:
        found = measure_effects(watched, ask, tick)
    arguments.say_notes(found.notes)
    if form == "json":
        from attnctl.formats.documents.readings_json import effects_to_json

        put_bytes(effects_to_json(found, top) + b"\n", output)
    elif form in ("terminal", "txt", "html"):
        from attnctl.render.terminal.console import Shown
        from attnctl.render.told.effects import effects_forms

        write_renderable(Shown(effects_forms(found, top)), form, output, "attnctl ablate", found.model.citation)
    else:
        from attnctl.render.figure.charts import effects_drawing

        photograph = inputs.photograph_named(text, image)
        arguments.write_drawing(effects_drawing(found, photograph), form, output)
