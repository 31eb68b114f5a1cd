"""Chat templates filled in by a process of their own: a template is a program, and may run for ever or fill the memory."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnctl import limits
from attnctl.errors import AttnctlError

if TYPE_CHECKING:
    from attnctl.text import Document


_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from attnctl.models.huggingface.template_process import answer_requests; answer_requests()"
)


class TemplateProcess:
    """A process that fills in chat templates, begun at the first one and kept for the next."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the process that began it: a fork of that begins its own

    def fill_templates(self, template: str, conversations: Sequence[Sequence[Document]], **given: Any) -> list[str]:
        """The text that a template makes of each conversation; `given` is what else it may use.

        Raises ValueError with what the template fails with, and AttnctlError where it takes more than
        limits.TEMPLATE_SECONDS, or more than limits.TEMPLATE_BYTES of memory.
        """
        request = json.dumps({"template": template, "conversations": conversations, "given": given}).encode()
        process = self._running_process()
        timer = threading.Timer(limits.TEMPLATE_SECONDS, process.kill)
        timer.start()
        try:
            answer = _ask_process(process, request)
        finally:
            timer.cancel()
        if answer is None:
            self.end_process()
            raise AttnctlError(
                f"it takes more than {limits.TEMPLATE_SECONDS} seconds, or "
                f"{limits.bytes_text(limits.TEMPLATE_BYTES)} of memory"
            )
        if "error" in answer:
            raise ValueError(answer["error"])
        texts: list[str] = answer["texts"]
        return texts

    def end_process(self) -> None:
        """End the process, where it runs."""
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.end_process()
            atexit.register(self.end_process)
            self._owner = os.getpid()
            command = [sys.executable, "-c", _PROGRAM, *sys.path]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return self._process


def _ask_process(process: subprocess.Popen[bytes], request: bytes) -> Document | None:
    """The answer to a request; None where the process ends without one."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        answer: Document = json.loads(line)
        return answer
    except (OSError, ValueError):
        return None


def answer_requests() -> None:
    """Fill in the templates that standard input names, a line each, until it ends; within limits of memory."""
    with contextlib.suppress(ImportError):  # Windows
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits.TEMPLATE_BYTES, limits.TEMPLATE_BYTES))
    for line in sys.stdin.buffer:
        try:
            answer: Document = {"texts": _filled_texts(**json.loads(line))}
        except MemoryError:
            return
        except Exception as error:  # a template fails as programs do
            answer = {"error": " ".join(str(error).split())[:1000] or type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _filled_texts(template: str, conversations: list[list[Document]], given: Document) -> list[str]:
    from transformers.utils.chat_template_utils import render_jinja_template

    made = render_jinja_template(conversations=conversations, chat_template=template, **given)[0]
    texts = [str(text) for text in made]
    if sum(map(len, texts)) > limits.TEXT_BYTES:
        raise ValueError(f"it makes more than {limits.bytes_text(limits.TEXT_BYTES)} of text")
    return texts


template_process = TemplateProcess()
