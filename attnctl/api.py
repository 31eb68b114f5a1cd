"""The commands as functions: sources and evaluate, each answering a value.

Where a function takes `text`, it may be a trace (of `attend`, `load`, `capture`) instead, whose numbers are there already.
Models and options are those of `attend`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from attnctl import limits
from attnctl.argument_types import ModelOptions, with_model_options
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.models import DEFAULT, opened_model
from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.formats.chat import Conversation
    from attnctl.formats.documents.model_documents import RelationDocument
    from attnctl.formats.pictures import Look
    from attnctl.models import Model, ModelArgument
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.prompts import Prompt, SourceSearch
    from attnctl.readings.census.census_table import CensusTable
    from attnctl.readings.effects.answer_sources import AnswerSources
    from attnctl.readings.questions.quiz import QuizQuestion
    from attnctl.source import Say

Selection = int | Sequence[int] | None


def questions_of_trace(
    trace: Trace, count: int = 5, seed: int = 0, query: int | None = None, model: Model | None = None
) -> list[QuizQuestion]:
    """`count` questions about a trace, as `attnctl quiz` asks them; the same seed asks the same.

    The last of three or more is on what matters, where `model`, the built-in one that the trace is of, makes a prediction
    that one head carries. Raises AttnctlError where there is nothing to ask.
    """
    from attnctl.models.watching import watched_text
    from attnctl.readings.questions.quiz import quiz_questions, removal_question
    from attnctl.tokens import BLANKS
    from attnctl.watched.measure import EffectRequest, measure_effects

    asked, text = quiz_questions(trace, count, seed, query), trace.text
    if len(asked) < 3 or model is None or getattr(model, "unembedding", None) is None:
        return asked
    tokens = model.tokenize(text)
    if not model.info.causal and not any(token.text in BLANKS for token in tokens):
        # a model that sees both sides predicts what is hidden: the last word
        last = next((token for token in reversed(tokens) if token.text.isalpha()), tokens[-1])
        text = f"{text[: last.start]}{BLANKS[0]}{text[last.end :]}"
    found = removal_question(measure_effects(watched_text(model, text), EffectRequest()), random.Random(seed))
    return asked if found is None else [*asked[:-1], found]


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
