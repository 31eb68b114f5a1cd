"""What is shown in place of a source's weights: --words, --measure, --drop, --renormalise; the same in every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnctl.cli import arguments
from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from attnctl.layer import LayerAttention
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.traces.trace import Trace
    from attnctl.source import Source


TOLD_BYTES = 1e9  # of a trace, from which its size is said before it is made
SHORTER = "leave it out, or take a shorter text"


class WeightChoice(NamedTuple):
    """The options of that name."""

    drop: tuple[str, ...] = ()
    renormalise: bool = False
    words: bool = False
    measure: str | None = None


class Chosen(NamedTuple):
    """A source, and the layers and heads of it that were asked for (None: all that it holds)."""

    source: Source
    layers: list[int] | None
    heads: list[int] | None

    @property
    def head_count(self) -> int:
        """How many heads these are, over all layers."""
        n_layers, n_heads = self.source.counts
        return len(self.layers or range(n_layers)) * len(self.heads or range(n_heads))


def weight_choice(options: OptionValues) -> WeightChoice:
    """Take WEIGHT_OPTIONS out of `options`."""
    drop = tuple(options.pop("drop", None) or ())
    return WeightChoice(drop, *(options.pop(name, None) or empty for name, empty in _REST.items()))


_REST: OptionValues = {"renormalise": False, "words": False, "measure": None}


def chosen_of(source: Source, layer: str | None, head: str | None) -> Chosen:
    """The source with the layers and heads that --layer and --head select. Raises UsageError for one not there."""
    n_layers, n_heads = source.counts
    layers = arguments.select_indices(layer, n_layers, "layer", source.name)
    return Chosen(source, layers, arguments.select_indices(head, n_heads, "head", source.name))


def check_attention_weights(source: Source, command: str) -> None:
    """Raise AttnctlError where a source holds numbers that are no attention weights, of which `command` can tell nothing."""
    from attnctl.source.stored import TraceSource

    if isinstance(source, TraceSource) and not source.trace.holds_weights:
        told = source.trace.notes[-1]
        raise AttnctlError(f"{command} tells of attention weights. {source.name}: {told[:1].lower()}{told[1:]}")


def measured_source(choice: WeightChoice, given: Chosen) -> Chosen:
    """The source by --measure and --words. Raises UsageError for what it cannot give."""
    source, layers, heads = given
    if choice.measure not in (None, "weights"):
        from attnctl.readings.measures import check_measure

        check_measure(choice.measure, heads is not None)
        if source.measure is not None:
            raise UsageError(f"--measure does not go with {source.name}: it holds a measure, {source.measure}, already")
        if choice.measure == "value-norm":
            source = _by_value_norm(source)
        else:  # shown is what has come of all layers, unless some are named
            layers = [source.counts[0] - 1] if layers is None else layers
            source, heads = _rolled_out(source, max(layers)), None
    return Chosen(_by_words(source, layers, heads) if choice.words else source, layers, heads)


def _by_value_norm(source: Source) -> Source:
    from attnctl.readings.measures import value_norm, value_norm_note
    from attnctl.source.layerwise import LayerwiseSource

    projected: list[bool] = []

    def reweight(layer: LayerAttention) -> LayerAttention:
        projected.append(layer.output_matrix is not None)
        return value_norm(layer)

    return LayerwiseSource(source, reweight, "value-norm", lambda: (value_norm_note(all(projected)),))


def _rolled_out(source: Source, last: int) -> Source:
    from attnctl.readings.measures import attention_rollout
    from attnctl.source.stored import TraceSource

    try:
        trace = whole_trace(source, range(last + 1), None, instead=f"--measure rollout needs them all: {SHORTER}")
    except UsageError as error:
        raise UsageError(f"--measure rollout follows attention through every layer: {error}") from error
    return TraceSource(attention_rollout(trace), source.name)


def _by_words(source: Source, layers: Sequence[int] | None, heads: Sequence[int] | None) -> Source:
    from attnctl.readings.measures import by_words
    from attnctl.source.stored import TraceSource

    trace = whole_trace(source, layers, heads, instead=f"--words needs them all: {SHORTER}")
    return TraceSource(by_words(trace), source.name)


def whole_trace(
    source: Source,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    rows: Sequence[int] | None = None,
    predictions: bool = False,
    instead: str = "choose with --layer, --head and --query",
) -> Trace:
    """The trace of a source; a note says first what a large one takes.

    Raises AttnctlError, before any work, with what to do `instead`, where it would fill the memory.
    """
    from attnctl.readings.traces.record import TraceReading
    from attnctl.source import check_room, room_of_trace

    n = len(source.tokens)
    check_room(source.info, n, layers, heads, rows, instead)
    room = room_of_trace(source.info, n, layers, heads, rows)
    if room > TOLD_BYTES:
        arguments.say_notes(
            [f"whole matrices, {n if rows is None else len(rows):,} × {n:,}: they take {room / 1e9:.1f} GB"]
        )
    return source.read(TraceReading(rows, predictions), layers, heads)


def dropped_keys(choice: WeightChoice, source: Source) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The keys of --drop, and what was done to the weights, in words. Raises UsageError for a key that is not there."""
    from attnctl.readings.heatmap import keys_left_out as keys_left_out
    from attnctl.readings.heatmap import weights_notes

    out = keys_left_out(source.key_tokens, choice.drop) if choice.drop else ()
    return out, weights_notes(source.key_tokens, out, choice.renormalise)


def renormalised_source(choice: WeightChoice, source: Source, out: Sequence[int]) -> Source:
    """With --renormalise, the source whose rows share all their attention among the keys that are left."""
    if not choice.renormalise:
        return source
    from attnctl.source.layerwise import LayerwiseSource

    return LayerwiseSource(source, lambda layer: layer.without_keys(out))


def chosen_trace(
    choice: WeightChoice,
    given: Chosen,
    rows: Sequence[int] | None = None,
    predictions: bool = True,
    instead: str = "choose with --layer, --head and --query",
) -> Trace:
    """The trace of what was chosen, its weights as `choice` has them; `instead` as of `whole_trace`."""
    source, layers, heads = measured_source(choice, given)
    trace = whole_trace(source, layers, heads, rows, predictions, instead)
    if not choice.drop and not choice.renormalise:
        return trace
    from attnctl.readings.measures import without_left_out

    return without_left_out(trace, dropped_keys(choice, source)[0], choice.renormalise)
