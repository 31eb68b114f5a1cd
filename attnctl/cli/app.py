"""The program: its commands, a line each, and every error as one line and an exit code.

A command's module is imported when the command runs, and nothing heavy before it is needed. `attnctl.cli.command` says how a
command is written.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import typer
from typer.core import TyperGroup

from attnctl import __version__, interrupts
from attnctl.cli import arguments, suggestions
from attnctl.cli.command import Command, flag_of, load_module
from attnctl.cli.output import help_width, paged_output, print_lines
from attnctl.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    AttnctlError,
    UsageError,
    failure_message,
    options_as_flags,
    print_complaint,
)

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter


class Listed(NamedTuple):
    """A command in `attnctl --help`."""

    panel: str
    about: str
    module: str = ""  # with a function under @command; a command without one is made from `command_table`


LOOK, LEARN, MODELS, SETTINGS = "Look", "Learn", "Models", "Settings"

COMMANDS = {
    "explain": Listed(LOOK, "every step of self-attention on a text, number by number"),
    "heatmap": Listed(LOOK, "the weights as a picture, or as a grid in the terminal"),
    "heads": Listed(LOOK, "what each head does over a text, and what kind it is"),
    "ablate": Listed(LOOK, "what each head, edge or part of a text does for a prediction"),
    "compare": Listed(LOOK, "two models, traces or texts, and their difference"),
    "sources": Listed(LOOK, "which part of a prompt an answer came from", "attnctl.commands.sources"),
    "needle": Listed(LOOK, "whether a planted fact is found, and by which heads", "attnctl.commands.needle"),
    "align": Listed(LOOK, "when each word of a speech was said, what a word was made from", "attnctl.commands.align"),
    "leaks": Listed(LOOK, "whether packed documents are kept apart", "attnctl.commands.leaks"),
    "view": Listed(LOOK, "one HTML page to explore attention in a browser"),
    "shell": Listed("Many questions", "many questions about one text, its model loaded once"),
    "batch": Listed("Many texts", "every text of a file: a trace a line, a folder of pictures"),
    "model": Listed(MODELS, "how large a model's attention is; a trained one's card", "attnctl.commands.model"),
    "train": Listed(MODELS, "train a small attention model and watch it learn", "attnctl.commands.train"),
    "evaluate": Listed(MODELS, "which words each head finds, beside simple rules", "attnctl.commands.evaluate"),
    "softmax": Listed(LEARN, "the softmax of a few scores, worked out", "attnctl.commands.softmax"),
    "quiz": Listed(LEARN, "questions about the attention of a sentence", "attnctl.commands.quiz"),
    "config": Listed(SETTINGS, "defaults of your own", "attnctl.commands.config"),
    "docs": Listed(SETTINGS, "the documentation: lesson, guides, reference", "attnctl.commands.docs"),
    "schema": Listed(SETTINGS, "the JSON Schema of what attnctl writes", "attnctl.commands.schema"),
    "help": Listed(SETTINGS, "this page, or the options of one command"),
}


def load_command(name: str) -> Command:
    """Return the command of this name, its module imported."""
    if module := COMMANDS[name].module:
        return load_module(name, module)
    from attnctl.cli.table_command import TableCommand

    return TableCommand(name)


def commands_by_panel() -> dict[str, dict[str, Listed]]:
    """Return the commands under their panels, in order."""
    panels: dict[str, dict[str, Listed]] = {}
    for name, listed in COMMANDS.items():
        panels.setdefault(listed.panel, {})[name] = listed
    return panels


ASKS = ("quiz", "shell", "train")  # commands that ask, or show what they do, all the time
AS_IT_GOES = ("batch", "view")  # commands that write as they go on


class Commands(TyperGroup):
    """The group of commands, where every error a user can meet becomes one line and an exit code."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The names of the commands, as --help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> ClickCommand | None:
        """The command of that name, its module imported now; None where there is none."""
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, ClickCommand | None, list[str]]:
        """The command that the arguments begin with. Raises UsageError naming the nearest one where there is none such."""
        if args and args[0] not in COMMANDS:
            raise UsageError(suggestions.suggest_command(args[0], COMMANDS))
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: Context) -> str:
        """The help, as wide as the terminal."""
        ctx.terminal_width = help_width()
        return super().get_help(ctx)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The commands by what they are for, a line each; none of their modules is imported."""
        for heading, commands in commands_by_panel().items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:10}", entry.about) for name, entry in commands.items()])

    def invoke(self, ctx: Context) -> object:
        """Run the chosen command, and see its output out, before Typer takes an interest in what went wrong."""
        try:
            with _interrupts_named():
                result = super().invoke(ctx)
                sys.stdout.flush()
            return result
        except AttnctlError as error:
            print_complaint(arguments.with_origin(error))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            _say_interrupted()
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:  # the reader has seen enough (`| head`); there is nothing left to say
            if arguments.current is not None:
                raise
            _write_no_more()
            raise typer.Exit(DONE) from error
        except Exception as error:
            said = failure_message(error)
            if said is None:
                raise
            print_complaint(said)
            if isinstance(error, OSError):
                _write_no_more()
            raise typer.Exit(FAILED) from error


@contextlib.contextmanager
def _interrupts_named() -> Iterator[None]:
    """An error that Ctrl-C ended in, somewhere in a library, is Ctrl-C."""
    interrupts.forget_interrupt()
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if interrupts.came:
            raise KeyboardInterrupt from error
        raise


def _say_interrupted() -> None:
    """Say it, once."""
    interrupts.forget_interrupt()
    print_complaint("interrupted")


def _write_no_more() -> None:
    """Send what is still buffered nowhere, so that Python's own farewell cannot fail on it; a shell writes on."""
    if arguments.current is not None:
        return
    with contextlib.suppress(io.UnsupportedOperation):  # no file of the system: nothing is flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=Commands,
    name="attnctl",
    help="The command line for attention: every step as tables, pictures and JSON.",
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_lines(f"attnctl {__version__}")
        raise typer.Exit(DONE)


