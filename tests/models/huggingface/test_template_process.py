"""The process that fills chat templates: whatever a template asks for, its memory and its time end first.

The sizes here are harmless, and the limits are lowered.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from attnctl.checks import limits
from attnctl.errors import AttnctlError
from attnctl.formats.chat import Conversation, Message
from attnctl.models.huggingface import template_process
from attnctl.models.huggingface.prompts import render_conversation

MEMORY = 64 << 20
SPIN = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"


def rendered(template: str) -> str:
    conversation = Conversation((Message("user", "Alice will eat"),))
    return render_conversation(conversation, template, {}, "tiny", answer=True).text


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "TEMPLATE_BYTES", MEMORY)
    monkeypatch.setattr(template_process, "_child", None)
    yield
    child = template_process._child
    assert child is not None
    child.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content * 9999999 }}",  # an operator
        "{{ '%200000000d' % 1 }}",  # a format
        "{{ 'x' | center(200000000) }}",  # a filter
        "{% set n = namespace(kept=[]) %}{% for i in range(2000) %}{% set n.kept = n.kept + ['x' * 100000 ~ i] %}{% endfor %}",
    ],
)
def test_a_template_that_fills_the_memory_is_refused(little_memory: None, template: str) -> None:
    with pytest.raises(
        AttnctlError, match="template of tiny refuses this conversation: it needs more than 67 MB of memory"
    ):
        rendered(template)
    assert rendered("{{ messages[0].content }}") == "Alice will eat"


def test_a_process_that_the_system_does_not_limit_is_watched(
    little_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_process, "limit_by_system", False)
    assert rendered("{{ messages[0].content }}") == "Alice will eat"
    with pytest.raises(AttnctlError, match="needs more than 67 MB of memory"):
        rendered("{% set kept = 'x' * 200000000 %}" + SPIN)


def test_a_template_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TEMPLATE_SECONDS", 0.1)
    with pytest.raises(AttnctlError, match=r"refuses this conversation: it takes more than 0\.1 s"):
        rendered(SPIN)


@pytest.mark.skipif(sys.platform != "linux", reason="os.waitid")
def test_a_process_that_was_ended_from_outside_is_replaced() -> None:
    assert rendered("{{ messages[0].content }}") == "Alice will eat"
    assert template_process._child is not None
    ended = template_process._child.process.pid
    os.kill(ended, signal.SIGINT)  # Ctrl-C is for the program alone
    assert rendered("{{ messages[0].content }}") == "Alice will eat" and template_process._child.process.pid == ended
    os.kill(ended, signal.SIGKILL)
    os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
    assert rendered("{{ messages[0].content }}") == "Alice will eat" and template_process._child.process.pid != ended


def test_an_answer_to_another_question_is_passed_over_and_a_fork_has_its_own_process() -> None:
    assert rendered("{{ messages[0].content }}") == "Alice will eat"
    child = template_process._child
    assert child is not None
    child.lines.put('{"number": 0, "texts": ["of another question"]}\n')
    assert rendered("{{ messages[0].content }}") == "Alice will eat" and template_process._child is child
    child.owner = 0  # as in a fork of the program that started it
    assert rendered("{{ messages[0].content }}") == "Alice will eat" and template_process._child is not child
    child.owner = os.getpid()
    child.close()


def test_one_process_serves_a_run() -> None:
    """Also after a template that refuses."""
    assert rendered("{{ messages[0].content }}") == "Alice will eat"
    child = template_process._child
    with pytest.raises(AttnctlError, match="no tools here"):
        rendered("{{ raise_exception('no tools here') }}")
    assert rendered("{{ messages[0].role }}{{ messages[0].content }}").startswith("user")
    assert template_process._child is child and child is not None and not child.has_ended


def test_a_chat_costs_no_second() -> None:
    """The process imports the one module that fills templates: not torch, nor the models of transformers."""
    ask = "import json, sys, template_program as t; t.templates_module(); print(json.dumps(list(sys.modules)))"
    ask = f"import sys; sys.path.append({str(template_process.PROGRAM.parent)!r}); {ask}"
    done = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, timeout=60, check=True)
    imported = set(json.loads(done.stdout))
    assert "jinja2" in imported and not imported & {"torch", "transformers.utils.hub", "safetensors", "attnctl"}
