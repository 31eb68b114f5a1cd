"""Conversations: what is read of their messages; those that are none are refused in tests/refusals.txt."""

from __future__ import annotations

import json

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
