"""Chat templates: the text they make, where each message stands in it; one that fails is refused in one line."""

from __future__ import annotations

from pathlib import Path

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
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    prompt = render_conversation(TALK, template, names, "tiny", answer=answer)
    assert [name for name, *_ in prompt.spans] == [f"{m.role} {at}" for at, m in enumerate(TALK.messages)]
    found = [prompt.text[start:end] for _, start, end in prompt.spans]
    assert [part.strip() for part in found] == [message.content.strip() for message in TALK.messages]
    for name, start, _ in prompt.spans:
        before = prompt.text[:start].rstrip()
        assert before.endswith((name.split()[0], name.split()[0] + "]"))
    assert prompt.text.endswith("assistant\n") == (answer and template is CHATML)


def test_a_template_that_leaves_things_out() -> None:
    thought = talk(("assistant", "<think>hm</think>short"), ("user", "a"))
    said = render_conversation(thought, THINKING, {}, "tiny", answer=False)
    assert said.text == "shorta" and said.spans == (("user 1", 5, 6),)
    for conversation, template, says in (
        (talk(("user", "long <think>hm</think>short")), THINKING, r"changes message 0 \(user\)"),
        (TALK, STRICT, "no system message"),
        (TALK, "{{ messages[99].content.x }}", "refuses this conversation"),
    ):
        with pytest.raises(AttnctlError, match=says):
            render_conversation(conversation, template, {}, "tiny", answer=True)


def test_where_a_template_is() -> None:
    with pytest.raises(AttnctlError, match="tiny has no chat template"):
        template_of({}, "tiny")
    several = {"chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]}
    assert template_of(several, "tiny") == "y" and template_of({"chat_template": "z"}, "tiny") == "z"


PLAIN = "{{ messages[0].content }}"


def rendered(template: str, text: str = "Alice will eat") -> str:
    return render_conversation(talk(("user", text)), template, {}, "tiny", answer=True).text


@pytest.mark.parametrize(
    "template",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch pwned') }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('\x1b[2J\nno') }}",
        "{% for",
        "{{ messages.append(1) }}",
        "{{ 'x' * 40000000 }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_refused(template: str) -> None:
    with pytest.raises(AttnctlError, match="the chat template of tiny refuses this conversation: .") as caught:
        rendered(template)
    assert len(str(caught.value)) < 400 and not Path("pwned").exists()


@pytest.mark.parametrize("text", ["a", "\ud83d", "\x00\r\n"])
def test_a_template_keeps_every_character(text: str) -> None:
    assert rendered(PLAIN, text + "x") == text + "x"