@app.callback()
def _root_command(
    ctx: typer.Context,
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """The command line for attention: every step as tables, pictures and JSON."""
    if ctx.invoked_subcommand is None:
        print_lines(ctx.get_help())


def _ready_streams() -> None:
    """Put what fails where output was closed, and nothing where the rest was; what an old encoding lacks is an escape."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # a result that goes nowhere is an error, as of a full disk; a complaint has no other place
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))
        elif mode == "w" and hasattr(stream, "reconfigure") and "utf" not in (stream.encoding or "").lower():
            stream.reconfigure(errors="backslashreplace")


def run_command_line() -> None:
    """Run attnctl and exit with its code: 0 done, 1 failed, 2 wrong usage, 3 in part, 4 a finding, 130 interrupted."""
    _ready_streams()
    sys.exit(run_command())


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command, by these arguments or those of the process, every error told in one line: its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    command = next((word for word in given if not word.startswith("-")), "")
    try:
        with contextlib.ExitStack() as streams, options_as_flags({}):
            if _is_read_at_once(command, given):
                streams.enter_context(paged_output())
            if sys.stderr.isatty() and command not in ASKS:
                from attnctl.cli.progress import waiting_told  # not of a run in a pipe

                streams.enter_context(waiting_told())
            code = app(given, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED and interrupts.came:  # as Typer made its arguments ready, and said nothing
            _say_interrupted()
    except BrokenPipeError:
        if arguments.current is not None:
            raise
        _write_no_more()
        code = DONE
    except KeyboardInterrupt:  # before the command began
        _say_interrupted()
        code = INTERRUPTED
    except OSError as error:  # the help could not be written
        print_complaint(failure_message(error) or str(error))
        _write_no_more()
        code = FAILED
    except Exception as error:
        said = getattr(error, "format_message", None)
        if said is None:  # a bug of ours: the traceback says where
            raise
        print_complaint(_usage_message(str(said()), error, command))
        code = USAGE
    return code if isinstance(code, int) else DONE


def _is_read_at_once(command: str, argv: Sequence[str]) -> bool:
    """Whether all that a command writes is a page for a terminal: it neither asks, nor writes as it goes on."""
    piped_lines = arguments.current is not None and not sys.stdin.isatty()
    if piped_lines or not sys.stdout.isatty() or "--no-pager" in argv:
        return False
    return command not in (*ASKS, *AS_IT_GOES) or not {"-h", "--help"}.isdisjoint(argv)


def _usage_message(said: str, error: Exception, command: str) -> str:
    """Typer's complaint as one line, with where the value comes from, or where to read more."""
    message, context = " ".join(said.split()).rstrip("."), getattr(error, "ctx", None)
    name = getattr(getattr(error, "param", None), "name", None)
    if type(error) is typer.BadParameter and name is not None and context is not None:
        message = f"{flag_of(context.command.params, name)} {error.message}"
    origin = arguments.default_origin(context, name) if context and name else ""
    more = origin or f"see {f'attnctl {command}'.rstrip()} --help"
    return f"{message[:1].lower()}{message[1:]} ({more})"
