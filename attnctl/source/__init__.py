"""Where attention comes from: a text through a model, a trace, an overview; and what is changed of it before it is read.

A source hands its layers to a reading, one after another. The order of the changes: another measure in place of the
weights, pieces merged into words, rows rescaled among the keys that are not left out, keys left out. `prepare` makes them;
commands, batches and Python's functions all ask it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from attnctl import limits
from attnctl.argument_types import chosen_indices, parse_selection
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer import LayerAttention, LayerTrace
from attnctl.source.model import CanIntervene
from attnctl.source.model import Model as Model
from attnctl.text import counted, number_list, visible_text
from attnctl.tokens import AS_TEXT, Token, checked_text, find_several, find_token, is_index
from attnctl.trace import Trace, TraceReading, by_words
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Note, Run, StopForward, notes_of_kind

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from attnctl.arrays import Floats
    from attnctl.blockwise import Tick
    from attnctl.measures import Measure
    from attnctl.readings.overview import LongRow, Overview
    from attnctl.source.run_memory import RunMemory


NARROWER = "choose layers, heads and queries"

Value = TypeVar("Value", covariant=True)
Result = TypeVar("Result")


class Reading(Protocol[Value]):
    """What is kept of a text's attention: `take` sees each chosen layer in order, `value` answers at the end.

    `predicts` asks the model to run on after the last chosen layer, for what it predicts.
    """

    predicts: bool

    def take(self, layer: LayerAttention) -> None:
        """Keep what is wanted of one layer."""

    def value(self, run: Run) -> Value:
        """What has come of all layers; `run` is what the model told beside them."""


class Source:
    """Where attention comes from. `name` is for messages."""

    def __init__(
        self,
        name: str,
        text: str,
        tokens: tuple[Token, ...],
        info: ModelInfo,
        *,
        key_tokens: tuple[Token, ...] | None = None,
        counts: tuple[int, int] | None = None,
        measure: str | None = None,
        held_rows: tuple[int, ...] | None = None,
    ) -> None:
        self.name, self.text, self.tokens, self.info = name, text, tokens, info
        self.input_text = text  # what a model is given: of two texts the first
        self.key_tokens = tokens if key_tokens is None else key_tokens  # other than the tokens: cross attention, slots
        self.counts = counts or (
            info.n_layers or 1,
            info.n_heads or 1,
        )  # layers and heads that there are to choose from
        self.measure = measure  # what stands in place of the weights
        self.held_rows = held_rows  # the queries whose weights are there; None where all are

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads (None: all). `tick` hears which share of the work was done.

        Raises UsageError for a layer or head that is not there.
        """
        raise NotImplementedError


def take_layer(reading: Reading[Result], layer: LayerAttention, tick: Tick | None, whole: float) -> None:
    """Hand a layer to a reading; `tick` hears the `whole` share of it, however often the reading goes over the layer."""
    told = 0.0

    def hear(share: float) -> None:
        nonlocal told
        more = min(share, 1 - told)
        told += more
        if tick is not None:
            tick(more * whole)

    layer.tick = hear
    reading.take(layer)
    layer.tick = None  # it may be kept
    hear(1 - told)


WINDOWED = 0.2  # of a layer whose queries see few keys, what it takes of the time of one that sees all


