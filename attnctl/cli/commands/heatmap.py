"""`attnctl heatmap`: the attention weights as a picture, or as a grid in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.inputs.sources import open_source
from attnctl.cli.output import print_lines, safe_console
from attnctl.cli.progress import check_cost, cost_progress, heads_over_tokens
from attnctl.errors import UsageError
from attnctl.formats import pictures
from attnctl.formats.pictures import suffixes_listed
from attnctl.source.changes import Changes, Prepared, prepare
from attnctl.source.zoom import Zoom, heatmap_grid, is_long, read_cells

if TYPE_CHECKING:
    from attnctl.readings.heatmap import HeatmapGrid
    from attnctl.readings.overview import Overview
    from attnctl.render.figure.look import Look
    from attnctl.tokens import Token

Colour = Callable[[float], tuple[int, int, int]]

LABELS = 20  # columns of a terminal that the names of the queries take


def heatmap_command(
    *,
    source: str | None,
    file: str | None,
    tokens: str | None,
    layer: str | None,
    head: str | None,
    output: str | None,
    run: str | None,
    **options: object,
) -> None:
    """Draw the attention weights: queries down, keys across, one head or every layer × head."""
    zoom = o.taken(Zoom, options)
    changes, chosen = o.taken(Changes, options), (layer, head)
    if run is not None:
        arguments.check_mode("heatmap", "--run as a page" if str(output).endswith(".html") else "--run")
        from attnctl.cli.commands.evolution import TrainingView, show_training

        show_training(run, TrainingView(arguments.text_of(source, file), *chosen, changes), output, options)
        return
    picture, any_scale = _picture_format(output), options.get("log") is None
    shown = "a terminal" if safe_console().is_terminal else "numbers in a pipe"
    mode = {"html": "a page", "json": "JSON", None: shown}.get(picture, "a picture")
    arguments.check_mode("heatmap", mode)
    look = arguments.look_of(options)
    colour = None if look.cmap == "viridis" else _colour_function(look.cmap)
    opened, say = open_source(source, file, tokens, options), arguments.say_notes
    if picture == "html":
        whole = changes._replace(drop=None, renormalise=False)  # a page leaves out and rescales by itself
        _write_page(prepare(opened, whole, *chosen, say=say), changes, str(output), look)
        return
    given = prepare(opened, changes, *chosen, say=say)
    cells = _cells_of(given, zoom, None if picture else _cells_across())
    if picture == "json":
        from attnctl.formats.storage import save_value

        save_value(cells, str(output))
        return
    seen = heatmap_grid(given, cells)
    look = _readable_scale(look, seen) if any_scale and is_long(opened) else look
    if output is None or picture is None:
        _show_grid(seen, colour, title=look.title, values=look.values, log=look.log)
    else:
        _write_heatmap(seen, look, output, picture)


def _readable_scale(look: Look, seen: HeatmapGrid) -> Look:
    """The look with colours on a logarithmic scale, where a few cells hold most of the weight."""
    from attnctl.readings.heatmap import is_drowned

    if look.vmin is not None or not is_drowned(seen):
        return look
    arguments.say_notes(
        ("a few cells hold most of the weight: colours are on a logarithmic scale, --no-log makes it linear",)
    )
    return replace(look, log=True)


def _write_heatmap(seen: HeatmapGrid, look: Look, output: str, picture: str) -> None:
    from attnctl.files import write_whole
    from attnctl.render.figure.heatmaps.heatmap import draw_heatmap

    figure, notes = draw_heatmap(seen, look)
    write_whole(output, pictures.figure_bytes(figure, picture))
    arguments.say_notes(notes)


def _cells_of(given: Prepared, zoom: Zoom, room: int | None) -> Overview:
    """The cells of what was prepared, read in one way whatever it comes from."""
    check_cost(given.source, given.head_count)
    with cost_progress(heads_over_tokens(len(given.source.tokens), given.head_count)) as tick:
        found = read_cells(given, zoom, room, tick)
    every = found.model.kind in ("checkpoint", "matrix")
    arguments.say_unknown(found.tokens, found.key_axis, notes=found.notes, every=every)
    return found


def _write_page(given: Prepared, changes: Changes, output: str, look: Look) -> None:
    from attnctl.cli.commands.page import PageContent, page_look, write_page

    trace = given.trace(predictions=False)
    arguments.say_unknown(trace.tokens, trace.key_axis, notes=trace.notes, every=trace.model.kind == "checkpoint")
    start = page_look(changes.drop or (), changes.renormalise, look.log, cmap=look.cmap)
    write_page(PageContent([trace]), output, look=start, title=look.title)


def _picture_format(output: str | None) -> str | None:
    """png, svg, pdf, html or json; None for the terminal. Raises UsageError, before any work, where it cannot be written."""
    if output is None:
        return None
    form = "json" if output.lower().endswith(".json") else pictures.picture_format(output, "figure", "page")
    if form is None:
        raise UsageError(
            f"-o {output}: a picture is written as {suffixes_listed()}, a page as .html, the cells as .json "
            "(for every step see attnctl explain --json)"
        )
    from attnctl.files import check_writable

    check_writable(output)
    return form


def _cells_across() -> int | None:
    """How many cells fit beside each other on the terminal; None in a pipe."""
    page = safe_console()
    return max(16, page.width - LABELS) if page.is_terminal else None


def _show_grid(reading: HeatmapGrid, colour: Colour | None, **look: Any) -> None:
    """The grid on a terminal; in a pipe, its numbers."""
    page = safe_console()
    if not page.is_terminal:
        print_lines(*tab_separated(reading))
        return
    from attnctl.render.terminal.heatmap import Blocks

    page.print(Blocks(reading, colour=colour, **look))


def _colour_function(cmap: str) -> Colour:
    from attnctl.render.figure.heatmaps.heatmap import colour_map

    chosen = colour_map(cmap)

    def colour_of_share(share: float) -> tuple[int, int, int]:
        r, g, b, _ = chosen(float(share), bytes=True)
        return int(r), int(g), int(b)

    return colour_of_share


def tab_separated(reading: HeatmapGrid) -> list[str]:
    """The weights as lines of tab-separated cells: layer, head, index and text of the query, then one column a key.

    A column is named by its key's index and text, "3:pizza"; of a pooled text the index, which its name begins with, is that
    of a part's first token. Masked cells are empty.
    """
    from attnctl.text import in_a_cell

    def tabbed_row(cells: Sequence[object]) -> str:
        return "\t".join(map(str, cells))

    def name_after(index: int, token: Token) -> str:
        return in_a_cell(token.text if reading.starts is None else token.text.removeprefix(f"{index} "))

    rows, columns = reading.numbers
    named = (f"{at}:{name_after(at, token)}" for at, token in zip(columns, reading.keys, strict=True))
    lines = [tabbed_row(["layer", "head", "index", "query", *named])]
    for layer, head, weights, mask in reading.panels():
        for i, token in enumerate(reading.queries):
            cells = [
                "" if mask is not None and not mask[i, j] else f"{weight:.6g}"
                for j, weight in enumerate(weights[i].tolist())
            ]
            lines.append(tabbed_row([layer, head, rows[i], name_after(rows[i], token), *cells]))
    return lines
