"""What is changed of a source (heads off, measure, words, rows rescaled, keys dropped), and its cells looked at.

The order: another measure in place of the weights, pieces merged into words, rows rescaled among the keys that are not left
out, keys left out. `prepare` makes them; commands, batches and Python's functions all ask it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from attnctl.argument_types import chosen_indices, parse_selection, token_range
from attnctl.blockwise import even_parts
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerAttention, NarrowedLayer, Run
from attnctl.readings.heatmap import (
    GridReading,
    HeatmapGrid,
    OverviewReading,
    keys_left_out,
    of_overview,
    weights_notes,
)
from attnctl.readings.measures import attention_rollout, by_words, check_measure, value_norm, value_norm_note
from attnctl.readings.overview import Overview, TextPart, part_snippet
from attnctl.readings.spans import parts_of
from attnctl.readings.traces.trace import Note, Trace, TraceReading, own_numbers
from attnctl.source import OverviewSource, Reading, Result, Source, TraceSource, check_room, room_of_trace
from attnctl.tokens import Token, find_several

if TYPE_CHECKING:
    from attnctl.blockwise import Tick


LONG = 512  # tokens, beyond which a text has an overview instead of every weight
SIZE = 256  # cells a side of an overview
MANY = 4  # heads, beyond which each is drawn small


class Zoom(NamedTuple):
    """Which part of a text is looked at, and how."""

    rows: str | None = None
    columns: str | None = None
    pool: str | None = None
    spans: str | None = None


EVERY_CELL = Zoom()


def is_long(source: Source) -> bool:
    """Whether a text has cells instead of every weight."""
    return max(len(source.tokens), len(source.key_tokens)) > LONG


def read_cells(given: Prepared, zoom: Zoom = EVERY_CELL, room: int | None = None, tick: Tick | None = None) -> Overview:
    """The cells of what was prepared, at most `room` a side."""
    return given.read(OverviewReading(grid_of(given, zoom, room)), tick)


def heatmap_grid(given: Prepared, cells: Overview) -> HeatmapGrid:
    """The cells of what was prepared, as they are shown."""
    return of_overview(cells, given.done, given.source.measure, given.key_numbers)


def read_heatmap(
    trace: Trace,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    drop: Sequence[str] = (),
    renormalise: bool = False,
) -> HeatmapGrid:
    """The weights of a trace for the layers and heads asked for (None: all that it holds), every one.

    Raises AttnctlError where the trace has no such layer, head or weights, UsageError where a key to drop is not there.
    """
    if not trace.layers:
        raise AttnctlError("this trace holds no layers, so there are no weights to show")
    for part in trace.layers if layers is None else map(trace.layer, layers):
        for head in heads or ():
            part.position_of(head)
    given = prepare(TraceSource(trace), Changes(drop=drop, renormalise=renormalise), layers, heads)
    grid = OverviewReading(_single_tokens(given.source))
    return replace(heatmap_grid(given, given.read(grid)), cited=trace.cited)


def grid_of(given: Prepared, zoom: Zoom = EVERY_CELL, room: int | None = None) -> GridReading:
    """The cells of a grid: at most `room` a side. Raises UsageError for a zoom that is not there."""
    source, heads = given.source, given.head_count
    if zoom.pool not in (None, "mean", "max"):
        raise UsageError(f"--pool {zoom.pool}: it is mean or max")
    if zoom.spans is not None and zoom[:3] != (None, None, None):
        raise UsageError("--spans goes without --rows, --columns and --pool: its cells are the parts' shares")
    if isinstance(source, OverviewSource):
        return _kept_grid(source, zoom)
    if zoom == EVERY_CELL and not is_long(source):
        return _single_tokens(source)
    if zoom.spans is not None:
        if source.key_tokens != source.tokens and own_numbers(source.tokens, source.key_tokens) is None:
            raise UsageError("--spans are parts of one text, and here queries and keys are of two")
        rows, columns = (parts_of(zoom.spans, source.text, axis) for axis in (source.tokens, source.key_tokens))
        return GridReading(rows, columns, "mass")
    size = SIZE if heads <= MANY else SIZE // 4
    if room is not None:
        size = min(room, size) if heads <= MANY else 32
    name = 18 if heads == 1 or room is not None else 13  # characters, as many as a picture writes
    rows = zoom_cells(source.tokens, range(len(source.tokens)), zoom.rows, "--rows", size, source.text, name)
    columns = zoom_cells(source.key_tokens, given.key_numbers, zoom.columns, "--columns", size, source.text, name)
    if not columns:
        raise UsageError("dropping every key leaves nothing to show")
    return GridReading(rows, columns, zoom.pool or "mean")


def _single_tokens(source: Source) -> GridReading:
    """A cell for each query that is there and each key."""
    held = range(len(source.tokens)) if source.held_rows is None else source.held_rows
    return GridReading(
        _single_parts(source.tokens, held), _single_parts(source.key_tokens, range(len(source.key_tokens)))
    )


def _single_parts(tokens: Sequence[Token], indices: Iterable[int]) -> tuple[TextPart, ...]:
    """Each of these tokens as a part, by its own name."""
    return tuple(TextPart(tokens[at].text, ((at, at + 1),)) for at in indices)


def _kept_grid(source: OverviewSource, zoom: Zoom) -> GridReading:
    """The cells that an overview holds, those within --rows and --columns."""
    grid = source.overview.grid if isinstance(source.overview, Overview) else None
    if grid is None:
        raise AttnctlError(f"{source.name} holds no grid of weights: give the text and its model")
    if zoom.spans is not None:
        raise UsageError(f"--spans does not go with {source.name}: its cells are pooled already")
    kept = []
    for parts, tokens, spec, option in (
        (grid.rows, source.tokens, zoom.rows, "--rows"),
        (grid.columns, source.key_tokens, zoom.columns, "--columns"),
    ):
        first, last = token_range(spec, len(tokens), option)
        kept.append([part for part in parts if first <= part.first_token and part.ranges[-1][1] <= last])
    if not all(kept):
        raise UsageError(f"no whole cell of {source.name} lies in --rows and --columns")
    return GridReading(kept[0], kept[1], zoom.pool or grid.pool)


def zoom_cells(
    tokens: Sequence[Token], numbers: Sequence[int], spec: str | None, option: str, size: int, text: str, name: int = 18
) -> tuple[TextPart, ...]:
    """The tokens that --rows or --columns names in at most `size` even cells, each named by where and how it begins.

    `numbers` are those of the tokens in the text, by which they are named and divided.
    """
    first, last = token_range(spec, numbers[-1] + 1, option)
    found = []
    for ((a, b),) in even_parts(first, last, size):
        a, b = bisect_left(numbers, a), bisect_left(numbers, b)
        if a < b:  # tokens of no text are named by their numbers
            named = part_snippet(tokens, a, b, text, name, numbers[a]) if text else str(numbers[a])
            found.append(TextPart(named, ((a, b),)))
    return tuple(found)


TOLD_BYTES = 1e9  # of a trace, from which its size is said before it is made
NARROWER = "choose with --layer, --head and --query"
SHORTER = "leave it out, or take a shorter text"

Selection = str | int | Sequence[int] | None  # as on the command line, or indices; None and "all": all that there is
Say = Callable[[Sequence[str]], None]  # hears notes for the user before long work


class Changes(NamedTuple):
    """The options of these names."""

    measure: str | None = None
    words: bool = False
    renormalise: bool = False
    drop: Sequence[str] | None = None


NO_CHANGES = Changes()


class ChangedReading(Generic[Result]):
    """A reading of layers that are changed before it takes them, each by itself, and of what was told of them."""

    def __init__(self, reading: Reading[Result], source: ChangedSource) -> None:
        self.predicts, self._reading, self._source = reading.predicts, reading, source

    def take(self, layer: LayerAttention) -> None:
        """Hand on the changed layer."""
        self._reading.take(self._source.change(layer))

    def value(self, run: Run) -> Result:
        """What the reading made of it."""
        source = self._source
        run.measure, run.notes = source.measure, (*run.notes, *source.notes())
        if source.kept is not None:
            keys = run.tokens if run.key_tokens is None else run.key_tokens
            run.key_tokens = tuple(keys[at] for at in source.kept)
        if source.holds_weights_alone:
            run.embeddings = None
        return self._reading.value(run)


class ChangedSource:
    """Another source whose layers are changed, each by itself, before a reading takes them.

    `notes` are asked for when all layers have gone by: what a reader must know of the change, in sentences. `kept` are the
    keys that the changed layers have, where some are left out.
    """

    def __init__(
        self,
        source: Source,
        change: Callable[[LayerAttention], LayerAttention],
        measure: str | None = None,
        notes: Callable[[], tuple[str, ...]] = tuple,
        kept: Sequence[int] | None = None,
    ) -> None:
        self.source, self.change, self.notes, self.kept = source, change, notes, kept
        self.holds_weights_alone = measure is None
        self.measure = source.measure if measure is None else measure
        self.name, self.text, self.tokens, self.info = source.name, source.text, source.tokens, source.info
        self.held_rows, self.counts = source.held_rows, source.counts

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """The tokens of the key axis."""
        keys = self.source.key_tokens
        return keys if self.kept is None else tuple(keys[at] for at in self.kept)

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads of the other source, changed."""
        return self.source.read(ChangedReading(reading, self), layers, heads, tick)