class Pass(Generic[Result]):
    """One text on its way through a model: `visit` hands its layers to a reading, `value` ends it."""

    def __init__(
        self,
        source: TextSource,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> None:
        info = source.info
        self.source, self.tokens, self._reading = source, source.tokens, reading
        self._named = layers is not None
        self._layers = set(chosen_indices(layers, info.n_layers or 1, "layer", info.name))
        self._heads = None if heads is None else chosen_indices(heads, info.n_heads or 1, "head", info.name)
        self._last = None if reading.predicts else max(self._layers)
        self._tick = tick
        self._met: list[int] = []
        self._n_k = len(source.key_tokens)

    def visit(self, layer: LayerAttention) -> None:
        """Hand a layer on, if it was asked for. Raises StopForward where nothing that follows is wanted.

        Raises AttnctlError for keys that no token stands for.
        """
        self._met.append(layer.layer)
        if layer.n_k != self._n_k:
            raise AttnctlError(
                f"layer {layer.layer} of {self.source.info.name} has {layer.n_k} keys for {self._n_k} tokens: there are no "
                "tokens that all of them stand for"
            )
        if layer.layer in self._layers or not self._named:
            # of all heads, each layer has its own number
            part = layer if self._heads is None else layer.select_heads(self._heads)
            take_layer(self._reading, part, self._tick, self._share_of_layer(layer.layer))
        if layer.layer == self._last:
            raise StopForward

    def _share_of_layer(self, layer: int) -> float:
        """About which share of the work one of the layers is."""
        settings: Any = getattr(self.source.model, "settings", None)  # of a built-in model
        near = settings is not None and settings.window is None and settings.first_window is not None
        costs = {one: WINDOWED if near and one == 0 else 1.0 for one in self._layers | {layer}}
        return costs[layer] / sum(costs.values())

    def value(self, run: Run) -> Result:
        """What the reading made of it. Raises UsageError for a chosen layer that did not attend."""
        for layer in sorted(self._layers - set(self._met)) if self._named else ():
            held = number_list(sorted(set(self._met)))
            raise UsageError(f"layer {layer} of {self.source.info.name} has no attention: it is in {held}")
        run.text, run.model = self.source.text, run.model or self.source.info
        return self._reading.value(run)


class TextSource(Source):
    """A text through a model, which runs once. `tokens` are those of the text unless they are given."""

    memory: RunMemory | None = None  # of all texts, where a session asks more than one question
    # shows how far a measure is that runs layers again: what is run → who is told each share that is done
    progress: Callable[[str], AbstractContextManager[Tick | None]] | None = None

    def __init__(self, model: Model, text: str, tokens: Sequence[Token] | None = None) -> None:
        self.model = model = model.model_for(text)
        tokens = model.tokenize(checked_text(text)) if tokens is None else tuple(tokens)
        if not tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        keys, read = model.tokens_of_keys(tokens, text), model.text_as_read(text)
        super().__init__(model.info.name, read, tokens, model.info, key_tokens=keys)
        self.input_text = text

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads (None: all)."""
        forward = Pass(self, reading, layers, heads, tick)
        with np.errstate(all="ignore"):  # what overflows is refused by name, not warned of
            if self.memory is not None:
                return forward.value(self.memory.run(self.model, self.tokens, forward.visit, self.input_text))
            return forward.value(self.model.run(self.tokens, forward.visit, self.input_text))


def record_trace(
    model: Model,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    predictions: bool = True,
) -> Trace:
    """The trace of `text`, for the layers, heads and query rows asked for (None: all).

    Without `predictions` the model is left after the last layer asked for. Raises AttnctlError for an empty text,
    UsageError for a selection that is not there.
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
    """How many bytes the scores, scaled scores and weights of a trace are.

    Raises AttnctlError, before any work, with what to do `instead`, where they would fill the memory.
    """
    sizes = (layers, info.n_layers or 1), (heads, info.n_heads or 1), (rows, n)
    many, each, queries = (count if chosen is None else len(chosen) for chosen, count in sizes)
    size = 3 * 4 * many * each * queries * n
    if size > limits.TRACE_BYTES:
        raise AttnctlError(
            f"every step of {counted(many, 'layer')} × {counted(each, 'head')}, {queries:,} × {n:,} each, takes "
            f"{size / 1e9:.0f} GB: {instead}"
        )
    limits.check_memory(1.2 * size, f"every step of {n:,} tokens", instead)
    return size


class TraceSource(Source):
    """A trace: its layers as they are kept. `name` is its file's, for messages."""

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
            counts=(n_layers, n_heads),  # as far as the trace tells
            measure=trace.measure,
            held_rows=layers[0].rows if layers else None,
        )

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """The reading's value over some layers and heads (None: all that there are)."""
        n_layers, n_heads = self.counts
        parts = self.trace.layers
        if layers is not None:
            parts = tuple(self.trace.layer(index) for index in chosen_indices(layers, n_layers, "layer", self.name))
        some = None if heads is None else chosen_indices(heads, n_heads, "head", self.name)
        for part in parts:
            layer = part if some is None else part.select_heads(some)
            take_layer(reading, replace(layer), tick, 1 / len(parts))
        trace = self.trace
        said = (trace.predictions, trace.model, trace.notes, trace.text, trace.measure)
        return reading.value(Run(trace.tokens, trace.embeddings, trace.key_tokens, *said))


