"""Commands of the old kind, made from `command_table`, until each is a function under `@command`."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperOption

from attnctl import call_named, limits
from attnctl.cli import arguments, suggestions
from attnctl.cli.command import Command
from attnctl.cli.command_table import ENTRIES
from attnctl.cli.options import GROUPS, Option
from attnctl.cli.output import help_width
from attnctl.errors import UsageError
from attnctl.text import value_text

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter


class TableCommand(Command):
    """A command as the table has it; its module is imported when it is called."""

    def __init__(self, name: str) -> None:
        self.entry = ENTRIES[name]
        self.options = self.entry.options
        super().__init__(
            name,
            callback=partial(call_named, f"attnctl.cli.commands.{name}:{name}_command"),
            params=[self._parameter(option, one) for option, one in self.options.items()],
            help=self.entry.description,
            epilog=self.entry.example,
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
                envvar=None if name in arguments.NEVER else f"{arguments.PREFIX}{name.upper()}",
                show_envvar=False,
                rich_help_panel=option.group,
                **shared,
            )
        if option.range is not None:
            made.type = copy.copy(made.type)
            made.type.convert = partial(_converted_number, option)  # type: ignore[method-assign]
        made._custom_shell_complete = suggestions.complete_parameter
        return made

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError with the nearest name for an option that the command lacks."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", None)
            if name is None or type(error).__name__ != "NoSuchOption":
                raise
            raise UsageError(suggestions.suggest_option(self, name, ctx)) from error

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the help as plain text."""
        super(Command, self).format_help(ctx, formatter)

    def format_epilog(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write nothing: the example follows the description."""

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
        raise UsageError(f"{flag} {value_text(text, quoted=True)}: {wanted} in digits is wanted") from None
    if allowed is not None and not allowed.holds_value(number):
        raise UsageError(f"{flag} {value_text(number)}: {allowed.range_text()}")
    return number
