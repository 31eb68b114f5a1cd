"""The commands as functions: heads, compare, spans, view, ablate, sources, evaluate, each answering a value.

Where a function takes `text`, it may be a trace (of `attend`, `load`, `capture`) instead, whose numbers are there already.
Models and options are those of `attend`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from attnctl.argument_types import check_type, checked_selection, require_type
from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models import DEFAULT, attend, opened_model
from attnctl.models.option_types import ModelOptions, with_model_options
from attnctl.readings.traces.trace import Trace

if TYPE_CHECKING:
    from attnctl.models import Model
    from attnctl.models.option_types import ModelArgument
    from attnctl.readings.census.census_table import CensusTable
    from attnctl.readings.effects.answer_sources import AnswerSources
    from attnctl.readings.effects.effects import Effects
    from attnctl.readings.head_statistics import HeadStatistics
    from attnctl.readings.overview import Overview
    from attnctl.readings.traces.comparison import Comparison
    from attnctl.source import Source
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
    >>> measured = heads("Alice will eat pizza", model="random", heads=2)
    >>> [(head.layer, head.head) for head in measured]
    [(0, 0), (0, 1)]
    """
    from attnctl.readings.grid import OverviewReading
    from attnctl.readings.head_statistics import HeadStatisticsReading

    source = _source("heads", text, model, options)
    statistics = HeadStatisticsReading(source.tokens, source.key_tokens)
    found: Overview = source.read(OverviewReading(statistics=statistics), *_selected("heads", layer, head))
    return found.head_statistics


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
    from attnctl.readings.grid import GridReading, OverviewReading
    from attnctl.readings.spans import parts_of

    require_type("spans", "kind", kind, str)
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
    check_type("compare", "names", names, tuple, list)
    if names is not None and (len(names) != 2 or not all(isinstance(name, str) for name in names)):
        raise TypeError(f"compare(): names is two names, not {names!r}")
    sides = []
    for name, side in (("a", a), ("b", b)):
        if text is None and not isinstance(side, Trace):
            raise TypeError(f"compare(): {name} is a Trace where there is no text, not {type(side).__name__}")
        if text is not None and not (
            isinstance(side, (str, os.PathLike)) or hasattr(side, "run") or hasattr(side, "config")
        ):
            raise TypeError(f"compare(): {name} is a model where there is a text, not {type(side).__name__}")
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
    if not isinstance(text, Trace):
        require_type("view", "text", text, str)
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
    from attnctl.tokens import checked_text

    for name, value in (("text", text), ("how", how)):
        require_type("ablate", name, value, str)
    for name, word in (("target", target), ("against", against)):
        check_type("ablate", name, word, str)
    require_type("ablate", "edges", edges, bool)
    check_type("ablate", "query", query, int, str)
    opened = opened_model("ablate", model, cast(ModelOptions, options))
    watched = watched_text(opened, checked_text(text), None if query is None else str(query), Intervention(how=how))
    return measure_effects(
        watched, EffectRequest(target=target, against=against, how=how, sweep_heads=not edges, every_edge=edges)
    )


@with_model_options
def sources(
    prompt: str,
    model: ModelArgument,
    *,
    answer: str | None = None,
    spans: str | None = None,
    budget: int = 20,
    **options: Unpack[ModelOptions],
) -> AnswerSources:
    """Which part of a prompt an answer came from, as the command says it; `model` is a checkpoint, or its name.

    `answer` None is the model's own; `generate` of the options says how long it may be, `budget` how many forwards are made.
    """
    from attnctl.models.huggingface.text.chat import Prompt
    from attnctl.models.huggingface.text.prompts import ANSWER, SourceSearch
    from attnctl.tokens import checked_text

    require_type("sources", "prompt", prompt, str)
    for name, value in (("answer", answer), ("spans", spans)):
        check_type("sources", name, value, str)
    require_type("sources", "budget", budget, int)
    most = options.pop("generate", None)
    opened: Any = opened_model("sources", model, options)
    if opened.info.kind != "checkpoint":
        raise UsageError(f"{opened.info.name} answers no prompts: give a checkpoint as model")
    search = SourceSearch(opened, Prompt(checked_text(prompt), ()), spans, answer, most or ANSWER, budget)
    for _ in search.measure_all():
        pass
    return search.found_so_far()


@with_model_options
def evaluate(
    corpus: str | os.PathLike[str] | Sequence[str] | None = None,
    model: ModelArgument = DEFAULT,
    *,
    sentences: int = 1000,
    max_tokens: int = 512,
    untrained: bool = False,
    **options: Unpack[ModelOptions],
) -> CensusTable | list[Measured]:
    """Which words each head finds, beside rules that need no attention: over CoNLL-U files, or the built-in grammar.

    With a corpus the answer is the table that the command writes; sentences that cannot be used are counted in its
    `skipped`. Without one, `sentences` of the grammar are made, for a built-in model, and the answer is a list.
    """
    require_type("evaluate", "sentences", sentences, int)
    require_type("evaluate", "max_tokens", max_tokens, int)
    require_type("evaluate", "untrained", untrained, bool)
    opened = opened_model("evaluate", model, options)
    if corpus is not None:
        return _census_of_corpus(corpus, opened, max_tokens, untrained)
    from attnctl.training.relations import measure_relations

    return measure_relations(opened, count=sentences)


def _census_of_corpus(
    corpus: str | os.PathLike[str] | Sequence[str], model: Model, max_tokens: int, untrained: bool
) -> CensusTable:
    """A census over the sentences of files, counted by this process."""
    from attnctl.batching.corpus.census_run import Tallies, census_results
    from attnctl.batching.corpus.census_work import CensusWork
    from attnctl.batching.corpus.treebank import Treebank
    from attnctl.readings.census.table_of_tally import table_of_tally

    paths = [corpus] if isinstance(corpus, (str, os.PathLike)) else corpus
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(f"evaluate(): corpus is a path or a list of paths, not {type(corpus).__name__}")
    try:
        treebank = Treebank(tuple(os.fspath(path) for path in paths))
    except (OSError, ValueError) as error:  # a name that no file can have
        raise AttnctlError(f"evaluate(): no corpus {str(corpus)[:80]!r}: {in_one_line(error)[:80]}") from error
    tallies = Tallies((model.info.n_layers or 1, model.info.n_heads or 1))
    work = CensusWork(
        {}, untrained=untrained, max_tokens=max_tokens, batch_size=32 if model.info.kind == "checkpoint" else 1
    )
    for chunk in census_results(work, treebank, 1, model):
        for result in chunk:
            list(tallies.take_result(result))
    causal = bool(model.info.causal)
    return table_of_tally(
        tallies.in_memory(), model.info.name, treebank.corpus_name, causal=causal, untrained=untrained
    )


def _source(function: str, text: str | Trace, model: ModelArgument, options: ModelOptions) -> Source:
    from attnctl.source import TextSource
    from attnctl.source.stored import TraceSource

    if isinstance(text, Trace):
        return TraceSource(text)
    check_type(function, "text", text, str)
    if text is None:
        raise TypeError(f"{function}(): text is a str or a Trace, not None")
    return TextSource(opened_model(function, model, options), text)


def _selected(function: str, layer: Selection, head: Selection) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    return checked_selection(function, "layer", layer), checked_selection(function, "head", head)
