"""The changes to the weights: another measure, pieces merged into words, keys left out, rows rescaled.

`prepare` makes them, and selects layers, heads and a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from attnctl.checks import limits
from attnctl.checks.selection import Selection, find_several, keys_left_out, selected_indices
from attnctl.errors import UsageError, option_name
from attnctl.layer import LayerAttention, LayerTrace
from attnctl.source.model import CanIntervene
from attnctl.source.prepared import Prepared
from attnctl.source.reading import Say
from attnctl.source.sources import OverviewSource, Source, TextSource, TraceSource, check_attention_weights
from attnctl.text import counted
from attnctl.trace import Trace, by_words

if TYPE_CHECKING:
    from attnctl.measures import Measure
    from attnctl.runtime.arrays import Floats


SHORTER = "leave it out, or take a shorter text"


class Changes(NamedTuple):
    """The changes to the weights, as the options of these names."""

    measure: str | None = None
    words: bool = False
    renormalise: bool = False
    drop: Sequence[str] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the weights stay as they are."""
        return self.measure in (None, "weights") and not (self.words or self.renormalise or self.drop)


NO_CHANGES = Changes()


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
    then required, also for a trace that was stored without some keys. Raises UsageError for a selection that does not
    exist, and for a change that is impossible for this source.
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
        # a run through every layer is nearly at the prediction; one that is to stop before does not go on for it
        words = by_words(whole.trace(layers is None, f"{option_name('words')} needs them all: {SHORTER}"))
        source = TraceSource(words, source.name)
        values_measure = None
    rows = None if query is None else find_several(source.tokens, str(query))
    out = keys_left_out(source.key_tokens, (changes.drop,) if isinstance(changes.drop, str) else changes.drop or ())
    if keeps_columns and not changes.renormalise:
        why = "statistics are about rows that share all their attention"
        if out:
            raise UsageError(f"needs {option_name('renormalise')} here: {why}", option="drop")
        if "left-out" in source.subject.noted and "rescaled" not in source.subject.noted:
            raise UsageError(f"is needed: keys were left out of {source.name}, and {why}", option="renormalise")
    kept_keys = None
    if out and not keeps_columns:
        kept_keys = tuple(key for key in range(len(source.key_tokens)) if key not in out)
        if isinstance(source, OverviewSource) and not changes.renormalise and values_measure is None:
            source, kept_keys = source.without_keys(out), None
    return Prepared(source, layers, heads, rows, model, values_measure, changes.renormalise, out, kept_keys, say)


# --- measures of more than one layer's values --------------------------------------------------------------------


def _through_every_layer(source: Source, measure: Measure, last: int, say: Say | None) -> Trace:
    """Return a trace of a measure that needs all layers from 0 to `last`.

    Raises UsageError if layers, heads or rows are missing, or the keys are another text's.
    """
    by = option_name("measure", measure.name)
    try:
        whole = last + 1 == source.counts[0]
        trace = Prepared(source, range(last + 1), say=say).trace(whole, f"{by} needs them all: {SHORTER}")
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
    subject = replace(run.subject, text=source.text, tokens=source.tokens)
    return _joined_trace(Trace(subject, (), run.embeddings, run.predictions), measure, results)


def _joined_trace(trace: Trace, measure: Measure, layers: Iterable[LayerTrace]) -> Trace:
    """Return the trace with one map for each layer, of all heads together, without the facts about single heads."""
    model = replace(trace.model, n_heads=1, n_kv_heads=1, finds=None)
    subject = replace(trace.subject, model=model, measure=measure.name, notes=(*trace.notes, measure.note))
    return replace(trace, subject=subject, layers=tuple(layers))
