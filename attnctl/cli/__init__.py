"""The command line: the commands, what all of them do alike, and every error as one line and an exit code.

Nothing heavy is imported until a command needs it.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from attnctl import __version__, call_named, interrupts, limits
from attnctl.cli import arguments, suggestions
from attnctl.cli.command_table import COMMANDS, commands_by_heading
from attnctl.cli.options import GROUPS, Option
from attnctl.cli.output import paged_output, print_lines, say_unless_quiet
from attnctl.errors import DONE, FAILED, INTERRUPTED, USAGE, AttnctlError, UsageError, failure_message, print_complaint

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter


NARROW = 60  # columns, below which an option's help stands under its name

# the parameters that are a text, whose words need no quotes
TEXTS = ("text", "source")


class Command(TyperCommand):
    """A command as the table has it; its module is imported when it is called."""

    def __init__(self, name: str) -> None:
        self.entry = COMMANDS[name]
        self.options = self.entry.options
        super().__init__(
            name,
            callback=partial(call_named, f"attnctl.cli.commands.{name}:{name}_command"),
            params=[self._parameter(option, one) for option, one in self.options.items()],
            help=self.entry.description,
            context_settings={**self.entry.parsing, "terminal_width": help_width()},
            rich_markup_mode=None,
        )

    def _parameter(self, name: str, option: Option) -> TyperOption | TyperArgument:
        """The parameter that Typer's parser reads, completed by the table, numbers held against their range."""
        shared: dict[str, Any] = {
            "type": option.kind,
            "default": option.default,
            "help": option.help,
            "show_default": option.default is not None,
        }
        made: TyperOption | TyperArgument
        if not option.flags:
            nargs = -1 if option.several else 1
            made = TyperArgument(
                param_decls=[name], nargs=nargs, required=option.required, metavar=option.metavar or None, **shared
            )
        else:
            flag = option.kind is bool
            if flag and "/" not in option.flags and option.default is None:
                shared["default"] = False
            made = TyperOption(
                param_decls=[name, *option.flags.split()],
                is_flag=flag,
                multiple=option.several,
                metavar=None if flag else option.value_name,
                **shared,
            )
        if option.range is not None:
            made.type = copy.copy(made.type)
            made.type.convert = partial(_converted_number, option)  # type: ignore[method-assign]
        made._custom_shell_complete = suggestions.complete_parameter
        return made

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments; words after a text belong to it. Raises UsageError for what else is left over."""
        if ctx.resilient_parsing:  # for completion, of a line that is not finished
            ctx.allow_extra_args = True
            return super().parse_args(ctx, args)
        arguments.apply_defaults(self, ctx)
        joins = self._text_parameter() is not None
        ctx.allow_extra_args = ctx.allow_extra_args or joins
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", None)
            if name is None or type(error).__name__ != "NoSuchOption":
                raise
            raise UsageError(suggestions.suggest_option(self, name)) from error
        if rest and joins:
            self._join_words(ctx, rest)
        arguments.begin_command(self, ctx)
        arguments.yield_to_typed(self, ctx)
        if arguments.current is None:
            for said in arguments.unknown_variables():
                say_unless_quiet(f"note: {said}")
        else:
            arguments.current.fill_in(self.name or "", ctx.params)
        self._check_outputs(ctx.params)
        return ctx.args

    def _text_parameter(self) -> str | None:
        """The name of the parameter that is a text, where it is the command's only argument."""
        names = [name for name, option in self.options.items() if not option.flags]
        return names[0] if len(names) == 1 and names[0] in TEXTS else None

    def _join_words(self, ctx: Context, rest: list[str]) -> None:
        name = self._text_parameter() or ""
        first = ctx.params.get(name)
        if first is None or first == "-" or Path(first).is_file():
            raise UsageError(f"{rest[0]!r} is one argument too many: {self.name} reads one text, or one file")
        ctx.params[name] = " ".join([first, *rest])
        ctx.args = []

    def _check_outputs(self, given: Mapping[str, object]) -> None:
        """Raise UsageError where a file that is to be written is one that is read: what it holds would be lost."""
        read = [path for name, option in self.options.items() if option.reads for path in _paths_in(given.get(name))]
        for output in _paths_in(given.get("output")):
            for path in read:
                # those of os, since they answer False for a name that no file can have
                if os.path.isfile(output) and os.path.isfile(path) and os.path.samefile(path, output):  # noqa: PTH113, PTH121
                    raise UsageError(f"-o {output} is the file that is read, which would be lost: name another")

    # --- help ----------------------------------------------------------------------------------------------------

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The docstring, and an example of use."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self.help or "")
            formatter.write_paragraph()
            formatter.write(f"{'':>{formatter.current_indent}}{self.entry.example}\n")

    def help_rows(self, ctx: Context) -> dict[str, list[tuple[str, str]]]:
        """What is told of each parameter, under headings: (flags and value, what it does)."""
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                known, (flags, said) = self.options.get(parameter.name or ""), record
                if known is not None and known.lists_values:
                    said = f"{said[:-1]}: {', '.join(suggestions.values_of(parameter.name or ''))}."
                rows[GROUPS[-1] if known is None else known.group].append((flags, said))
        found = {group: several for group, several in rows.items() if several}
        if self.name == "heads":
            from attnctl.readings.head_statistics import STATISTICS

            told = [(one.heading, f"{one.title_with_unit}{one.label_text}") for one in STATISTICS.values()]
            found["Columns, means over the queries"] = told
        return found

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Arguments, then options in groups; an option's help beside its name, or under it on a narrow terminal."""
        for group, rows in self.help_rows(ctx).items():
            with formatter.section(group):
                if formatter.width >= NARROW:
                    formatter.write_dl(rows, col_max=26)
                    continue
                for name, said in rows:
                    formatter.write_text(name)
                    with formatter.indentation(), formatter.indentation():
                        formatter.write_text(said)


