"""`attnctl shell`: many questions about one text, its model loaded and run once."""

from __future__ import annotations

import contextlib
import io
import shlex
import signal
import sys
from collections.abc import Callable, Iterator

from typer import Context

from attnctl.checks import limits
from attnctl.cli import (
    CHECKPOINT,
    MADE,
    MATHEMATICS,
    NUMBERS,
    FileOption,
    ModelOptions,
    Session,
    TextArgument,
    command,
    is_quiet,
    model_of,
    models_kept,
    option_values,
    print_lines,
    print_wrapped,
    program_group,
    run_command,
    was_typed,
)
from attnctl.errors import DONE, INTERRUPTED, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.runtime import interrupts
from attnctl.runtime.files import check_size
from attnctl.text import shortened

WORDS = {
    "text": "text NEW TEXT    ask about another text; text alone shows it",
    "file": "file PATH        ask about the text of a file",
    "use": "use MODEL        ask another model; use alone names it",
    "exit": "exit             leave (so does Ctrl-D)",
}
WORDS_INDENT = 19  # columns before the explanation of a word


@command(example="attnctl shell --model smollm2 --file prompt.txt", more=(NUMBERS, MATHEMATICS, MADE, CHECKPOINT))
def shell_command(context: Context, text: TextArgument = None, *, file: FileOption = None, model: ModelOptions) -> int:
    """Ask many questions about one text: type commands with their options, without the word attnctl and without the text.

    The model, the text and the results stay in memory, so that the next question is answered at once. `text` and `file`
    change the text, `use` changes the model, Ctrl-C returns to the prompt, Ctrl-D leaves. Lines from a pipe are run one by
    one.
    """
    from attnctl import inputs

    if "-" in (text, file, model.chat):
        raise UsageError("standard input is where the commands come from: give the text in quotes or as --file FILE")
    read = inputs.text_of(text, file) if text is not None or file is not None else None
    if model.chat is not None:
        if read is not None:
            raise UsageError("give the text, --file, or --chat: one of them")
        inputs.conversation_in(model.chat)  # raises now if it cannot be read
    options = {name: value for name, value in option_values(model).items() if name != "chat"}
    session_options = {
        name: value for name, value in options.items() if was_typed(context, name) or value not in (None, False)
    }
    session = Session(read, session_options, chat=model.chat, quiet=is_quiet())
    failed, at_terminal = False, sys.stdin.isatty()
    try:
        with interrupts.tidied_up(), models_kept():  # Ctrl-C ends a command, not the shell
            for line in _lines(session):
                failed = run_line(line, session) not in (DONE, INTERRUPTED) or failed
    except (EOFError, StopIteration):
        pass
    return PARTIAL if failed and not at_terminal else DONE


