"""Render a conversation by a checkpoint's chat template, and find the span of each message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name
from attnctl.formats.chat import Conversation, Message, Prompt
from attnctl.models.huggingface.template_process import fill_templates
from attnctl.models.huggingface.tokenizer import named_token
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.tokenizer import Pieces

TEMPLATE_END = 20  # characters of a template before a message, by which a text in it is known


def template_of(settings: dict[str, object], name: str) -> str:
    """Return the chat template of a checkpoint, from its tokenizer's settings. Raises AttnctlError if it has none."""
    template = settings.get("chat_template")
    if isinstance(template, list):  # several templates with names
        templates = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = templates.get("default")
    if not isinstance(template, str):
        raise AttnctlError(f"{name} has no chat template, so it reads no conversation: give it a text")
    return template


def render_conversation(
    conversation: Conversation, template: str, settings: dict[str, object], name: str, *, answer: bool
) -> Prompt:
    """Return the conversation rendered by this template; `answer`: up to the position where the model answers.

    Raises AttnctlError if the template fails or refuses (some have no system message, or no two user messages in a row).
    """
    special = {key: named_token(settings, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
    messages = conversation.messages
    marks = [replace(message, content=_message_mark(number)) for number, message in enumerate(messages)]
    try:
        text, marked = fill_templates(
            template,
            [
                [
                    {"role": message.role, "content": message.content, **message.more}
                    for message in conversation_messages
                ]
                for conversation_messages in (messages, marks)
            ],
            tools=list(conversation.tools) or None,
            add_generation_prompt=answer,
            **special,
        )
    except ValueError as error:
        raise AttnctlError(f"the chat template of {name} refuses this conversation: {in_one_line(error)}") from error
    return Prompt(text, _message_spans(text, marked, messages, name))


def _message_mark(number: int) -> str:
    """Return a mark for a message's content: characters that no template and no text contains."""
    return "\ue000" + "".join(chr(0xE001 + int(digit)) for digit in str(number)) + "\ue00f"


def _message_spans(text: str, marked: str, messages: Sequence[Message], name: str) -> tuple[tuple[str, int, int], ...]:
    """Return the span of each message's content in `text`: (name, start, end), in the order of the text.

    The name is the role and the number of the message: "user 1".

    `marked` is the same conversation with a mark for each content. Templates may strip the white space around a content, and
    leave whole messages out. Raises AttnctlError if a content cannot be found.
    """
    places = sorted(
        (marked.index(_message_mark(number)), number)
        for number in range(len(messages))
        if _message_mark(number) in marked
    )
    spans, position, marked_position = [], 0, 0  # position in `text`, and in `marked`
    for place, number in places:
        position += place - marked_position
        marked_position = place + len(_message_mark(number))
        content = messages[number].content
        if not text.startswith(content, position):
            content = content.strip()
        start = position if text.startswith(content, position) else text.find(content, position)
        if start < 0 and messages[number].role in ("system", "developer", "assistant"):
            continue  # templates leave an assistant's reasoning out, and reword a system message
        if start < 0:
            raise AttnctlError(f"the chat template of {name} changes message {number} ({messages[number].role})")
        position = start + len(content)
        if content.strip():
            spans.append((f"{messages[number].role} {number}", start, position))
    return tuple(spans)


def bare_text_notes(pieces: Pieces, text: str) -> tuple[str, ...]:
    """Return a note if another program puts a text into the model's chat template, and this text is not in it; else ()."""
    if not pieces.wrapped_by or _is_in_template(pieces.settings, text):
        return ()
    advice = f"{option_name('chat', 'FILE')} reads a conversation in the model's template."
    if "chat_template" not in pieces.settings:
        advice = "The file holds no template that attnctl reads."
    return (f"The model reads the bare text. {pieces.wrapped_by} puts a text into a template. {advice}",)


def _is_in_template(settings: dict[str, object], text: str) -> bool:
    """Return whether a text contains what a checkpoint's template puts before a user's message."""
    special = {key: named_token(settings, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
    try:
        messages = [[{"role": "user", "content": _message_mark(0)}]]
        rendered = fill_templates(template_of(settings, ""), messages, add_generation_prompt=True, **special)[0]
    except (ValueError, AttnctlError):
        return False
    before = rendered.partition(_message_mark(0))[0].strip()[-TEMPLATE_END:]
    return bool(before) and before in text


def chat_prompt(model: Checkpoint, conversation: Conversation) -> Prompt:
    """Return the conversation rendered by the checkpoint's own template, up to its answer.

    Raises the errors of `render_conversation`.
    """
    settings, name = model.pieces.settings, model.info.name
    if model.pieces.text_pair is not None:
        raise UsageError(
            f"cannot be combined with {option_name('chat')}: a conversation is one text", option="text_pair"
        )
    if model.photograph is not None:
        why = f"cannot be combined with {option_name('image')}: give the question about the picture as the text"
        raise UsageError(why, option="chat")
    return render_conversation(conversation, template_of(settings, name), settings, name, answer=True)


def prompt_tokens(model: Checkpoint, text: str) -> tuple[Token, ...]:
    """Return the tokens of a prompt, with one beginning token if template and tokenizer both add one."""
    tokens = model.tokenize(text)
    begins_twice = len(tokens) > 1 and tokens[0].id == tokens[1].id == model.pieces.bos_id
    doubled = begins_twice and model.photograph is None
    return tokens[1:] if doubled else tokens
