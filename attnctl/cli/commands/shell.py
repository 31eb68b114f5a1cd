"""`attnctl shell`: many questions about one text, its model loaded and run once."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from typing import Any

import typer

from attnctl import inputs, interrupts, limits
from attnctl.cli import arguments, suggestions
from attnctl.cli.app import COMMANDS, Commands, run_command
from attnctl.cli.output import print_lines, print_wrapped
from attnctl.errors import DONE, INTERRUPTED, PARTIAL, AttnctlError, UsageError, print_complaint
from attnctl.files import check_size
from attnctl.inputs import conversation_in
from attnctl.text import shortened

OWN = {
    "text": "text NEW TEXT    ask about another text; text alone shows it",
    "file": "file PATH        ask about the text of a file",
    "use": "use MODEL        ask another model; use alone names it",
    "exit": "exit             leave (so does Ctrl-D)",
}
SAID_AT = 19  # columns: where what they do begins
LEAVING = ("exit", "quit")


def shell_command(*, text: str | None, file: str | None, **options: object) -> None:
    """Many questions about one text, its model loaded once."""
    chat: Any = options.pop("chat", None)
    if "-" in (text, file, chat):
        raise UsageError("standard input is where the commands come from: give the text in quotes or as --file FILE")
    from attnctl.models.huggingface import network
    from attnctl.source import TextSource
    from attnctl.source.run_memory import RunMemory

    read = inputs.text_of(text, file) if text is not None or file is not None else None
    if chat is not None:
        if read is not None:
            raise UsageError("give the text, --file, or --chat: one of them")
        conversation_in(chat)  # one that cannot be read is told now
    given = {name: value for name, value in options.items() if name in arguments.typed or value not in (None, False)}
    arguments.current = arguments.Session(read, given, chat=chat)
    TextSource.memory, network.loaded_networks = RunMemory(), {}
    failed = False
    try:
        with interrupts.tidied_up():  # it goes on after each
            for line in _lines(arguments.current):
                failed = run_line(line, arguments.current) not in (DONE, INTERRUPTED) or failed
    except (EOFError, StopIteration):
        pass
    finally:
        arguments.current = TextSource.memory = network.loaded_networks = None
    raise typer.Exit(PARTIAL if failed and not sys.stdin.isatty() else DONE)


def run_line(line: str, here: arguments.Session) -> int:
    """Run one line: the exit code of its command. Raises EOFError where it asks to leave."""
    word, _, rest = line.strip().removeprefix("attnctl ").lstrip().partition(" ")
    if not word or word.startswith("#"):
        return DONE
    if word in LEAVING:
        raise EOFError
    try:
        if word in OWN:
            _change(here, word, rest.strip())
            return DONE
        if word not in COMMANDS and not word.startswith("-"):
            raise UsageError(f"{suggestions.suggest_command(word, COMMANDS)} (text … asks about another text)")
        if word == "shell":
            raise UsageError("this is the shell already: text, file and use change what it asks about")
        return run_command(arguments_of_line(word, rest, here))
    except AttnctlError as error:
        print_complaint(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_complaint("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        raise EOFError from None
    except Exception:  # a bug of ours: the traceback says where, and the shell goes on
        import traceback

        traceback.print_exc()
        return AttnctlError.exit_code
    finally:
        sys.stdout.flush()
        if word == "help" and not rest:
            print_lines("", "In the shell:")
            for said in OWN.values():
                print_wrapped(f"  {said}", SAID_AT)


def arguments_of_line(word: str, rest: str, here: arguments.Session) -> list[str]:
    """The arguments of a command's line. Raises UsageError for a quotation that does not end."""
    try:
        arguments = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"{str(error).lower()}: put a text with an apostrophe in double quotes") from None
    if word == "model" and not any(not argument.startswith("-") for argument in arguments) and here.model:
        arguments = [here.model, *arguments]
    return [word, *arguments]


def _change(here: arguments.Session, word: str, rest: str) -> None:
    """Change, or without `rest` show, the session's text or model. Raises AttnctlError for a model that is not there."""
    if word == "use":
        if rest:
            arguments.model_of({"model": rest})  # one that cannot be opened is told now, and the model before stays
            here.options = {"model": rest}
        print_lines(here.model or "demo")
        return
    if word == "file" and rest:
        here.text, here.chat = inputs.text_of(None, rest), None
    elif word == "text" and rest:
        here.text = rest[1:-1] if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "\"'" else rest
        here.chat = None
    print_lines(_shown_text(here, "there is no text yet: text …, or file PATH", 200))


def _shown_text(here: arguments.Session, nothing: str, most: int) -> str:
    """The session's text, cut to `most` characters, or the name of its conversation; `nothing` where it has neither."""
    if here.chat is not None:
        return f"the conversation in {here.chat}"
    return nothing if here.text is None else shortened(" ".join(here.text.split()), most)


# --- where the lines come from -----------------------------------------------------------------------------------


def _lines(here: arguments.Session) -> Iterator[str]:
    """The lines of a pipe as they come, or what is typed at a prompt; bytes that are no UTF-8 as the system's arguments.

    Raises AttnctlError for a line that does not end.
    """
    if not sys.stdin.isatty():
        while line := sys.stdin.buffer.readline(limits.TEXT_BYTES + 1):
            check_size(len(line), limits.TEXT_BYTES, "a line of standard input")
            yield line.decode("utf-8", "surrogateescape")
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by a script in the background, which passes that on
        signal.signal(signal.SIGINT, interrupts.take_interrupt)
    ask = _prompt(here)
    about = _shown_text(here, "no text yet (text … gives one)", 60)
    print_wrapped(f"attnctl shell: {here.model or 'demo'}, {about}; help lists the commands, Ctrl-D leaves")
    while True:
        try:
            yield ask()
        except KeyboardInterrupt:
            continue


def _prompt(here: arguments.Session) -> Any:
    """What asks for a line and answers it, with history and completion where prompt_toolkit is installed.

    It raises EOFError where there are no more.
    """
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.shortcuts import CompleteStyle
    except ImportError:
        return lambda: input(f"{here.model or 'demo'}> ")
    from platformdirs import user_state_path

    kept = user_state_path("attnctl", ensure_exists=True) / "shell_history"
    kept.touch(0o600)
    kept.chmod(0o600)  # texts may be private
    typed: Any = PromptSession(
        history=FileHistory(str(kept)),
        completer=suggestions.shell_completer(here, OWN, Commands(name="attnctl")),
        complete_style=CompleteStyle.READLINE_LIKE,  # as in other shells: no menu, which takes lines of the screen
    )
    return lambda: typed.prompt(f"{here.model or 'demo'}> ")
