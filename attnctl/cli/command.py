"""What every command does alike: its help in groups, words joined to a text, defaults from file and environment."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup, TyperOption

from attnctl.cli import defaults, help_text, invocation, session, suggestions
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter

NARROW = 60  # columns, below which an option's help stands under its name

# the parameters that are a text, whose words need no quotes
TEXTS = ("text", "source")


def _completed(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """The values that a parameter may take, for the completion of a user's own shell."""
    from attnctl.cli.inputs.completion import complete_parameter

    return complete_parameter(context, parameter, incomplete)


class Command(TyperCommand):
    """A command of attnctl."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(
            TyperOption(
                param_decls=["--quiet"],
                type=bool,
                is_flag=True,
                default=False,
                expose_value=False,
                callback=invocation.set_quiet,
                help="Neither notes nor progress: results and errors alone.",
            )
        )
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
        invocation.begin_command(self, ctx)
        defaults.yield_to_typed(self, ctx)
        if session.current is not None:
            session.current.fill_in(self.name or "", ctx.params)
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
