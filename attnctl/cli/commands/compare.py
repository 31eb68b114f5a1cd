"""`attnctl compare`: two models on one text, two traces, or two texts, side by side."""

from __future__ import annotations

from typing import Any

from attnctl import inputs
from attnctl.api import chosen_places, compare_sources
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import output_format, put_bytes, write_renderable
from attnctl.errors import UsageError
from attnctl.formats.pictures import format_names
from attnctl.measures import check_measure
from attnctl.models import names_model
from attnctl.readings.comparison import Comparison
from attnctl.render.terminal.console import Shown
from attnctl.render.told.comparison import comparison_forms
from attnctl.source import Changes, Source, TextSource
from attnctl.text import for_pasting, visible_text


def compare_command(
    *,
    a: str,
    b: str,
    text: str | None,
    file: str | None,
    layer: str | None,
    head: str | None,
    json: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Show two models, two traces, or two texts side by side, with the difference of their weights."""
    form = output_format("compare", output, ("json", "txt", *format_names()), "json" if json else "")
    mode = "JSON" if form == "json" else "a picture" if form in format_names() else "the tables"
    arguments.check_mode("compare", mode)
    look = arguments.look_of(options)
    changes, shown = o.taken(Changes, options), o.arguments_of(comparison_forms, options)
    check_measure(changes.measure, head is not None)
    pair = _pair_of_traces(a, b, text, file, changes, options)
    places = chosen_places(pair, layer, head)
    if form == "json":
        from attnctl.formats.documents.readings_json import comparison_to_json

        put_bytes(comparison_to_json(pair) + b"\n", output)
    elif form in format_names():
        from attnctl.render.figure.charts import comparison_panels

        if len(places) > 1:
            raise UsageError("a picture shows one head: choose it with --layer and --head")
        arguments.write_drawing(comparison_panels(pair, *places[0], look), form, output)
    else:
        write_renderable(Shown(comparison_forms(pair, places, **shown)), form, output)


def _pair_of_traces(
    a: str, b: str, text: str | None, file: str | None, changes: Changes, options: OptionValues
) -> Comparison:
    """Both sides as traces, named as the user named them."""
    sources: list[Source]
    if text is None and file is None:
        if a == b == "-":
            raise UsageError('only one of the two can be "-"')
        inputs.refuse_models("compare", a, b)
        # each a file or pipe, or a text under --model
        sources = [
            arguments.open_source(one, None, None, {} if one == "-" or inputs.names_numbers(one) else options)
            for one in (a, b)
        ]
    else:
        if "model" in arguments.typed:  # a default of the user's own just does not apply
            raise UsageError("--model does not go with a text after A and B, which are the models then")
        if text is not None and names_model(a) and not names_model(b) and " " in b.strip():
            raise UsageError(
                f'before a text, A and B are models: attnctl compare {for_pasting(b)} "…" --model {for_pasting(a)} '
                "compares two texts"
            )
        words = inputs.text_of(text, file)
        one, other = options | {"model": a, "off": None}, options | {"model": b}  # with --off: without and with it
        sources = [TextSource(arguments.model_of(given), words) for given in (one, other)]
        if options.get("off") is not None:
            b = sources[1].info.name
    pair = compare_sources(sources[0], sources[1], (a, b), changes, arguments.say_notes)
    traces = pair.a, pair.b
    arguments.say_unknown(
        *(source.tokens for source in sources), notes=[note for trace in traces for note in trace.notes]
    )
    if options.get("off") is not None and b == sources[1].info.name:
        for name, trace in zip(pair.names, traces, strict=True):
            said = (f"{visible_text(one.text)} {100 * one.probability:.0f} %" for one in trace.predictions[:3])
            arguments.say_notes([f"{name} goes on with {', '.join(said)}"] if trace.predictions else ())
    return pair
