"""Define the errors that users meet, how they name options, and the exit codes."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

from attnctl.text import harmless_line, shortened, value_text, visible_text

DONE, FAILED, USAGE, PARTIAL, FINDING, INTERRUPTED = 0, 1, 2, 3, 4, 130
LONGEST = 1000  # characters of a message
VALUE_CHARACTERS = 200  # of a value in a message: a path is complete


# the flags of the command that runs, by the names of its parameters; None for callers in Python
_flags: ContextVar[Mapping[str, str] | None] = ContextVar("flags", default=None)


@contextmanager
def options_as_flags(flags: Mapping[str, str] | None) -> Iterator[None]:
    """Within this context, messages name options by these flags, and other options by their name as a flag.

    None names them as arguments of Python: layer=.
    """
    token = _flags.set(flags)
    try:
        yield
    finally:
        _flags.reset(token)


def set_flags(flags: Mapping[str, str]) -> None:
    """Set the flags of the command that runs, until `options_as_flags` ends."""
    if _flags.get() is not None:
        _flags.set(flags)


def current_flags() -> Mapping[str, str] | None:
    """Return the flags by which messages name options; None for callers in Python. Worker processes get them."""
    return _flags.get()


def option_name(name: str, value: object = None) -> str:
    """Return how a user writes an option: its flag on the command line, "head=" or "head=3" in Python.

    The values True and False mean a switch: its flag on the command line, with "no" before the name for False.
    """
    flags = _flags.get()
    if flags is None:
        return f"{name}={'' if value is None else value_text(value, quoted=True, max_length=VALUE_CHARACTERS)}"
    flag = flags.get(name) or f"--{name.replace('_', '-')}"
    if value is None or value is True:
        return flag
    return option_name(f"no_{name}") if value is False else f"{flag} {value_text(value, max_length=VALUE_CHARACTERS)}"


# the spinner of a silent command: closed before a line is written to a terminal, or read from one
waiting = ExitStack()
# what ends with the command: lines in a pipe that say that it works
until_end = ExitStack()


class AttnctlError(Exception):
    """An error that the user can understand and correct: one line that says what, where, and what to do about it.

    `option` is the Python name of the wrong option, `value` its value. With both, the message says what is wrong with the
    value: "layer=7: the model has layers 0 to 3", on the command line with its flag. With `option` alone the message
    continues after the name: "story has no effect here". `value` alone is not printed: it finds the default to blame.
    """

    exit_code = FAILED

    def __init__(self, message: str, *, option: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.option, self.value = option, value

    def __str__(self) -> str:
        message = super().__str__()
        if self.option is None:
            return message
        if self.value is None:
            name = option_name(self.option)
            return f"{name.removesuffix('=')} {message}"
        return f"{option_name(self.option, self.value)}: {message}"


class TooLongError(AttnctlError):
    """A text with more tokens than attnctl reads in one text."""


class UsageError(AttnctlError):
    """A request that is impossible: a head that does not exist, options that exclude each other."""

    exit_code = USAGE


@contextmanager
def about_value(value: object) -> Iterator[None]:
    """Within this context, an error without a value is about this one, such as a damaged file; UsageErrors do not change."""
    try:
        yield
    except AttnctlError as error:
        if not isinstance(error, UsageError) and error.option is None and error.value is None:
            error.value = value
        raise


def in_one_line(error: BaseException, max_length: int = 200) -> str:
    """Return the message of another library's error in one line of at most `max_length` characters."""
    text = _OF_NO_USE.sub("", " ".join(str(error).split()))
    return shortened(text or type(error).__name__, max_length)


# advice of transformers about its own arguments, and about a report that it does not print here
_OF_NO_USE = re.compile(
    r"\s*For details look at [^!]*report!|\s*You may consider adding `ignore_mismatched_sizes=True`[^`]*`from_pretrained"
    r"\(\.\.\.\)` if appropriate\."
)


