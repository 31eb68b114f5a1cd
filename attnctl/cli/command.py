"""What every command does alike: help in groups, words joined to a text, numbers in their range, session."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand, TyperOption

from attnctl import limits
from attnctl.cli import session, suggestions
from attnctl.cli.command_table import COMMANDS
from attnctl.cli.options import GROUPS, Option
from attnctl.cli.output import say_unless_quiet
from attnctl.errors import UsageError
from attnctl.light_import import call_named

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter

NARROW = 60  # columns, below which an option's help stands under its name

# the parameters that are a text, whose words need no quotes
TEXTS = ("text", "source")

# the options of every command, which the session is told
SWITCHES = {"quiet": session.set_quiet, "no_pager": session.set_no_pager}


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
            context_settings=dict(self.entry.parsing),
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
            metavar = None if flag else option.metavar or {int: "N", float: "X"}.get(option.kind, "TEXT")
            made = TyperOption(
                param_decls=[name, *option.flags.split()],
                is_flag=flag,
                multiple=option.several,
                metavar=metavar,
                **shared,
            )
        if option.range is not None:
            made.type = copy.copy(made.type)
            made.type.convert = partial(_converted_number, option)  # type: ignore[method-assign]
        if name in SWITCHES:
            made.callback, made.expose_value = SWITCHES[name], False
        made._custom_shell_complete = suggestions.complete_parameter
        return made

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments; words after a text belong to it. Raises UsageError for what else is left over."""
        if ctx.resilient_parsing:  # for completion, of a line that is not finished
            ctx.allow_extra_args = True
            return super().parse_args(ctx, args)
        session.apply_defaults(self, ctx)
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
        session.begin_command(self, ctx)
        session.yield_to_typed(self, ctx)
        if session.current is None:
            for said in session.unknown_variables():
                say_unless_quiet(f"note: {said}")
        else:
            session.current.fill_in(self.name or "", ctx.params)
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

    def get_help(self, ctx: Context) -> str:
        """The help, as wide as the terminal."""
        ctx.terminal_width = help_width()
        return super().get_help(ctx)

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
                known = self.options.get(parameter.name or "")
                rows[GROUPS[-1] if known is None else known.group].append(record)
        found = {group: several for group, several in rows.items() if several}
        if self.name == "heads":
            from attnctl.readings.head_statistics import statistics_explained

            found["Columns, means over the queries"] = statistics_explained()
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
        origin = session.default_origin(ctx, parameter.name or "")
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
