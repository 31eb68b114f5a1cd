"""A source with its chosen layers, heads and rows, and its changes; and how a reading reads it."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic

import numpy as np

from attnctl.checks import limits
from attnctl.checks.selection import chosen_indices
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.readings.questions.positions import TEXT, Positions, PositionsReading
from attnctl.readings.trace_reading import TraceReading
from attnctl.source.model import Model
from attnctl.source.reading import KeptReading, Reading, Result, Say, lagging
from attnctl.source.sources import OverviewSource, Source, TextSource
from attnctl.text import counted, number_list, visible_text
from attnctl.text.tokens import Token, dropped_letters
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import Note
from attnctl.trace.run import Run, StopForward

if TYPE_CHECKING:
    from attnctl.blockwise import Tick
    from attnctl.measures import Measure
    from attnctl.readings.overview import LongRow, Overview
    from attnctl.runtime.one_behind import OneBehind


NARROWER = "choose layers, heads and queries"
WINDOWED = 0.2  # time of a layer with a window, relative to a layer whose queries see all keys
BEHIND = 0.17  # time of what a reading computes after its pass over a layer's keys, relative to a pass over all keys
NOTED_BYTES = 1e9  # size of a trace from which a note says the size in advance


@dataclass(frozen=True)
class Prepared:
    """What to read from a source: some layers, heads and queries (None: all), and the changes to each layer."""

    source: Source
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    rows: Sequence[int] | None = None
    model: Model | None = None  # runs a text; None for stored numbers
    values_measure: Measure | None = None  # replaces the weights, layer by layer
    renormalise: bool = False  # rescale each row among the remaining keys
    left_out: tuple[int, ...] = ()  # positions of keys
    kept_keys: tuple[int, ...] | None = None  # positions of the remaining keys; None: all
    say: Say | None = None

    @property
    def changes_layers(self) -> bool:
        """Return whether `changed` changes a layer."""
        return self.values_measure is not None or self.renormalise or self.kept_keys is not None

    @property
    def overview(self) -> Overview | LongRow | None:
        """Return the content of an overview's file; None if layers are read."""
        return None if self.changes_layers or not isinstance(self.source, OverviewSource) else self.source.overview

    @property
    def measure(self) -> str | None:
        """Return the name of the measure in place of the weights; None for the weights."""
        return self.source.measure if self.values_measure is None else self.values_measure.name

    @property
    def key_tokens(self) -> tuple[Token, ...]:
        """Return the tokens of the remaining keys."""
        keys = self.source.key_tokens
        return keys if self.kept_keys is None else tuple(keys[place] for place in self.kept_keys)

    @property
    def key_numbers(self) -> Sequence[int]:
        """Return the number in the text of each remaining key."""
        numbers = self.source.key_numbers
        return numbers if self.kept_keys is None else [numbers[place] for place in self.kept_keys]

    @property
    def change_notes(self) -> tuple[Note, ...]:
        """Return in words which keys were left out, and whether rows were rescaled."""
        return change_notes(self.source.key_tokens, self.left_out, self.renormalise)

    @property
    def head_count(self) -> int:
        """Return the number of heads, over all layers."""
        n_layers, n_heads = self.source.counts
        return len(self.layers or range(n_layers)) * len(self.heads or range(n_heads))

    def changed(self, layer: LayerAttention) -> LayerAttention:
        """Return a layer with its changes."""
        if self.values_measure is not None:
            layer = self.values_measure.function(layer)
        if self.renormalise:
            layer = layer.without_keys(self.left_out)
        return layer if self.kept_keys is None else layer.select_keys(self.kept_keys)

    def read(self, reading: Reading[Result], tick: Tick | None = None) -> Result:
        """Return the reading's value over these layers and heads; `tick` receives each share of the work."""
        source = self.source
        if isinstance(source, OverviewSource) and isinstance(reading, KeptReading) and not self.changes_layers:
            value: Result = reading.kept_in(source.narrowed(self.layers, self.heads), source.name)
            return value
        changed = ChangedReading(self, reading, tick)
        # an overflow becomes an error with a name, not a warning
        with np.errstate(all="ignore"), changed.behind or nullcontext():
            return changed.value(source.run(changed.take, changed.layers))

    def trace(self, predictions: bool = True, instead: str = NARROWER) -> Trace:
        """Return the trace of all this; for a large one, a note says first how much memory it takes.

        Raises AttnctlError, before any work, if it would fill the memory; `instead` is what the user can do.
        """
        n, rows, source = len(self.source.tokens), self.rows, self.source
        if not isinstance(source, OverviewSource):  # an overview has no matrices, and raises an error
            room = check_room(source.info, n, self.layers, self.heads, rows, instead)
            if room > NOTED_BYTES and self.say is not None:
                shape = f"{n if rows is None else len(rows):,} × {n:,}"
                self.say([f"whole matrices, {shape}: they take {room / 1e9:.1f} GB"])
        return self.read(TraceReading(rows, predictions))


