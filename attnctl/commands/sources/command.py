"""`attnctl sources`: which part of a prompt an answer came from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Context, Exit, Option

from attnctl.checks import limits
from attnctl.cli import (
    LOOK,
    MODEL,
    WORK,
    FileOption,
    JsonOption,
    PromptOptions,
    SpansOption,
    TextArgument,
    command,
    cost_progress,
    model_of,
    output_format,
    output_option,
    print_lines,
    put_bytes,
    refuse_unused,
    safe_console,
    say_notes,
    show_forms,
    whole,
    write_drawing,
)
from attnctl.errors import INTERRUPTED
from attnctl.formats import format_names, suffixes_listed

if TYPE_CHECKING:
    from attnctl.commands.sources.search import SourceSearch
    from attnctl.source import Model


@command(example="attnctl sources --chat messages.json --model smollm2")
def sources_command(
    context: Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    spans: SpansOption = None,
    answer: Annotated[
        str | None,
        Option(
            "--answer",
            help="The answer to explain [default: the model's own answer].",
            metavar="TEXT",
            rich_help_panel=MODEL,
        ),
    ] = None,
    budget: Annotated[
        int,
        Option(
            "--budget",
            help="Forwards for a prompt; if it has more parts, they are hidden in groups.",
            metavar="N",
            parser=whole(limits.BUDGET),
            rich_help_panel=WORK,
        ),
    ] = 20,
    remove: Annotated[
        bool,
        Option("--remove", help="Also measure the prompt rendered without each part.", rich_help_panel=LOOK),
    ] = False,
    top: Annotated[
        int | None,
        Option(
            "--top",
            help="Show only the N strongest: the parts that matter most.",
            metavar="N",
            parser=whole(limits.TOP),
            rich_help_panel=LOOK,
        ),
    ] = None,
    json: JsonOption = False,
    output: Annotated[str | None, output_option(f"Where to write: .json, .html, {suffixes_listed()}.")] = None,
    model: PromptOptions,
) -> None:
    """Find which part of a prompt an answer came from: what it looks at, what writes it, and what matters to it.

    looks: the part's share of the answer's attention, over all heads and layers. writes: how much the heads that read the
    part add directly to the answer's log-probability, in nats. matters: how this log-probability changes if no token after
    the part can see it. With --image, the parts are regions of the picture.
    """
    form = output_format("sources", output, ("json", "html", *format_names()), "json" if json else "")
    if form == "html":
        refuse_unused(context, "top", "image", because="the page shows every part, and no picture")
    if answer is not None:
        refuse_unused(context, "generate", because="the answer is given")
    search, interrupted = find_sources(text, file, model, answer=answer, spans=spans, budget=budget, remove=remove)
    _write_sources(search, form, output, top, model.image)
    if interrupted:
        raise Exit(INTERRUPTED)


def find_sources(
    text: str | None,
    file: str | None,
    model: PromptOptions,
    *,
    answer: str | None = None,
    spans: str | None = None,
    budget: int = 20,
    remove: bool = False,
) -> tuple[SourceSearch, bool]:
    """Return the search for the sources, and whether Ctrl-C ended it early; print the cost before the search."""
    from attnctl import inputs
    from attnctl.commands.sources.compute import search_sources

    def open_model() -> Model:
        opened: Model = model_of(replace(model, chat=None, generate=None))
        return opened

    prompt = inputs.open_prompt(text, file, model.chat, open_model)
    with cost_progress("reading the prompt and its answer") as tick:
        steps = search_sources(
            *prompt, answer=answer, spans=spans, budget=budget, remove=remove, generate=model.generate, tick=tick
        )
        search, interrupted = next(steps), False
    from_file = model.chat is None and (file is not None or text in (None, "-"))
    if from_file and search.prompt.text.endswith("\n"):
        search.notes += ("The prompt ends in a line break, after which the answer begins.",)
    work, share = f"{len(search.parts)} parts, {len(search.tokens):,} tokens", 0.0
    try:
        with cost_progress(work, search.cheaper(remove)) as tick:
            for _ in steps:
                if (done := search.share_done(remove)) > share:
                    tick(done - share)
                    share = done
    except KeyboardInterrupt:
        say_notes(("interrupted: these are the results so far",))
        interrupted = True
    say_notes(search.found_so_far().notes)
    return search, interrupted


def _write_sources(search: SourceSearch, form: str, output: str | None, top: int | None, image: str | None) -> None:
    """Write the sources in the format `form`."""
    from msgspec.structs import replace as changed

    from attnctl.commands.sources.show import parts_table, sources_forms, sources_page
    from attnctl.formats import write_json

    sources = search.found_so_far()
    if form == "json":
        put_bytes(write_json(changed(sources, parts=sources.parts[:top]), "result") + b"\n", output)
    elif form == "html":
        put_bytes(sources_page(sources).encode(), output)
    elif form != "terminal":
        from attnctl import inputs
        from attnctl.commands.sources.picture import sources_drawing

        photograph = inputs.photograph_named(None, image)
        write_drawing(sources_drawing(sources, top, photograph), form, output)
    elif safe_console().is_terminal:
        show_forms(sources_forms(sources, search.token_costs(), top))
    else:
        print_lines(parts_table(sources, top).as_csv(delimiter="\t").rstrip("\n"))
