"""Run the program: find its command, and turn every error into one line and an exit code.

`attnctl.commands` lists the commands. The module of a command is imported when the command runs; `attnctl.cli.command_form`
makes the command.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from attnctl.cli.command_form import NOTES, Command, flag_of, load_module
from attnctl.cli.defaults import default_map, default_origin, unknown_variables
from attnctl.cli.output import help_width, print_lines, write_no_more
from attnctl.cli.suggestions import COMPLETED_SHELL, words_of_bash
from attnctl.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    USAGE,
    AttnctlError,
    UsageError,
    failure_message,
    lossy_stderr,
    options_as_flags,
    print_complaint,
    print_details,
    until_end,
    waiting,
)
from attnctl.registry import COMMANDS, moved_option
from attnctl.runtime import interrupts
from attnctl.text import for_pasting
from attnctl.version import __version__

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context

    from attnctl.cli.session import Session


PROGRAM = "attnctl"


def load_command(name: str) -> Command:
    """Import and return the command of this name. Raises AttnctlError for a plug-in that cannot be imported."""
    if name in COMMANDS:
        return load_module(name, COMMANDS[name].module)
    from attnctl.cli.plugins import load_plugin

    return load_plugin(name)


def all_commands() -> Iterator[Command]:
    """Import and yield every command, also the commands of plug-ins."""
    yield from map(load_command, COMMANDS)
    from attnctl.cli.plugins import working_plugins

    yield from working_plugins().values()


class Commands(TyperGroup):
    """The group of all commands: each is one line of `--help`, and its module is imported when it runs.

    The commands of plug-ins are added for the help of the program, and for a name that attnctl does not have.
    """

    def get_help(self, ctx: Context) -> str:
        """Return the help, after stopping the spinner; a plug-in that cannot be imported gives a warning."""
        from attnctl.cli.plugins import working_plugins
        from attnctl.runtime.light_import import help_renderer

        waiting.close()
        help_renderer()
        if working := working_plugins():  # reading the packages again costs a twentieth of the help
            self._add_plugins(working)
        return super().get_help(ctx)

    def _add_plugins(self, names: Collection[str]) -> None:
        """Add these commands of plug-ins to the group."""
        from attnctl.cli.plugins import plugin_commands

        for name, listed in plugin_commands().items():
            if name in names:
                about = listed.about.replace("[", r"\[")  # no markup
                self.add_command(TyperCommand(name, help=about, rich_help_panel=listed.panel))

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, ClickCommand | None, list[str]]:
        """Return the command that the arguments begin with. Raises UsageError if they begin with a text."""
        if args and len(args[0].split()) > 1 and not ctx.resilient_parsing:
            text = args[0][:60]
            raise UsageError(f"{text!r} is a text, not a command: {PROGRAM} explain {for_pasting(text)}")
        if args and args[0] not in self.commands:
            from attnctl.cli.plugins import plugin_commands

            self._add_plugins(plugin_commands())
        name, _, words = super().resolve_command(ctx, args)
        command = None if name is None else load_command(name)
        if command is not None and not ctx.resilient_parsing:
            ctx.default_map = {name or "": default_map(command, all_commands)}
            ctx.meta[NOTES] = () if ctx.obj is not None else unknown_variables(all_commands)
        return name, command, words


app = typer.Typer(
    cls=Commands,
    name=PROGRAM,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": help_width()},
)
for _name, _listed in COMMANDS.items():
    app.command(_name, help=_listed.about, rich_help_panel=_listed.panel)(lambda: None)


def _print_version(value: bool) -> None:
    if value:
        print_lines(f"attnctl {__version__}")
        raise typer.Exit(DONE)


@app.callback(help="The command line for attention: every step as tables, pictures and JSON.")
def _root_command(
    ctx: typer.Context,
    version: bool = typer.Option(
        False, "--version", "-V", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Print the help of the program if no command is named."""
    if ctx.invoked_subcommand is None:
        print_lines(ctx.get_help())


