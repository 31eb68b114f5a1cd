"""Chat templates: the text they make, and where each message stands in it."""

from __future__ import annotations

import pytest

from attnctl.errors import AttnctlError
from attnctl.formats.chat import Conversation, Message
from attnctl.models.huggingface.prompts import render_conversation, template_of

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRIPPING = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{{ eos_token }}{% endfor %}"
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system message') }}{% endif %}" + CHATML
THINKING = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"


def talk(*said: tuple[str, str]) -> Conversation:
    return Conversation(tuple(Message(role, content) for role, content in said))


TALK = talk(("system", "user"), ("user", "system\n"), ("assistant", "a"), ("user", "  a {{ 7 * 7 }}  "), ("user", "a"))


@pytest.mark.parametrize("template", [CHATML, STRIPPING])
@pytest.mark.parametrize("answer", [True, False])
def test_every_message_is_found(template: str, answer: bool) -> None:
    """Also where a message says what the template says, or what another message says."""
    prompt = render_conversation(
        TALK, template, {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}, "tiny", answer=answer
    )
    assert [name for name, *_ in prompt.spans] == [f"{at} {m.role}" for at, m in enumerate(TALK.messages)]
    found = [prompt.text[start:end] for _, start, end in prompt.spans]
    assert [part.strip() for part in found] == [message.content.strip() for message in TALK.messages]
    for name, start, _ in prompt.spans:
        before = prompt.text[:start].rstrip()
        assert before.endswith((name.split()[1], name.split()[1] + "]"))
    assert prompt.text.endswith("assistant\n") == (answer and template is CHATML)


def test_a_template_that_leaves_things_out() -> None:
    said = render_conversation(
        talk(("assistant", "<think>hm</think>short"), ("user", "a")), THINKING, {}, "tiny", answer=False
    )
    assert said.text == "shorta" and said.spans == (("1 user", 5, 6),)
    with pytest.raises(AttnctlError, match=r"changes message 0 \(user\)"):
        render_conversation(talk(("user", "long <think>hm</think>short")), THINKING, {}, "tiny", answer=False)
    with pytest.raises(AttnctlError, match="no system message"):
        render_conversation(TALK, STRICT, {}, "tiny", answer=True)
    with pytest.raises(AttnctlError, match="refuses this conversation"):
        render_conversation(TALK, "{{ messages[99].content.x }}", {}, "tiny", answer=True)


def test_where_a_template_is() -> None:
    with pytest.raises(AttnctlError, match="tiny has no chat template"):
        template_of({}, "tiny")
    several = {"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]}
    assert template_of(several, "tiny") == "y" and template_of({"chat_template": "z"}, "tiny") == "z"