class ChangedReading(Generic[Result]):
    """The link between a source and a reading: it changes the chosen layers and heads, and gives them to the reading.

    `take` and `value` belong to one pass through the source; a batch runs several texts in one pass.
    """

    def __init__(self, prepared: Prepared, reading: Reading[Result], tick: Tick | None = None) -> None:
        source = prepared.source
        self.prepared, self.predicts, self._reading, self._tick = prepared, reading.predicts, reading, tick
        every = chosen_indices(prepared.layers, source.counts[0], "layer", source.name)
        self.layers = None if prepared.layers is None else every
        self._layers = set(every)
        heads = prepared.heads
        self._heads = None if heads is None else chosen_indices(heads, source.counts[1], "head", source.name)
        self._last = None if self.predicts else max(self._layers, default=None)
        self._layers_read: set[int] = set()
        self.behind: OneBehind[tuple[LayerAttention, int]] | None = None
        self._lagging = lagging(reading) if prepared.values_measure is None else None
        # the shell's runner stores layers, which other questions read
        if self._lagging is not None and isinstance(source, TextSource) and source.runner is None:
            from attnctl.runtime.one_behind import OneBehind

            self.behind = OneBehind(self._read_layer)
        self._reported = 0.0  # the share of the work that `tick` has received
        self._knows_w_o = True

    def take(self, layer: LayerAttention) -> None:
        """Give a chosen layer to the reading. Raises StopForward after the last one, unless predictions are needed.

        Where the model computes layers with torch's threads, a reading that may lag reads a layer while the model computes
        the next. Raises AttnctlError if the keys have no tokens.
        """
        source = self.prepared.source
        self._layers_read.add(layer.layer)
        if isinstance(source, TextSource) and layer.n_k != len(source.key_tokens):
            raise AttnctlError(
                f"layer {layer.layer} of {source.name} has {layer.n_k} keys for {len(source.key_tokens)} tokens: "
                "they do not match one to one"
            )
        if layer.layer in self._layers or self.layers is None:
            # layers may have different numbers of heads
            part = layer if self._heads is None else layer.select_heads(self._heads)
            remaining = len(self._layers - self._layers_read)  # layers that see every key
            if self.behind is not None and isinstance(part, ComputedLayer) and self._may_lag(part):
                self.behind.take((part.to_lag(), remaining))
            else:
                self._wait()  # layers are read in order
                self._read_layer((part, remaining))
        if layer.layer == self._last:
            raise StopForward

    def _may_lag(self, layer: ComputedLayer) -> bool:
        """Return whether a second thread may read a layer, and torch has a thread for it."""
        may_lag = self._lagging is not None and self._lagging.may_lag(layer) and layer.can_lag
        return may_lag and self.behind is not None and self.behind.helps

    def _read_layer(self, item: tuple[LayerAttention, int]) -> None:
        """Give a layer to the reading; `tick` receives its share of the work, however often the reading goes over it.

        The number beside it is how many layers follow.
        """
        layer, remaining = item
        info = self.prepared.source.info
        near = not info.nature.is_network and info.window is None and layer.window is not None  # others see every key
        sweep = WINDOWED if near else 1.0
        cost = sweep + BEHIND
        end = self._reported + (1 - self._reported) * cost / (cost + remaining * (1 + BEHIND))
        swept = self._reported + (end - self._reported) * sweep / cost

        def report(share: float, end: float = swept) -> None:
            if self.behind is not None:
                self.behind.check()
            more = min(share * (end - start), end - self._reported)
            self._reported += more
            if self._tick is not None:
                self._tick(more)

        start = self._reported
        self._knows_w_o = self._knows_w_o and (self.prepared.values_measure is None or layer.output_matrix is not None)
        layer.tick = report
        self._reading.take(self.prepared.changed(layer))
        layer.tick = None  # the layer may be stored
        report(1.0, end)

    def _wait(self) -> None:
        """Wait until no layer is read in a second thread. Raises what the reading has raised there."""
        if self.behind is not None:
            self.behind.wait()

    def value(self, run: Run) -> Result:
        """Return the reading's value. Raises UsageError for a chosen layer that has no attention."""
        self._wait()
        source = self.prepared.source
        if isinstance(source, TextSource) and source.info.nature.is_network and source.subject.reads_itself:
            run = replace(run, positions=partial(positions_of, source.model, self.layers))
        for layer in sorted(self._layers - self._layers_read) if self.layers is not None else ():
            attending = number_list(sorted(self._layers_read))
            raise UsageError(f"layer {layer} of {source.name} has no attention: it is in {attending}")
        return self._reading.value(self._changed_run(run))

    def _changed_run(self, run: Run) -> Run:
        """Return the run about the text as it was read, with the changes to the weights and notes on them."""
        prepared, source, subject = self.prepared, self.prepared.source, run.subject
        measure, notes, embeddings = prepared.values_measure, list[str](), run.embeddings
        # a checkpoint's reader knows its tokenizer, and the name of a picture is no text
        has_picture = any(token.box is not None for token in subject.key_axis)
        if isinstance(source, TextSource) and not subject.model.nature.is_network and not has_picture:
            keys = source.subject.key_axis
            # the queries are the last tokens of a text, as with a cache
            whole = keys is source.tokens or set(source.tokens) <= set(keys)
            tokens = keys if whole else source.tokens
            if any(token.id is not None or token.start is not None for token in tokens):  # no tokenizer gave numbers
                notes += (Note(sentence, "input") for sentence in dropped_letters(source.text, tokens))
        if measure is not None:
            notes.append(measure.note if self._knows_w_o else measure.note_without_w_o or measure.note)
        if prepared.change_notes:
            notes += (Note(f"{change[0].upper()}{change[1:]}.", change.kind) for change in prepared.change_notes)
            embeddings = None  # only weights remain
        if not notes and prepared.kept_keys is None and subject.text == source.text:
            return run
        changed = replace(
            subject,
            text=source.text,
            key_tokens=subject.key_tokens if prepared.kept_keys is None else prepared.key_tokens,
            measure=subject.measure if measure is None else measure.name,
            notes=(*subject.notes, *notes),
        )
        return replace(run, subject=changed, embeddings=embeddings)


