"""`attnctl drift`: how far a copy of a model moved, head by head, over one text or many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Context, Option

from attnctl.cli import (
    CHECKPOINT,
    MODEL,
    MODEL_NAMES,
    NUMBERS,
    ONE_CALL,
    SHOW,
    CopyOptions,
    FileOption,
    JsonOption,
    OptionsOfB,
    ReadTextArgument,
    check_models,
    command,
    completing,
    model_of,
    output_format,
    output_option,
    put_bytes,
    refuse_unused,
    say_notes,
    write_forms,
    write_panels,
    write_table,
)
from attnctl.errors import DONE, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.formats import PictureLook, format_names, suffixes_listed
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.commands.drift.compute import ComparedText


@command(
    example='attnctl drift smollm2 smollm2 "Alice will eat pizza" --dtype-b bfloat16',
    more=(SHOW, NUMBERS, CHECKPOINT),
)
def drift_command(
    context: Context,
    a: Annotated[
        str, Argument(help="The reference: a checkpoint.", metavar="A", autocompletion=completing(*MODEL_NAMES))
    ],
    b: Annotated[
        str,
        Argument(help="Its copy, of the same architecture.", metavar="B", autocompletion=completing(*MODEL_NAMES)),
    ],
    text: ReadTextArgument = None,
    *,
    file: FileOption = None,
    texts: Annotated[
        str | None,
        Option(
            help="Many texts: a file as batch reads it (.txt with a text a line, .jsonl, .csv, .parquet).",
            metavar="FILE",
            envvar=ONE_CALL,
            rich_help_panel=MODEL,
        ),
    ] = None,
    kernel_b: Annotated[
        Literal["sdpa", "eager"] | None,
        Option(
            help="The attention function of B; A has its usual one, sdpa if it can.",
            envvar=ONE_CALL,
            rich_help_panel=CHECKPOINT,
        ),
    ] = None,
    json: JsonOption = False,
    output: Annotated[
        str | None, output_option(f"Where to write: .json, .csv, .parquet, .txt, {suffixes_listed()}.")
    ] = None,
    of_b: OptionsOfB,
    look: PictureLook,
    model: CopyOptions,
) -> int:
    """Measure how far a copy of a model moved: a quantised copy, a fine-tune, or the same model with --dtype-b.

    A is the reference, B the copy; both have one architecture and one tokenizer. The table has the heads whose weights
    moved most, the picture every head, layer × head; the summary tells about the outputs and the next token. The exit
    code is 3 if some of many texts cannot be read.
    """
    from attnctl.cli import cost_progress
    from attnctl.commands.drift.compute import measure_drift
    from attnctl.commands.drift.forward import ComparedModel
    from attnctl.formats import TABLE_FORMATS, block_of

    form = output_format("drift", output, ("json", *TABLE_FORMATS, "txt", *format_names()), "json" if json else "")
    if form not in format_names():
        refuse_unused(context, PictureLook, because="it goes with a picture")
    listed = _texts_of(a, b, text, file, texts)
    options_a, options_b = of_b.options_of_both(a, b, model)
    model_a = model_of(options_a)
    with of_b.named_in_errors():
        model_b = model_of(options_b)
    names = model_a.info.name, model_b.info.name
    names = (a, b) if names[0] == names[1] and a != b else names  # folders whose last parts are the same
    sides = ComparedModel(model_a, names[0]), ComparedModel(model_b, names[1], kernel_b)
    with cost_progress(counted(len(listed), "text")) as tick:
        drift = measure_drift(*sides, listed, lambda share: tick(share / len(listed)), skip=texts is not None)
    names_of_texts = {text.number: text.name for text in listed}
    for skipped in drift.skipped:
        print_complaint(f"text {skipped.number} ({names_of_texts[skipped.number]}) is skipped: {skipped.error}")
    say_notes(drift.notes)
    if form == "json":
        from attnctl.formats import write_json

        put_bytes(write_json(drift, "drift") + b"\n", output)
    elif form in TABLE_FORMATS:
        write_table([block_of(drift.to_records())], form, output)
    elif form in format_names():
        from attnctl.commands.drift.show import drift_panels

        write_panels(drift_panels(drift, look.as_look()), form, output, look.as_look())
    else:
        from attnctl.commands.drift.show import drift_forms

        write_forms(drift_forms(drift), form, output)
    return PARTIAL if drift.skipped else DONE


def _texts_of(a: str, b: str, text: str | None, file: str | None, texts: str | None) -> list[ComparedText]:
    """Return each text that two models read, also those of many that are no text, with their place in the file.

    Raises UsageError if there is no text or several sources of it, AttnctlError if the file holds nothing.
    """
    from attnctl import inputs
    from attnctl.commands.drift.compute import ComparedText

    if texts is None:
        if text is None and file is None:
            inputs.refuse_models("drift", a, b)
            raise UsageError("A and B are two models: give the text that both read, or --file, or --texts")
        check_models(a, b, text)
        return [ComparedText(0, "", inputs.text_of(text, file))]
    if text is not None or file is not None:
        raise UsageError("cannot be combined with another text", option="texts")
    from attnctl.batching import TextStream

    listed, stream = [], TextStream(texts)
    for item in stream:
        error = "it is no plain text" if item.trace is not None or item.messages is not None else item.error
        listed.append(ComparedText(item.number, item.where, item.text, error))
    if stream.unread:
        raise AttnctlError(stream.unread[0])
    if not listed:
        raise AttnctlError(f"{texts} holds no text")
    return listed
