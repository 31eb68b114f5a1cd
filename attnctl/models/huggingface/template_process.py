"""Fill chat templates in a child process: a template is code from a stranger, and a short one can ask for any memory.

Jinja's sandbox refuses what a template may not do, not how much: "{{ 'x' * 10 ** 11 }}". So the process is bounded, whatever
the expression: by a limit of the system, or where the system has none, by a look at its size while it works. One child
serves all templates of a run.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.huggingface.hub import import_extra

if TYPE_CHECKING:
    from attnctl.text import Document

PROGRAM = Path(__file__).with_name("template_program.py")
LOOK = 0.02  # seconds between two looks at the size of a child without a limit: it takes 0.1 GB more in that time

limit_by_system = True  # whether the child asks the system for its limit
_child: TemplateProcess | None = None
_lock = threading.Lock()  # one question at a time


class TemplateProcess:
    """A child process that fills templates, with bounded memory for all and bounded time for each.

    Raises AttnctlError if it cannot be started.
    """

    def __init__(self) -> None:
        self.bytes, self.owner, self.questions = limits.TEMPLATE_BYTES, os.getpid(), 0
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        command = [sys.executable, "-P", str(PROGRAM)]
        try:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, encoding="ascii")
        except OSError as error:
            raise AttnctlError(f"cannot start a process for the chat template ({in_one_line(error)})") from error
        self.lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read_lines, daemon=True).start()
        atexit.register(self.close)
        self.grown: Callable[[], int] = partial(int, 0)
        start = {"path": sys.path, "bytes": self.bytes, "limit": limit_by_system}
        try:
            limited = self._answer(start, limits.PROCESS_SECONDS)["limited"]
        except ValueError as error:
            raise AttnctlError("the process for the chat template does not start: try again") from error
        if not limited:
            self.grown = growth_of(self.process.pid)

    @property
    def has_ended(self) -> bool:
        """Whether the process answers no more questions of this program; a fork of the program needs one of its own."""
        return self.owner != os.getpid() or self.process.poll() is not None

    def texts(self, question: dict[str, Any]) -> list[str]:
        """Return the text of each conversation. Raises ValueError if the template fails, or needs too much."""
        answer = self._answer(question, limits.TEMPLATE_SECONDS)
        if "error" in answer:
            raise ValueError(answer["error"])
        if answer["texts"] is None:
            raise ValueError(f"it makes more than {limits.bytes_text(limits.TEXT_BYTES)} of text")
        return list(answer["texts"])

    def close(self) -> None:
        """End the process, if this program has started it."""
        atexit.unregister(self.close)
        if self.owner != os.getpid():
            return
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(OSError):  # what was still to be written
            self.process.stdin.close()

    def _answer(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer. Raises ValueError and ends the process after `seconds`, or if it needs too much memory."""
        self.questions += 1
        try:
            self._ask(question | {"number": self.questions})
            while True:  # an answer to another question is passed over
                answer = dict(json.loads(self._next_line(seconds)))
                if answer["number"] == self.questions:
                    return answer
        except BaseException:  # also Ctrl-C: an answer may still come, which belongs to no later question
            self.close()
            raise

    def _ask(self, question: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended, and answers with an empty line
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()

    def _next_line(self, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with suppress(Empty):
                if line := self.lines.get(timeout=LOOK):
                    return line
                break
            if self.grown() > self.bytes:
                break
        else:
            raise ValueError(f"it takes more than {seconds:g} s")
        raise ValueError(f"it needs more than {limits.bytes_text(self.bytes)} of memory")

    def _read_lines(self) -> None:
        """Read the answers; an empty line is the end."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line)
        self.lines.put("")


def growth_of(pid: int) -> Callable[[], int]:
    """Return a function that returns by how many bytes a process has grown since now; 0 if it has ended."""
    psutil = import_extra("psutil")
    process = psutil.Process(pid)
    before = process.memory_info().rss

    def growth() -> int:
        with suppress(psutil.Error):
            return int(process.memory_info().rss - before)
        return 0

    return growth


def fill_templates(template: str, conversations: Sequence[Sequence[Document]], **variables: Any) -> list[str]:
    """Return the text that a template makes of each conversation in jinja's sandbox; `variables` are passed to it.

    Raises ValueError if the template fails, or needs too much memory or time.
    """
    global _child
    question = {"template": template, "conversations": conversations, "variables": variables}
    with _lock:
        if _child is None or _child.has_ended:
            _child = TemplateProcess()
        return _child.texts(question | {"characters": limits.TEXT_BYTES})