def record_trace(
    model: Model,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    predictions: bool = True,
) -> Trace:
    """Return the trace of `text`, for some layers, heads and query rows (None: all).

    Without `predictions` the model stops after the last chosen layer. Raises AttnctlError for an empty text, UsageError
    for a selection that does not exist.
    """
    return Prepared(TextSource(model, text), layers, heads, rows).trace(predictions)


# by the id of a model, as long as the model lives; then by the layers, None for all
_positions: dict[int, dict[tuple[int, ...] | None, Positions | None]] = {}


def positions_of(model: Model, layers: Sequence[int] | None = None) -> Positions | None:
    """Return what the position explains of a checkpoint's weights: it reads a text of attnctl's own, once for each model.

    The model runs up to the last of the `layers` (None: all). Return None if it cannot read that text.
    """
    key = id(model)
    if key not in _positions:
        _positions[key] = {}
        weakref.finalize(model, _positions.pop, key, None)
    known, chosen = _positions[key], None if layers is None else tuple(layers)
    if None in known:
        return known[None]
    if chosen not in known:
        known[chosen] = None
        with suppress(AttnctlError):
            known[chosen] = Prepared(TextSource(model, TEXT), chosen).read(PositionsReading())
    return known[chosen]


def check_room(
    info: ModelInfo,
    n: int,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None,
    instead: str = NARROWER,
) -> int:
    """Return how many bytes the scores, scaled scores and weights of a trace are.

    Raises AttnctlError, before any work, if they would fill the memory; `instead` is what the user can do.
    """
    sizes = (layers, info.n_layers or 1), (heads, info.n_heads or 1), (rows, n)
    n_layers, n_heads, queries = (count if chosen is None else len(chosen) for chosen, count in sizes)
    size = 3 * 4 * n_layers * n_heads * queries * n
    if size > limits.TRACE_BYTES:
        raise AttnctlError(
            f"every step of {counted(n_layers, 'layer')} × {counted(n_heads, 'head')}, {queries:,} × {n:,} each, takes "
            f"{size / 1e9:.0f} GB: {instead}"
        )
    limits.check_memory(1.2 * size, f"every step of {n:,} tokens", instead)
    return size


def change_notes(keys: Sequence[Token], out: Sequence[int], renormalise: bool) -> tuple[Note, ...]:
    """Return the changes to the weights in words: the same in every picture, page and table."""
    notes = []
    if out:
        names = [f"“{visible_text(keys[j].text)}” ({j})" for j in out[:4]]
        more = f" and {len(out) - 4} more" if len(out) > 4 else ""
        notes.append(Note(f"{'key' if len(out) == 1 else 'keys'} {', '.join(names)}{more} left out", "left-out"))
    if renormalise:
        notes.append(Note("rows rescaled to sum to 1", "rescaled"))
    return tuple(notes)