def run_line(line: str, session: Session) -> int:
    """Run one line; return the exit code of its command. Raises EOFError if the line leaves the shell."""
    word, _, arguments = line.strip().removeprefix("attnctl ").lstrip().partition(" ")
    if not word or word.startswith("#"):
        return DONE
    if word in ("exit", "quit"):
        raise EOFError
    try:
        if word == "help":
            return _print_help(arguments.strip(), session)
        if word in WORDS:
            _change(session, word, arguments.strip())
            return DONE
        if word == "shell":
            raise UsageError("this is the shell already: text, file and use change what it asks about")
        return run_command([word, *_words_of(arguments)], session)
    except AttnctlError as error:
        print_complaint(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_complaint("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        raise EOFError from None
    except Exception:  # a bug: print the traceback, and the shell goes on
        import traceback

        traceback.print_exc()
        return AttnctlError.exit_code
    finally:
        sys.stdout.flush()


def _print_help(name: str, session: Session) -> int:
    """Print the commands and the shell's own words, or the options of one command."""
    if name:
        return run_command([name, "--help"], session)
    run_command(["--help"], session)
    print_lines("", "In the shell:")
    for sentence in WORDS.values():
        print_wrapped(f"  {sentence}", WORDS_INDENT)
    return DONE


def _words_of(arguments: str) -> list[str]:
    """Return the arguments in a line, split as a shell splits them. Raises UsageError for a quotation that does not end."""
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()}: put a text with an apostrophe in double quotes") from None


def _change(session: Session, word: str, value: str) -> None:
    """Set the text or the model; without `rest`, show it. Raises AttnctlError for a model that does not exist."""
    from attnctl import inputs

    if word == "use":
        if value:
            model_of({"model": value})  # raises if it cannot be opened: the previous model stays
            session.options = {"model": value}
        print_lines(session.model or "demo")
        return
    if word == "file" and value:
        session.text, session.chat = inputs.text_of(None, value), None
    elif word == "text" and value:
        session.text = value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value
        session.chat = None
    print_lines(_shown_text(session, "there is no text yet: text …, or file PATH", 200))


def _shown_text(session: Session, nothing: str, limit: int) -> str:
    """Return the text, cut to `most` characters, or the name of the conversation; `nothing` if there is neither."""
    if session.chat is not None:
        return f"the conversation in {session.chat}"
    return nothing if session.text is None else shortened(" ".join(session.text.split()), limit)


def _lines(session: Session) -> Iterator[str]:
    """Yield the lines of a pipe, or the lines typed at a prompt; bytes that are not UTF-8 become surrogates.

    Raises AttnctlError for a line that is too long.
    """
    if not sys.stdin.isatty():
        lines, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO())  # commands must not read these lines as their text
        try:
            while line := lines.buffer.readline(limits.TEXT_BYTES + 1):
                check_size(len(line), limits.TEXT_BYTES, "a line of standard input")
                yield line.decode("utf-8", "surrogateescape")
        finally:
            sys.stdin = lines
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a script inherits this
        signal.signal(signal.SIGINT, interrupts.take_interrupt)
    about = _shown_text(session, "no text yet (text … gives one)", 60)
    print_wrapped(f"attnctl shell: {session.model or 'demo'}, {about}; help lists the commands, Ctrl-D leaves")
    with _line_editing(session):
        while True:
            try:
                yield input(f"{session.model or 'demo'}> ")
            except KeyboardInterrupt:
                print_lines("")


@contextlib.contextmanager
def _line_editing(session: Session) -> Iterator[None]:
    """Complete words at the prompt with Tab, and save the history for the next shell."""
    try:
        import readline
    except ImportError:  # Windows has none: the prompt works without it
        yield
        return
    from platformdirs import user_state_path

    history = user_state_path("attnctl", ensure_exists=True) / "shell_history"
    history.touch(0o600)
    history.chmod(0o600)  # texts may be private
    with contextlib.suppress(OSError):  # a history of another library, such as libedit
        readline.read_history_file(history)
    readline.set_completer_delims(" ")
    readline.set_completer(_completer(session, readline.get_line_buffer, readline.get_begidx))
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield
    finally:
        readline.set_history_length(1000)
        readline.write_history_file(history)


def _completer(session: Session, line: Callable[[], str], begin: Callable[[], int]) -> Callable[[str, int], str | None]:
    """Return readline's completion function: it completes the shell's own words, and commands as bash does."""
    from typer._completion_classes import BashComplete

    from attnctl.cli import PROGRAM

    complete = BashComplete(program_group(), {"obj": session}, PROGRAM, "")

    def completion(incomplete: str, state: int) -> str | None:
        words = line()[: begin()].split()
        values = [item.value for item in complete.get_completions(words, incomplete)]
        if not words:
            values += [word for word in WORDS if word.startswith(incomplete)]
        elif words == ["use"]:
            values = [item.value for item in complete.get_completions(["explain", "--model"], incomplete)]
        values = [f'"{value}"' if " " in value else value for value in values]
        return values[state] if state < len(values) else None

    return completion
