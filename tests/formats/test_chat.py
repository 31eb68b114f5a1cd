"""Conversations: read from JSON, refused in one line where they are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attnctl.errors import AttnctlError
from attnctl.formats.chat import conversation_of


def test_contents_and_tools() -> None:
    read = conversation_of(
        json.dumps({
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}], "name": "Ann"},
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                {"role": "tool", "content": {"city": "Brno", "°C": 3}},
            ],
            "tools": [{"type": "function"}],
        }),
        "chat.json",
    )  # fmt: skip
    assert [message.content for message in read.messages] == ["Be brief.", "Hello you", "", '{"city": "Brno", "°C": 3}']
    assert read.messages[1].more == {"name": "Ann"} and read.tools == ({"type": "function"},)


@pytest.mark.parametrize(
    "document, said",
    [
        ("{", "is not JSON"),
        ({}, "is no conversation"),
        ("[]", "holds no messages"),
        ([1], "message 0 is no object"),
        ([{"content": "a"}], "message 0 has no role"),
        ([{"role": "pope\x1b[2J", "content": "a"}], "has the role"),
        ([{"role": "user"}], "has no content"),
        ([{"role": "user", "content": 3}], "its content is a text"),
        ([{"role": "user", "content": " "}], "every message is empty"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url': only text can be read"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has no text"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": 3}, "tools is a list"),
    ],
)
def test_what_is_no_conversation(document: Any, said: str) -> None:
    with pytest.raises(AttnctlError, match="chat.json") as refused:
        conversation_of(document if isinstance(document, str) else json.dumps(document), "chat.json")
    assert said in str(refused.value) and "\x1b" not in str(refused.value)
