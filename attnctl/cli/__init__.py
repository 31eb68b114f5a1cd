"""The command line: one short file a command. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from attnctl import __version__, interrupts
from attnctl.cli import session, suggestions
from attnctl.cli.command import Command, help_width
from attnctl.cli.command_table import COMMANDS, commands_by_heading
from attnctl.cli.output import paged_output, print_complaint, print_lines
from attnctl.errors import DONE, FAILED, INTERRUPTED, USAGE, AttnctlError, UsageError, in_one_line

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

AS_IT_GOES = ("batch", "quiz", "shell", "train", "view")  # commands that ask, or write as they go on


class Commands(TyperGroup):
    """The group of commands, where every error a user can meet becomes one line and an exit code."""

    def list_commands(self, ctx: Context) -> list[str]:
        """The names of the commands, as --help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: Context, cmd_name: str) -> ClickCommand | None:
        """The command of that name, its module imported now; None where there is none."""
        return Command(cmd_name) if cmd_name in COMMANDS else None

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
        for heading, commands in commands_by_heading().items():
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
            print_complaint(session.with_origin(str(error)))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            _say_interrupted()
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:  # the reader has seen enough (`| head`); there is nothing left to say
            if session.current is not None:
                raise
            _write_no_more()
            raise typer.Exit(DONE) from error
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            print_complaint(
                "this needs torch, which is not installed: pip install torch (attnctl docs first-minutes says why)"
            )
            raise typer.Exit(FAILED) from error
        except MemoryError as error:
            print_complaint(f"not enough memory: {str(error) or 'ask for less'}")
            raise typer.Exit(FAILED) from error
        except RuntimeError as error:
            if "allocate" not in str(error) and "out of memory" not in str(error):  # as torch says it
                raise
            print_complaint(f"not enough memory: {in_one_line(error)}")
            raise typer.Exit(FAILED) from error
        except ValueError as error:
            if "embedded null" not in str(error):  # as Python says of the name of a file
                raise
            print_complaint("no file has a name with a null in it")
            raise typer.Exit(FAILED) from error
        except OSError as error:
            print_complaint(_of_system(error))
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


def _of_system(error: OSError) -> str:
    """What the system refused: to use a file that it names, or to write the output."""
    what = "write the output" if error.filename is None else f"use {os.fsdecode(error.filename)[:200]}"
    return f"cannot {what}: {(error.strerror or str(error)).lower()}"


def _write_no_more() -> None:
    """Send what is still buffered nowhere, so that Python's own farewell cannot fail on it; a shell writes on."""
    if session.current is not None:
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
    """Run attnctl and exit with its code: 0 done, 1 failed, 2 wrong usage, 3 in part, 130 interrupted."""
    _ready_streams()
    sys.exit(run_command())


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by these arguments or those of the process, every error told in one line: its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with paged_output() if _is_read_at_once(given) else contextlib.nullcontext():
            code = app(given, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED and interrupts.came:  # as Typer made its arguments ready, and said nothing
            _say_interrupted()
    except BrokenPipeError:
        if session.current is not None:
            raise
        _write_no_more()
        code = DONE
    except KeyboardInterrupt:  # before the command began
        _say_interrupted()
        code = INTERRUPTED
    except OSError as error:  # the help could not be written
        print_complaint(_of_system(error))
        _write_no_more()
        code = FAILED
    except Exception as error:
        said = getattr(error, "format_message", None)
        if said is None:  # a bug of ours: the traceback says where
            raise
        print_complaint(_usage_message(str(said()), error))
        code = USAGE
    return code if isinstance(code, int) else DONE


def _is_read_at_once(arguments: Sequence[str]) -> bool:
    """Whether all that a command writes is a page for a terminal: it neither asks, nor writes as it goes on."""
    piped_lines = session.current is not None and not sys.stdin.isatty()
    if piped_lines or not sys.stdout.isatty() or "--no-pager" in arguments:
        return False
    command = next((word for word in arguments if not word.startswith("-")), "")
    return command not in AS_IT_GOES or not {"-h", "--help"}.isdisjoint(arguments)


def _usage_message(said: str, error: Exception) -> str:
    """Typer's complaint as one line, with where the value comes from, or where to read more."""
    message, context = " ".join(said.split()).rstrip("."), getattr(error, "ctx", None)
    name = getattr(getattr(error, "param", None), "name", None)
    origin = session.default_origin(context, name) if context and name else ""
    more = origin or f"see {context.command_path if context else 'attnctl'} --help"
    return f"{message[:1].lower()}{message[1:]} ({more})"
