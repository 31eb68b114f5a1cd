"""What a page shows: one source, two of them, two models, or a run; an overview where the weights are too many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnctl import limits
from attnctl.cli import arguments
from attnctl.cli.inputs.sources import is_file, open_source
from attnctl.cli.output import put_bytes
from attnctl.cli.progress import check_cost
from attnctl.errors import AttnctlError, UsageError
from attnctl.source.changes import Changes, Prepared, prepare
from attnctl.source.zoom import SIZE, zoom_cells

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.effects.ablation import EffectRequest
    from attnctl.readings.exact_blocks import ExactBlock
    from attnctl.readings.overview import Overview
    from attnctl.readings.traces.trace import Trace
    from attnctl.source import Source
    from attnctl.text import Document

SWEEPS = 3  # of a survey: the grid, its links, and the rows of the blocks, each about one sweep
LINKS = 3  # keys kept for each query


def survey_text(given: Prepared) -> tuple[Overview, list[ExactBlock]]:
    """The overview of a long text with its strongest links, and the blocks around them, exactly: two readings."""
    from attnctl.readings.exact_blocks import ExactBlock, telling_blocks
    from attnctl.readings.grid import GridReading, OverviewReading
    from attnctl.readings.links import LinksReading
    from attnctl.readings.rows import BlocksReading

    source = given.source
    check_cost(source, given.head_count, sweeps=SWEEPS)
    parts = zoom_cells(source.tokens, range(len(source.tokens)), None, "--rows", SIZE, source.text)
    columns = parts
    if source.key_tokens != source.tokens:
        columns = zoom_cells(source.key_tokens, given.key_numbers, None, "--columns", SIZE, "")
    reading = OverviewReading(GridReading(parts, columns, "mass"), links=LinksReading(LINKS))
    overview = given.read(reading)
    blocks = telling_blocks(overview)
    found = given.read(BlocksReading(blocks))
    exact = [
        ExactBlock(at_layer, at_head, block[:2], block[2:], weights)
        for (at_layer, at_head), grids in found.items()
        for block, weights in zip(blocks, grids, strict=True)
    ]
    return overview, exact


class PageContent(NamedTuple):
    """The traces of a page, or its one overview with exact blocks of it; what they are called, and what is shaded."""

    traces: Sequence[Trace | Overview]
    labels: list[str] | None = None
    exact: Sequence[ExactBlock] = ()
    effects: Document | None = None  # a document of attnctl.effects/1
    over_training: bool = False


class Choice(NamedTuple):
    """What of a source is shown: --layer, --head and --measure."""

    layer: str | None = None
    head: str | None = None
    measure: str | None = None

    def narrowed_trace(self, source: Source) -> Trace:
        """The trace of a source, narrowed to this choice."""
        trace = prepare(source, Changes(self.measure), self.layer, self.head, say=arguments.say_notes).trace()
        arguments.say_unknown(source.tokens, source.key_tokens, notes=trace.notes)
        return trace


def of_one(source: Source, choice: Choice) -> PageContent:
    """The trace of a source; where its weights are too many for a page an overview, and blocks of it exactly."""
    if (overview := overview_in(source, choice)) is not None:
        return PageContent([overview])
    given = prepare(source, layer=choice.layer, head=choice.head)
    if given.head_count * len(source.tokens) * len(source.key_tokens) <= limits.PAGE_WEIGHTS:
        return PageContent([choice.narrowed_trace(source)])
    overview, exact = survey_text(given)
    return PageContent([overview], exact=exact)


def overview_in(source: Source, choice: Choice) -> Overview | None:
    """What is chosen of the overview that a source is; None for another. Raises AttnctlError where there is nothing."""
    from attnctl.readings.overview import LongRow

    found: Overview | LongRow | None = getattr(source, "overview", None)
    if isinstance(found, LongRow):
        raise AttnctlError(f"{source.name} holds the row of query {found.query} alone: there is no grid to show")
    if found is None:
        return None
    _, layers, heads, *_ = prepare(source, layer=choice.layer, head=choice.head)
    part = found.narrowed(lambda layer, head: (layers is None or layer in layers) and (heads is None or head in heads))
    if found.grid is not None and part.grid is not None and not part.grid.weights:
        raise AttnctlError(f"{source.name} has no grid of these layers and heads")
    return part


def of_two(source: str, tokens: str | None, choice: Choice, options: OptionValues) -> Trace | Overview:
    """One of two sources. Model options are for the texts among them: a trace has its numbers already."""
    given = source == "-" or is_file(source)
    one = open_source(source, None, tokens if given else None, {} if given else options)
    return overview_in(one, choice) or choice.narrowed_trace(one)


def two_models(a: str, b: str, text: str, choice: Choice, options: OptionValues) -> PageContent:
    """The same text through two models, called by their names."""
    if options.get("model") is not None:
        raise UsageError("--model does not go with a text after A and B, which are the models then")
    from attnctl.source import TextSource

    words = arguments.text_of(text, None)
    sources = [TextSource(arguments.model_of(options | {"model": name}), words) for name in (a, b)]
    return PageContent([choice.narrowed_trace(source) for source in sources], [a, b])


def over_training(folder: str, text: str, choice: Choice, options: OptionValues) -> PageContent:
    """The text under the weights of every kept step of a run, and the steps' names."""
    from attnctl.models.builtin.weights import steps_of
    from attnctl.source import TextSource
    from attnctl.training.run import TrainingRun

    if options.get("model") is not None:
        raise UsageError("--model does not go with --run, whose steps are the models then")
    losses = {
        report["step"]: report["loss"] for report in TrainingRun(folder).reports() if report.get("loss") is not None
    }
    traces, labels = [], []
    for step, path in steps_of(folder).items():
        traces.append(choice.narrowed_trace(TextSource(arguments.model_of(options | {"model": str(path)}), text)))
        labels.append(f"step {step:,}" + (f", loss {losses[step]:.2f}" if step in losses else ""))
    return PageContent(traces, labels, over_training=True)


