"""What every command does alike: its help in groups, words joined to a text, numbers within their range, defaults."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup, TyperOption

from attnctl import limits
from attnctl.cli import defaults, help_text, session, suggestions
from attnctl.cli.options import say_notes
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter

NARROW = 60  # columns, below which an option's help stands under its name

# the parameters that are a text, whose words need no quotes
TEXTS = ("text", "source")

# the parameters that name a file to be read
INPUTS = ("source", "other", "a", "b", "file", "chat", "corpus", "model", "tokenizer", "embeddings", "qkv", "spans",
          "effects", "sources", "census", "relations", "haystack", "reference")  # fmt: skip

# the options of every command
EVERYWHERE = (
    ("--quiet", session.set_quiet, "Neither notes nor progress: results and errors alone."),
    ("--no-pager", session.set_no_pager, "On a terminal: long output as it is, not through $PAGER or less."),
)

NUMERIC = ("int", "int range", "float", "float range")  # what Typer calls the types of numbers


def _completed(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """The values that a parameter may take, for the completion of a user's own shell."""
    from attnctl.cli.inputs.completion import complete_parameter

    return complete_parameter(context, parameter, incomplete)


class Command(TyperCommand):
    """A command of attnctl."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for flag, callback, said in EVERYWHERE:
            self.params.append(
                TyperOption(
                    param_decls=[flag],
                    type=bool,
                    is_flag=True,
                    default=False,
                    expose_value=False,
                    callback=callback,
                    help=said,
                )
            )
        _read_in_range(self)
        for option in self.params:
            if isinstance(option, TyperOption) and not option.is_flag:
                option.metavar = help_text.option_metavar(option.name or "", option.type.name)
        for parameter in self.params:
            parameter._custom_shell_complete = _completed

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments; words after a text belong to it. Raises UsageError for what else is left over."""
        if ctx.resilient_parsing:  # for completion, of a line that is not finished
            ctx.allow_extra_args = True
            return super().parse_args(ctx, args)
        defaults.apply_defaults(self, ctx)
        joins = self._text_parameter() is not None
        ctx.allow_extra_args = ctx.allow_extra_args or joins
        try:
            rest = super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", None)
            if name is None or type(error).__name__ != "NoSuchOption":
                raise
            group = None if ctx.parent is None else ctx.parent.command
            known = group if isinstance(group, TyperGroup) else None
            raise UsageError(suggestions.suggest_option(self, name, known)) from error
        if rest and joins:
            self._join_words(ctx, rest)
        session.begin_command(self, ctx)
        defaults.yield_to_typed(self, ctx)
        if session.current is None:
            say_notes(defaults.unknown_variables())
        else:
            session.current.fill_in(self.name or "", ctx.params)
        _check_outputs(ctx.params)
        return ctx.args

    def _text_parameter(self) -> str | None:
        """The name of the parameter that is a text, where it is the command's only argument."""
        arguments = [p for p in self.params if p.param_type_name == "argument"]
        return arguments[0].name if len(arguments) == 1 and arguments[0].name in TEXTS else None

    def _join_words(self, ctx: Context, rest: list[str]) -> None:
        name = self._text_parameter() or ""
        first = ctx.params.get(name)
        if first is None or first == "-" or Path(first).is_file():
            raise UsageError(f"{rest[0]!r} is one argument too many: {self.name} reads one text, or one file")
        ctx.params[name] = " ".join([first, *rest])
        ctx.args = []

    # --- help ----------------------------------------------------------------------------------------------------

    def get_help(self, ctx: Context) -> str:
        """The help, as wide as the terminal."""
        ctx.terminal_width = help_text.help_width()
        return super().get_help(ctx)

    def format_help_text(self, ctx: Context, formatter: HelpFormatter) -> None:
        """The docstring, and an example of use."""
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(inspect.cleandoc(self.help or ""))
            example = help_text.EXAMPLES.get(self.name or "")
            if example is not None:
                formatter.write_paragraph()
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Arguments, then options in groups; an option's help beside its name, or under it on a narrow terminal."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                group = (
                    "Arguments"
                    if parameter.param_type_name == "argument"
                    else help_text.option_group(parameter.name or "")
                )
                rows.setdefault(group, []).append(record)
        rows |= help_text.told_below(self.name or "")
        for group in ("Arguments", *help_text.GROUPS, *help_text.told_below(self.name or "")):
            if group not in rows:
                continue
            with formatter.section(group):
                if formatter.width >= NARROW:
                    formatter.write_dl(rows[group], col_max=26)
                    continue
                for name, said in rows[group]:
                    formatter.write_text(name)
                    with formatter.indentation(), formatter.indentation():
                        formatter.write_text(said)


def _check_outputs(given: Mapping[str, object]) -> None:
    """Raise UsageError where a file that is to be written is one that is read: what it holds would be lost."""
    for output in _paths_in(given.get("output")):
        for path in (path for name in INPUTS for path in _paths_in(given.get(name))):
            # those of os, since they answer False for a name that no file can have
            if os.path.isfile(output) and os.path.isfile(path) and os.path.samefile(path, output):  # noqa: PTH113, PTH121
                raise UsageError(f"-o {output} is the file that is read, which would be lost: name another")


def _paths_in(value: object) -> list[str]:
    """The paths that a parameter names: none, one, or several."""
    several = value if isinstance(value, list | tuple) else [value]
    return [path for path in several if isinstance(path, str)]


# --- numbers: ASCII digits, within the range that `limits.RANGES` gives, before any work begins ---


def numeric_parameters(command: ClickCommand) -> list[Parameter]:
    """The parameters of a Typer command that are numbers."""
    return [parameter for parameter in command.params if parameter.type.name in NUMERIC]


def _read_in_range(command: ClickCommand) -> None:
    """Have the numbers of a command read by `read_number`. Raises KeyError for an option without a range."""
    name = command.name or ""
    for parameter in numeric_parameters(command):
        limits.range_of(parameter.name or "", name)
        whole = parameter.type.name.startswith("int")
        parameter.type = copy.copy(parameter.type)
        parameter.type.convert = partial(_converted_number, name, whole)  # type: ignore[method-assign]


def _converted_number(command: str, whole: bool, value: str | float, parameter: Parameter, ctx: Context) -> int | float:
    if not isinstance(value, str):  # the default
        number: int | float = value
        return number
    name = parameter.name or ""
    try:
        return read_number(value, name, parameter.opts[-1], command, whole)
    except UsageError as error:
        origin = session.default_origin(ctx, name)
        raise UsageError(f"{error} ({origin})" if origin else str(error)) from None


def read_number(text: str, option: str, flag: str, command: str, whole: bool) -> int | float:
    """The number that `text` is. Raises UsageError where it is none, or not within the range of its option."""
    allowed = limits.range_of(option, command)
    try:
        number = limits.whole_number(text) if whole else limits.decimal_number(text)
    except (ValueError, OverflowError):
        wanted = "a whole number" if whole else "a number"
        raise UsageError(f"{flag} {limits.value_text(text)!r}: {wanted} in digits is wanted") from None
    if not allowed.holds_value(number):
        raise UsageError(f"{flag} {limits.value_text(number)}: {allowed.range_text()}")
    return number
