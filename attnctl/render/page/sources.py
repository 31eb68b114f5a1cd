"""Build the page of sources: read each source, choose what the page shows first, and refuse what it cannot show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from attnctl.checks import limits
from attnctl.checks.selection import Selection, find_token
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.documents.json_documents import json_object
from attnctl.formats.photographs import read_photograph
from attnctl.formats.pictures import CMAP
from attnctl.measures import check_measure
from attnctl.readings.overview import LongRow, Overview
from attnctl.readings.picture_heat import query_of_picture
from attnctl.readings.questions.headline import headline
from attnctl.readings.rows import ExactBlock
from attnctl.render.page.packing import opening_of
from attnctl.render.page.trace_page import page_html
from attnctl.source import NO_CHANGES, Changes, OverviewSource, Say, Source, TextSource, prepare
from attnctl.source.links import survey_text
from attnctl.text import Document, counted
from attnctl.trace import Trace
from attnctl.trace.subject import reads_itself
from attnctl.watched.measure import EffectRequest, measure_effects, watched_text

if TYPE_CHECKING:
    from PIL.Image import Image

PAGE_MAPS = ("viridis", "cividis")  # colour maps of a page, beside its own


def check_page_map(cmap: str) -> None:
    """Raise UsageError for a colour map that a page does not have."""
    if cmap not in (CMAP, *PAGE_MAPS):
        raise UsageError(f"a page has {CMAP}, {' and '.join(PAGE_MAPS)}", option="cmap", value=cmap)


def page_of_sources(
    sources: Iterable[Source],
    changes: Changes = NO_CHANGES,
    layer: Selection = None,
    head: Selection = None,
    *,
    query: str | None = None,
    log: bool = False,
    effects: EffectRequest | None = None,
    labels: Sequence[str] | None = None,
    over_training: bool = False,
    say: Say | None = None,
    check: Callable[[Source], None] | None = None,
    on_trace: Callable[[Trace], None] | None = None,
    cmap: str | None = None,
    title: str | None = None,
) -> str:
    """Return the page of one source, of two side by side, or of a run's steps; a long text becomes an overview.

    A long text is shown as an overview with exact blocks. `say` is called with the cost of large traces, `check` with the
    source before a long text is read, `on_trace` with each trace.
    Raises UsageError for what a page cannot show, AttnctlError for more weights than a browser can open.
    """
    start = _page_start(changes, log) | ({"map": cmap} if cmap in PAGE_MAPS else {})
    check_measure(changes.measure, head is not None)
    alone = isinstance(sources, list) and len(sources) == 1
    traces: list[Trace | Overview] = []
    photographs: list[Image | None] = []
    exact: Sequence[ExactBlock] = ()
    for source in sources:
        layer = _fitting_layers(source, layer, head, say)
        part: Trace | Overview | None = _kept_overview(source, layer, head)
        if part is None and alone:
            prepared = prepare(source, layer=layer, head=head)
            if prepared.head_count * len(source.tokens) * len(source.key_tokens) > limits.PAGE_WEIGHTS:
                if check is not None:
                    check(source)
                part, exact = survey_text(prepared)
        if part is None:
            part = trace = prepare(source, Changes(changes.measure), layer, head, say=say).trace()
            if on_trace is not None:
                on_trace(trace)
        traces.append(part)
        photographs.append(_photograph_of_source(source))
    document = None
    if effects is not None:
        if not isinstance(source, TextSource) or not isinstance(part, Trace):
            why = "needs a text and its model, short enough that the page shows its single tokens"
            raise UsageError(why, option="effects")
        watched = watched_text(source.model, source.input_text, query)
        if not watched.predicts_words or not reads_itself(watched.tokens, watched.key_tokens, watched.info):
            raise UsageError(f"follows a prediction, and {watched.info.name} makes none here", option="effects")
        if watched.scale == "number":
            why = f"follows a probability, and {watched.info.name} puts out a number: see attnctl ablate -o FILE.html"
            raise UsageError(why, option="effects")
        document = json_object(measure_effects(watched, effects).ordered())
    _check_traces(traces, changes)
    first = traces[0] if len(traces) == 2 and not over_training else traces[-1]
    query = query if document is None else str(document["query"])
    chosen: Document = {}
    if query is None and photographs[0] is not None and any(token.box is None for token in first.tokens):
        query = str(query_of_picture(first.tokens, None, bool(first.model.causal)))
    if query is not None:
        chosen = {"query": find_token(first.tokens, query)}
    if isinstance(first, Trace) and query is not None:
        line = headline(first, query=chosen.get("query"))
        chosen |= {} if line is None else opening_of(first, line)
    return page_html(
        traces,
        labels=labels,
        over_training=over_training,
        start=chosen | start,
        effects=document,
        title=title,
        exact=exact,
        photographs=photographs,
    )


def _fitting_layers(source: Source, layer: Selection, head: Selection, say: Say | None) -> Selection:
    """Return the requested layers; without a request, if all weights of a photograph are too many, the last layers that fit.

    An overview does not help: it pools patches row by row, so that its cells would not be places in the picture.
    """
    if layer is not None or not any(token.is_patch for token in source.tokens):
        return layer
    n_layers, count = source.counts[0], prepare(source, head=head).head_count
    size = count // n_layers * len(source.tokens) * len(source.key_tokens)
    fitting = limits.PAGE_WEIGHTS // size
    if not 0 < fitting < n_layers:
        return layer
    if say is not None:
        say([f"the page holds the last {counted(fitting, 'layer')} of {n_layers}: choose other layers, or heads"])
    return list(range(n_layers - fitting, n_layers))


def _photograph_of_source(source: Source) -> Image | None:
    """Return the picture of a source whose tokens are patches; None for a text or a file of numbers."""
    if not isinstance(source, TextSource) or not any(token.is_patch for token in source.tokens):
        return None
    photograph = source.model.photograph
    return read_photograph(source.text) if photograph is None else photograph


def _check_traces(traces: Sequence[Trace | Overview], changes: Changes) -> None:
    """Raise UsageError for what an overview cannot show, AttnctlError for more weights than a browser can open."""
    if any(isinstance(trace, Overview) for trace in traces):
        if len(traces) > 1:
            raise UsageError("an overview is shown alone: give one source")
        for option in ("drop", "renormalise", "words", "measure"):
            if getattr(changes, option):
                advice = "shorten it, or choose layers and heads"
                raise UsageError(f"needs every weight, and a long text is pooled: {advice}", option=option)
    layers = [layer for trace in traces if isinstance(trace, Trace) for layer in trace.layers]
    size = sum(layer.weights.size for layer in layers if layer.weights is not None)
    if size > limits.PAGE_NUMBERS:
        raise AttnctlError(f"{size:,} weights are too many for a page: choose layers and heads, or a shorter text")


def _page_start(changes: Changes, log: bool) -> Document:
    """Return a picture's options as first settings of a page. Raises UsageError for keys that a page cannot leave out."""
    drop = (changes.drop,) if isinstance(changes.drop, str) else changes.drop or ()
    if len(drop) > 1 or not set(drop) <= {"first", "special"}:
        raise UsageError("on a page it is first or special", option="drop", value=" ".join(drop))
    start: Document = {"drop": drop[0]} if drop else {}
    start |= {"renorm": True} if changes.renormalise else {}
    start |= {"colour": "log"} if log else {}
    return start | ({"words": "merged"} if changes.words else {})


def _kept_overview(source: Source, layer: Selection, head: Selection) -> Overview | None:
    """Return the chosen part of a source that is an overview; None for other sources. Raises AttnctlError if it is empty."""
    if not isinstance(source, OverviewSource):
        return None
    overview = source.overview
    if isinstance(overview, LongRow):
        raise AttnctlError(f"{source.name} holds the row of query {overview.query} alone: there is no grid to show")
    prepared = prepare(source, layer=layer, head=head)
    layers, heads = prepared.layers, prepared.heads
    part = overview.narrowed(
        lambda layer, head: (layers is None or layer in layers) and (heads is None or head in heads)
    )
    if overview.grid is not None and part.grid is not None and not part.grid.weights:
        raise AttnctlError(f"{source.name} has no grid of these layers and heads")
    return part
