"""`attnctl sources`: which part of a prompt an answer came from."""

from __future__ import annotations

from typing import Any

import typer

from attnctl import api, inputs
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import output_format, print_lines, put_bytes, safe_console, show_renderable
from attnctl.cli.progress import cost_progress
from attnctl.errors import INTERRUPTED
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.readings_json import sources_document
from attnctl.formats.pictures import format_names
from attnctl.readings.effects.answer_sources import AnswerSources
from attnctl.render.page.reading_pages import sources_page
from attnctl.render.terminal.console import Shown
from attnctl.render.told.sources import parts_table, sources_forms

SAID_SECONDS = 5.0  # from which the cost is told beforehand
TRIED = 3  # forwards after which it is told at the latest


def sources_command(
    *,
    text: str | None,
    file: str | None,
    top: int | None,
    json: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Tell which part of a prompt an answer came from: what is looked at, what writes the answer, and what matters."""
    form = output_format("sources", output, ("json", "html", *format_names()), "json" if json else "")
    if form == "html":
        arguments.check_mode("sources", "a page")
    if options["answer"] is not None:
        arguments.check_mode("sources", "--answer")
    image = options.get("image")
    found, interrupted = found_sources(text, file, options)
    _write_sources(found, form, output, top, image)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def found_sources(text: str | None, file: str | None, options: OptionValues) -> tuple[AnswerSources, bool]:
    """What is known of the sources, the cost told beforehand; and whether Ctrl-C ended the search early."""
    asked = o.arguments_of(api.search_sources, options)
    chat = options.pop("chat", None)
    steps = api.search_sources(*inputs.open_prompt(text, file, chat, lambda: arguments.model_of(options)), **asked)
    search, remove, interrupted = next(steps), asked.get("remove", False), False
    parts, told, done = len(search.parts), search.read_seconds > SAID_SECONDS, 0.0
    arguments.say_notes(search.cost_notes(remove, SAID_SECONDS) if told else ())
    try:
        with cost_progress(f"{parts} parts, {len(search.tokens):,} tokens") as tick:
            for made, _ in enumerate(steps, 1):
                if not told and (search.cost.is_measured or made == TRIED):
                    told = True
                    arguments.say_notes(search.cost_notes(remove, SAID_SECONDS))
                if tick is not None:
                    done, before = search.share_done(remove), done
                    tick(done - before)
    except KeyboardInterrupt:
        arguments.say_notes(("interrupted: this is what is known so far",))
        interrupted = True
    found = search.found_so_far()
    arguments.say_notes(found.notes)
    return found, interrupted


def _write_sources(found: AnswerSources, form: str, output: str | None, top: int | None, image: str | None) -> None:
    if form == "json":
        put_bytes(write_json(sources_document(found, top), "result") + b"\n", output)
    elif form == "html":
        put_bytes(sources_page(found).encode(), output)
    elif form == "terminal":
        if safe_console().is_terminal:
            show_renderable(Shown(sources_forms(found, top)))
        else:
            print_lines(parts_table(found, top).as_csv(delimiter="\t").rstrip("\n"))
    else:
        from attnctl.render.figure.charts import sources_drawing

        photograph = inputs.photograph_named(None, image)
        arguments.write_drawing(sources_drawing(found, top, photograph), form, output)