class OverviewSource(Source):
    """An overview, or one query's weights, from a file: a reading gets what was kept, where that is what it asks for."""

    def __init__(self, overview: Overview | LongRow, name: str) -> None:
        self.overview = overview
        super().__init__(name, overview.text, overview.tokens, overview.model, key_tokens=overview.key_axis)

    def read(
        self,
        reading: Reading[Result],
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        tick: Tick | None = None,
    ) -> Result:
        """What the overview holds of a reading. Raises AttnctlError where it does not hold that."""
        keep: Any = getattr(reading, "kept_in", None)
        if keep is None:
            raise AttnctlError(
                f"{self.name} holds an overview of a long text, not its every weight: give the text and its model"
            )
        some = chosen_indices(layers, self.counts[0], "layer", self.name)
        few = chosen_indices(heads, self.counts[1], "head", self.name)
        narrowed = self.overview.narrowed(
            lambda layer, head: (layers is None or layer in some) and (heads is None or head in few)
        )
        return keep(narrowed, self.name)  # type: ignore[no-any-return]

    def without_keys(self, out: Sequence[int]) -> OverviewSource:
        """The overview of cells without some of its keys. Raises AttnctlError where it holds none of single keys."""
        overview: Any = self.overview
        if getattr(overview, "grid", None) is None:  # a row alone
            raise AttnctlError(f"{self.name} holds no grid of weights: give the text and its model")
        return OverviewSource(overview.without_keys(out, self.name), self.name)


def check_attention_weights(source: Source, command: str) -> None:
    """Raise AttnctlError where a source holds numbers that are no attention weights, of which `command` can tell nothing."""
    for told in notes_of_kind(source.trace.notes, "no-weights") if isinstance(source, TraceSource) else ():
        raise AttnctlError(f"{command} tells of attention weights. {source.name}: {told[:1].lower()}{told[1:]}")


LONG = 512  # tokens, beyond which a text has an overview instead of every weight
TOLD_BYTES = 1e9  # of a trace, from which its size is said before it is made
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


