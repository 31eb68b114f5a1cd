"""Chat templates made to harm: each is given up in one line, and the next one is filled in as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.formats.chat import Conversation, Message
from attnctl.models.huggingface.prompts import render_conversation
from attnctl.models.huggingface.template_process import template_process

TALK = Conversation((Message("user", "Alice will eat"),))
PLAIN = "{{ messages[0].content }}"


def rendered(template: str) -> str:
    return render_conversation(TALK, template, {}, "tiny", answer=True).text


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{{ 9 ** (9 ** 9) }}",  # one step, which nothing but the end of its process ends
        "{{ 'x' * 10 ** 11 }}",
        "{% set x = namespace(a=['xxxxxxxxxxxxxxxxxxxxxxxxxxxxx']) %}{% for i in range(60) %}{% set x.a = x.a + x.a %}{% endfor %}",
    ],
)
def test_a_template_without_end_is_given_up(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 4)
    with pytest.raises(
        AttnctlError, match="the chat template of tiny is given up: it takes more than 4 seconds, or 2.1 GB"
    ):
        rendered(template)
    assert rendered(PLAIN) == "Alice will eat"


@pytest.mark.parametrize(
    "template",
    [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('touch pwned') }}",
        "{% include '/etc/passwd' %}",
        "{{ raise_exception('\x1b[2J\nno') }}",
        "{% for",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 40000000 }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_refused(template: str) -> None:
    with pytest.raises(AttnctlError, match="the chat template of tiny refuses this conversation: .") as caught:
        rendered(template)
    assert len(str(caught.value)) < 400 and not Path("pwned").exists()


def test_one_process_fills_in_all() -> None:
    for text in ("a", "\ud83d", "\x00\r\n"):
        talk = Conversation((Message("user", text + "x"),))
        assert render_conversation(talk, PLAIN, {}, "tiny", answer=True).text == text + "x"
    assert template_process._running_process() is template_process._running_process()
