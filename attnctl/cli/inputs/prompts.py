"""A command's prompt: a text, a file or a conversation, for a checkpoint that answers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.cli import arguments
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.formats.chat import Conversation
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.text.chat import Prompt
    from attnctl.models.option_types import OptionValues


def conversation_in(file: str) -> Conversation:
    """The conversation in the file of --chat, or of standard input for "-"."""
    from attnctl.files import read_bytes
    from attnctl.formats.chat import conversation_of

    return conversation_of(read_bytes(file, limits.TEXT_BYTES), "standard input" if file == "-" else file)


def text_or_conversation(text: str | None, file: str | None, options: OptionValues) -> tuple[str, Checkpoint | None]:
    """The text of an argument or a file; or that of --chat, taken out of the options, with the checkpoint that reads it."""
    chat = options.pop("chat", None)
    if chat is None:
        return arguments.text_of(text, file), None
    from attnctl.models.huggingface.text.prompts import begun_once

    model, prompt, _ = prompt_of(text, file, chat, options)
    return begun_once(model, prompt.text), model


def prompt_of(
    text: str | None, file: str | None, chat: str | None, options: OptionValues
) -> tuple[Checkpoint, Prompt, Conversation | None]:
    """The opened checkpoint, the prompt that it reads, and the conversation that the prompt was made of.

    Raises UsageError for a model that is no checkpoint, or for two prompts.
    """
    conversation = None if chat is None else conversation_in(chat)
    if conversation is not None and (text is not None or file is not None):
        raise UsageError("give the text, --file, or --chat: one of them")
    said = None if conversation is not None else arguments.text_of(text, file)
    model = arguments.model_of(options)
    if model.info.kind != "checkpoint":
        raise UsageError(
            f"{model.info.name} answers no prompts: name a checkpoint with --model (smollm2, a folder, a .gguf)"
        )
    from attnctl.models.huggingface.text.chat import Prompt
    from attnctl.models.huggingface.text.prompts import chat_prompt
    from attnctl.tokens import checked_text

    if conversation is not None:
        return model, chat_prompt(model, conversation), conversation
    return model, Prompt(checked_text(said or ""), ()), None
