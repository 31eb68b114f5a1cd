"""A source of attention: a text through a model, a trace, an overview; and the changes to it before it is read.

A source gives its layers to a reading, one after another. `prepare` selects layers and heads, and the changes to each
layer: another measure in place of the weights, pieces merged into words, rows rescaled among the remaining keys, keys
left out. Commands, batches and Python's functions all use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from attnctl.checks import limits
from attnctl.checks.selection import Selection, chosen_indices, find_several, keys_left_out, selected_indices
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer import LayerAttention, LayerTrace
from attnctl.readings.trace_reading import TraceReading
from attnctl.source.model import CanIntervene
from attnctl.source.model import Model as Model
from attnctl.text import counted, number_list, visible_text
from attnctl.text.tokens import Token, checked_text, dropped_letters
from attnctl.trace import Trace, by_words
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Note, Run, StopForward, notes_of_kind

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from attnctl.blockwise import Tick
    from attnctl.measures import Measure
    from attnctl.readings.overview import LongRow, Overview
    from attnctl.runtime.arrays import Floats


NARROWER = "choose layers, heads and queries"
SHORTER = "leave it out, or take a shorter text"
LONG = 512  # tokens; a longer text has an overview instead of every weight
WINDOWED = 0.2  # time of a layer with a window, relative to a layer whose queries see all keys
NOTED_BYTES = 1e9  # size of a trace from which a note says the size in advance

Value = TypeVar("Value", covariant=True)
Result = TypeVar("Result")

Visit = Callable[[LayerAttention], None]  # receives a layer while the model runs, until it raises StopForward
Say = Callable[[Sequence[str]], None]  # receives notes for the user before long work


class Reading(Protocol[Value]):
    """A result computed from a text's attention: `take` receives each chosen layer in order, `value` returns the result.

    `predicts` asks the model to run on after the last chosen layer, for its predictions.
    """

    predicts: bool

    def take(self, layer: LayerAttention) -> None:
        """Keep what the reading needs of one layer."""

    def value(self, run: Run) -> Value:
        """Return the result after the last layer; `run` is what the model gave beside the layers."""


@runtime_checkable
class KeptReading(Protocol[Value]):
    """A reading whose result may be stored in the file of an overview."""

    def kept_in(self, overview: Overview | LongRow, name: str, /) -> Value:
        """Return the result from an overview. Raises AttnctlError, with the source's `name`, if the overview lacks it."""


class Source:
    """A source of attention. `name` is for messages."""

    def __init__(
        self,
        name: str,
        text: str,
        tokens: tuple[Token, ...],
        info: ModelInfo,
        *,
        key_tokens: tuple[Token, ...] | None = None,
        counts: tuple[int, int] | None = None,
    ) -> None:
        self.name, self.text, self.tokens, self.info = name, text, tokens, info
        self.input_text = text  # the input of a model: the first of two texts
        self.key_tokens = tokens if key_tokens is None else key_tokens  # other tokens in cross attention and with slots
        self.counts = counts or (info.n_layers or 1, info.n_heads or 1)  # layers and heads to choose from
        self.measure: str | None = None  # what stands in place of the weights
        self.held_rows: tuple[int, ...] | None = None  # the queries whose weights are known; None: all
        self.key_numbers: Sequence[int] = range(len(self.key_tokens))  # the number of each key in the text

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Give `visit` the layers, at least the chosen ones (None: all); return everything else that the run tells."""
        raise NotImplementedError

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """Return the reading's value over some layers and heads (None: all). `tick` receives each share of the work.

        Raises UsageError for a layer or head that does not exist.
        """
        return Prepared(self, layers, heads).read(reading, tick)


class TextSource(Source):
    """A text through a model, which runs once. `tokens` are the tokens of the text by default."""

    # runs the model in place of `model.run`: a shell stores runs, so that a second question needs no new run
    runner: Callable[[Model, Sequence[Token], Visit, str], Run] | None = None
    # shows the progress of a measure that runs layers again: a label → the receiver of shares
    progress: Callable[[str], AbstractContextManager[Tick | None]] | None = None

    def __init__(self, model: Model, text: str, tokens: Sequence[Token] | None = None) -> None:
        self.model = model = model.model_for(text)
        tokens = model.tokenize(checked_text(text)) if tokens is None else tuple(tokens)
        if not tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        keys, read = model.tokens_of_keys(tokens, text), model.text_as_read(text)
        super().__init__(model.info.name, read, tokens, model.info, key_tokens=keys)
        self.input_text = text

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Run the model; `visit` receives every layer until it raises StopForward."""
        if self.runner is not None:
            return self.runner(self.model, self.tokens, visit, self.input_text)
        return self.model.run(self.tokens, visit, self.input_text)


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


