"""`attnctl.heads`: what each head does over a text, and what kind it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from attnctl.checks.argument_types import check_types
from attnctl.checks.model_options import ModelOptions, with_model_options
from attnctl.errors import UsageError
from attnctl.measures import joins_heads
from attnctl.models import DEFAULT, Selection, changes_of_arguments, selected_places, source_of_argument
from attnctl.source import prepare
from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.blockwise import Tick
    from attnctl.models import ModelArgument
    from attnctl.readings import HeadNames, Names, NamesHeads, Overview
    from attnctl.readings.head_statistics import HeadTable
    from attnctl.source import Prepared
    from attnctl.trace import ModelInfo


@with_model_options
def heads(
    text: str | Trace,
    model: ModelArgument = DEFAULT,
    *,
    layer: Selection = None,
    head: Selection = None,
    measure: str | None = None,
    words: bool = False,
    drop: str | list[str] | tuple[str, ...] | None = None,
    renormalise: bool = False,
    probe: bool = False,
    census: NamesHeads | None = None,
    **options: Unpack[ModelOptions],
) -> HeadTable:
    """Return what each head does over a text, long or short: `values` by statistic (entropy, first, …), and `names`.

    With `census`, the table of a corpus, heads are also named after what they find there.

    >>> from attnctl import heads
    >>> measured = heads("Alice will eat pizza", model="random", n_heads=2)
    >>> [(head.layer, head.head) for head in measured]
    [(0, 0), (0, 1)]

    `pandas.DataFrame(measured.to_records())` is a table with a row for each head.
    """
    from attnctl.readings import NamesHeads
    from attnctl.readings.head_statistics import HeadTable

    check_types("heads", bool, probe=probe)
    if census is not None:
        check_types("heads", NamesHeads, census=census)
    changes = changes_of_arguments("heads", measure, words, renormalise, drop)
    source = source_of_argument("heads", text, model, options)
    prepared = prepare(source, changes, *selected_places("heads", layer, head), keeps_columns=True)
    names = None if census is None else census.head_names()
    return HeadTable(measure_heads(prepared, probe, names).head_statistics)


def measure_heads(
    prepared: Prepared, probe: bool = False, names: HeadNames | None = None, tick: Tick | None = None
) -> Overview:
    """Return the statistics of the heads of a source that was prepared with `keeps_columns`.

    With `probe`, induction and duplicates are measured on random tokens that are repeated. `names` follow the names that
    the text gives. Raises UsageError if the source does not allow `probe` or `names`.
    """
    from attnctl.readings import HeadStatisticsReading, OverviewReading
    from attnctl.readings.head_statistics import name_head

    source, model = prepared.source, prepared.model
    if probe and model is None:
        raise UsageError(f"runs a model: {source.name} holds numbers that have been computed already", option="probe")
    if probe and prepared.measure is not None:
        why = f"it cannot be combined with {prepared.measure}"
        raise UsageError(f"measures the weights of single heads: {why}", option="probe")
    if names is not None and joins_heads(prepared.measure):
        raise UsageError(f"names single heads, and {prepared.measure} is of all heads together", option="census")
    statistics = HeadStatisticsReading(source.tokens, prepared.key_tokens, prepared.left_out, source.subject)
    overview: Overview = prepared.read(OverviewReading(statistics=statistics), tick)
    measured = list(overview.head_statistics)
    if probe and model is not None:
        from attnctl.source import ProbeReading, probe_text

        scores = prepare(probe_text(model), layer=prepared.layers, head=prepared.heads).read(ProbeReading())
        for index, head in enumerate(measured):
            probed = dict(zip(("induction", "duplicate"), scores[head.layer, head.head], strict=True))
            measured[index] = name_head(replace(head, values={**head.values, **probed}), len(overview.tokens), probed)
    before, after = _names_around(overview.model, names)
    named = (
        replace(
            head, names=(*before.get((head.layer, head.head), ()), *head.names, *after.get((head.layer, head.head), ()))
        )
        for head in measured
    )
    return replace(overview, head_statistics=tuple(named))


def _names_around(info: ModelInfo, names: HeadNames | None) -> tuple[Names, Names]:
    """Return the names of heads to put before, and after, the names that the text gives.

    They come from the model's own evaluation, or are `names`. Raises UsageError if `names` are of a model of other sizes.
    """
    if names is None:
        return info.roles_of_heads(), {}
    if names.head_grid != (info.n_layers, info.n_heads):
        layers, heads = names.head_grid
        raise UsageError(
            f"is of {names.model}, {layers} layers of {heads} heads: {info.name} has {info.n_layers} of {info.n_heads}",
            option="census",
        )
    return {}, names.by_head
