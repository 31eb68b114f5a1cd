"""`attnctl compare`: two models on one text, two traces, or two texts, side by side."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Context, Option

from attnctl.cli.command import ONE_CALL, command, refuse_unused
from attnctl.cli.groups import (
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    MODEL,
    MODELS,
    NUMBERS,
    OUTPUT,
    SHOW,
    FileOption,
    GenerateOption,
    HeadOption,
    LayerOption,
    PictureOptions,
    PrecisionOption,
    TargetOption,
    TextModelOptions,
    WeightOptions,
    output_option,
)
from attnctl.cli.opening import model_of, open_source, text_source
from attnctl.cli.output import (
    output_format,
    picture_look,
    put_bytes,
    say_notes,
    say_unknown,
    write_drawing,
    write_renderable,
    write_table,
)
from attnctl.cli.suggestions import completing
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.formats.pictures import format_names, suffixes_listed
from attnctl.text import counted, for_pasting, visible_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attnctl.commands.compare.drift import ComparedText
    from attnctl.formats.pictures import Look
    from attnctl.readings.comparison import Comparison
    from attnctl.source import Source


@dataclass(frozen=True)
class ComparedModelOptions(TextModelOptions):
    """The options of a model whose weights are compared; it reads texts, not conversations."""

    generate: GenerateOption = None
    target: TargetOption = None


@command(
    example='attnctl compare demo random "Alice will eat pizza"',
    more=(SHOW, NUMBERS, MATHEMATICS, MADE, CHECKPOINT),
)
def compare_command(
    context: Context,
    a: Annotated[
        str,
        Argument(help="A model (with TEXT), a trace, or a text.", metavar="A", autocompletion=completing(*MODELS)),
    ],
    b: Annotated[
        str,
        Argument(help="What to compare A with, of the same kind.", metavar="B", autocompletion=completing(*MODELS)),
    ],
    text: Annotated[str | None, Argument(help="The text that both models read.", metavar="[TEXT]")] = None,
    *,
    file: FileOption = None,
    texts: Annotated[
        str | None,
        Option(
            "--texts",
            envvar=ONE_CALL,
            help="With --drift: many texts, a file as batch reads it (.txt with a text a line, .jsonl, .csv, .parquet).",
            metavar="FILE",
            rich_help_panel=MODEL,
        ),
    ] = None,
    drift: Annotated[
        bool,
        Option(
            "--drift",
            envvar=ONE_CALL,
            help="How far B drifts from A, of one architecture: every head, the outputs, the next token.",
            rich_help_panel=LOOK,
        ),
    ] = False,
    dtype_b: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        Option(
            "--dtype-b",
            envvar=ONE_CALL,
            help="The --dtype of B, if it differs from that of A.",
            rich_help_panel=CHECKPOINT,
        ),
    ] = None,
    device_b: Annotated[
        str | None,
        Option(
            "--device-b",
            envvar=ONE_CALL,
            help="The --device of B, if it differs from that of A.",
            metavar="DEVICE",
            autocompletion=completing("auto", "cpu", "cuda", "mps"),
            rich_help_panel=CHECKPOINT,
        ),
    ] = None,
    kernel_b: Annotated[
        Literal["sdpa", "eager"] | None,
        Option(
            "--kernel-b",
            envvar=ONE_CALL,
            help="With --drift: the attention function of B; A has its usual one, sdpa if it can.",
            rich_help_panel=CHECKPOINT,
        ),
    ] = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    precision: PrecisionOption = None,
    json: Annotated[
        bool,
        Option("--json", help="Write JSON: the comparison, in one line.", rich_help_panel=OUTPUT),
    ] = False,
    output: Annotated[
        str | None,
        output_option(f"Where to write: .json, .txt, {suffixes_listed()}; with --drift also .csv, .parquet."),
    ] = None,
    weights: WeightOptions,
    look: PictureOptions,
    model: ComparedModelOptions,
) -> int:
    """Show two models, two traces, or two texts side by side, with the difference of their weights.

    With TEXT (or --file), A and B are models: names, weight files, steps of a run, checkpoints. Without a text, each is
    a trace (.json, .npz, or - for a pipe), or a text that --model reads. By default, the head with the largest difference
    is shown; --layer and --head choose others.

    With --drift, A and B are two checkpoints of one architecture (a quantised copy, a fine-tune, the same one with
    --dtype-b): the table has the heads whose weights moved most, the picture every head, layer × head.
    """
    suffixes = ("json", "txt", *(("csv", "parquet") if drift else ()), *format_names())
    form = output_format("compare", output, suffixes, "json" if json else "")
    drawn = form in format_names()
    # the options of B alone, which replace those of both
    of_b: dict[str, Any] = {"dtype": dtype_b, "device": device_b}
    if drift:
        refuse_unused(context, "layer", "head", "precision", WeightOptions, "log", because="--drift is of every head")
        if not drawn:
            refuse_unused(context, PictureOptions, because="it goes with a picture")
        return _write_drift(context, a, b, (text, file, texts), model, of_b, kernel_b, form, output, picture_look(look))
    refuse_unused(context, "texts", "kernel_b", because="it goes with --drift")
    if form == "json":
        refuse_unused(context, "layer", "head", "precision", PictureOptions, because="JSON has every head in full")
    elif drawn:
        refuse_unused(context, "precision", "log", because="the output is a picture")
    else:
        refuse_unused(context, PictureOptions, because="use it with a picture")

    from attnctl.commands.compare.compute import chosen_places
    from attnctl.measures import check_measure

    how = picture_look(look)
    check_measure(weights.measure, head is not None)
    if text is None and file is None:
        refuse_unused(context, "dtype_b", "device_b", because="A and B are no two models")
        pair = _pair_of_texts(context, a, b, weights, model)
    else:
        refuse_unused(context, "model", because="A and B are the models that read the text")
        pair = _pair_of_models(a, b, text, file, weights, model, of_b)
    places = chosen_places(pair, layer, head)
    if form == "json":
        from attnctl.commands.compare.result import comparison_to_json

        put_bytes(comparison_to_json(pair) + b"\n", output)
    elif drawn:
        from attnctl.commands.compare.figure import comparison_panels

        if len(places) > 1:
            raise UsageError("a picture shows one head: choose it with --layer and --head")
        write_drawing(comparison_panels(pair, *places[0], how), form, output)
    else:
        from attnctl.commands.compare.show import comparison_forms
        from attnctl.render.terminal.console import Shown

        forms = comparison_forms(pair, places, 2 if precision is None else precision)
        write_renderable(Shown(forms), form, output)
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
    of_b: Mapping[str, Any],
) -> Comparison:
    """Return the comparison of two models that read the text; --off switches off heads of B alone."""
    from attnctl import inputs

    _check_models(a, b, text)
    words = inputs.text_of(text, file)
    options_a, options_b = _options_of_both(a, b, model, of_b)
    sides = [text_source(options_a, words)]
    with _about_b(of_b):
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


def _check_models(a: str, b: str, text: str | None) -> None:
    """Raise UsageError if B is a text, though a text follows."""
    from attnctl.models import names_model

    if text is not None and names_model(a) and not names_model(b) and " " in b.strip():
        raise UsageError(
            f'before a text, A and B are models: attnctl compare {for_pasting(b)} "…" --model {for_pasting(a)} '
            "compares two texts"
        )


def _options_of_both(
    a: str, b: str, model: ComparedModelOptions, of_b: Mapping[str, Any]
) -> tuple[ComparedModelOptions, ComparedModelOptions]:
    """Return the options of A and the options of B; heads are switched off in B alone."""
    own = {name: value for name, value in of_b.items() if value is not None}
    return replace(model, model=a, off=None), replace(model, model=b, **own)


@contextmanager
def _about_b(of_b: Mapping[str, Any]) -> Iterator[None]:
    """Within this context, an error about an option of B alone names that option: --dtype-b."""
    try:
        yield
    except AttnctlError as error:
        if error.option is not None and of_b.get(error.option) is not None:
            error.option += "_b"
        raise


def _write_drift(
    context: Context,
    a: str,
    b: str,
    read: tuple[str | None, str | None, str | None],
    model: ComparedModelOptions,
    of_b: Mapping[str, Any],
    kernel_b: str | None,
    form: str,
    output: str | None,
    look: Look,
) -> int:
    """Write how far model B drifts from model A over what they read: a text, a file of one text, or a file of many.

    Return the exit code: PARTIAL if some of many texts failed.
    """
    from attnctl.cli.progress import cost_progress
    from attnctl.commands.compare.drift import measure_drift
    from attnctl.commands.compare.drift_forward import ComparedModel
    from attnctl.formats.tables import FORMS, block_of

    refuse_unused(context, "model", because="A and B are the models that read the text")
    listed = _texts_of(a, b, *read)
    options_a, options_b = _options_of_both(a, b, model, of_b)
    model_a = model_of(options_a)
    with _about_b(of_b):
        model_b = model_of(options_b)
    names = model_a.info.name, model_b.info.name
    names = (a, b) if names[0] == names[1] and a != b else names  # folders whose last parts are the same
    sides = ComparedModel(model_a, names[0]), ComparedModel(model_b, names[1], kernel_b)
    with cost_progress(counted(len(listed), "text")) as tick:
        drift = measure_drift(*sides, listed, lambda share: tick(share / len(listed)), skip=read[2] is not None)
    names_of_texts = {text.number: text.name for text in listed}
    for skipped in drift.skipped:
        print_complaint(f"text {skipped.number} ({names_of_texts[skipped.number]}) is skipped: {skipped.error}")
    say_notes(drift.notes)
    if form == "json":
        from attnctl.formats.documents.json_documents import write_json

        put_bytes(write_json(drift, "drift") + b"\n", output)
    elif form in FORMS:
        write_table([block_of(drift.to_records())], form, output)
    elif form in format_names():
        from attnctl.commands.compare.drift_show import drift_drawing

        write_drawing(drift_drawing(drift, look), form, output)
    else:
        from attnctl.commands.compare.drift_show import drift_forms
        from attnctl.render.terminal.console import Shown

        write_renderable(Shown(drift_forms(drift)), form, output)
    return PARTIAL if drift.skipped else DONE


def _texts_of(a: str, b: str, text: str | None, file: str | None, texts: str | None) -> list[ComparedText]:
    """Return each text that two models read, also those of many that are no text, with their place in the file.

    Raises UsageError if there is no text or several sources of it, AttnctlError if the file holds nothing.
    """
    from attnctl import inputs
    from attnctl.commands.compare.drift import ComparedText

    if texts is None:
        if text is None and file is None:
            inputs.refuse_models("compare", a, b)
            raise UsageError("compares two models: give the text that both read, or --file, or --texts", option="drift")
        _check_models(a, b, text)
        return [ComparedText(0, "", inputs.text_of(text, file))]
    if text is not None or file is not None:
        raise UsageError("cannot be combined with another text", option="texts")
    from attnctl.batching.texts import TextStream

    listed, stream = [], TextStream(texts)
    for item in stream:
        error = "it is no plain text" if item.trace is not None or item.messages is not None else item.error
        listed.append(ComparedText(item.number, item.where, item.text, error))
    if stream.unread:
        raise AttnctlError(stream.unread[0])
    if not listed:
        raise AttnctlError(f"{texts} holds no text")
    return listed


def _compared(sides: Sequence[Source], names: tuple[str, str], weights: WeightOptions) -> Comparison:
    """Return the comparison of two sources, and print the notes on them."""
    from attnctl.commands.compare.compute import compare_sources
    from attnctl.source import Changes

    changes = Changes(weights.measure, weights.words, weights.renormalise, weights.drop or None)
    pair = compare_sources(sides[0], sides[1], names, changes, say_notes)
    notes = [note for trace in (pair.a, pair.b) for note in trace.notes]
    say_unknown(*(side.tokens for side in sides), notes=notes)
    return pair
