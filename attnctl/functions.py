"""The commands as functions: heads, compare, spans, view, ablate, answer_sources, evaluate, each answering a value.

Where a function takes `text`, it may be a trace (of `attend`, `load`, `capture`) instead, whose numbers are there already.
Models and options are those of `attend`. (`attnctl.sources` is the module of that name.)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from attnctl.errors import UsageError
from attnctl.models import DEFAULT, attend, opened_model
from attnctl.models.option_types import ModelOptions, check_selection, check_type, with_model_options
from attnctl.readings.traces.trace import Trace

if TYPE_CHECKING:
    from attnctl.models.option_types import ModelArgument
    from attnctl.readings.effects.answer_sources import AnswerSources
    from attnctl.readings.effects.effects import Effects
    from attnctl.readings.head_statistics import HeadStatistics
    from attnctl.readings.overview import Overview
    from attnctl.readings.traces.comparison import Comparison
    from attnctl.sources import Source
    from attnctl.training.relations import Measured

Selection = int | Sequence[int] | None


@with_model_options
def heads(
    text: str | Trace,
    model: ModelArgument = DEFAULT,
    *,
    layer: Selection = None,
    head: Selection = None,
    **options: Unpack[ModelOptions],
) -> tuple[HeadStatistics, ...]:
    """What each head does over a text, long or short: `values` by statistic (entropy, first, previous, …), and `names`.

    >>> from attnctl import heads
    >>> facts = heads("Alice will eat pizza", model="random", heads=2)
    >>> [(fact.layer, fact.head) for fact in facts]
    [(0, 0), (0, 1)]
    """
    from attnctl.readings.head_statistics import HeadStatisticsReading
    from attnctl.readings.survey import OverviewReading

    source = _source("heads", text, model, options)
    statistics = HeadStatisticsReading(source.tokens, source.key_tokens)
    found: Overview = source.read(OverviewReading(statistics=statistics), *_selected("heads", layer, head))
    return found.facts


@with_model_options
def spans(
    text: str | Trace,
    kind: str = "paragraphs",
    model: ModelArgument = DEFAULT,
    *,
    layer: Selection = None,
    head: Selection = None,
    **options: Unpack[ModelOptions],
) -> Overview:
    r"""Attention between the parts of a text, as --spans: `grid.weights[layer, head]` (parts, parts), rows summing to 1.

    `kind` is paragraphs, lines, headings, documents, or a file of name,start,end.

    >>> from attnctl import spans
    >>> spans("One line.\nAnother line.", "lines", model="random").grid.weights[0, 0].shape
    (2, 2)
    """
    from attnctl.readings.grid import GridReading
    from attnctl.readings.spans import parts_of
    from attnctl.readings.survey import OverviewReading

    check_type("spans", "kind", kind, str)
    source = _source("spans", text, model, options)
    rows = parts_of(kind, source.text, source.tokens)
    columns = rows if source.key_tokens == source.tokens else parts_of(kind, source.text, source.key_tokens)
    grid = OverviewReading(GridReading(rows, columns, "mass"))
    return source.read(grid, *_selected("spans", layer, head))


def compare(a: Any, b: Any, text: str | None = None, *, names: tuple[str, str] | None = None) -> Comparison:
    """Two traces, or with `text` two models on it: `both_weights(layer, head)`, `largest_difference()`.

    >>> from attnctl import attend, compare
    >>> compare("demo", "random", "Alice will eat pizza").names
    ('demo', 'random')
    """
    from attnctl.readings.traces.comparison import compare_traces

    check_type("compare", "text", text, str)
    sides = []
    for name, side in (("a", a), ("b", b)):
        if text is None and not isinstance(side, Trace):
            raise TypeError(f"compare(): {name} is a Trace where there is no text, not {type(side).__name__}")
        sides.append(side if text is None else attend(text, side))
    labels = names or tuple(side if isinstance(side, str) else side.model.name for side in sides)
    if names is None and text is not None:
        labels = tuple(side if isinstance(side, str) else sides[at].model.name for at, side in enumerate((a, b)))
    return compare_traces(sides[0], sides[1], (labels[0], labels[1]))


@with_model_options
def view(
    text: str | Trace,
    other: Trace | None = None,
    model: ModelArgument = DEFAULT,
    *,
    output: str | os.PathLike[str] | None = None,
    **options: Unpack[ModelOptions],
) -> str:
    """The page of a text or trace, or of two traces side by side: its HTML, written to `output` too where one is named.

    >>> from attnctl import view
    >>> view("Alice will eat pizza", model="random")[:15]
    '<!doctype html>'
    """
    from attnctl.files import write_whole
    from attnctl.render.page.document import page_html

    check_type("view", "other", other, Trace)
    check_type("view", "output", output, str, os.PathLike)
    first = text if isinstance(text, Trace) else attend(text, model, **options)
    html = page_html([first] if other is None else [first, other])
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
    edges: bool = False,
    how: str = "zero",
    **options: Any,
) -> Effects:
    """What each head, or with `edges` each key, does for a prediction: every one is taken away in turn, as the command does.

    For a transformers model that runs in your own code see `attnctl.effects`.

    >>> from attnctl import ablate
    >>> len(ablate("Alice will eat", model="demo").heads) > 0
    True
    """
    from attnctl.interventions import Intervention
    from attnctl.models.watching import watched_text
    from attnctl.readings.effects.ablation import EffectRequest
    from attnctl.readings.effects.effect_sweep import measure_effects

    for name, value in (("text", text), ("target", target), ("against", against), ("how", how)):
        check_type("ablate", name, value, str)
    check_type("ablate", "query", query, int, str)
    opened = opened_model("ablate", model, cast(ModelOptions, options))
    watched = watched_text(opened, text, None if query is None else str(query), Intervention(how=how))
    return measure_effects(
        watched, EffectRequest(target=target, against=against, how=how, sweep_heads=not edges, every_edge=edges)
    )


@with_model_options
def answer_sources(
    prompt: str,
    model: ModelArgument,
    *,
    answer: str | None = None,
    spans: str | None = None,
    budget: int = 20,
    permute: int | None = None,
    **options: Unpack[ModelOptions],
) -> AnswerSources:
    """Which part of a prompt an answer came from, as the command says it; `model` is a checkpoint, or its name.

    `answer` None is the model's own; `generate` of the options says how long it may be, `budget` how many forwards are made.
    With `permute` the answer is measured with the documents in so many orders, drawn by `seed` of the options: `orders` of
    what comes back.
    """
    from dataclasses import replace
    from itertools import chain

    from attnctl.limits import check_range
    from attnctl.models.huggingface.text.chat import Prompt
    from attnctl.models.huggingface.text.permuted_prompt import PermutedSearch
    from attnctl.models.huggingface.text.prompts import ANSWER, SourceSearch
    from attnctl.tokens import checked_text

    for name, value in (("prompt", prompt), ("answer", answer), ("spans", spans)):
        check_type("answer_sources", name, value, str)
    check_type("answer_sources", "budget", budget, int)
    check_type("answer_sources", "permute", permute, int)
    most, seed = options.pop("generate", None), 0
    if permute is not None:
        check_range("permute", permute)
        seed = options.pop("seed", None) or 0
    opened: Any = opened_model("answer_sources", model, options)
    if opened.info.kind != "checkpoint":
        raise UsageError(f"{opened.info.name} answers no prompts: give a checkpoint as model")
    search = SourceSearch(opened, Prompt(checked_text(prompt), ()), spans, answer, most or ANSWER, budget)
    orders = None if permute is None else PermutedSearch(search, permute, seed)
    for _ in chain(search.measure_all(), () if orders is None else orders.measure_orders()):
        pass
    found = search.found_so_far()
    return found if orders is None else replace(found, orders=orders.found_so_far())


@with_model_options
def evaluate(
    model: ModelArgument = DEFAULT, *, sentences: int = 1000, **options: Unpack[ModelOptions]
) -> list[Measured]:
    """Which words each head of a built-in model finds, over sentences of the grammar, beside simple rules."""
    from attnctl.training.relations import measure_relations

    check_type("evaluate", "sentences", sentences, int)
    return measure_relations(opened_model("evaluate", model, options), count=sentences)


def _source(function: str, text: str | Trace, model: ModelArgument, options: ModelOptions) -> Source:
    from attnctl.sources import TextSource
    from attnctl.sources.stored import TraceSource

    if isinstance(text, Trace):
        return TraceSource(text)
    check_type(function, "text", text, str)
    if text is None:
        raise TypeError(f"{function}(): text is a str or a Trace, not None")
    return TextSource(opened_model(function, model, options), text)


def _selected(function: str, layer: Selection, head: Selection) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    check_selection(function, "layer", layer)
    check_selection(function, "head", head)
    return tuple([one] if isinstance(one, int) else one for one in (layer, head))  # type: ignore[return-value]