def help_width() -> int:
    """The columns that help is written in: those of the terminal, up to 100."""
    return max(20, min(get_terminal_size().columns, 100) - 1)


def _paths_in(value: object) -> list[str]:
    """The paths that a parameter names: none, one, or several."""
    several = value if isinstance(value, list | tuple) else [value]
    return [path for path in several if isinstance(path, str)]


def _converted_number(option: Option, value: str | float, parameter: Parameter, ctx: Context) -> int | float:
    if not isinstance(value, str):  # the default
        number: int | float = value
        return number
    try:
        return read_number(value, option)
    except UsageError as error:
        origin = arguments.default_origin(ctx, parameter.name or "")
        raise UsageError(f"{error} ({origin})" if origin else str(error)) from None


def read_number(text: str, option: Option) -> int | float:
    """The number that `text` is. Raises UsageError where it is none, or not within the range of its option."""
    flag, whole, allowed = option.flags.split()[0], option.kind is int, option.range
    try:
        number = limits.whole_number(text) if whole else limits.decimal_number(text)
    except (ValueError, OverflowError):
        wanted = "a whole number" if whole else "a number"
        raise UsageError(f"{flag} {limits.value_text(text)!r}: {wanted} in digits is wanted") from None
    if allowed is not None and not allowed.holds_value(number):
        raise UsageError(f"{flag} {limits.value_text(number)}: {allowed.range_text()}")
    return number


ASKS = ("quiz", "shell", "train")  # commands that ask, or show what they do, all the time
AS_IT_GOES = ("batch", "view")  # commands that write as they go on


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
            print_complaint(arguments.with_origin(str(error)))
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
        with contextlib.ExitStack() as streams:
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
    origin = arguments.default_origin(context, name) if context and name else ""
    more = origin or f"see {f'attnctl {command}'.rstrip()} --help"
    return f"{message[:1].lower()}{message[1:]} ({more})"