class Prepared(NamedTuple):
    """A source as it was asked for, and the layers, heads and queries of it (None: all that it holds)."""

    source: Source
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    rows: Sequence[int] | None = None
    key_numbers: Sequence[int] = ()  # of each key, in the text
    model: Any = None  # that a text is run through; None of numbers that have been computed already
    left_out: tuple[int, ...] = ()  # keys
    done: tuple[str, ...] = ()  # which keys were left out, and whether rows were rescaled, in words
    say: Say | None = None

    @property
    def head_count(self) -> int:
        """How many heads these are, over all layers."""
        n_layers, n_heads = self.source.counts
        return len(self.layers or range(n_layers)) * len(self.heads or range(n_heads))

    def read(self, reading: Reading[Result], tick: Tick | None = None) -> Result:
        """The reading's value over these layers and heads."""
        return self.source.read(reading, self.layers, self.heads, tick)

    def trace(self, predictions: bool = True, instead: str = NARROWER) -> Trace:
        """The trace of all this; a note says first what a large one takes.

        Raises AttnctlError, before any work, with what to do `instead`, where it would fill the memory.
        """
        n, rows = len(self.source.tokens), self.rows
        check_room(self.source.info, n, self.layers, self.heads, rows, instead)
        room = room_of_trace(self.source.info, n, self.layers, self.heads, rows)
        if room > TOLD_BYTES and self.say is not None:
            shape = f"{n if rows is None else len(rows):,} × {n:,}"
            self.say([f"whole matrices, {shape}: they take {room / 1e9:.1f} GB"])
        return self.read(TraceReading(rows, predictions))


