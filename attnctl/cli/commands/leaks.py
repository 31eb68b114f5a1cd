"""`attnctl leaks`: whether a model keeps the documents of a packed batch apart."""

from __future__ import annotations

from attnctl import api
from attnctl.cli import arguments
from attnctl.cli.output import output_format, put_bytes, write_renderable
from attnctl.cli.progress import cost_progress
from attnctl.errors import DONE, FINDING
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.readings_json import leaks_document
from attnctl.formats.pictures import format_names
from attnctl.readings.leaks import Leaks
from attnctl.render.terminal.console import Shown
from attnctl.render.told.leaks import leaks_forms
from attnctl.source.cells import cost_of_passes


def leaks_command(
    *,
    inputs: list[str],
    pack: bool,
    expect: str,
    json: bool,
    output: str | None,
    model: str | None,
    dtype: str | None,
    device: str | None,
) -> int:
    """Tell whether documents are kept apart; return FINDING where they are not."""
    form = output_format("leaks", output, ("json", "txt", "html", *format_names()), "json" if json else "")
    search = api.leak_search(inputs, model, pack=pack, expect=expect, dtype=dtype, device=device)
    cost = cost_of_passes(
        search.info, search.ids.numel(), search.forwards, cuts=False, fewer="a smaller batch takes less"
    )
    arguments.say_cost(cost)
    with cost_progress(f"{search.ids.numel():,} tokens") as tick:
        leaks = search.measure(tick)
    arguments.say_notes(leaks.notes)
    _write_leaks(leaks, form, output)
    return FINDING if leaks.wrong else DONE


def _write_leaks(found: Leaks, form: str, output: str | None) -> None:
    if form == "json":
        put_bytes(write_json(leaks_document(found), "leaks") + b"\n", output)
    elif form in ("terminal", "txt", "html"):
        write_renderable(Shown(leaks_forms(found)), form, output, "attnctl leaks", found.model.citation)
    else:
        from attnctl.render.figure.charts import leaks_drawing

        arguments.write_drawing(leaks_drawing(found), form, output)
