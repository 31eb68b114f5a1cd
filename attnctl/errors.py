"""The errors a user can meet, and the exit codes they end with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from attnctl.text import harmless_line, shortened, visible_text

DONE, FAILED, USAGE, PARTIAL, FINDING, INTERRUPTED = 0, 1, 2, 3, 4, 130
LONGEST = 1000  # characters of a message

waiting = (
    ExitStack()
)  # the spinner of a silent command: closed before a line is written to a terminal, or read from one


class AttnctlError(Exception):
    """Something that the user can understand and mend: one line that says what, where, and what to do about it."""

    exit_code = FAILED


class TooLongError(AttnctlError):
    """A text of more tokens than are read of one."""


class UsageError(AttnctlError):
    """The command line asks for something that cannot be: a head that is not there, options that exclude each other."""

    exit_code = USAGE


def in_one_line(error: BaseException, most: int = 200) -> str:
    """What an error of another library says, on one line of `most` characters."""
    return shortened(" ".join(str(error).split()) or type(error).__name__, most)


def failure_message(error: Exception) -> str | None:
    """What is said of an error of the system or a library that a user can understand; None for any other."""
    said = str(error)
    if isinstance(error, OSError):
        what = "write the output" if error.filename is None else f"use {os.fsdecode(error.filename)[:200]}"
        return f"cannot {what}: {(error.strerror or said).lower()}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch":
        return "this needs torch, which is not installed: pip install torch (attnctl docs first-minutes says why)"
    if isinstance(error, MemoryError):
        return f"not enough memory: {said or 'ask for less'}"
    if isinstance(error, RuntimeError) and ("allocate" in said or "out of memory" in said):  # as torch says it
        return f"not enough memory: {in_one_line(error)}"
    if isinstance(error, ValueError) and "embedded null" in said:  # as Python says of the name of a file
        return "no file has a name with a null in it"
    return None


def error_place(error: BaseException) -> str:
    """The file and line that an error came from."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def print_complaint(message: str) -> None:
    """One line on stderr, on a terminal cut between words. Whatever a user's text put into it cannot steer the terminal."""
    waiting.close()
    # LONGEST characters at most, cut where it is longest: its end says what to do
    message = re.sub(r"\S{300,}", lambda match: f"{match[0][:200]}…{match[0][-50:]}", message)
    message = message if len(message) <= LONGEST else f"{message[: LONGEST - 300]}…{message[-300:]}"
    line = f"attnctl: {harmless_line(message, visible_text)}"
    if sys.stderr.isatty():
        from textwrap import fill

        with suppress(OSError):
            columns = max(20, os.get_terminal_size(sys.stderr.fileno()).columns or 80)  # some say that they have none
            line = fill(line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)


@contextmanager
def telling_errors(what: str) -> Iterator[None]:
    """Raise whatever a tokenizer's library raises, its panics too, as one AttnctlError; its prints are dropped."""
    try:
        with _native_stderr_dropped():
            yield
    except AttnctlError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # Ctrl-C
        raise AttnctlError(f"{what} ({in_one_line(error)})") from error


@contextmanager
def _native_stderr_dropped() -> Iterator[None]:
    """Within this, what native code prints on the process's standard error goes nowhere."""
    try:
        kept = os.dup(2)
    except OSError:  # closed: there is nothing to protect
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