def _ready_streams() -> None:
    """Replace closed streams, and write characters that an old encoding lacks as escapes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # writing a result then fails, as on a full disk; a complaint is lost
            flags = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))
        elif mode == "w" and hasattr(stream, "reconfigure") and "utf" not in (stream.encoding or "").lower():
            stream.reconfigure(errors="backslashreplace")
    lossy_stderr()


def run_command_line() -> None:
    """Run attnctl and exit with its code: 0 done, 1 failed, 2 wrong usage, 3 partly done, 4 a finding, 130 interrupted."""
    _ready_streams()
    sys.exit(run_command())


@cache
def program_group() -> Commands:
    """Return the program with all its commands, as Typer makes it: once in a process, since a shell runs many commands."""
    group = typer.main.get_command(app)
    assert isinstance(group, Commands)
    return group


def run_command(argv: Sequence[str] | None = None, session: Session | None = None) -> int:
    """Run one command, with `argv` or the arguments of the process; return its exit code. Print an error as one line.

    Raises BrokenPipeError in a `session`, whose shell ends then. Raises the error itself if it is a fault of the program.
    """
    typed = sys.argv[1:] if argv is None else list(argv)
    name = next((word for word in typed if not word.startswith("-")), "")
    group = copy.copy(program_group())
    group.commands = dict(group.commands)  # a run may add those of plug-ins
    if COMPLETED_SHELL in os.environ:
        with words_of_bash():
            group.main(typed, PROGRAM)  # prints completions, and exits
    interrupts.forget_interrupt()
    with options_as_flags({}):
        try:
            with contextlib.ExitStack() as around:
                around.callback(until_end.close)
                if sys.stderr.isatty():
                    from attnctl.cli.progress import spinner_while_silent  # not needed in a pipe

                    around.enter_context(spinner_while_silent())
                context = around.enter_context(group.make_context(PROGRAM, typed, obj=session))
                code = group.invoke(context)
            sys.stdout.flush()
            return code if isinstance(code, int) else DONE
        except typer.Exit as end:
            return end.exit_code
        except (Exception, KeyboardInterrupt) as error:
            return _report_error(error, name if name in group.commands else "", session)  # plug-ins too


def _report_error(error: BaseException, name: str, session: Session | None) -> int:
    """Print an error as one line; return its exit code. Raises the error again if it is a fault of the program."""
    if isinstance(error, KeyboardInterrupt) or interrupts.came:  # a library may turn Ctrl-C into another error
        interrupts.forget_interrupt()
        kept = f": {error}" if isinstance(error, KeyboardInterrupt) and error.args else ""  # what is left of long work
        print_complaint(f"interrupted{kept}")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader has stopped (`| head`): there is nothing more to write
        if session is not None:
            raise error
        write_no_more()
        return DONE
    if isinstance(error, AttnctlError):
        print_complaint(str(error))
        if details := getattr(error, "details", ""):  # the traceback of the user's own code
            print_details(details)
        return error.exit_code
    if hasattr(error, "format_message"):  # Typer's
        print_complaint(_usage_message(error, name))
        return USAGE
    message = failure_message(error) if isinstance(error, Exception) else None
    if message is None:
        from attnctl.plugins import fault_of_package

        message = fault_of_package(error)
    if message is None:
        raise error
    print_complaint(message)
    if isinstance(error, OSError) and session is None:
        write_no_more()
    return FAILED


def _usage_message(error: Any, command: str) -> str:
    """Return Typer's complaint as one line, with the origin of the value, or with the help to read."""
    old = getattr(error, "option_name", "")
    if old and (new := moved_option(command, old)):
        flags = {flag for parameter in error.ctx.command.params for flag in parameter.opts}
        if not new.startswith("--") or new.split()[0] in flags:
            return f"{command} has no {old}: {new} does that"
    message = " ".join(error.format_message().split()).rstrip(".")
    parameter = error.param if isinstance(error, typer.BadParameter) else None
    context, name = error.ctx, None if parameter is None else parameter.name
    if type(error) is typer.BadParameter and name is not None and context is not None:
        message = f"{flag_of(context.command.params, name)} {error.message.rstrip('.')}"
    origin = default_origin(context, name) if context and name else ""
    more = origin or f"see {PROGRAM} {f'{command} ' * bool(command)}--help"
    return f"{message[:1].lower()}{message[1:]} ({more})"