def prepare(
    source: Source,
    changes: Changes = NO_CHANGES,
    layer: Selection = None,
    head: Selection = None,
    query: str | int | None = None,
    *,
    keeps_columns: bool = False,
    say: Say | None = None,
) -> Prepared:
    """The source with the changes that are asked for, and what of it is looked at.

    With `keeps_columns`, as for statistics by position, keys that are left out stay as columns that no row looks at; they
    then need `renormalise`. Raises UsageError for what is not there, and for a change that this source cannot be given.
    """
    model: Any = getattr(source, "model", None)
    layers = selected_indices(layer, source.counts[0], "layer", source.name)
    heads = selected_indices(head, source.counts[1], "head", source.name)
    check_measure(changes.measure, heads is not None)
    if changes.measure not in (None, "weights") and source.measure is not None:
        raise UsageError(f"--measure does not go with {source.name}: it holds a measure, {source.measure}, already")
    if changes.measure == "value-norm":
        source = _by_value_norm(source)
    elif changes.measure == "rollout":  # shown is what has come of all layers, unless some are named
        layers = (source.counts[0] - 1,) if layers is None else layers
        source, heads = _rolled_out(source, max(layers), say), None
    if changes.words:
        whole = Prepared(source, layers, heads, say=say)
        source = TraceSource(by_words(whole.trace(False, f"--words needs them all: {SHORTER}")), source.name)
    rows = None if query is None else find_several(source.tokens, str(query))
    numbers: Sequence[int] = (
        source.trace.key_numbers if isinstance(source, TraceSource) else range(len(source.key_tokens))
    )
    drop = (changes.drop,) if isinstance(changes.drop, str) else changes.drop or ()
    out = keys_left_out(source.key_tokens, drop)
    done = weights_notes(source.key_tokens, out, changes.renormalise)
    if out and keeps_columns and not changes.renormalise:
        raise UsageError("--drop goes with --renormalise here: statistics are of rows that share all their attention")
    if isinstance(source, OverviewSource) and out and not changes.renormalise:
        return Prepared(_without_columns(source, out), layers, heads, rows, numbers, model, out, done, say)
    notes = tuple(Note(f"{what[0].upper()}{what[1:]}.", what.kind) for what in done)
    kept = None if not out or keeps_columns else [at for at in range(len(source.key_tokens)) if at not in out]
    if done:
        rescale, narrow = changes.renormalise, kept

        def change(layer: LayerAttention) -> LayerAttention:
            layer = layer.without_keys(out) if rescale else layer
            return layer if narrow is None else NarrowedLayer.of_layer(layer, narrow)

        source = ChangedSource(source, change, notes=lambda: notes, kept=kept)
    numbers = numbers if kept is None else [numbers[at] for at in kept]
    return Prepared(source, layers, heads, rows, numbers, model, out, done, say)


