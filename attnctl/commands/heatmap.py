"""`attnctl heatmap`: the attention weights as a picture, or as a grid in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from typer import Context, Option

from attnctl.cli import (
    CHANGED,
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    NUMBERS,
    PICTURE,
    TEXT_WORDS,
    FileOption,
    KeyTokensOption,
    LayerOption,
    SourceArgument,
    SpansOption,
    TokensOption,
    WeightOptions,
    WeightsModelOptions,
    check_table,
    command,
    completing,
    cost_progress,
    heads_over_tokens,
    import_drawing,
    open_source,
    output_option,
    print_lines,
    refuse_unused,
    safe_console,
    say_note,
    say_notes,
    say_unknown,
    write_drawing,
    write_panels,
    write_table,
)
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.formats import CMAP, FIGURE_ALONE, Look, picture_format, suffixes_listed
from attnctl.runtime.files import check_writable, names_picture

if TYPE_CHECKING:
    from attnctl.readings import HeatmapGrid, LongRow, Overview
    from attnctl.source import Changes, Prepared, Source, Zoom
    from attnctl.trace import Headline, Trace

    Colour = Callable[[float], tuple[int, int, int]]
    Opener = Callable[[], Source]

TABLES = ("csv", "parquet")
NUMBERS_ALONE = ("pipe", "json", *TABLES)  # forms without colours
TELLING = "telling"  # value of --head: the head of the headline
LABELS = 20  # terminal columns for the names of the queries
NAMES, ZOOM = ("tokens", "key_tokens"), ("rows", "columns", "pool", "spans")


class Chosen(NamedTuple):
    """The choice of weights to draw: changes, layers and heads."""

    changes: Changes
    layer: str | None
    head: str | None


@command(
    example='attnctl heatmap "Alice will eat pizza" --head 3 -o grid.png',
    more=(CHANGED, PICTURE, NUMBERS, MATHEMATICS, MADE, CHECKPOINT),
)
def heatmap_command(
    context: Context,
    source: SourceArgument = None,
    *,
    layer: LayerOption = None,
    head: Annotated[
        str | None,
        Option(
            "--head",
            help="Heads: 3, 0-5, 1,4,7, -1, all, or telling (the most telling one) [default: all].",
            metavar="HEADS",
            autocompletion=completing("all", TELLING),
            rich_help_panel=LOOK,
        ),
    ] = None,
    query: Annotated[
        str | None,
        Option(
            "--query",
            "-q",
            help="Show only this query, or neighbours: eat, 2-4. Of a photograph: a pixel (120,80), an index or a name; "
            "several, or each, for a panel a word or object [default: CLS, or the last; each of a detector or a caption].",
            metavar="TOKEN",
            autocompletion=completing(TEXT_WORDS, joined=True),
            rich_help_panel=LOOK,
        ),
    ] = None,
    rows: Annotated[
        str | None,
        Option("--rows", help="Show only these queries: 0-99 (both included).", metavar="TOKENS", rich_help_panel=LOOK),
    ] = None,
    columns: Annotated[
        str | None,
        Option("--columns", help="Show only these keys: 0-99 (both included).", metavar="TOKENS", rich_help_panel=LOOK),
    ] = None,
    pool: Annotated[
        Literal["mean", "max"] | None,
        Option(
            "--pool", help="How the cells of a long text are pooled: mean or max [default: mean].", rich_help_panel=LOOK
        ),
    ] = None,
    spans: SpansOption = None,
    weights: WeightOptions,
    look: Look,
    file: FileOption = None,
    tokens: TokensOption = None,
    key_tokens: KeyTokensOption = None,
    model: WeightsModelOptions,
    output: Annotated[
        str | None,
        output_option(f"Where to write: {suffixes_listed()}; .json, .csv or .parquet for the numbers."),
    ] = None,
) -> None:
    """Draw the attention weights of one head, or of every layer and head: a row for each query, a column for each key.

    Without -o, the grid is drawn in the terminal; in a pipe, its numbers are written tab-separated, with an apostrophe
    before a token that a spreadsheet would read as a formula. A text of more than 512 tokens is pooled to a grid of cells;
    --rows and --columns zoom in. For a photograph (photo.jpg, and a vision model), or --image and a prompt about it, the
    weights of one query are drawn over the picture, a panel for each head. Of a detector each object that it found has a
    panel, of a captioner each word: the mean of the chosen heads.
    """
    from attnctl.source import Changes, Zoom

    form = _output_form(output)
    photograph = model.image or (source if source is not None and names_picture(source) else None)
    _refuse_unused(context, form, photograph is not None)
    opener = partial(open_source, context, source, file, model, tokens=tokens, key_tokens=key_tokens)
    chosen = Chosen(Changes(weights.measure, weights.words, weights.renormalise, weights.drop), layer, head)
    path = str(output)
    if photograph is not None:
        if form == "terminal":
            _show_photograph(opener, photograph, chosen, query, look)
        elif form in NUMBERS_ALONE:
            _write_patches(opener, chosen, query, form, path)
        else:
            _draw_photograph(opener, photograph, chosen, query, look, form, path)
        return
    zoom = Zoom(rows, columns, pool, spans, query)
    if form == "terminal":
        _show_grid(opener, chosen, zoom, look)
    elif form == "pipe":
        _print_numbers(opener, chosen, zoom)
    elif form == "json":
        _write_cells(opener, chosen, zoom, path)
    elif form in TABLES:
        _write_weights(opener, chosen, zoom, form, path)
    else:
        _draw_grid(opener, chosen, zoom, look, form, path)


def _refuse_unused(context: Context, form: str, photograph: bool) -> None:
    """Refuse the options that have no effect on this form of a text's or a photograph's weights."""
    if photograph:
        refuse_unused(context, *NAMES, *ZOOM, "words", "values", because="a photograph is shown")
    if form in NUMBERS_ALONE:
        refuse_unused(context, Look, because="numbers are written, without colours")
    if form == "terminal":
        of_pictures = ("title", "log", *FIGURE_ALONE) if photograph else FIGURE_ALONE
        refuse_unused(context, *of_pictures, because="use it with a picture (-o grid.png)")
    elif photograph:
        refuse_unused(context, "size", "font_size", because="a photograph and its letters have a size of their own")
    if form == "json" and not photograph:
        refuse_unused(context, "drop", because="JSON numbers every key: leave it out when the file is read")


# --- a photograph ---


def _show_photograph(opener: Opener, photograph: str, chosen: Chosen, query: str | None, look: Look) -> None:
    """Show on a terminal where queries look in a photograph."""
    from attnctl.formats import read_photograph
    from attnctl.render import PhotographBlocks

    colour = _colour_function(look.cmap)
    value = _value_of_photograph(opener, chosen, query)
    safe_console().print(PhotographBlocks(value, read_photograph(photograph), colour))


def _draw_photograph(
    opener: Opener, photograph: str, chosen: Chosen, query: str | None, look: Look, form: str, output: str
) -> None:
    """Draw the weights of queries over a photograph."""
    from attnctl.formats import read_photograph
    from attnctl.render import colour_map, draw_over_photograph

    colour_map(look.cmap)  # refuses an unknown name before long work
    value = _value_of_photograph(opener, chosen, query)
    write_drawing(draw_over_photograph(value, read_photograph(photograph), look), form, output)


def _write_patches(opener: Opener, chosen: Chosen, query: str | None, form: str, output: str) -> None:
    """Write the weight of each patch of a photograph: as JSON or a table into a file, or as lines for a pipe."""
    from attnctl.formats import save_value, weight_blocks
    from attnctl.render import patches_tab_separated

    value = _value_of_photograph(opener, chosen, query)
    if form in TABLES:
        write_table(weight_blocks(value), form, output)
    elif form == "json":
        save_value(value, output)
    else:
        print_lines(patches_tab_separated(value).rstrip("\n"))


def _value_of_photograph(opener: Opener, chosen: Chosen, query: str | None) -> LongRow | Overview:
    """Return the weights of one query, or of several as a grid; the last layer unless the user names others."""
    from attnctl.readings import queries_of_picture
    from attnctl.source import prepare, query_row, query_rows

    if chosen.head == TELLING:
        raise UsageError("a photograph has no headline: name a head", option="head", value=TELLING)
    opened = opener()
    if not any(token.is_patch for token in opened.key_tokens):
        instead = option_name("attention", "cross")
        raise UsageError(f"shows where words look at words, not at the picture: see {instead}", option="attention")
    n_new = getattr(getattr(opened, "model", None), "generate", 0) if opened.info.causal else 0
    numbers, each = queries_of_picture(opened.tokens, opened.text, query, bool(opened.info.causal), n_new)
    if chosen.layer is None and chosen.changes.measure in (None, "weights") and opened.counts[0] > 1:
        chosen = chosen._replace(layer=str(opened.counts[0] - 1))
        say_note(f"shown is layer {chosen.layer}, the last one (--layer names others)")
    prepared = prepare(opened, *chosen, say=say_notes)
    value = query_rows(prepared, numbers) if each else query_row(prepared, numbers[0])
    say_unknown(notes=value.notes)
    return value


# --- a grid of weights ---


def _show_grid(opener: Opener, chosen: Chosen, zoom: Zoom, look: Look) -> None:
    """Show the grid on a terminal."""
    from attnctl.render import HeatmapBlocks

    colour, page = _colour_function(look.cmap), safe_console()
    opened = opener()
    grid = _read_grid(opened, chosen, zoom, max(16, page.width - LABELS))
    log = _needs_log(opened, grid) if look.log is None else look.log
    page.print(HeatmapBlocks(grid, title=look.title, values=look.values, log=log, colour=colour))


def _print_numbers(opener: Opener, chosen: Chosen, zoom: Zoom) -> None:
    """Print the numbers of the grid for a pipe."""
    from attnctl.render import tab_separated

    print_lines(tab_separated(_read_grid(opener(), chosen, zoom, bare=True)).rstrip("\n"))


def _write_cells(opener: Opener, chosen: Chosen, zoom: Zoom, output: str) -> None:
    """Write the cells as JSON."""
    from attnctl.formats import save_value

    prepared, _ = _prepare(opener(), chosen)
    save_value(_read_cells(prepared, zoom), output)


def _write_weights(opener: Opener, chosen: Chosen, zoom: Zoom, form: str, output: str) -> None:
    """Write a table with a row for each weight; cells are pooled only if the user asked for it."""
    from attnctl.formats import weight_blocks

    prepared, _ = _prepare(opener(), chosen)
    cells = _read_cells(prepared, zoom, each_token=zoom.pool is None, table=form)
    write_table(weight_blocks(cells, prepared.key_numbers), form, output)


def _draw_grid(opener: Opener, chosen: Chosen, zoom: Zoom, look: Look, form: str, output: str) -> None:
    """Draw the grid as a picture."""
    _colour_function(look.cmap)  # refuses an unknown name before long work
    opened = opener()
    import_drawing()
    grid = _read_grid(opened, chosen, zoom)
    if look.log is None and look.vmin is None and _needs_log(opened, grid):
        look = replace(look, log=True)
    from attnctl.render import panels_of_grid

    write_panels(panels_of_grid(grid, look), form, output, look)


def _read_grid(
    opened: Source, chosen: Chosen, zoom: Zoom, room: int | None = None, *, bare: bool = False
) -> HeatmapGrid:
    """Return the grid of weights, with the headline if the user asked for its head."""
    from attnctl.readings import with_headline
    from attnctl.source import labelled_cells

    prepared, line = _prepare(opened, chosen)
    grid = labelled_cells(prepared, _read_cells(prepared, zoom, room, bare=bare))
    return grid if line is None else with_headline(grid, *line)


def _prepare(opened: Source, chosen: Chosen) -> tuple[Prepared, tuple[Trace, Headline] | None]:
    """Return the source with the choice applied; and the trace with its headline, for --head telling."""
    from attnctl.source import prepare

    line = None
    if chosen.head == TELLING:
        chosen, line = _telling_head(opened, chosen)
    return prepare(opened, *chosen, say=say_notes), line


def _read_cells(
    prepared: Prepared,
    zoom: Zoom,
    room: int | None = None,
    *,
    bare: bool = False,
    each_token: bool = False,
    table: str = "",
) -> Overview:
    """Return the cells of a prepared source; with `each_token` none is pooled.

    `bare` output shows no notes, so that all of them go to stderr. A note says the size of a large `table` (csv, parquet).
    """
    from attnctl.cli import LESS_HEADS, check_memory_of_heads, notes_on_table
    from attnctl.readings import OverviewReading
    from attnctl.source import cells_to_read, zoom_on_sound

    grid = cells_to_read(prepared, zoom, room, each_token=each_token)
    check_memory_of_heads(prepared.source)
    if table:
        say_notes(notes_on_table(table, prepared, grid))
    with cost_progress(heads_over_tokens(prepared), LESS_HEADS) as tick:
        cells: Overview = prepared.read(OverviewReading(grid), tick)
    every = bare or not cells.model.nature.is_built_in
    say_unknown(cells.tokens, cells.key_axis, notes=cells.notes, every=every)
    if options := zoom_on_sound(prepared, zoom):
        say_note(
            f"{' '.join(options)} {'show' if len(options) > 1 else 'shows'} the sound without the silence behind it"
        )
    return cells


def _needs_log(opened: Source, grid: HeatmapGrid) -> bool:
    """Return whether a few cells of a long text hold most of the weight; print a note if so."""
    from attnctl.readings import is_drowned
    from attnctl.source import is_long

    if not (is_long(opened) and is_drowned(grid)):
        return False
    say_note("a few cells hold most of the weight: colours are on a logarithmic scale, --no-log makes it linear")
    return True


# --- shared by the branches ---


def _telling_head(opened: Source, chosen: Chosen) -> tuple[Chosen, tuple[Trace, Headline]]:
    """Return the choice narrowed to the layer and head of the headline; and the trace with its headline.

    Raises UsageError for a long text, AttnctlError for a source without weights.
    """
    from attnctl.measures import joins_heads
    from attnctl.readings import headline
    from attnctl.source import OverviewSource, is_long, prepare

    if is_long(opened) or isinstance(opened, OverviewSource):
        raise UsageError(
            "it needs every weight, and a long text is pooled: name a head, or shorten the text",
            option="head",
            value=TELLING,
        )
    trace = prepare(opened, chosen.changes, chosen.layer, say=say_notes).trace(predictions=False)
    line = headline(trace)
    if line is None:
        raise AttnctlError(f"{opened.name} holds no weights to choose by", option="head", value=TELLING)
    head = None if joins_heads(trace.measure) else str(line.head)
    return chosen._replace(layer=str(line.layer), head=head), (trace, line)


def _colour_function(cmap: str) -> Colour | None:
    """Return the colours of a map for a terminal; None for the default map. Raises UsageError for an unknown name."""
    if cmap == CMAP:
        return None
    from attnctl.render import colour_function

    return colour_function(cmap)


def _output_form(output: str | None) -> str:
    """Return the form of the output: png, svg, pdf, json, csv or parquet of a file; without one terminal or pipe.

    Raises UsageError, before any work, for a name with another suffix.
    """
    if output is None:
        return "terminal" if safe_console().is_terminal else "pipe"
    suffix = Path(output).suffix.lower()[1:]
    form = suffix if suffix in ("json", *TABLES) else picture_format(output, "figure")
    if form is None:
        if picture_format(output, "page") is not None:
            raise UsageError(f"-o {output}: a page to explore is written by attnctl view")
        raise UsageError(
            f"-o {output}: a picture is written as {suffixes_listed()}, the numbers as .json, .csv or .parquet (for every "
            "step see attnctl explain --json, for a page attnctl view)"
        )
    check_writable(output)
    check_table(output)
    return form