def with_effects(content: PageContent, source: Source, query: str | None, ask: EffectRequest) -> PageContent:
    """The page of one source, shaded by what each head and each edge of the watched token does.

    Raises UsageError where nothing is predicted, or the text is too long for a page of single tokens.
    """
    from attnctl.formats.documents.effects_json import effects_document
    from attnctl.models.watching import watched_text
    from attnctl.readings.effects.effect_sweep import measure_effects
    from attnctl.readings.traces.trace import Trace, reads_itself
    from attnctl.source import TextSource

    if not isinstance(source, TextSource) or not isinstance(content.traces[0], Trace):
        raise UsageError("--effects needs a text and its model, short enough that the page shows its single tokens")
    watched = watched_text(source.model, source.text, query)
    if not watched.predicts_words or not reads_itself(watched.tokens, watched.key_tokens, watched.info):
        raise UsageError(f"--effects follows a prediction, and {watched.info.name} makes none here")
    found = measure_effects(watched, ask)
    return content._replace(effects=effects_document(found))


def check_pooled(traces: Sequence[Trace | Overview], look: OptionValues, measure: str | None) -> None:
    """Raise UsageError where an overview is to be shown in a way that needs every single weight."""
    from attnctl.readings.overview import Overview

    if not any(isinstance(trace, Overview) for trace in traces):
        return
    options = {"drop": "--drop", "renorm": "--renormalise", "words": "--words"}
    lost = [option for name, option in options.items() if name in look] + ["--measure"] * (measure is not None)
    if len(traces) > 1:
        raise UsageError("an overview is shown alone: give one source")
    if lost:
        raise UsageError(
            f"{lost[0]} needs every weight, and a long text is pooled: shorten it, or choose --layer and --head"
        )


def page_look(
    drop: Sequence[str], renormalise: bool, log: bool, *, cmap: str | None = None, words: bool = False
) -> OptionValues:
    """Options of a picture as a page begins with them; all can be changed there. Raises UsageError for other keys."""
    if len(drop) > 1 or not set(drop) <= {"first", "special"}:
        raise UsageError(
            f"--drop {' '.join(drop)} does not go with a page: it leaves out the first or the special tokens"
        )
    look: OptionValues = {"drop": drop[0]} if drop else {}
    look |= {"renorm": True} if renormalise else {}
    look |= {"colour": "log"} if log else {}
    look |= {"words": "merged"} if words else {}
    return look | ({"map": cmap} if cmap in ("viridis", "cividis") else {})


def start_of(trace: Trace | Overview, query: str | None) -> dict[str, int | str]:
    """What the page has chosen at first, where a query was named."""
    if query is None:
        return {}
    from attnctl.readings.questions.focus import focus
    from attnctl.readings.traces.trace import Trace
    from attnctl.tokens import find_token

    at = find_token(trace.tokens, query)
    if not isinstance(trace, Trace):
        return {"query": at}
    found = focus(trace, query=at)
    if found is None:
        return {"query": at}
    return {"layer": found.layer, "head": found.head, "query": at, "key": found.key, "reason": found.reason}


def write_page(
    content: PageContent,
    target: str,
    *,
    query: str | None = None,
    look: OptionValues | None = None,
    title: str | None = None,
) -> None:
    """Write a page to `target` ("-": standard output). Raises AttnctlError for more than a browser opens.

    `query` names the token that is chosen at first, `look` how the page looks then.
    """
    from attnctl.files import write_whole
    from attnctl.readings.traces.trace import Trace
    from attnctl.render.page.document import PageView, page_html

    traces, effects = content.traces, content.effects
    layers = [layer for trace in traces if isinstance(trace, Trace) for layer in trace.layers]
    size = sum(layer.weights.size for layer in layers if layer.weights is not None)
    if size > limits.PAGE_NUMBERS:
        raise AttnctlError(
            f"{size:,} weights are too many for a page: choose layers and heads with --layer and --head, or a shorter text"
        )
    first = traces[0] if len(traces) == 2 and not content.over_training else traces[-1]
    chosen = start_of(first, query if effects is None else str(effects["query"]))
    view = PageView(content.labels, content.over_training, chosen | (look or {}), effects, title)
    html = page_html(traces, view, exact=content.exact)
    if target == "-":
        put_bytes(html.encode())
        return
    write_whole(target, html.encode())
