"""The commands as functions: heads, compare, spans, view, ablate, sources, evaluate, each answering a value.

Where a function takes `text`, it may be a trace (of `attend`, `load`, `capture`) instead, whose numbers are there already.
Models and options are those of `attend`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack, cast

from attnctl import limits
from attnctl.argument_types import ModelOptions, checked, checked_selection, require_type, with_model_options
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.measures import joins_heads, needs_of
from attnctl.models import DEFAULT, opened_model
from attnctl.source import NO_CHANGES, Changes, prepare, reader_of, selected_indices
from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.blockwise import Tick
    from attnctl.formats.chat import Conversation
    from attnctl.formats.documents.model_documents import RelationDocument
    from attnctl.formats.pictures import Look
    from attnctl.models import Model, ModelArgument
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.prompts import Prompt, SourceSearch
    from attnctl.readings.census.census_table import CensusTable
    from attnctl.readings.comparison import Comparison
    from attnctl.readings.effects import Effects
    from attnctl.readings.effects.ablation import EffectRequest, Watched
    from attnctl.readings.effects.answer_sources import AnswerSources
    from attnctl.readings.head_statistics import HeadStatistics
    from attnctl.readings.overview import Overview
    from attnctl.render.page import Page
    from attnctl.source import Prepared, Say, Source
    from attnctl.source import Selection as Chosen
    from attnctl.trace.consistency import CheckFinding
    from attnctl.trace.model_info import ModelInfo

Selection = int | Sequence[int] | None


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
    census: CensusTable | None = None,
    **options: Unpack[ModelOptions],
) -> tuple[HeadStatistics, ...]:
    """What each head does over a text, long or short: `values` by statistic (entropy, first, previous, …), and `names`.

    `census` is a table of `evaluate`, or of `load`.

    >>> from attnctl import heads
    >>> measured = heads("Alice will eat pizza", model="random", n_heads=2)
    >>> [(head.layer, head.head) for head in measured]
    [(0, 0), (0, 1)]
    """
    from attnctl.readings.census.census_table import CensusTable as Table

    if census is not None:
        require_type("heads", "census", census, Table)
    changes = _changes("heads", measure, words, renormalise, drop)
    source = _source("heads", text, model, options)
    given = prepare(source, changes, *_selected("heads", layer, head), keeps_columns=True)
    return measure_heads(given, probe, census).head_statistics


def measure_heads(
    given: Prepared, probe: bool = False, census: CensusTable | None = None, tick: Tick | None = None
) -> Overview:
    """The statistics of the heads of a source that was prepared with `keeps_columns`.

    With `probe`, induction and duplicates are those of random tokens said twice; `census` names heads after what they find.
    Raises UsageError where these cannot be.
    """
    from attnctl.readings.head_statistics import name_head
    from attnctl.readings.heatmap import OverviewReading
    from attnctl.readings.statistics_reading import HeadStatisticsReading

    source = given.source
    if probe and given.model is None:
        raise UsageError(f"runs a model: {source.name} holds numbers that have been computed already", option="probe")
    if probe and source.measure is not None:
        why = f"it does not go with {source.measure}"
        raise UsageError(f"measures the weights of single heads: {why}", option="probe")
    if census is not None and joins_heads(source.measure):
        raise UsageError(f"names single heads, and {source.measure} is of all heads together", option="census")
    statistics = HeadStatisticsReading(source.tokens, source.key_tokens)
    found: Overview = given.read(OverviewReading(statistics=statistics), tick)
    measured = list(found.head_statistics)
    if probe:
        from attnctl.models.watching import ProbeReading, probe_text

        scores = probe_text(given.model).read(ProbeReading(), given.layers, given.heads)
        for at, one in enumerate(measured):
            probed = dict(zip(("induction", "duplicate"), scores[one.layer, one.head], strict=True))
            measured[at] = name_head(replace(one, values={**one.values, **probed}), len(found.tokens), probed)
    before, after = _known_names(found.model, census)
    named = (
        replace(one, names=(*before.get((one.layer, one.head), ()), *one.names, *after.get((one.layer, one.head), ())))
        for one in measured
    )
    return replace(found, head_statistics=tuple(named))


Names = dict[tuple[int, int], tuple[str, ...]]


def _known_names(info: ModelInfo, census: CensusTable | None) -> tuple[Names, Names]:
    """(layer, head) → names that stand first, and last: what the model's own evaluation, or a census, found.

    Raises UsageError for the census of a model of other sizes.
    """
    from attnctl.readings.census.census_table import head_names
    from attnctl.readings.questions.headline import roles_of_heads

    if census is None:
        return roles_of_heads(info), {}
    if census.head_grid != (info.n_layers, info.n_heads):
        layers, heads = census.head_grid
        raise UsageError(
            f"is of {census.model}, {layers} layers of {heads} heads: {info.name} has {info.n_layers} of {info.n_heads}",
            option="census",
        )
    return {}, head_names(census)


@with_model_options
def spans(
    text: str | Trace,
    kind: str = "paragraphs",
    model: ModelArgument = DEFAULT,
    *,
    layer: Selection = None,
    head: Selection = None,
    measure: str | None = None,
    words: bool = False,
    drop: str | list[str] | tuple[str, ...] | None = None,
    renormalise: bool = False,
    **options: Unpack[ModelOptions],
) -> Overview:
    r"""Attention between the parts of a text, as `grid.weights[layer, head]` (parts, parts), rows summing to 1.

    `kind` is paragraphs, lines, headings, documents, or a file of name,start,end.

    >>> from attnctl import spans
    >>> spans("One line.\nAnother line.", "lines", model="random").grid.weights[0, 0].shape
    (2, 2)
    """
    from attnctl.readings.heatmap import GridReading, OverviewReading
    from attnctl.readings.spans import parts_of

    changes = _changes("spans", measure, words, renormalise, drop)
    source = _source("spans", text, model, options)
    given = prepare(source, changes, *_selected("spans", layer, head))
    rows = parts_of(kind, given.source.text, given.source.tokens)
    columns = parts_of(kind, given.source.text, given.source.key_tokens)
    return given.read(OverviewReading(GridReading(rows, columns, "mass")))


@checked
def compare(
    a: Any,
    b: Any,
    text: str | None = None,
    *,
    text_pair: str | None = None,
    names: tuple[str, str] | None = None,
    measure: str | None = None,
    words: bool = False,
    drop: str | list[str] | tuple[str, ...] | None = None,
    renormalise: bool = False,
) -> Comparison:
    """Two traces, or with `text` two models on it: `both_weights(layer, head)`, `largest_difference()`.

    With `text_pair` both models read that as the second of two texts.

    >>> from attnctl import compare
    >>> compare("demo", "random", "Alice will eat pizza").names
    ('demo', 'random')
    """
    if names is not None and (len(names) != 2 or not all(isinstance(name, str) for name in names)):
        raise TypeError(f"compare(): names is two names, not {names!r}")
    if text_pair is not None and text is None:
        raise TypeError("compare(): text_pair goes with a text")
    changes = _changes("compare", measure, words, renormalise, drop)
    sides = []
    for name, side in (("a", a), ("b", b)):
        if text is None and not isinstance(side, Trace):
            raise TypeError(f"compare(): {name} is a Trace where there is no text, not {type(side).__name__}")
        if text is not None and not (
            isinstance(side, (str, os.PathLike)) or hasattr(side, "run") or hasattr(side, "config")
        ):
            raise TypeError(f"compare(): {name} is a model where there is a text, not {type(side).__name__}")
        how: ModelOptions = {"text_pair": text_pair}
        sides.append(_source("compare", side, DEFAULT, {}) if text is None else _source("compare", text, side, how))
    said = tuple(side if isinstance(side, str) else sides[at].info.name for at, side in enumerate((a, b)))
    return compare_sources(sides[0], sides[1], names or (said[0], said[1]), changes)


def compare_sources(
    a: Source, b: Source, names: tuple[str, str], changes: Changes = NO_CHANGES, say: Say | None = None
) -> Comparison:
    """Two sources side by side, with the same changes; `say` hears what a large one takes."""
    from attnctl.readings.comparison import compare_traces

    instead = "compare needs them all: take a shorter text, or attnctl heatmap of each side"
    every_layer = needs_of(changes.measure) == "layers"
    traces = [
        prepare(source, changes, range(source.counts[0]) if every_layer else None, say=say).trace(instead=instead)
        for source in (a, b)
    ]
    return compare_traces(traces[0], traces[1], names)


def chosen_places(pair: Comparison, layer: Chosen, head: Chosen) -> list[tuple[int, int]]:
    """The (layer, head) to show of two: those named, or the one where most has changed.

    Raises UsageError for one that the two do not share.
    """
    of_both = "what {} and {} share".format(*pair.names)
    layers = selected_indices(layer, 1 + max(at for at, _ in pair.places), "layer", of_both)
    heads = selected_indices(head, 1 + max(at for _, at in pair.places), "head", of_both)
    chosen = [
        (at, number)
        for at, number in pair.places
        if (layers is None or at in layers) and (heads is None or number in heads)
    ]
    if not chosen:
        held = ", ".join(f"{at}.{number}" for at, number in pair.places[:8])
        raise UsageError(f"no such layer and head in {of_both}: it has {held}{', …' * (len(pair.places) > 8)}")
    if layer is None and head is None:
        return [pair.largest_difference()[:2]]
    # where one of the two is named, the other is chosen, unless it says all
    one_is_open = layer is None or head is None
    return [max(chosen, key=pair.gap_of_head)] if one_is_open and "all" not in (layer, head) else chosen


@with_model_options
def view(
    text: str | Trace,
    other: Trace | None = None,
    model: ModelArgument = DEFAULT,
    *,
    layer: Selection = None,
    head: Selection = None,
    query: int | str | None = None,
    measure: str | None = None,
    words: bool = False,
    drop: str | list[str] | tuple[str, ...] | None = None,
    renormalise: bool = False,
    log: bool = False,
    effects: bool = False,
    against: str | None = None,
    output: str | os.PathLike[str] | None = None,
    **options: Unpack[ModelOptions],
) -> Page:
    """Return the page of a text or trace, or of two traces side by side: its HTML, which a notebook shows.

    It is written to `output` as well if one is named.

    `query` is chosen at first, and `words`, `drop`, `renormalise` and `log` say how the page begins. With `effects` the
    tokens are shaded by what they do for a prediction: that of `target` of the options, above that of `against`.

    >>> from attnctl import view
    >>> view("Alice will eat pizza", model="random")[:15]
    '<!doctype html>'
    """
    from attnctl.files import write_whole
    from attnctl.pages import page_of_sources
    from attnctl.readings.effects.ablation import EffectRequest
    from attnctl.render.page import Page

    if other is not None:
        require_type("view", "other", other, Trace)
    changes = _changes("view", measure, words, renormalise, drop)
    layers, heads = _selected("view", layer, head)
    if against is not None and not effects:
        raise UsageError(f"goes with {option_name('effects')}", option="against")
    ask = EffectRequest(target=options.pop("target", None), against=against, every_edge=True) if effects else None
    sides = [_source("view", text, model, options)] + (
        [] if other is None else [_source("view", other, model, options)]
    )
    named = None if query is None else str(query)
    html = Page(page_of_sources(sides, changes, layers, heads, query=named, log=log, effects=ask))
    if output is not None:
        write_whole(os.fspath(output), html.encode())
    return html


@with_model_options
def ablate(
    text: str,
    model: ModelArgument = DEFAULT,
    *,
    target: str | None = None,
    against: str | None = None,
    query: int | str | None = None,
    layer: Selection = None,
    head: Selection = None,
    how: str = "zero",
    reference: str | os.PathLike[str] | None = None,
    edges: bool = False,
    edge: str | list[str] | tuple[str, ...] | None = None,
    spans: str | None = None,
    off: str | None = None,
    approximate: bool = False,
    batch_size: int | None = None,
    **options: Any,
) -> Effects:
    """What each head, or with `edges` each key, does for a prediction: every one is taken away in turn, as the command does.

    With `edge` ("gave→Mary") or `spans` these are cut instead. For a transformers model that runs in your own code see
    `attnctl.effects`.

    >>> from attnctl import ablate
    >>> len(ablate("Alice will eat", model="demo").heads) > 0
    True
    """
    from attnctl.readings.effects.ablation import measure_effects
    from attnctl.tokens import checked_text

    checked_text(text)
    for one in edge or ():
        require_type("ablate", "each of edge", one, str)
    layers, heads = _selected("ablate", layer, head)
    if batch_size is not None:
        limits.BATCH_SIZE.check_value("batch_size", batch_size)
    watched, ask = ablation_of_text(
        text,
        lambda: opened_model("ablate", model, cast(ModelOptions, options)),
        layer=layers,
        head=heads,
        query=None if query is None else str(query),
        how=how,
        reference=None if reference is None else os.fspath(reference),
        edges=edges,
        edge=[edge] if isinstance(edge, str) else edge,
        spans=spans,
        off=off,
        cross=options.get("attention") is None,
        target=target,
        against=against,
        approximate=approximate,
        batch_size=batch_size,
    )
    return measure_effects(watched, ask)


def ablation_of_text(
    text: str,
    open_model: Callable[[], Model],
    *,
    layer: Chosen = None,
    head: Chosen = None,
    query: str | None = None,
    how: str = "zero",
    reference: str | None = None,
    edges: bool = False,
    edge: Sequence[str] | None = None,
    spans: str | None = None,
    off: str | None = None,
    target: str | None = None,
    against: str | None = None,
    approximate: bool = False,
    batch_size: int | None = None,
    cross: bool = True,
) -> tuple[Watched, EffectRequest]:
    """What `measure_effects` is asked over a text, by the options of `attnctl ablate`.

    `cross` looks into an encoder-decoder by its cross attention. Raises UsageError for what does not go together.
    """
    from attnctl.interventions import HOW, Intervention
    from attnctl.models.watching import by_cross_attention, off_heads, reference_contexts, watched_text
    from attnctl.readings.effects.ablation import EffectRequest
    from attnctl.readings.spans import REST, SPECIAL, parts_of
    from attnctl.tokens import checked_text, find_token

    if how not in HOW:
        raise UsageError(f"it is {', '.join(HOW)}", option="how", value=how)
    if how == "resample" and reference is None:
        why = f"it takes each head's output from another text: name one with {option_name('reference')}"
        raise UsageError(why, option="how", value=how)
    model = reader_of(open_model(), checked_text(text))
    model = by_cross_attention(model) if cross else model
    info = model.info
    base = Intervention(how=how, reference=reference_contexts(model, text, how, reference))
    if off is not None:
        base = replace(base, heads=off_heads(info, off))
    layers = selected_indices(layer, info.n_layers or 1, "layer", info.name)
    heads = selected_indices(head, info.n_heads or 1, "head", info.name)
    watched = watched_text(model, text, query, base)
    keys = watched.tokens if watched.key_tokens is None else watched.key_tokens
    pairs = []
    for spec in edge or ():
        parts = re.split(r"\s*(?:→|->|>)\s*", spec)
        if len(parts) != 2 or not all(part.strip() for part in parts):
            raise UsageError('it reads QUERY→KEY, as "gave→Mary" or "11>2"', option="edge", value=spec)
        pairs.append((find_token(watched.tokens, parts[0]), find_token(keys, parts[1])))
    cut = [
        (part.name, tuple(at for a, b in part.ranges for at in range(a, b)))
        for part in (() if spans is None else parts_of(spans, watched.text, keys))
        if part.name not in (REST, SPECIAL)
    ]
    return watched, EffectRequest(
        how=how,
        sweep_heads=not (edges or edge or spans),
        layers=layers,
        heads=heads,
        every_edge=edges,
        edges=pairs,
        spans=cut,
        target=target,
        against=against,
        approximate=approximate,
        batch_size=batch_size,
    )


@with_model_options
def sources(
    prompt: str | list[dict[str, Any]],
    model: ModelArgument,
    *,
    answer: str | None = None,
    spans: str | None = None,
    budget: int = 20,
    remove: bool = False,
    **options: Unpack[ModelOptions],
) -> AnswerSources:
    """Which part of a prompt an answer came from, as the command says it; `model` is a checkpoint, or its name.

    `prompt` is a text, or a conversation: messages of role and content. `answer` None is the model's own; `generate` of the
    options says how long it may be, `budget` how many forwards are made. With `remove` the prompt is rendered without each
    part, too.
    """
    from attnctl.formats.chat import conversation_of
    from attnctl.models.huggingface.prompts import Prompt, chat_prompt
    from attnctl.text import as_json
    from attnctl.tokens import checked_text

    limits.BUDGET.check_value("budget", budget)
    most = options.pop("generate", None)
    opened: Any = opened_model("sources", model, options)
    if opened.info.kind != "checkpoint":
        raise UsageError(f"{opened.info.name} answers no prompts: give a checkpoint as model")
    if isinstance(prompt, str):
        said, conversation = Prompt(checked_text(prompt), ()), None
    else:
        conversation = conversation_of(as_json(prompt), "prompt")
        said = chat_prompt(opened, conversation)
    *_, search = search_sources(
        opened, said, conversation, answer=answer, spans=spans, budget=budget, remove=remove, generate=most
    )
    return search.found_so_far()


def search_sources(
    checkpoint: Checkpoint,
    prompt: Prompt,
    conversation: Conversation | None,
    *,
    answer: str | None = None,
    spans: str | None = None,
    budget: int = 20,
    remove: bool = False,
    generate: int | None = None,
) -> Iterator[SourceSearch]:
    """The search for the sources of an answer, by the options of `attnctl sources`: before it, and after each forward."""
    from attnctl.models.huggingface.prompts import ANSWER, SourceSearch

    if hasattr(checkpoint, "extractor"):
        raise UsageError(f"{checkpoint.info.name} hears, and answers no prompts: see attnctl align, or heads")
    if checkpoint.pieces.text_pair is not None:
        raise UsageError("does not go with a prompt, which is one text", option="text_pair")
    if remove and hasattr(checkpoint, "photograph"):
        why = f"does not go with {option_name('image')}: no part of a picture can be left out of a prompt"
        raise UsageError(why, option="remove")
    search = SourceSearch(checkpoint, prompt, spans, answer, generate or ANSWER, budget)
    yield search
    for _ in chain(search.measure_all(), search.remove_parts(conversation) if remove else ()):
        yield search


@with_model_options
def evaluate(
    corpus: str | os.PathLike[str] | Sequence[str] | None = None,
    model: ModelArgument = DEFAULT,
    *,
    sentences: int = 1000,
    relations: str | os.PathLike[str] | None = None,
    max_tokens: int = 512,
    untrained: bool = False,
    jobs: int = 1,
    output: str | os.PathLike[str] | None = None,
    replace_results: bool = False,
    **options: Unpack[ModelOptions],
) -> CensusTable | list[RelationDocument]:
    """Which words each head finds, beside rules that need no attention: over CoNLL-U files, or the bundled corpus.

    With a corpus the answer is the table that the command writes; sentences that cannot be used are counted in its
    `skipped`. `relations` is a file that renames them, `output` a folder in which an interrupted run is gone on with;
    several `jobs` are processes, which open the model by its name. Without a corpus, `sentences` of each part of the bundled
    one are read, by a built-in model, and the answer is a list.
    """
    if options.get("text_pair") is not None:
        raise UsageError("does not go with a corpus: each sentence is read alone", option="text_pair")
    opened = opened_model("evaluate", model, options)
    if corpus is None:
        from attnctl.training.relations import measure_relations

        return measure_relations(opened, count=sentences)
    from attnctl.batching.census_work import CensusWork, count_corpus, open_census_model, renamed_relations
    from attnctl.batching.treebank import Treebank

    limits.JOBS.check_value("jobs", jobs)
    paths = [corpus] if isinstance(corpus, (str, os.PathLike)) else corpus
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(f"evaluate(): corpus is a path or a list of paths, not {type(corpus).__name__}")
    named = isinstance(model, (str, os.PathLike))
    if not named and (jobs > 1 or output is not None):
        raise UsageError("several jobs, and a folder to go on in, need a model by its name")
    if replace_results and output is None:
        raise UsageError("is for a folder: name one for the output", option="replace")
    try:
        treebank = Treebank(tuple(os.fspath(path) for path in paths))
    except (OSError, ValueError) as error:  # a name that no file can have
        raise AttnctlError(f"evaluate(): no corpus {str(corpus)[:80]!r}: {in_one_line(error)[:80]}") from error
    renamed = renamed_relations(None if relations is None else os.fspath(relations))
    given = {"name": os.fspath(model), **options} if isinstance(model, (str, os.PathLike)) else {}
    together = 32 if opened.info.kind == "checkpoint" else 1
    work = CensusWork(given, renamed, untrained=untrained, max_tokens=max_tokens, batch_size=together)
    folder = None if output is None else os.fspath(output)
    opened = open_census_model(work, opened)
    return count_corpus(work, treebank, opened, jobs=jobs, folder=folder, start_anew=replace_results)


def findings_of(given: Prepared) -> list[CheckFinding]:
    """What comes out where the weights of a text, a trace or a matrix are recomputed by other means.

    Raises UsageError for an overview.
    """
    from attnctl.models.huggingface.check import check_attention
    from attnctl.source import OverviewSource
    from attnctl.trace.consistency import findings_of_trace

    if isinstance(given.source, OverviewSource):
        name = given.source.name
        why = f"{name} holds an overview, of which nothing can be recomputed: give the text"
        raise UsageError(f"needs every weight: {why}", option="check")
    if given.model is None:
        return list(findings_of_trace(given.trace(predictions=False)))
    return list(check_attention(given.model, given.source.input_text, given.layers, given.heads))


def census_bytes(found: CensusTable, suffix: str, look: Look | None = None, say: Say | None = None) -> bytes:
    """A census as the bytes of a file that ends in `suffix`: .json, .csv, .parquet, .html, or a picture.

    `look` is that of a picture, of which `say` hears what its reader must know.
    """
    from attnctl.formats.census_table import census_csv, census_document, census_parquet
    from attnctl.formats.documents.json_documents import write_json
    from attnctl.formats.pictures import figure_bytes

    if suffix == ".json":
        return write_json(census_document(found), "census") + b"\n"
    if suffix in (".csv", ".parquet"):
        return census_csv(found) if suffix == ".csv" else census_parquet(found)
    if suffix == ".html":
        from attnctl.render.page.reading_pages import census_page

        return census_page(found).encode()
    from attnctl.formats.pictures import PLAIN
    from attnctl.render.figure.charts import census_drawing

    drawing = census_drawing(found, look or PLAIN)
    if say is not None:
        say(drawing.notes)
    return figure_bytes(drawing.figure, suffix[1:])


def _source(function: str, text: str | Trace, model: ModelArgument, options: ModelOptions) -> Source:
    from attnctl.source import TextSource, TraceSource

    if isinstance(text, Trace):
        return TraceSource(text)
    if text is None:
        raise TypeError(f"{function}(): text is a str or a Trace, not None")
    require_type(function, "text", text, str)
    return TextSource(opened_model(function, model, options), text)


def _selected(function: str, layer: Selection, head: Selection) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    return checked_selection(function, "layer", layer), checked_selection(function, "head", head)


def _changes(
    function: str, measure: str | None, words: bool, renormalise: bool, drop: str | Sequence[str] | None
) -> Changes:
    for one in drop or ():
        require_type(function, "each of drop", one, str)
    return Changes(measure, words, renormalise, drop)
