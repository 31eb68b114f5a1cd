"""Read conversations in the form of serving APIs: a JSON list of messages, each with a role and a content.

The messages follow OpenAI's chat format: `content` is a string, or a list of parts of type text. An object with `messages`
and perhaps `tools` is also read. If the content is a JSON object, for example from a tool, its text is the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from attnctl.errors import AttnctlError
from attnctl.text import Document, visible_text

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(frozen=True)
class Message:
    """One message: the role of its author and its text. `more` holds its other fields (name, tool_calls, …) unchanged."""

    role: str
    content: str
    more: Document = field(default_factory=dict)


@dataclass(frozen=True)
class Conversation:
    """Messages in order, and the JSON schemas of the tools that may be called."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True)
class Prompt:
    """A text that a model reads and answers, a conversation in the model's template among them.

    `spans` are (name, start, end) in characters, one per message with content; the text between them comes from the
    template: role names, separators, its default system message.
    """

    text: str
    spans: tuple[tuple[str, int, int], ...] = ()


def conversation_of(data: bytes | str, source: str) -> Conversation:
    """Return the conversation in a JSON document. Raises AttnctlError with `source` and the message if it is not one."""
    from attnctl.runtime.files import parse_json

    document = parse_json(data, source)
    tools: Sequence[Document] = ()
    if isinstance(document, dict):
        tools = document.get("tools") or ()
        document = document.get("messages")
    if not isinstance(document, list):
        raise AttnctlError(f'{source} is not a conversation: it is a JSON list of {{"role": …, "content": …}}')
    if not document:
        raise AttnctlError(f"{source} holds no messages")
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, dict) for tool in tools):
        raise AttnctlError(f"{source}: tools is a list of JSON objects")
    messages = tuple(_chat_message(entry, f"{source}: message {number}") for number, entry in enumerate(document))
    if not any(message.content.strip() for message in messages):
        raise AttnctlError(f"{source}: every message is empty")
    return Conversation(messages, tuple(tools))


def _chat_message(entry: object, where: str) -> Message:
    if not isinstance(entry, dict):
        raise AttnctlError(f"{where} is not an object with role and content")
    role = entry.get("role")
    if role not in ROLES:
        problem = "has no role" if role is None else f"has the role {visible_text(str(role))!r}"
        raise AttnctlError(f"{where} {problem}: a role is {', '.join(ROLES)}")
    more = {name: value for name, value in entry.items() if name not in ("role", "content")}
    content = entry.get("content")
    if content is None and not more.get("tool_calls"):
        raise AttnctlError(f"{where} ({role}) has no content")
    return Message(role, _message_text(content, f"{where} ({role})"), more)


def _message_text(content: object, where: str) -> str:
    """Return the text of a message's content. Raises AttnctlError for images and other parts that are not text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    if not isinstance(content, list):
        raise AttnctlError(f"{where}: its content is a text, or a list of parts of type text")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS:
            named = f"a part of type {visible_text(str(kind))!r}" if kind else "a part without a type"
            raise AttnctlError(f"{where} holds {named}: only text can be read, no images, sound or files")
        if not isinstance(part.get("text"), str):
            raise AttnctlError(f"{where}: a part of type text has no text")
        texts.append(part["text"])
    return "".join(texts)
