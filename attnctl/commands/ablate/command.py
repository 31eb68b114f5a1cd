"""`attnctl ablate`: what each head, edge or part of a text does for a prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Context, Option

from attnctl.checks import limits
from attnctl.cli import (
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    MODEL,
    NUMBERS,
    TEXT_WORDS,
    WORK,
    AgainstOption,
    ChatOption,
    FileOption,
    HeadOption,
    JsonOption,
    LayerOption,
    SpansOption,
    TextArgument,
    TextPairOption,
    WatchedModelOptions,
    command,
    completing,
    cost_progress,
    model_of,
    output_format,
    output_option,
    put_bytes,
    refuse_unused,
    say_notes,
    say_stage,
    whole,
    write_drawing,
    write_forms,
    write_table,
)
from attnctl.formats import format_names, suffixes_listed
from attnctl.text import counted

if TYPE_CHECKING:
    from attnctl.source import Model
    from attnctl.watched import EffectRequest, Effects, Watched


@dataclass(frozen=True)
class AblatedModelOptions(WatchedModelOptions):
    """The options of a model in which heads are switched off; --target is an option of the command."""

    chat: ChatOption = None
    text_pair: TextPairOption = None


@command(example='attnctl ablate "Alice will eat" --target pizza', more=(NUMBERS, MATHEMATICS, MADE, CHECKPOINT, WORK))
def ablate_command(
    context: Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    target: Annotated[
        str | None,
        Option(
            "--target",
            "--label",
            "-t",
            help='What the model should write, such as " Mary", or the label of a classifier [default: the likeliest].',
            metavar="TEXT",
            rich_help_panel=MODEL,
        ),
    ] = None,
    against: AgainstOption = None,
    query: Annotated[
        str | None,
        Option(
            "--query",
            "-q",
            help="Query token: the watched word is predicted from this token [default: the last, or the mask].",
            metavar="TOKEN",
            autocompletion=completing(TEXT_WORDS, joined=True),
            rich_help_panel=LOOK,
        ),
    ] = None,
    layer: LayerOption = None,
    head: HeadOption = None,
    how: Annotated[
        Literal["zero", "mean", "resample"],
        Option(
            "--how",
            help="Replace a head's output by zero, by its mean, or by its output on another text.",
            rich_help_panel=LOOK,
        ),
    ] = "zero",
    reference: Annotated[
        str | None,
        Option(
            "--reference", help="Texts for --how mean or resample, one a line.", metavar="FILE", rich_help_panel=LOOK
        ),
    ] = None,
    edges: Annotated[
        bool,
        Option("--edges", help="Cut each key in turn from the watched token.", rich_help_panel=LOOK),
    ] = False,
    edge: Annotated[
        list[str] | None,
        Option(
            "--edge",
            help='Cut this edge: "gave→Mary" or "11>2"; several edges: also all at once.',
            metavar="TEXT",
            rich_help_panel=LOOK,
        ),
    ] = None,
    spans: SpansOption = None,
    approximate: Annotated[
        bool,
        Option(
            "--approximate",
            help="Approximate all effects by gradient × activation, from one forward and backward.",
            rich_help_panel=LOOK,
        ),
    ] = False,
    batch_size: Annotated[
        int | None,
        Option(
            "--batch-size",
            help="How many share one pass: interventions.",
            metavar="N",
            parser=whole(limits.BATCH_SIZE),
            rich_help_panel=WORK,
        ),
    ] = None,
    top: Annotated[
        int | None,
        Option(
            "--top",
            help="Show only the N strongest: heads, edges or parts [default: 10 rows in a table, else all].",
            metavar="N",
            parser=whole(limits.TOP),
            rich_help_panel=LOOK,
        ),
    ] = None,
    json: JsonOption = False,
    output: Annotated[
        str | None, output_option(f"Where to write: .json, .csv, .parquet, .txt, .html, {suffixes_listed()}.")
    ] = None,
    model: AblatedModelOptions,
) -> None:
    """Measure what matters for a prediction: ablate each head in turn, or cut edges of attention, and see what changes.

    The table shows where a head looks (its largest weight from the watched token), what it writes (its direct contribution
    to the logit), and what it does (how the prediction changes without it: after minus before, in nats and logits).
    With --spans words it shows which words made the label of a text, or the next word.
    """
    form = output_format(
        "ablate", output, ("json", "csv", "parquet", "txt", "html", *format_names()), "json" if json else ""
    )
    if form in format_names():
        refuse_unused(context, "top", because="a picture has every head, edge and part")
    if edge or spans is not None:
        approximate = False  # a default of the user's own just does not apply
        refuse_unused(context, "approximate", because="what --edge and --spans name is cut, not approximated")
    if approximate:
        refuse_unused(context, "edges", because="--approximate has every head and every edge")
    if model.off is None and (edges or edge or spans is not None):
        refuse_unused(context, "how", "reference", because="edges and parts are cut, and no head is off")
    if how == "zero":
        refuse_unused(context, "reference", because="use it with --how mean or resample")

    from attnctl import inputs
    from attnctl.commands.ablate.compute import ablation_of_text

    def open_model() -> Model:
        opened: Model = model_of(replace(model, chat=None, off=None))
        say_stage("the unchanged text")
        return opened

    words, reader = inputs.text_or_conversation(text, file, model.chat, open_model)
    watched, request = ablation_of_text(
        words,
        lambda: open_model() if reader is None else reader,
        layer=layer,
        head=head,
        query=query,
        how=how,
        reference=reference,
        edges=edges,
        edge=edge,
        spans=spans,
        off=model.off,
        target=target,
        against=against,
        approximate=approximate,
        batch_size=batch_size,
        cross=model.attention is None,
    )
    effects = _measured_effects(watched, request)
    say_notes(effects.notes)
    _write_effects(effects, form, output, top, text, model.image)


def _measured_effects(watched: Watched, request: EffectRequest) -> Effects:
    """Return the effects that are requested; check their memory before they run."""
    from attnctl.cli import LESS_HEADS, check_memory_of_cuts
    from attnctl.watched import chosen_heads, measure_effects

    n = len(watched.tokens)
    work, fewer = counted(n, "token"), ""
    if not request.approximate:
        passes = len(chosen_heads(watched, request)) if request.sweep_heads else 0
        cuts = len(request.edges) + len(request.spans) + (n if request.every_edge else 0)
        parts_or_edges = "longer parts take fewer" if request.spans else "--edge and --spans take fewer"
        fewer = parts_or_edges if cuts else LESS_HEADS
        work = f"{passes + cuts:,} passes over {counted(n, 'token')}"
        if cuts:
            check_memory_of_cuts(n)
    with cost_progress(work, fewer) as tick:
        return measure_effects(watched, request, *([] if tick is None else [tick]))


def _write_effects(
    effects: Effects, form: str, output: str | None, top: int | None, text: str | None, image: str | None
) -> None:
    """Write the effects in the format `form`."""
    from attnctl.formats import TABLE_FORMATS, block_of

    if form == "json":
        from attnctl.watched import effects_to_json

        put_bytes(effects_to_json(effects, top) + b"\n", output)
    elif form in TABLE_FORMATS:
        if effects.heads and effects.edges:
            say_notes(["the table has a row for each head; JSON has the edges, too"])
        write_table([block_of(effects.ordered(top).to_records())], form, output)
    elif form in format_names():
        from attnctl import inputs
        from attnctl.commands.ablate.figure import effects_drawing

        photograph = inputs.photograph_named(text, image)
        write_drawing(effects_drawing(effects, photograph), form, output)
    else:
        from attnctl.commands.ablate.show import effects_forms, effects_page_forms

        forms = effects_page_forms(effects, top) if form == "html" else effects_forms(effects, top)
        write_forms(forms, form, output, "attnctl ablate", effects.model.citation)