class ChangedSource(Source):
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
        super().__init__(
            source.name,
            source.text,
            source.tokens,
            source.info,
            key_tokens=source.key_tokens if kept is None else tuple(source.key_tokens[at] for at in kept),
            counts=source.counts,
            measure=measure or source.measure,
            held_rows=source.held_rows,
        )
        self.input_text = source.input_text

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
        if isinstance(self.source, OverviewSource):  # it holds none of them, and refuses
            return self.read(TraceReading(rows, predictions))
        room = check_room(self.source.info, n, self.layers, self.heads, rows, instead)
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
    if changes.measure not in (None, "weights") and source.measure is not None:
        raise UsageError(
            f"{source.name} holds a measure already, {source.measure}", option="measure", value=changes.measure
        )
    if changes.measure not in (None, "weights"):
        from attnctl.measures import measure_named

        measure = measure_named(changes.measure)
        measure.check_heads(heads is not None)
        if measure.needs == "layers":  # shown is what has come of all layers, unless some are named
            layers = (source.counts[0] - 1,) if layer is None else layers
        heads = None if measure.joins_heads else heads
        source = _measured(source, measure, layers, say)
    if changes.words:
        whole = Prepared(source, layers, heads, say=say)
        source = TraceSource(
            by_words(whole.trace(False, f"{option_name('words')} needs them all: {SHORTER}")), source.name
        )
    rows = None if query is None else find_several(source.tokens, str(query))
    numbers: Sequence[int] = (
        source.trace.key_numbers if isinstance(source, TraceSource) else range(len(source.key_tokens))
    )
    drop = (changes.drop,) if isinstance(changes.drop, str) else changes.drop or ()
    out = keys_left_out(source.key_tokens, drop)
    done = change_notes(source.key_tokens, out, changes.renormalise)
    if out and keeps_columns and not changes.renormalise:
        why = "statistics are of rows that share all their attention"
        raise UsageError(f"goes with {option_name('renormalise')} here: {why}", option="drop")
    if isinstance(source, OverviewSource) and out and not changes.renormalise:
        return Prepared(source.without_keys(out), layers, heads, rows, numbers, model, out, done, say)
    notes = tuple(Note(f"{what[0].upper()}{what[1:]}.", what.kind) for what in done)
    kept = None if not out or keeps_columns else [at for at in range(len(source.key_tokens)) if at not in out]
    if done:
        rescale, narrow = changes.renormalise, kept

        def change(layer: LayerAttention) -> LayerAttention:
            layer = layer.without_keys(out) if rescale else layer
            return layer if narrow is None else layer.select_keys(narrow)

        source = ChangedSource(source, change, notes=lambda: notes, kept=kept)
    numbers = numbers if kept is None else [numbers[at] for at in kept]
    return Prepared(source, layers, heads, rows, numbers, model, out, done, say)


def keys_left_out(keys: Sequence[Token], drop: Sequence[str]) -> tuple[int, ...]:
    """The indices of the keys that `drop` names: "first", "special", a token's text (everywhere it stands), its index.

    Raises UsageError where there is no such key, or none would be left.
    """
    out: set[int] = set()
    for name in drop:
        if name == "first":
            out.add(0)
        elif name == "special":
            special = {j for j, token in enumerate(keys) if token.special}
            if not special:
                raise UsageError("there is no special token to drop: name a token, its index, or first")
            out |= special
        else:
            text = name.removeprefix(AS_TEXT)
            everywhere = {j for j, token in enumerate(keys) if token.text == text}
            out |= {find_token(keys, name)} if is_index(name) or not everywhere else everywhere
    if len(out) >= len(keys):
        raise UsageError("dropping every key leaves nothing to show")
    return tuple(sorted(out))


def change_notes(keys: Sequence[Token], out: Sequence[int], renormalise: bool) -> tuple[Note, ...]:
    """What was done to the weights, in words: the same in every picture, page and table."""
    said = []
    if out:
        names = [f"“{visible_text(keys[j].text)}” ({j})" for j in out[:4]]
        more = f" and {len(out) - 4} more" if len(out) > 4 else ""
        said.append(Note(f"{'key' if len(out) == 1 else 'keys'} {', '.join(names)}{more} left out", "left-out"))
    if renormalise:
        said.append(Note("rows rescaled to sum to 1", "rescaled"))
    return tuple(said)


def selected_indices(wanted: Selection, count: int, what: str, of: str) -> Sequence[int] | None:
    """The indices that are chosen from `count`; None for None and for all. Raises UsageError for one that is not there."""
    if wanted is None or wanted == "all":
        return None
    if isinstance(wanted, str):
        return parse_selection(wanted, count, what, of)
    return chosen_indices((wanted,) if isinstance(wanted, int) else wanted, count, what, of)


def _measured(source: Source, measure: Measure, layers: Sequence[int] | None, say: Say | None) -> Source:
    """The source with a measure in place of its weights, of these layers at least (None: all that it has)."""
    if measure.needs == "values":
        return _of_values(source, measure)
    if measure.needs == "layers":
        return TraceSource(_of_every_layer(source, measure, max(layers or (source.counts[0] - 1,)), say), source.name)
    return TraceSource(_of_network(source, measure, layers, say), source.name)


