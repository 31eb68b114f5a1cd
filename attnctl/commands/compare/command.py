"""`attnctl compare`: two models on one text, two traces, or two texts, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from attnctl.cli import (
    CHECKPOINT,
    MADE,
    MATHEMATICS,
    MODEL_NAMES,
    NUMBERS,
    OUTPUT,
    SHOW,
    ComparedModelOptions,
    FileOption,
    HeadOption,
    LayerOption,
    OptionsOfB,
    PrecisionOption,
    ReadTextArgument,
    WeightOptions,
    check_models,
    command,
    completing,
    open_source,
    output_format,
    output_option,
    put_bytes,
    refuse_unused,
    say_notes,
    say_unknown,
    text_source,
    write_forms,
    write_panels,
)
from attnctl.errors import DONE, UsageError
from attnctl.formats import PictureLook, format_names, suffixes_listed
from attnctl.text import visible_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attnctl.readings import Comparison
    from attnctl.source import Source


@command(
    example='attnctl compare demo random "Alice will eat pizza"',
    more=(SHOW, NUMBERS, MATHEMATICS, MADE, CHECKPOINT),
)
def compare_command(
    context: Context,
    a: Annotated[
        str,
        Argument(help="A model (with TEXT), a trace, or a text.", metavar="A", autocompletion=completing(*MODEL_NAMES)),
    ],
    b: Annotated[
        str,
        Argument(
            help="What to compare A with, of the same kind.", metavar="B", autocompletion=completing(*MODEL_NAMES)
        ),
    ],
    text: ReadTextArgument = None,
    *,
    file: FileOption = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    precision: PrecisionOption = None,
    json: Annotated[
        bool,
        Option("--json", help="Write JSON: the comparison, in one line.", rich_help_panel=OUTPUT),
    ] = False,
    output: Annotated[str | None, output_option(f"Where to write: .json, .txt, {suffixes_listed()}.")] = None,
    of_b: OptionsOfB,
    weights: WeightOptions,
    look: PictureLook,
    model: ComparedModelOptions,
) -> int:
    """Show two models, two traces, or two texts side by side, with the difference of their weights.

    With TEXT (or --file), A and B are models: names, weight files, steps of a run, checkpoints. Without a text, each is
    a trace (.json, .npz, or - for a pipe), or a text that --model reads. By default, the head with the largest difference
    is shown; --layer and --head choose others. JSON has every head, or those that they choose.

    How far a quantised copy or a fine-tune moved, over every head: attnctl drift.
    """
    page = " (a page: attnctl view A B TEXT -o page.html)"
    form = output_format("compare", output, ("json", "txt", *format_names()), "json" if json else "", page)
    drawn = form in format_names()
    if not drawn:
        refuse_unused(context, PictureLook, because="use it with a picture")
    if drawn or form == "json":
        refuse_unused(context, "precision", because="decimals are those of the tables")

    from attnctl.commands.compare.compute import chosen_places, places_of_both
    from attnctl.measures import check_measure

    check_measure(weights.measure, head is not None)
    if text is None and file is None:
        refuse_unused(context, OptionsOfB, because="A and B are no two models")
        pair = _pair_of_texts(context, a, b, weights, model)
    else:
        refuse_unused(context, "model", because="A and B are the models that read the text")
        pair = _pair_of_models(a, b, text, file, weights, model, of_b)
    if form == "json":
        from attnctl.commands.compare.result import comparison_to_json

        pair = replace(pair, places=places_of_both(pair, layer, head))
        put_bytes(comparison_to_json(pair) + b"\n", output)
        return DONE
    places = chosen_places(pair, layer, head)
    if drawn:
        from attnctl.commands.compare.figure import comparison_panels

        if len(places) > 1:
            raise UsageError("a picture shows one head: choose it with --layer and --head")
        picture = look.as_look()
        write_panels(comparison_panels(pair, *places[0], picture), form, output, picture)
    else:
        from attnctl.commands.compare.show import comparison_forms

        forms = comparison_forms(pair, places, 2 if precision is None else precision)
        write_forms(forms, form, output)
    return DONE


def _pair_of_texts(context: Context, a: str, b: str, weights: WeightOptions, model: ComparedModelOptions) -> Comparison:
    """Return the comparison of A and B, each a trace in a file or pipe, or a text that the model reads."""
    from attnctl import inputs

    if a == b == "-":
        raise UsageError('only one of the two can be "-"')
    inputs.refuse_models("compare", a, b)
    stored = [name == "-" or inputs.names_numbers(name) for name in (a, b)]
    if all(stored):
        refuse_unused(context, ComparedModelOptions, because="A and B are computed already")
    sides = [
        open_source(context, name, model=None if is_stored else model)
        for name, is_stored in zip((a, b), stored, strict=True)
    ]
    return _compared(sides, (a, b), weights)


def _pair_of_models(
    a: str,
    b: str,
    text: str | None,
    file: str | None,
    weights: WeightOptions,
    model: ComparedModelOptions,
    of_b: OptionsOfB,
) -> Comparison:
    """Return the comparison of two models that read the text; --off switches off heads of B alone."""
    from attnctl import inputs

    check_models(a, b, text)
    words = inputs.text_of(text, file)
    options_a, options_b = of_b.options_of_both(a, b, model)
    sides = [text_source(options_a, words)]
    with of_b.named_in_errors():
        sides.append(text_source(options_b, words))
    if model.off is None:
        return _compared(sides, (a, b), weights)
    pair = _compared(sides, (a, sides[1].info.name), weights)
    for name, trace in zip(pair.names, (pair.a, pair.b), strict=True):
        likeliest = (
            f"{visible_text(prediction.text)} {100 * prediction.probability:.0f} %"
            for prediction in trace.predictions[:3]
        )
        say_notes([f"{name} continues with {', '.join(likeliest)}"] if trace.predictions else ())
    return pair


def _compared(sides: Sequence[Source], names: tuple[str, str], weights: WeightOptions) -> Comparison:
    """Return the comparison of two sources, and print the notes on them."""
    from attnctl.commands.compare.compute import compare_sources
    from attnctl.source import Changes

    changes = Changes(weights.measure, weights.words, weights.renormalise, weights.drop or None)
    pair = compare_sources(sides[0], sides[1], names, changes, say_notes)
    notes = [note for trace in (pair.a, pair.b) for note in trace.notes]
    say_unknown(*(side.tokens for side in sides), notes=notes)
    return pair
