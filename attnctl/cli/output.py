"""The one door to standard output, standard error, and the file that -o names: nothing passes it that steers a terminal."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from attnctl import __version__
from attnctl.errors import UsageError, print_complaint
from attnctl.files import check_writable, write_whole
from attnctl.text import as_json, either, harmless_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from attnctl.render.figure.layout import Drawing
    from attnctl.render.terminal.console import SafeConsole
    from attnctl.tokens import Token

quiet = False  # neither notes nor progress
_said: set[str] = set()  # notes that this command has written
no_pager = False  # long output goes to the terminal as it is


def say_unless_quiet(message: str) -> None:
    """A line on standard error that is neither a result nor an error: nothing with --quiet."""
    if not quiet:
        print_complaint(message)


def say_note(note: str) -> None:
    """Write a note for the user on standard error; what this command wrote already is not repeated."""
    if note not in _said:
        say_unless_quiet(f"note: {note}")
    _said.add(note)


def say_notes(notes: Iterable[str]) -> None:
    """Write notes for the user, a line each."""
    for note in notes:
        say_note(note)


def say_cost(cost: str | None) -> None:
    """Write what long work takes on standard error, if there is anything to tell."""
    if cost is not None:
        say_unless_quiet(cost)


def say_unknown(*texts: Sequence[Token], notes: Sequence[str] = (), every: bool = False) -> None:
    """Write what a user must know of words that a model does not, a line for each text that has such.

    Of the `notes` of what was read, `every` one is written too, or those that call a text too strange to be read well, a
    matrix no attention weights, and numbers doubtful.
    """
    from attnctl.tokens import unknown_words
    from attnctl.trace.run import notes_of_kind

    say_notes(note for tokens in dict.fromkeys(map(tuple, texts)) for note in unknown_words(tokens))
    say_notes(dict.fromkeys(notes if every else notes_of_kind(notes, "guess", "doubt", "no-weights", "input")))


def begin_output(*, quiet_command: bool) -> None:
    """Begin the output of a command: its notes are written once each, and none if it is quiet."""
    global quiet
    quiet = quiet_command
    _said.clear()


def print_lines(*texts: str) -> None:
    """Lines of plain text on standard output."""
    sys.stdout.write("".join(f"{harmless_text(text)}\n" for text in texts))


def print_wrapped(text: str, indent: int = 0) -> None:
    """A line of plain text on standard output, cut between words on a terminal; lines after the first by `indent`."""
    if not sys.stdout.isatty():
        print_lines(text)
        return
    width = max(20, get_terminal_size().columns)
    print_lines(*wrap(harmless_text(text), width, subsequent_indent=" " * indent, replace_whitespace=False))


def help_width() -> int:
    """Return the columns that help is written in: those of the terminal, up to 100."""
    return max(20, min(get_terminal_size().columns, 100) - 1)


def safe_console(*, stderr: bool = False, **how: object) -> SafeConsole:
    """A console of rich for standard output, or standard error."""
    from attnctl.render.terminal.console import SafeConsole

    return SafeConsole(stderr=stderr, **how)


def show_renderable(renderable: RenderableType, **how: Any) -> None:
    """A renderable of rich on standard output."""
    safe_console(**how).print(renderable)


def put_bytes(data: bytes, output: str | None = None) -> None:
    """Bytes to the file that `output` names, whole or not at all; to standard output for None and "-"."""
    if output is None or output == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    write_whole(output, data)


def put_json(document: Mapping[str, object], output: str | None = None, schema: str = "") -> None:
    """A document as one line of JSON, to a file or to standard output; it begins with its schema, where that is named."""
    opening = {"schema": f"attnctl.{schema}/1", "attnctl": __version__} if schema else {}
    put_bytes(as_json({**opening, **document}) + b"\n", output)


def output_format(command: str, output: str | None, suffixes: Sequence[str], asked: str = "", hint: str = "") -> str:
    """The format that the suffix of -o names, one of `suffixes`; of standard output what was `asked` for, or "terminal".

    Raises UsageError, before any work, for another suffix than these, or than what was asked for; AttnctlError where the
    file cannot be written.
    """
    if output is None or output == "-":
        return asked or "terminal"
    suffix = Path(output).suffix.lower()[1:]
    if suffix not in suffixes or (asked and suffix != asked):
        raise UsageError(f"-o {output}: {command} writes {either([f'.{name}' for name in suffixes])}{hint}")
    check_writable(output)
    return suffix


def write_renderable(
    renderable: RenderableType, form: str, output: str | None, title: str = "", cited: str = "", **how: Any
) -> None:
    """A renderable of rich on the terminal; or in a file as txt, or as svg: a picture of a terminal with this title.

    Forms also as html: a page of them.
    """
    if form == "terminal":
        show_renderable(renderable, **how)
        return
    from attnctl.render.terminal.console import Shown, as_svg, as_text

    if form == "html" and isinstance(renderable, Shown):
        from attnctl.render.page.reading_pages import reading_page

        written = reading_page(renderable.forms, title, cited)
    else:
        written = as_svg(renderable, title, cited) if form == "svg" else as_text(renderable)
    put_bytes(written.encode(), output)


def write_drawing(drawing: Drawing, form: str, output: str | None) -> None:
    """Write a picture into its file, and on standard error what a user should know about it."""
    from attnctl.formats.pictures import figure_bytes

    put_bytes(figure_bytes(drawing.figure, form), output)
    say_notes(drawing.notes)


# --- long output on a terminal ---


class _HeldOutput(io.TextIOWrapper):
    """What would go to a terminal, kept until it is all there; whoever asks is told that it is one."""

    def isatty(self) -> bool:
        """It will be seen on one."""
        return True


@contextmanager
def paged_output() -> Iterator[None]:
    """Hold standard output, a terminal, back to the end; what is longer than the screen then goes through the pager.

    The pager is $PAGER, else `less -FRX` where less is installed; with --no-pager, PAGER=cat or without any there is none.
    """
    screen, kept = sys.stdout, io.BytesIO()
    sys.stdout = held = _HeldOutput(kept, screen.encoding, screen.errors)
    try:
        yield
    finally:
        sys.stdout = screen
        held.flush()
        data = kept.getvalue()
        if not _is_longer_than_screen(data) or not _shown_by_pager(data):
            screen.buffer.write(data)
            screen.flush()


def _is_longer_than_screen(data: bytes) -> bool:
    """Whether text takes more lines of the terminal than it has, with one for its prompt; bytes of a file do not count."""
    columns, lines = get_terminal_size()
    if b"\0" in data or len(data) < lines:
        return False
    from rich.cells import cell_len

    plain = re.sub(r"\x1b\[[0-9;]*m", "", data.decode(errors="replace"))
    return sum(max(1, -(-cell_len(line) // columns)) for line in plain.splitlines()) >= lines


def _shown_by_pager(data: bytes) -> bool:
    """Whether a pager has shown it: there is one, it is wanted, and it could be started. Ctrl-C is the pager's meanwhile."""
    import subprocess

    command = os.environ.get("PAGER", "less -FRX" if shutil.which("less") else "").strip()
    if no_pager or command in ("", "cat") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    flags = os.environ.get("LESS")
    settings = {"LESS": "-FRX" if flags is None else flags if "R" in flags else f"{flags} -R"}  # R: colours as they are
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=os.environ | settings) as pager:
            pager.communicate(data)  # who leaves it early has seen enough
    finally:
        signal.signal(signal.SIGINT, before)
    return pager.returncode not in (126, 127)  # as a shell says that there is no such program
