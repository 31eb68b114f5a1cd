"""`attnctl heatmap`: the attention weights as a picture, or as a grid in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from attnctl import inputs
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import print_lines, put_bytes, safe_console
from attnctl.cli.progress import cost_progress, heads_over_tokens
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import check_writable, names_picture
from attnctl.formats import pictures
from attnctl.formats.photographs import read_photograph
from attnctl.formats.pictures import Look, suffixes_listed
from attnctl.measures import joins_heads
from attnctl.pages import PAGE_MAPS, page_of_sources
from attnctl.readings.heatmap import HeatmapGrid, OverviewReading, is_drowned, with_headline
from attnctl.readings.overview import Overview
from attnctl.readings.picture_heat import query_of_picture
from attnctl.readings.questions.headline import headline
from attnctl.render.terminal.photograph import PhotographPanels, patches_as_tsv
from attnctl.source import Changes, OverviewSource, Prepared, Source, is_long, prepare
from attnctl.source.cells import Zoom, cost_of_heads, evolution_of_run, grid_of, heatmap_grid, query_row
from attnctl.trace import Headline, Trace

TELLING = "telling"  # value of --head: the head of the headline
LABELS = 20  # columns of a terminal that the names of the queries take


def heatmap_command(
    *,
    source: str | None,
    file: str | None,
    tokens: str | None,
    key_tokens: str | None,
    layer: str | None,
    head: str | None,
    output: str | None,
    run: str | None,
    **options: object,
) -> None:
    """Draw the attention weights: queries down, keys across, one head or every layer × head."""
    zoom = o.taken(Zoom, options)
    changes = o.taken(Changes, options)
    picture, any_scale = _picture_format(output, run), options.get("log") is None
    page = safe_console()
    shown = "a terminal" if page.is_terminal else "numbers in a pipe"
    mode = {"html": "a page", "json": "JSON", None: shown}.get(picture, "a picture")
    if run is not None:
        mode = "--run as a page" if picture == "html" else "--run"
    photograph = options.get("image") or (source if source is not None and names_picture(source) else None)
    if picture == "html":
        photograph = None
    if photograph is not None:
        of_mode = {"a terminal": "a photograph in a terminal", "a picture": "a photograph in a picture"}
        mode = of_mode.get(mode, "the patches of a photograph")
    arguments.check_mode("heatmap", mode)
    look, query = arguments.look_of(options), options.pop("query", None)
    if picture == "html" and "cmap" in arguments.typed and look.cmap not in PAGE_MAPS:
        raise UsageError(f"--cmap {look.cmap} does not go with a page: it has {' and '.join(PAGE_MAPS)}")
    if run is not None:
        head = None if head == TELLING else head  # of all heads the telling one is shown
        text = inputs.text_of(source, file)
        steps, labels = inputs.sources_of_run(run, text, lambda path: arguments.model_of(options | {"model": path}))
        if picture == "html":
            _write_page(steps, changes, layer, head, look, str(output), list(labels.values()))
            return
        from attnctl.render.figure.heatmap import draw_strip, moving_picture  # matplotlib

        evolution = evolution_of_run(steps, labels, run, changes, layer, head, arguments.say_notes)
        if picture != "gif":
            arguments.write_drawing(draw_strip(evolution, look), str(picture), output)
            return
        drawn, notes = moving_picture(evolution, look)
        put_bytes(drawn, output)
        arguments.say_notes(notes)
        return
    if picture == "html":
        opened = arguments.open_source(source, file, tokens, options, key_tokens)
        if head == TELLING:
            layer, head, _ = _telling_head(opened, changes, layer)
        _write_page([opened], changes, layer, head, look, str(output))
        return
    colour = None
    if look.cmap != "viridis":
        from attnctl.render.figure.heatmap import colour_function

        colour = colour_function(look.cmap)
    opened = arguments.open_source(source, file, tokens, options, key_tokens)
    if photograph is not None:
        if head == TELLING:
            raise UsageError("--head telling does not go with a photograph, which has no headline: name a head")
        _show_photograph(opened, str(photograph), changes, layer, head, query, look, picture, output, colour)
        return
    line: tuple[Trace, Headline] | None = None
    if head == TELLING:
        layer, head, line = _telling_head(opened, changes, layer)
    given = prepare(opened, changes, layer, head, say=arguments.say_notes)
    room = max(16, page.width - LABELS) if page.is_terminal and not picture else None
    coloured = picture is not None or page.is_terminal
    cells = _shown_cells(given, zoom, room, not coloured)
    if picture == "json":
        from attnctl.formats.storage import save_value

        save_value(cells, str(output))
        return
    seen = heatmap_grid(given, cells)
    if line is not None:
        seen = with_headline(seen, *line)
    if coloured and any_scale and is_long(opened) and look.vmin is None and is_drowned(seen):
        said = "a few cells hold most of the weight: colours are on a logarithmic scale, --no-log makes it linear"
        arguments.say_note(said)
        look = replace(look, log=True)
    if output is None or picture is None:
        _show_grid(seen, colour, title=look.title, values=look.values, log=look.log)
        return
    from attnctl.render.figure.heatmap import draw_heatmap

    arguments.write_drawing(draw_heatmap(seen, look), picture, output)


def _telling_head(
    source: Source, changes: Changes, layer: str | None
) -> tuple[str, str | None, tuple[Trace, Headline]]:
    """The layer and the head of the headline; and the headline itself, with its trace.

    Raises UsageError for a long text, AttnctlError for a source without weights.
    """
    if is_long(source) or isinstance(source, OverviewSource):
        raise UsageError(
            "--head telling needs every weight, and a long text is pooled: name a head, or shorten the text"
        )
    trace = prepare(source, changes, layer, say=arguments.say_notes).trace(predictions=False)
    line = headline(trace)
    if line is None:
        raise AttnctlError(f"{source.name} holds no weights, by which --head telling chooses")
    return str(line.layer), None if joins_heads(trace.measure) else str(line.head), (trace, line)


def _show_photograph(
    opened: Source,
    photograph: str,
    changes: Changes,
    layer: str | None,
    head: str | None,
    query: Any,
    look: Look,
    picture: str | None,
    output: str | None,
    colour: Callable[[float], tuple[int, int, int]] | None,
) -> None:
    """Where a query looks in a photograph: over it in a file or a terminal, as numbers in a pipe or JSON."""
    at = query_of_picture(opened.tokens, query, bool(opened.info.causal))
    if layer is None and changes.measure in (None, "weights") and opened.counts[0] > 1:
        layer = str(opened.counts[0] - 1)
        arguments.say_note(f"shown is layer {layer}, the last one (--layer names others)")
    given = prepare(opened, changes, layer, head, say=arguments.say_notes)
    row = query_row(given, at)
    if picture == "json":
        from attnctl.formats.storage import save_value

        save_value(row, str(output))
    elif picture is None and not safe_console().is_terminal:
        print_lines(patches_as_tsv(row).rstrip("\n"))
    elif picture is None:
        safe_console().print(PhotographPanels(row, read_photograph(photograph), colour))
    else:
        from attnctl.render.figure.photograph import draw_over_photograph

        arguments.write_drawing(draw_over_photograph(row, read_photograph(photograph), look), picture, output)


def _write_page(
    sources: Iterable[Source],
    changes: Changes,
    layer: str | None,
    head: str | None,
    look: Look,
    output: str,
    labels: list[str] | None = None,
) -> None:
    """The page of one source; or, with their labels, of the steps of a run."""
    html = page_of_sources(
        sources,
        changes,
        layer,
        head,
        log=bool(look.log),
        cmap=look.cmap,
        title=look.title,
        labels=labels,
        over_training=labels is not None,
        **arguments.page_notes(),
    )
    put_bytes(html.encode(), output)


def _shown_cells(given: Prepared, zoom: Zoom, room: int | None, bare: bool) -> Overview:
    """The cells of what was prepared, read in one way whatever it comes from; beside `bare` numbers stand no notes."""
    arguments.say_cost(cost_of_heads(given.source, given.head_count))
    with cost_progress(heads_over_tokens(given)) as tick:
        found: Overview = given.read(OverviewReading(grid_of(given, zoom, room)), tick)
    every = bare or found.model.kind in ("checkpoint", "matrix")
    arguments.say_unknown(found.tokens, found.key_axis, notes=found.notes, every=every)
    return found


def _picture_format(output: str | None, run: str | None) -> str | None:
    """png, svg, pdf, html, json or gif; None for the terminal. Raises UsageError, before any work, for another."""
    if run is not None:
        form = None if output is None else pictures.picture_format(output, "figure", "frames", "page")
        if output is None or form is None:
            raise UsageError(
                f"--run draws into a file: -o evolution.gif, or a strip as {suffixes_listed('figure', 'page')}"
            )
    elif output is None:
        return None
    else:
        form = "json" if output.lower().endswith(".json") else pictures.picture_format(output, "figure", "page")
        if form is None:
            raise UsageError(
                f"-o {output}: a picture is written as {suffixes_listed()}, a page as .html, the cells as .json "
                "(for every step see attnctl explain --json)"
            )
    check_writable(output)
    return form


def _show_grid(reading: HeatmapGrid, colour: Callable[[float], tuple[int, int, int]] | None, **look: Any) -> None:
    """The grid on a terminal; in a pipe, its numbers."""
    from attnctl.render.terminal.heatmap import Blocks, tab_separated

    page = safe_console()
    if not page.is_terminal:
        print_lines(tab_separated(reading).rstrip("\n"))
        return
    page.print(Blocks(reading, colour=colour, **look))