def failure_message(error: Exception) -> str | None:
    """Return the message for an error of the system or a library that a user can understand; None for any other."""
    message = str(error)
    if isinstance(error, OSError):
        action = "write the output" if error.filename is None else f"use {os.fsdecode(error.filename)[:200]}"
        return f"cannot {action}: {(error.strerror or message).lower()}"
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "torch":
        return "this needs torch, which is not installed: pip install torch (attnctl docs first-minutes says why)"
    if isinstance(error, MemoryError):
        return f"not enough memory: {message or 'ask for less'}"
    if isinstance(error, RuntimeError) and ("allocate" in message or "out of memory" in message):  # messages of torch
        return f"not enough memory: {in_one_line(error)}"
    if isinstance(error, ValueError) and "embedded null" in message:  # Python's message for a file name
        return "no file has a name with a null in it"
    return None


def error_place(error: BaseException) -> str:
    """Return the file and line that raised an error."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


class LossyStream(io.RawIOBase):
    """A stream that drops what cannot be written (a full disk, a closed pipe): a note never costs a result."""

    def __init__(self, number: int) -> None:
        self.number = number

    def writable(self) -> bool:
        """Return True: it can be written."""
        return True

    def fileno(self) -> int:
        """Return the number of the file."""
        return self.number

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self.number)

    def write(self, data: Any) -> int:
        """Write bytes; return their number, also if they are lost."""
        size, written = memoryview(data).nbytes, 0
        with suppress(OSError):
            while written < size:
                written += os.write(self.number, memoryview(data).cast("B")[written:])
        return size


def lossy_stderr() -> None:
    """Let standard error drop what cannot be written, also what libraries write there, if it is a file of the system."""
    stream = sys.__stderr__
    if stream is None or sys.stderr is not stream:  # another program's
        return
    with suppress(OSError, ValueError):  # not a file of the system, or closed
        sys.stderr = lossy_text(stream.fileno(), stream.encoding, stream.errors)


def lossy_text(number: int, encoding: str = "utf-8", errors: str | None = None) -> io.TextIOWrapper:
    """Return a stream of text into a file of the system that drops what cannot be written."""
    raw = io.BufferedWriter(LossyStream(number))
    return io.TextIOWrapper(raw, encoding, errors, line_buffering=True, write_through=True)


class _Nowhere(io.TextIOBase):
    """A stream that drops what is written to it, and is never closed: a library may keep it."""

    def write(self, text: str) -> int:
        return len(text)

    def close(self) -> None:
        pass


_nowhere = _Nowhere()
_complaints: ContextVar[TextIO | None] = ContextVar("complaints", default=None)  # None: standard error


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drop what libraries write on standard error within this context: bars, warnings, logs. Complaints are printed."""
    token = _complaints.set(sys.stderr)
    try:
        with redirect_stderr(_nowhere):
            yield
    finally:
        _complaints.reset(token)


def print_complaint(message: str) -> None:
    """Print one line on stderr, on a terminal wrapped between words. Text from the user cannot control the terminal."""
    waiting.close()
    stream = _complaints.get() or sys.stderr
    # LONGEST characters at most, cut where it is longest: its end says what to do
    message = re.sub(r"\S{300,}", lambda match: f"{match[0][:200]}…{match[0][-50:]}", message)
    message = message if len(message) <= LONGEST else f"{message[: LONGEST - 300]}…{message[-300:]}"
    line = f"attnctl: {harmless_line(message, visible_text)}"
    if stream.isatty():
        from textwrap import fill

        with suppress(OSError):
            columns = max(20, os.get_terminal_size(stream.fileno()).columns or 80)  # some terminals report 0 columns
            line = fill(line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    print(line, file=stream)


def print_details(text: str) -> None:
    """Print the lines that belong to a complaint on stderr, as they are: the traceback of the user's own code."""
    print(text, end="", file=_complaints.get() or sys.stderr)


@contextmanager
def telling_errors(what: str) -> Iterator[None]:
    """Raise every error of a tokenizer's library, its panics too, as one AttnctlError; drop what it prints."""
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
    """Within this context, drop what native code prints on the process's standard error."""
    try:
        stderr_copy = os.dup(2)
    except OSError:  # closed: there is nothing to protect
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
        os.close(nowhere)