class TraceSource(Source):
    """A trace with its stored layers. `name` is the name of its file, for messages."""

    def __init__(self, trace: Trace, name: str | None = None) -> None:
        self.trace, layers, info = trace, trace.layers, trace.model
        n_layers = max(info.n_layers or 0, *(layer.layer + 1 for layer in layers), 0)
        n_heads = max(info.n_heads or 0, *(head + 1 for layer in layers for head in layer.heads), 0)
        super().__init__(
            info.name if name is None else name,
            trace.text,
            trace.tokens,
            info,
            key_tokens=trace.key_tokens,
            counts=(n_layers, n_heads),  # as far as the trace shows them
        )
        self.measure, self.key_numbers = trace.measure, trace.key_numbers
        self.held_rows = layers[0].rows if layers else None

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Give `visit` the chosen layers. Raises AttnctlError for a layer that was not stored, or if none was."""
        trace = self.trace
        if not trace.layers:
            raise AttnctlError("this trace holds no weights: write it without narrowing its steps")
        for layer in trace.layers if layers is None else [trace.layer(index) for index in layers]:
            with suppress(StopForward):
                visit(replace(layer))
        fields = (trace.predictions, trace.model, trace.notes, trace.text, trace.measure)
        return Run(trace.tokens, trace.embeddings, trace.key_tokens, *fields)


class OverviewSource(Source):
    """An overview, or one query's weights, from a file: a reading gets the stored result, if it is stored."""

    def __init__(self, overview: Overview | LongRow, name: str) -> None:
        self.overview = overview
        super().__init__(name, overview.text, overview.tokens, overview.model, key_tokens=overview.key_axis)

    def run(self, visit: Visit, layers: Sequence[int] | None = None) -> Run:
        """Raise AttnctlError: an overview has no layers."""
        raise AttnctlError(
            f"{self.name} holds an overview of a long text, not its every weight: give the text and its model"
        )

    def narrowed(self, layers: Sequence[int] | None, heads: Sequence[int] | None) -> Overview | LongRow:
        """Return the overview for some layers and heads (None: all)."""
        chosen_layers = chosen_indices(layers, self.counts[0], "layer", self.name)
        chosen_heads = chosen_indices(heads, self.counts[1], "head", self.name)
        return self.overview.narrowed(
            lambda layer, head: (layers is None or layer in chosen_layers) and (heads is None or head in chosen_heads)
        )

    def without_keys(self, out: Sequence[int]) -> OverviewSource:
        """Return the overview without the cells of some keys. Raises AttnctlError if it has no cells."""
        from attnctl.readings.overview import Overview

        if not isinstance(self.overview, Overview) or self.overview.grid is None:
            raise AttnctlError(f"{self.name} holds no grid of weights: give the text and its model")
        return OverviewSource(self.overview.without_keys(out, self.name), self.name)


def is_long(source: Source) -> bool:
    """Return whether a text is shown by cells instead of every weight."""
    return max(len(source.tokens), len(source.key_tokens)) > LONG


def check_attention_weights(source: Source, command: str) -> None:
    """Raise AttnctlError if the numbers of a source are not attention weights, so that `command` cannot use them."""
    for note in notes_of_kind(source.trace.notes, "no-weights") if isinstance(source, TraceSource) else ():
        raise AttnctlError(f"{command} is for attention weights. {source.name}: {note[:1].lower()}{note[1:]}")


# --- selections and changes --------------------------------------------------------------------------------------


class Changes(NamedTuple):
    """The changes to the weights, as the options of these names."""

    measure: str | None = None
    words: bool = False
    renormalise: bool = False
    drop: Sequence[str] | None = None