def _of_values(source: Source, measure: Measure) -> Source:
    known: list[bool] = []

    def measured(layer: LayerAttention) -> LayerAttention:
        known.append(layer.output_matrix is not None)
        return measure.function(layer)  # type: ignore[no-any-return]

    def notes() -> tuple[str, ...]:
        return (measure.note if all(known) else measure.note_without_w_o or measure.note,)

    return ChangedSource(source, measured, measure.name, notes)


def _of_every_layer(source: Source, measure: Measure, last: int, say: Say | None) -> Trace:
    """Raises UsageError where layers, heads or rows up to the `last` are missing, or the keys are another text's."""
    asked: dict[str, Any] = {"option": "measure", "value": measure.name}
    try:
        trace = Prepared(source, range(last + 1), say=say).trace(
            False, f"{option_name('measure', measure.name)} needs them all: {SHORTER}"
        )
    except UsageError as error:
        raise UsageError(f"it follows attention through every layer: {error}", **asked) from error
    if trace.key_tokens is not None:
        why = "but it has keys besides its tokens" if trace.reads_itself else "not cross attention"
        raise UsageError(f"it needs a text that reads itself, {why}", **asked)
    most = max((len(layer.heads) for layer in trace.layers), default=0)  # some models have fewer in some layers
    if trace.model.n_heads is not None and trace.layers and most < trace.model.n_heads:
        measure.check_heads(True)
    for layer in trace.layers:
        if layer.weights is None or layer.rows is not None:
            why = f"layer {layer.layer} of {trace.model.name} is not there whole"
            raise UsageError(f"it follows every layer from 0 on, and {why}", **asked)
    return _joined_trace(trace, measure, measure.function(trace.layers))


def _of_network(source: Source, measure: Measure, layers: Sequence[int] | None, say: Say | None) -> Trace:
    """Raises UsageError for numbers that no model has just computed, and a model whose layers cannot be run again."""
    asked: dict[str, Any] = {"option": "measure", "value": measure.name}
    if not isinstance(source, TextSource):
        why = f"give the text and its model, not {source.name}"
        raise UsageError(f"it runs a model's layers again: {why}", **asked)
    if not isinstance(source.model, CanIntervene):
        raise UsageError(f"it runs a model's layers again, and {source.name} has none", **asked)
    n, made = len(source.key_tokens), list[LayerTrace]()
    if n > limits.ZEROED_TOKENS:
        most = f"{n:,} tokens, at most {limits.ZEROED_TOKENS:,}"
        raise UsageError(f"it runs every layer once for each of {most}: {SHORTER}", **asked)
    if n > limits.ZEROED_TOLD and say is not None:
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
            made.append(measure.function(layer, output, watched(zeroed)))

        run = source.model.run_with_zeroed_values(source.tokens, take, source.input_text, layers)
    for layer in sorted(set(layers or ()) - {layer.layer for layer in made}):
        raise UsageError(f"layer {layer} of {source.name} has no attention of its own", **asked)
    info = run.model or source.info
    trace = Trace(source.text, source.tokens, info, (), run.embeddings, run.key_tokens, notes=run.notes)
    return _joined_trace(trace, measure, made)


def _joined_trace(trace: Trace, measure: Measure, layers: Iterable[LayerTrace]) -> Trace:
    """The trace with one map a layer, of all heads together; what it tells of single heads goes."""
    model = replace(trace.model, n_heads=1, n_kv_heads=1, causal=None, finds=None)
    notes = (*trace.notes, measure.note)
    return replace(trace, model=model, layers=tuple(layers), predictions=(), measure=measure.name, notes=notes)


def is_long(source: Source) -> bool:
    """Whether a text has cells instead of every weight."""
    return max(len(source.tokens), len(source.key_tokens)) > LONG
