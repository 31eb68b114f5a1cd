"""End on Ctrl-C with one line and exit code 130, in a process of attnctl's own, at any moment.

An exception inside an import may reach C code that does not expect it: then Python ends with a fatal error, a module is half
imported, or nothing happens. So during an import the process ends at once. If files or the terminal must be cleaned up
first, the interrupt is repeated until the import is over.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

AGAIN_SECONDS = 0.02  # between two checks whether the import is over
IMPORTING = "<frozen importlib"  # the file names of Python's own import begin so
CODE = 130
POSIX = os.name == "posix"  # Windows has no SIGHUP, no timers, and no blocked signals
# signals that end a process which does not handle them
ENDING = (signal.SIGTERM, signal.SIGHUP) if POSIX else (signal.SIGTERM,)

came = False  # whether Ctrl-C was pressed since the command began
restoring = b""  # clears the line of a spinner and shows the cursor again
_to_tidy = 0  # the number of active contexts that clean up when they are interrupted


@contextmanager
def tidied_up() -> Iterator[None]:
    """Within this context something is cleaned up at the end, so Ctrl-C waits for an import to finish."""
    global _to_tidy
    _to_tidy += 1
    try:
        yield
    finally:
        _to_tidy -= 1


@contextmanager
def removed_at_end(path: Path) -> Iterator[None]:
    """Within this context, SIGTERM and SIGHUP remove the file or folder `path` before they end the process."""

    def remove_and_end(number: int, _: FrameType | None) -> None:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        path.unlink(missing_ok=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    in_main_thread = threading.current_thread() is threading.main_thread()  # other threads cannot handle signals
    handled = [number for number in ENDING if in_main_thread and signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, remove_and_end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def take_interrupt(_: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C while a command runs. Raises KeyboardInterrupt if no import is under way."""
    global came
    came = True
    if not _is_importing(frame):
        raise KeyboardInterrupt
    if not _to_tidy or not POSIX:
        os.write(
            2, restoring + b"attnctl: interrupted\n"
        )  # there is nothing to clean up, and no line of Python to show
        os._exit(CODE)
    _ask_again()


def forget_interrupt() -> None:
    """Forget an earlier interrupt: a command begins, or its interrupt was reported."""
    global came
    came = False


def watch_interrupts() -> None:
    """Handle Ctrl-C by `take_interrupt` from now on, also if it comes while Python cleans up an object."""
    signal.signal(signal.SIGINT, take_interrupt)
    if POSIX:
        signal.signal(signal.SIGALRM, take_interrupt)
    sys.unraisablehook = _heard_later
    # registered first, so runs last: Python would restore the signal's default, which ends the process
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)


@contextmanager
def kept_from_children() -> Iterator[None]:
    """Within this context, start processes that never receive Ctrl-C; this process receives it at the end.

    Only the calling thread blocks the signal. Python runs a handler in the main thread whichever thread got the signal, so
    the handler only records it, and the signal is raised again at the end.
    """
    if not POSIX or threading.current_thread() is not threading.main_thread():
        yield
        return
    received = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            return True
        frame = frame.f_back
    return False


def _ask_again() -> None:
    signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)


def _heard_later(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that came while no exception can be raised; report any other error as Python does."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt) and POSIX:
        _ask_again()
    else:
        sys.__unraisablehook__(unraisable)


@contextmanager
def asked_to_end() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C, SIGTERM or SIGHUP came, so that the current step is finished first.

    A second Ctrl-C stops at once.
    """
    came = False

    def note_progress(number: int, _: object) -> None:
        nonlocal came
        came = True
        signal.signal(number, take_interrupt if number == signal.SIGINT else signal.SIG_DFL)

    signals = [signal.SIGINT, signal.SIGTERM]
    if POSIX and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # otherwise nohup ignores it
        signals.append(signal.SIGHUP)
    before = {number: signal.signal(number, note_progress) for number in signals}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
