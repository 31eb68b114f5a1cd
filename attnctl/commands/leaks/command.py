"""`attnctl leaks`: whether a model keeps the documents of a packed batch apart."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from attnctl.cli.command import command
from attnctl.cli.groups import LOOK, CheckpointOptions, JsonOption, output_option
from attnctl.cli.output import output_format, put_bytes, say_cost, say_notes, write_drawing, write_renderable
from attnctl.cli.progress import cost_progress
from attnctl.cli.suggestions import completing
from attnctl.errors import DONE, FINDING
from attnctl.formats.pictures import format_names, suffixes_listed


@command(example="attnctl leaks batch.safetensors --model smollm2")
def leaks_command(
    inputs: Annotated[
        list[str],
        Argument(
            help="A batch as a collator makes it (.safetensors, .npz, .json); with --pack two texts, or more.",
            metavar="BATCH|TEXT…",
        ),
    ],
    *,
    pack: Annotated[
        bool,
        Option(
            "--pack",
            help="Texts: packed into one row, positions from 0 in each, as a collator does it.",
            envvar="ATTNCTL_PACK",
            rich_help_panel=LOOK,
        ),
    ] = False,
    expect: Annotated[
        str,
        Option(
            "--expect",
            help='Who may see whom: segments (each itself), causal (the past), "prefix N", or a file of 0 and 1.',
            metavar="segments|causal|prefix N|FILE",
            autocompletion=completing("segments", "causal"),
            envvar="ATTNCTL_EXPECT",
            rich_help_panel=LOOK,
        ),
    ] = "segments",
    json: JsonOption = False,
    output: Annotated[str | None, output_option(f"Where to write: .json, .txt, .html, {suffixes_listed()}.")] = None,
    model: CheckpointOptions,
) -> int:
    """Tell whether a model keeps the documents of a packed batch apart: what may be seen, what is, and what it moves.

    may: what each layer's mask lets through. does: the weight that crosses. matters: how far a document's outputs move where
    another's tokens are exchanged for others. A leak is told in a sentence, with its likely cause. The exit code is 0 where
    all are apart, 4 where they are not; 1 and 2 are of errors.
    """
    from attnctl import api
    from attnctl.commands.leaks.show import leaks_forms
    from attnctl.formats.documents.json_documents import write_json
    from attnctl.formats.documents.readings_json import leaks_document
    from attnctl.render.terminal.console import Shown
    from attnctl.source.cells import cost_of_passes

    form = output_format("leaks", output, ("json", "txt", "html", *format_names()), "json" if json else "")
    search = api.leak_search(inputs, model.model, pack=pack, expect=expect, dtype=model.dtype, device=model.device)
    tokens = search.ids.numel()
    say_cost(cost_of_passes(search.info, tokens, search.forwards, cuts=False, fewer="a smaller batch takes less"))
    with cost_progress(f"{tokens:,} tokens") as tick:
        leaks = search.measure(tick)
    say_notes(leaks.notes)
    if form == "json":
        put_bytes(write_json(leaks_document(leaks), "leaks") + b"\n", output)
    elif form in ("terminal", "txt", "html"):
        write_renderable(Shown(leaks_forms(leaks)), form, output, "attnctl leaks", leaks.model.citation)
    else:
        from attnctl.render.figure.charts import leaks_drawing

        write_drawing(leaks_drawing(leaks), form, output)
    return FINDING if leaks.wrong else DONE
