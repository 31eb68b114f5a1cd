"""Write to standard output, standard error and the file of -o; control characters of a text never reach a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from io import BytesIO, UnsupportedOperation
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from threading import Thread
from typing import TYPE_CHECKING, Any

from attnctl.errors import UsageError, option_name, print_complaint, waiting
from attnctl.runtime.files import check_writable, need_pyarrow, write_whole
from attnctl.text import either, harmless_text

if TYPE_CHECKING:
    from rich.theme import Theme

    from attnctl.formats.pictures import Look
    from attnctl.formats.tables import Block
    from attnctl.render.figure.layout import Drawing, Panels
    from attnctl.render.forms import Form
    from attnctl.render.terminal.console import SafeConsole
    from attnctl.text.tokens import Token

quiet = False  # write neither notes nor progress
_said: set[str] = set()  # notes that this command has written


def is_quiet() -> bool:
    """Return whether the user asked for neither notes nor progress."""
    return quiet


def say_unless_quiet(message: str) -> None:
    """Write a line on standard error that is neither a result nor an error; with --quiet write nothing."""
    if not quiet:
        print_complaint(message)


def say_note(note: str) -> None:
    """Write a note for the user on standard error, once for each command."""
    if note not in _said:
        say_unless_quiet(f"note: {note}")
    _said.add(note)


def say_notes(notes: Iterable[str]) -> None:
    """Write notes for the user, one a line."""
    for note in notes:
        say_note(note)


def say_unknown(*texts: Sequence[Token], notes: Sequence[str] = (), every: bool = False) -> None:
    """Write a note for each text with words that the model does not know.

    Also write the `notes` of a reading: all of them with `every`, else only those about a text that the model cannot read
    well, a matrix that is not attention, and doubtful numbers.
    """
    from attnctl.text.tokens import unknown_words
    from attnctl.trace.notes import notes_of_kind

    say_notes(note for tokens in dict.fromkeys(map(tuple, texts)) for note in unknown_words(tokens))
    say_notes(dict.fromkeys(notes if every else notes_of_kind(notes, "guess", "doubt", "no-weights", "input")))


def begin_output(*, quiet_command: bool) -> None:
    """Begin the output of a command: each note is written once, and no note if it is quiet."""
    global quiet
    quiet = quiet_command
    _said.clear()


def print_lines(*texts: str) -> None:
    """Write lines of plain text on standard output."""
    waiting.close()
    sys.stdout.write("".join(f"{harmless_text(text)}\n" for text in texts))


def print_wrapped(text: str, indent: int = 0) -> None:
    """Write a line of plain text on standard output; on a terminal wrap it, with later lines indented by `indent`."""
    if not sys.stdout.isatty():
        print_lines(text)
        return
    width = max(20, get_terminal_size().columns)
    print_lines(*wrap(harmless_text(text), width, subsequent_indent=" " * indent, replace_whitespace=False))


def help_width() -> int:
    """Return the width of help in columns: the width of the terminal, 100 at most."""
    return max(20, min(get_terminal_size().columns, 100) - 1)


def safe_console(*, stderr: bool = False, soft_wrap: bool = False, theme: Theme | None = None) -> SafeConsole:
    """Return a rich console for standard output, or for standard error."""
    from attnctl.render.terminal.console import SafeConsole

    if not stderr:
        waiting.close()
    return SafeConsole(stderr=stderr, soft_wrap=soft_wrap, theme=theme)


def show_forms(forms: Iterable[Form], soft_wrap: bool = False) -> None:
    """Write forms on standard output: tables, lines and grids, one below the other."""
    write_forms(forms, "terminal", None, soft_wrap=soft_wrap)


def put_bytes(data: bytes, output: str | None = None) -> None:
    """Write bytes to the file `output`, whole or not at all; to standard output for None and "-"."""
    if output is None or output == "-":
        waiting.close()
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        return
    write_whole(output, data)


def put_report(line: bytes, stored: str) -> None:
    """Write a line of a report at once. If its reader stops (`| head`), go on, with a note that says what is `stored`."""
    try:
        put_bytes(line)
        sys.stdout.flush()
    except BrokenPipeError:
        write_no_more()
        say_note(f"nothing reads standard output any more: {stored}")


def write_no_more() -> None:
    """Drop what is still to be written on standard output, now and when Python ends."""
    with suppress(UnsupportedOperation):  # not a file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_format(
    command: str, output: str | None, suffixes: Sequence[str], requested: str = "", hint: str = ""
) -> str:
    """Return the format that the suffix of -o names, one of `suffixes`; without a file `requested`, or "terminal".

    Raises UsageError, before any work, for another suffix, or for one that is not `requested`; AttnctlError if the file
    cannot be written.
    """
    if output is None or output == "-":
        return requested or "terminal"
    suffix = Path(output).suffix.lower()[1:]
    if requested and suffix in suffixes and suffix != requested:
        option = option_name(requested.removesuffix("l"), True)
        raise UsageError(f"-o {output} is another format than {option}: a run writes one, leave out the other")
    if suffix not in suffixes:
        raise UsageError(f"-o {output}: {command} writes {either([f'.{name}' for name in suffixes])}{hint}")
    check_writable(output)
    check_table(output)
    return suffix


def check_table(output: str) -> None:
    """Raise AttnctlError if `output` is Parquet and pyarrow is not installed."""
    if output.lower().endswith(".parquet"):
        need_pyarrow(f"-o {output}: Parquet")


def write_table(blocks: Iterable[Block], form: str, output: str | None) -> None:
    """Write a table as csv or parquet: to the file `output`, whole or not at all, for None and "-" to standard output."""
    from attnctl.formats.tables import table_writer

    write = table_writer(blocks, form)
    if output is None or output == "-":
        page = BytesIO()
        write(page)
        put_bytes(page.getvalue())
    else:
        write_whole(output, write)


def write_forms(
    forms: Iterable[Form], form: str, output: str | None, title: str = "", cited: str = "", soft_wrap: bool = False
) -> None:
    """Write forms on the terminal, or into a file: as txt, as svg (a picture of a terminal), or as html, a page."""
    from attnctl.render.terminal.console import Shown, as_svg, as_text

    shown = Shown(forms)
    if form == "terminal":
        safe_console(soft_wrap=soft_wrap).print(shown)
        return
    if form == "html":
        from attnctl.render.page.reading_pages import reading_page

        written = reading_page(shown.forms, title, cited)
    else:
        written = as_svg(shown, title, cited) if form == "svg" else as_text(shown)
    put_bytes(written.encode(), output)


# modules of other packages that draw. None of attnctl: two threads that import modules of one circle may get half of one
DRAWING = ("matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.patches", "PIL.PngImagePlugin")


def import_drawing() -> None:
    """Begin to import what draws pictures, in a second thread while a model runs: it takes most of a second.

    Whoever draws waits for the import, and raises its errors.
    """

    def begin() -> None:
        with suppress(Exception):
            for module in DRAWING:
                import_module(module)

    Thread(target=begin).start()


def write_panels(grids: Panels, form: str, output: str | None, look: Look | None = None) -> None:
    """Draw grids of numbers, and write the picture into its file, and its notes on standard error."""
    from attnctl.formats.pictures import PLAIN
    from attnctl.render.figure.raster import panels_bytes

    data, notes = panels_bytes(grids, look or PLAIN, form)
    put_bytes(data, output)
    say_notes(notes)


def write_drawing(drawing: Drawing, form: str, output: str | None) -> None:
    """Write a picture into its file, and its notes on standard error."""
    from attnctl.formats.pictures import figure_bytes

    put_bytes(figure_bytes(drawing.figure, form), output)
    say_notes(drawing.notes)


def page_notes() -> dict[str, Any]:
    """Return the functions that `page_of_sources` calls with notes, with a long text, and with each trace."""
    from attnctl.cli.cost import check_memory_of_heads

    return {
        "say": say_notes,
        "check": check_memory_of_heads,
        "on_trace": lambda trace: say_unknown(trace.tokens, trace.key_axis, notes=trace.notes),
    }
