"""`attnctl heatmap`: the attention weights as a picture, or as a grid in the terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnctl import api, inputs
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments, session
from attnctl.cli import options as o
from attnctl.cli.output import print_lines, put_bytes, safe_console
from attnctl.cli.progress import cost_progress, heads_over_tokens
from attnctl.errors import UsageError
from attnctl.files import check_writable, write_whole
from attnctl.formats import pictures
from attnctl.formats.pictures import suffixes_listed
from attnctl.readings.heatmap import HeatmapGrid, is_drowned
from attnctl.readings.overview import Overview
from attnctl.readings.questions.focus import focus
from attnctl.render.figure.look import Look
from attnctl.source import Changes, Prepared, is_long, prepare, selected_indices
from attnctl.source.cells import Zoom, cost_of_heads, heatmap_grid, read_cells
from attnctl.text import in_a_cell
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
    changes = o.taken(Changes, options)
    if run is not None:
        arguments.check_mode("heatmap", "--run as a page" if str(output).endswith(".html") else "--run")
        _show_training(run, inputs.text_of(source, file), changes, layer, head, output, options)
        return
    picture, any_scale = _picture_format(output), options.get("log") is None
    shown = "a terminal" if safe_console().is_terminal else "numbers in a pipe"
    mode = {"html": "a page", "json": "JSON", None: shown}.get(picture, "a picture")
    arguments.check_mode("heatmap", mode)
    look = arguments.look_of(options)
    if picture == "html":
        _check_page_map(look)
        opened = arguments.open_source(source, file, tokens, options)
        whole = changes._replace(drop=None, renormalise=False)  # a page leaves out and rescales by itself
        trace = prepare(opened, whole, layer, head, say=arguments.say_notes).trace(predictions=False)
        arguments.say_unknown(trace.tokens, trace.key_axis, notes=trace.notes, every=trace.model.kind == "checkpoint")
        start = changes._replace(words=False)  # which the trace has been given
        html = api.page_of_traces([trace], start, log=bool(look.log), cmap=look.cmap, title=look.title)
        put_bytes(html.encode(), output)
        return
    colour = None if look.cmap == "viridis" else _colour_function(look.cmap)
    opened = arguments.open_source(source, file, tokens, options)
    given = prepare(opened, changes, layer, head, say=arguments.say_notes)
    cells = _cells_of(given, zoom, None if picture else _cells_across())
    if picture == "json":
        from attnctl.formats.storage import save_value

        save_value(cells, str(output))
        return
    seen = heatmap_grid(given, cells)
    look = _readable_scale(look, seen) if any_scale and is_long(opened) else look
    if output is None or picture is None:
        _show_grid(seen, colour, title=look.title, values=look.values, log=look.log)
        return
    from attnctl.render.figure.heatmap import draw_heatmap

    figure, notes = draw_heatmap(seen, look)
    write_whole(output, pictures.figure_bytes(figure, picture))
    arguments.say_notes(notes)


def _check_page_map(look: Look) -> None:
    """Raise UsageError for a colour map that was typed, and that a page does not have."""
    if "cmap" in session.typed and look.cmap not in api.PAGE_MAPS:
        raise UsageError(f"--cmap {look.cmap} does not go with a page: it has {' and '.join(api.PAGE_MAPS)}")


def _show_training(
    run: str,
    text: str,
    changes: Changes,
    layer: str | None,
    head: str | None,
    output: str | None,
    options: OptionValues,
) -> None:
    """One head at every kept step of a run: a .gif that moves, a strip as .png, .svg or .pdf, or a page of all heads."""
    look = arguments.look_of(options)
    if output is None or pictures.picture_format(output, "figure", "frames", "page") is None:
        raise UsageError(
            f"--run draws into a file: -o evolution.gif, or a strip as {suffixes_listed('figure', 'page')}"
        )
    check_writable(output)
    suffix = Path(output).suffix.lower()
    if suffix == ".html":
        if changes.words:
            raise UsageError("--words does not go with --run and .html: a page merges words by itself")
        _check_page_map(look)
    steps, labels = inputs.sources_of_run(run, text, lambda path: arguments.model_of(options | {"model": path}))
    if suffix == ".html":
        own, traces = changes._replace(drop=None, renormalise=False), []
        for step in steps:
            traces.append(prepare(step, own, layer, head, say=arguments.say_notes).trace())
            arguments.say_unknown(step.tokens, step.key_tokens, notes=traces[-1].notes)
        html = api.page_of_traces(
            traces,
            changes,
            log=bool(look.log),
            cmap=look.cmap,
            title=look.title,
            labels=list(labels.values()),
            over_training=True,
        )
        put_bytes(html.encode(), output)
        return
    from attnctl.render.figure.evolution import Evolution, draw_strip, moving_picture  # matplotlib

    traces = [
        prepare(step, changes, range(step.counts[0]), say=arguments.say_notes).trace(predictions=False)
        for step in steps
    ]
    info = traces[-1].model
    layers = selected_indices(layer, info.n_layers or 1, "layer", run)
    heads = selected_indices(head, info.n_heads or 1, "head", run)
    best = focus(traces[-1], layer=layers[0] if layers else None, head=heads[0] if heads else None)
    assert best is not None
    evolution = Evolution(traces, list(labels), best.layer, best.head, Path(os.path.realpath(run)).name)
    if suffix == ".gif":
        drawn, notes = moving_picture(evolution, look)
    else:
        figure, notes = draw_strip(evolution, look)
        drawn = pictures.figure_bytes(figure, suffix[1:])
    write_whole(output, drawn)
    arguments.say_notes(notes)


def _readable_scale(look: Look, seen: HeatmapGrid) -> Look:
    """The look with colours on a logarithmic scale, where a few cells hold most of the weight."""
    if look.vmin is not None or not is_drowned(seen):
        return look
    arguments.say_notes(
        ("a few cells hold most of the weight: colours are on a logarithmic scale, --no-log makes it linear",)
    )
    return replace(look, log=True)


def _cells_of(given: Prepared, zoom: Zoom, room: int | None) -> Overview:
    """The cells of what was prepared, read in one way whatever it comes from."""
    arguments.say_cost(cost_of_heads(given.source, given.head_count))
    with cost_progress(heads_over_tokens(len(given.source.tokens), given.head_count)) as tick:
        found = read_cells(given, zoom, room, tick)
    every = found.model.kind in ("checkpoint", "matrix")
    arguments.say_unknown(found.tokens, found.key_axis, notes=found.notes, every=every)
    return found


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
    from attnctl.render.figure.heatmap import colour_map

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
