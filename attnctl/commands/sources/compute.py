"""The sources of an answer as a function, and the search for them by the options of the command."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

from attnctl import limits
from attnctl.argument_types import check_options, check_types
from attnctl.errors import UsageError, option_name
from attnctl.model_options import OPTION_TYPES, ModelOptions, with_model_options
from attnctl.models import opened_model

if TYPE_CHECKING:
    from attnctl.commands.sources.result import AnswerSources
    from attnctl.commands.sources.search import SourceSearch
    from attnctl.formats.chat import Conversation
    from attnctl.models import ModelArgument
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.prompts import Prompt


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

    check_types("sources", str | list, prompt=prompt)
    check_types("sources", str | None, answer=answer, spans=spans)
    check_types("sources", int, budget=budget)
    check_types("sources", bool, remove=remove)
    check_options("sources", options, OPTION_TYPES)
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
    from attnctl.commands.sources.search import ANSWER, SourceSearch

    if checkpoint.reader.takes == "sound":
        raise UsageError(f"{checkpoint.info.name} hears, and answers no prompts: name a model that writes text")
    if checkpoint.pieces.text_pair is not None:
        raise UsageError("does not go with a prompt, which is one text", option="text_pair")
    if remove and checkpoint.photograph is not None:
        why = f"does not go with {option_name('image')}: no part of a picture can be left out of a prompt"
        raise UsageError(why, option="remove")
    search = SourceSearch(checkpoint, prompt, spans, answer, generate or ANSWER, budget)
    yield search
    for _ in chain(search.measure_all(), search.remove_parts(conversation) if remove else ()):
        yield search