NO_CHANGES = Changes()


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
        with np.errstate(all="ignore"):  # an overflow becomes an error with a name, not a warning
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
        self._reported = 0.0  # the share of the work that `tick` has received
        self._knows_w_o = True

    def take(self, layer: LayerAttention) -> None:
        """Give a chosen layer to the reading. Raises StopForward after the last one, unless predictions are needed.

        Raises AttnctlError if the keys have no tokens.
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
            self._give_layer(part)
        if layer.layer == self._last:
            raise StopForward

    def _give_layer(self, layer: LayerAttention) -> None:
        """Give a layer to the reading; `tick` receives its share of the work, however often the reading goes over it."""
        remaining = len(self._layers - self._layers_read)  # layers that see every key
        info = self.prepared.source.info
        near = not info.nature.is_network and info.window is None and layer.window is not None  # others see every key
        cost = WINDOWED if near else 1.0
        end = self._reported + (1 - self._reported) * cost / (cost + remaining)

        def report(share: float) -> None:
            more = min(share * (end - start), end - self._reported)
            self._reported += more
            if self._tick is not None:
                self._tick(more)

        start = self._reported
        self._knows_w_o = self._knows_w_o and (self.prepared.values_measure is None or layer.output_matrix is not None)
        layer.tick = report
        self._reading.take(self.prepared.changed(layer))
        layer.tick = None  # the layer may be stored
        report(1.0)

    def value(self, run: Run) -> Result:
        """Return the reading's value. Raises UsageError for a chosen layer that has no attention."""
        prepared, source = self.prepared, self.prepared.source
        for layer in sorted(self._layers - self._layers_read) if self.layers is not None else ():
            attending = number_list(sorted(self._layers_read))
            raise UsageError(f"layer {layer} of {source.name} has no attention: it is in {attending}")
        run.text, run.model = source.text, run.model or source.info
        if (
            isinstance(source, TextSource) and not run.model.nature.is_network
        ):  # a checkpoint's reader knows its tokenizer
            dropped = dropped_letters(source.text, source.tokens)
            run.notes = (*run.notes, *(Note(sentence, "input") for sentence in dropped))
        if (measure := prepared.values_measure) is not None:
            note = measure.note if self._knows_w_o else measure.note_without_w_o or measure.note
            run.measure, run.notes = measure.name, (*run.notes, note)
        if prepared.change_notes:
            sentences = (Note(f"{change[0].upper()}{change[1:]}.", change.kind) for change in prepared.change_notes)
            run.notes, run.embeddings = (*run.notes, *sentences), None  # only weights remain
        if prepared.kept_keys is not None:
            run.key_tokens = prepared.key_tokens
        return self._reading.value(run)


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
    """Return what to read from a source: its layers, heads and query, with the changes.

    With `keeps_columns`, as for statistics by position, dropped keys stay as columns that no row sees; `renormalise` is
    then required. Raises UsageError for a selection that does not exist, and for a change that is impossible for this
    source.
    """
    model = source.model if isinstance(source, TextSource) else None
    layers = selected_indices(layer, source.counts[0], "layer", source.name)
    heads = selected_indices(head, source.counts[1], "head", source.name)
    values_measure = None
    for option in ("renormalise", "words"):
        if getattr(changes, option):
            check_attention_weights(source, option_name(option, True))
    if changes.measure not in (None, "weights"):
        check_attention_weights(source, option_name("measure", changes.measure))
        from attnctl.measures import measure_named

        if source.measure is not None:
            why = f"{source.name} holds a measure already, {source.measure}"
            raise UsageError(why, option="measure", value=changes.measure)
        measure = measure_named(changes.measure)
        measure.check_heads(heads is not None)
        heads = None if measure.joins_heads else heads
        if measure.needs == "values":
            values_measure = measure
        elif measure.needs == "layers":  # show the result of all layers, unless the user names some
            layers = (source.counts[0] - 1,) if layer is None else layers
            last = max(layers or (source.counts[0] - 1,))
            source = TraceSource(_through_every_layer(source, measure, last, say), source.name)
        else:
            source = TraceSource(_by_running_again(source, measure, layers, say), source.name)
    if changes.words:
        whole = Prepared(source, layers, heads, values_measure=values_measure, say=say)
        source = TraceSource(
            by_words(whole.trace(False, f"{option_name('words')} needs them all: {SHORTER}")), source.name
        )
        values_measure = None
    rows = None if query is None else find_several(source.tokens, str(query))
    out = keys_left_out(source.key_tokens, (changes.drop,) if isinstance(changes.drop, str) else changes.drop or ())
    if out and keeps_columns and not changes.renormalise:
        why = "statistics are about rows that share all their attention"
        raise UsageError(f"needs {option_name('renormalise')} here: {why}", option="drop")
    kept_keys = None
    if out and not keeps_columns:
        kept_keys = tuple(key for key in range(len(source.key_tokens)) if key not in out)
        if isinstance(source, OverviewSource) and not changes.renormalise and values_measure is None:
            source, kept_keys = source.without_keys(out), None
    return Prepared(source, layers, heads, rows, model, values_measure, changes.renormalise, out, kept_keys, say)


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