def selected_indices(wanted: Selection, count: int, what: str, of: str) -> Sequence[int] | None:
    """The indices that are chosen from `count`; None for None and for all. Raises UsageError for one that is not there."""
    if wanted is None or wanted == "all":
        return None
    if isinstance(wanted, str):
        return parse_selection(wanted, count, what, of)
    return chosen_indices((wanted,) if isinstance(wanted, int) else wanted, count, what, of)


def _by_value_norm(source: Source) -> Source:
    projected: list[bool] = []

    def reweight(layer: LayerAttention) -> LayerAttention:
        projected.append(layer.output_matrix is not None)
        return value_norm(layer)

    return ChangedSource(source, reweight, "value-norm", lambda: (value_norm_note(all(projected)),))


def _rolled_out(source: Source, last: int, say: Say | None) -> Source:
    try:
        instead = f"--measure rollout needs them all: {SHORTER}"
        trace = Prepared(source, range(last + 1), say=say).trace(False, instead)
    except UsageError as error:
        raise UsageError(f"--measure rollout follows attention through every layer: {error}") from error
    return TraceSource(attention_rollout(trace), source.name)


def _without_columns(source: OverviewSource, out: Sequence[int]) -> OverviewSource:
    """An overview of cells without some of its keys. Raises UsageError for a key that is pooled with others already."""
    overview = source.overview
    if not isinstance(overview, Overview) or overview.grid is None:
        raise AttnctlError(f"{source.name} holds no grid of weights: give the text and its model")
    grid = overview.grid
    gone = {
        column for column, part in enumerate(grid.columns) for a, b in part.ranges if any(a <= at < b for at in out)
    }
    if any(grid.columns[column].token_count > 1 for column in gone):
        raise UsageError(f"--drop does not go with {source.name}: the key is pooled with others already")
    kept = [column for column in range(len(grid.columns)) if column not in gone]
    narrowed = replace(
        grid,
        columns=tuple(grid.columns[column] for column in kept),
        weights={at: cells[:, kept] for at, cells in grid.weights.items()},
        masks={layer: mask[:, kept] for layer, mask in grid.masks.items()},
    )
    return OverviewSource(replace(overview, grid=narrowed, links={}, head_statistics=()), source.name)
