"""Find the sources of an answer: the Python function, and the search by the options of the command."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from attnctl.checks import limits
from attnctl.checks.argument_types import check_options, check_types
from attnctl.checks.model_options import OPTION_TYPES, ModelOptions, with_model_options
from attnctl.errors import UsageError, option_name
from attnctl.models import answering_model, opened_model

if TYPE_CHECKING:
    from attnctl.blockwise import Tick
    from attnctl.commands.sources.result import AnswerSources
    from attnctl.commands.sources.search import SourceSearch
    from attnctl.formats import Conversation, Prompt
    from attnctl.models import ModelArgument
    from attnctl.source import AnswersPrompts


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
    """Return which part of a prompt an answer came from, as the command does; `model` is a checkpoint, or its name.

    `prompt` is a text, or a conversation: messages with role and content. `answer` None is the model's own answer; the
    option `generate` limits its tokens. `budget` limits the forwards. With `remove`, the prompt is also rendered without
    each part.
    """
    from attnctl.formats import Prompt, conversation_of
    from attnctl.text import as_json
    from attnctl.text.tokens import checked_text

    check_types("sources", str | list, prompt=prompt)
    check_types("sources", str | None, answer=answer, spans=spans)
    check_types("sources", int, budget=budget)
    check_types("sources", bool, remove=remove)
    check_options("sources", options, OPTION_TYPES)
    limits.BUDGET.check_value("budget", budget)
    answer_limit = options.pop("generate", None)
    opened = answering_model(opened_model("sources", model, options), "give a checkpoint as model")
    if isinstance(prompt, str):
        prompt_read, conversation = Prompt(checked_text(prompt)), None
    else:
        conversation = conversation_of(as_json(prompt), "prompt")
        prompt_read = opened.prompt_of(conversation)
    *_, search = search_sources(
        opened,
        prompt_read,
        conversation,
        answer=answer,
        spans=spans,
        budget=budget,
        remove=remove,
        generate=answer_limit,
    )
    return search.found_so_far()


def search_sources(
    model: AnswersPrompts,
    prompt: Prompt,
    conversation: Conversation | None,
    *,
    answer: str | None = None,
    spans: str | None = None,
    budget: int = 20,
    remove: bool = False,
    generate: int | None = None,
    tick: Tick | None = None,
) -> Iterator[SourceSearch]:
    """Yield the search for the sources of an answer, before the first forward and after each.

    `tick` receives the shares of the prompt that are read before the first.
    """
    from attnctl.commands.sources.search import ANSWER, SourceSearch

    model.check_prompts()
    if remove and model.photograph is not None:
        why = f"cannot be combined with {option_name('image')}: no part of a picture can be left out of a prompt"
        raise UsageError(why, option="remove")
    search = SourceSearch(model, prompt, spans, answer, generate or ANSWER, budget, tick)
    yield search
    for _ in chain(search.measure_all(), search.remove_parts(conversation) if remove else ()):
        yield search