# --- measures of more than one layer's values --------------------------------------------------------------------


def _through_every_layer(source: Source, measure: Measure, last: int, say: Say | None) -> Trace:
    """Return a trace of a measure that needs all layers from 0 to `last`.

    Raises UsageError if layers, heads or rows are missing, or the keys are another text's.
    """
    by = option_name("measure", measure.name)
    try:
        trace = Prepared(source, range(last + 1), say=say).trace(False, f"{by} needs them all: {SHORTER}")
    except UsageError as error:
        why = f"it follows attention through every layer: {error}"
        raise UsageError(why, option="measure", value=measure.name) from error
    if trace.key_tokens is not None:
        why = "but it has keys besides its tokens" if trace.reads_itself else "not cross attention"
        raise UsageError(f"it needs a text that reads itself, {why}", option="measure", value=measure.name)
    n_heads = max((len(layer.heads) for layer in trace.layers), default=0)  # some models have fewer in some layers
    if trace.model.n_heads is not None and trace.layers and n_heads < trace.model.n_heads:
        measure.check_heads(True)
    for layer in trace.layers:
        if layer.weights is None or layer.rows is not None:
            why = f"it follows every layer from 0 on, and layer {layer.layer} of {trace.model.name} is not there whole"
            raise UsageError(why, option="measure", value=measure.name)
    return _joined_trace(trace, measure, measure.function(trace.layers))


def _by_running_again(source: Source, measure: Measure, layers: Sequence[int] | None, say: Say | None) -> Trace:
    """Return a trace of a measure that runs the layers of a model again.

    Raises UsageError for stored numbers, and for a model whose layers cannot run again.
    """
    if not isinstance(source, TextSource):
        why = f"it runs a model's layers again: give the text and its model, not {source.name}"
        raise UsageError(why, option="measure", value=measure.name)
    if not isinstance(source.model, CanIntervene):
        why = f"it runs a model's layers again, and {source.name} has none"
        raise UsageError(why, option="measure", value=measure.name)
    n, results = len(source.key_tokens), list[LayerTrace]()
    if n > limits.ZEROED_TOKENS:
        size = f"{n:,} tokens, at most {limits.ZEROED_TOKENS:,}"
        why = f"it runs every layer once for each of {size}: {SHORTER}"
        raise UsageError(why, option="measure", value=measure.name)
    if n > limits.ZEROED_NOTED and say is not None:
        say([f"{option_name('measure', measure.name)} runs every layer once for each of {n:,} tokens"])

    count = source.counts[0] if layers is None else len(layers)
    bar = nullcontext() if source.progress is None else source.progress(f"{n:,} tokens, {counted(count, 'layer')}")
    with bar as tick:

        def watched(zeroed: Iterable[Floats]) -> Iterator[Floats]:
            for part in zeroed:  # (keys, n_q, d_model)
                yield part
                if tick is not None:
                    tick(len(part) / (n * count))

        def take(layer: LayerAttention, output: Floats, zeroed: Iterable[Floats]) -> None:
            results.append(measure.function(layer, output, watched(zeroed)))

        run = source.model.run_with_zeroed_values(source.tokens, take, source.input_text, layers)
    for missing in sorted(set(layers or ()) - {layer.layer for layer in results}):
        why = f"layer {missing} of {source.name} has no attention of its own"
        raise UsageError(why, option="measure", value=measure.name)
    info = run.model or source.info
    trace = Trace(source.text, source.tokens, info, (), run.embeddings, run.key_tokens, notes=run.notes)
    return _joined_trace(trace, measure, results)


def _joined_trace(trace: Trace, measure: Measure, layers: Iterable[LayerTrace]) -> Trace:
    """Return the trace with one map for each layer, of all heads together, without the facts about single heads."""
    model = replace(trace.model, n_heads=1, n_kv_heads=1, causal=None, finds=None)
    notes = (*trace.notes, measure.note)
    return replace(trace, model=model, layers=tuple(layers), predictions=(), measure=measure.name, notes=notes)
