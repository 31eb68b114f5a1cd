"""How a command is written: a typed function under `@command`, its options Typer's own, shared ones in frozen dataclasses.

    @command(example='attnctl heatmap "Alice eats" --model smollm2')
    def heatmap_command(
        text: Annotated[str, Argument(help="A text.")],
        *,
        title: Annotated[str | None, Option("--title", help="Over the picture.", rich_help_panel=LOOK)] = None,
        model: CheckpointOptions,
    ) -> int:
        \"\"\"Draw the weights.\"\"\"

Typer sees the fields of `CheckpointOptions` as parameters of the function. `attnctl.cli.app` lists the commands.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.models import CommandInfo

from attnctl.checks.options import ONE_CALL
from attnctl.checks.own_functions import functions_were_typed, names_function
from attnctl.cli import output
from attnctl.cli.defaults import VARIABLE_PREFIX, default_origin
from attnctl.cli.output import help_width
from attnctl.errors import AttnctlError, UsageError, quiet_stderr, set_flags, waiting

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter
    from typer._click.formatting import HelpFormatter

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., object])

NOTES = "attnctl.notes"  # a key in the `meta` of a context: notes to print before the command runs
NARROW = 60  # columns: on a narrower terminal help is Click's plain text
TEXTS = ("text", "source")  # names of a first argument that is a text: its words need no quotes

_registered: dict[
    str, tuple[CommandInfo, tuple[str, ...]]
] = {}  # command → its information for Typer, and the panels of --help-all
_made: dict[str, tuple[CommandInfo, Command]] = {}  # command → from what Typer made it, and what it made


def command(
    *, example: str, more: tuple[str, ...] = (), parsing: Mapping[str, bool] | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function as the command of its name, without "_command"; return the function unchanged.

    A parameter whose type is a dataclass stands for the options that the fields of the dataclass are. `example` ends the
    help. `more` names the panels that only --help-all shows. `parsing` are settings of Typer's parser.
    """

    def register(function: CommandFunction) -> CommandFunction:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        groups = {
            p.name: p.annotation for p in parameters if isinstance(p.annotation, type) and is_dataclass(p.annotation)
        }

        def call(**values: object) -> object:
            for name, group in groups.items():
                values[name] = make_group(group, {field.name: values.pop(field.name) for field in fields(group)})
            return function(**values)

        expanded: list[inspect.Parameter] = []
        for parameter in parameters:
            expanded += _as_parameters(groups.get(parameter.name)) or [parameter]
        # Typer calls by keyword, so an option without a default may follow one with a default
        call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in expanded]
        )
        name = function.__name__.removesuffix("_command").replace("_", "-")
        settings = dict(parsing or {})
        info = CommandInfo(
            name, cls=Command, callback=call, help=function.__doc__, epilog=example, context_settings=settings
        )
        _registered[name] = info, more
        return function

    return register


def make_group(group: Callable[..., object], values: Mapping[str, object]) -> object:
    """Return the group of options, filled with these values."""
    return group(**values)


def _as_parameters(group: type | None) -> list[inspect.Parameter]:
    """Return the fields of a group of options as parameters of a function."""
    parameters = []
    hints = get_type_hints(group, include_extras=True) if group is not None else {}
    for field in fields(group) if group is not None else ():
        default = field.default if field.default_factory is MISSING else field.default_factory()
        default = inspect.Parameter.empty if default is MISSING else default
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name]))
    return parameters


def refuse_unused(context: typer.Context, *unused: type | str, because: str) -> None:
    """Raise UsageError for an option that was typed and has no effect.

    `unused` are groups of options and names of single parameters. The user's defaults are never a reason to refuse.
    """
    names = [
        name for group in unused for name in ([group] if isinstance(group, str) else [f.name for f in fields(group)])
    ]
    for name in names:
        if was_typed(context, name):
            raise UsageError(f"has no effect here: {because}", option=name)


def was_typed(context: Context, name: str) -> bool:
    """Return whether a parameter was typed on the command line; the user's defaults do not count."""
    source = context.get_parameter_source(name)
    return (
        source is not None and source.name == "COMMANDLINE"
    )  # compared by name, since Typer has an enum of its own beside Click's


def flag_of(parameters: list[Parameter], name: str) -> str:
    """Return how the parameter of this name is typed: "--layer", or "TEXT" for an argument."""
    flags = next((*parameter.opts, *parameter.secondary_opts) for parameter in parameters if parameter.name == name)
    return next((flag for flag in flags if flag.startswith("--")), name.upper())


def load_module(name: str, module: str) -> Command:
    """Import the module of a command and return the command as Typer makes it, once in a process."""
    import_module(module)
    if name not in _registered:
        raise TypeError(f"{module} has no function {name.replace('-', '_')}_command under @command")
    info, more = _registered[name]
    if name not in _made or _made[name][0] is not info:  # a module that was imported again registers a new one
        _made[name] = info, _make_command(info, more)
    command = _made[name][1]
    command.context_settings["terminal_width"] = help_width()  # Click's minimum is 50 columns
    return command


def _make_command(info: CommandInfo, more: tuple[str, ...]) -> Command:
    """Return a command as Typer makes it, with the options that every command has."""
    command = typer.main.get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode="rich")
    assert isinstance(command, Command)
    command.more = more
    command.params += _shared_options()
    if more:
        command.params.append(
            TyperOption(
                param_decls=["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_all_help,
                default=False,
                help=f"Print all options, also of these groups: {', '.join(more)}.",
            )  # fmt: skip
        )
    for parameter in command.params:
        if isinstance(parameter, TyperOption | TyperArgument):
            parameter.show_envvar = False  # the names follow one rule, which `attnctl config --help` explains
        if isinstance(parameter, TyperOption) and parameter.envvar is None and parameter.expose_value:
            parameter.envvar = f"{VARIABLE_PREFIX}{str(parameter.name).upper()}"
    return command


def _shared_options() -> list[TyperOption]:
    """Return the options that every command has; `Command.parse_args` reads them."""
    from attnctl.checks.options import OUTPUT

    quiet = "Print results and errors only: no notes, no progress."
    return [
        TyperOption(
            param_decls=["quiet", "--quiet"],
            is_flag=True,
            envvar=ONE_CALL,
            default=False,
            help=quiet,
            rich_help_panel=OUTPUT,
        ),
    ]


def _print_all_help(context: Context, _: Parameter, value: bool) -> None:
    """Print the help with every panel, and exit."""
    if value and not context.resilient_parsing and isinstance(context.command, Command):
        context.command = copy.copy(context.command)
        context.command.more = ()
        typer.echo(context.get_help())
        raise typer.Exit


class Command(TyperCommand):
    """A command that takes the user's defaults, and a text without quotes."""

    more: tuple[str, ...] = ()  # panels that only --help-all shows

    @property
    def example(self) -> str:
        """Return a line that runs the command."""
        return self.epilog or ""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the arguments; words after a text are part of it. Raises UsageError for any other extra word."""
        if ctx.resilient_parsing:  # completion of an unfinished line
            ctx.allow_extra_args = True
            return super().parse_args(ctx, args)
        text = self._text_parameter()
        ctx.allow_extra_args = ctx.allow_extra_args or text is not None
        _, _, typed = self.make_parser(ctx).parse_args(list(args))  # a parameter for each time that it was typed
        words = super().parse_args(ctx, args)
        outputs = [p for p in typed if isinstance(p, TyperOption) and p.name == "output" and not p.multiple]
        if len(outputs) > 1:
            why = "was given twice, and a run writes one output: run it again for the other"
            raise UsageError(why, option="output")
        if words and text is not None:
            first = ctx.params.get(text)
            if first is None or first == "-" or Path(first).is_file():
                raise UsageError(f"{words[0]!r} is one argument too many: {self.name} reads one text, or one file")
            second = [word for word in (first, *words) if len(word.split()) > 1][1:2]
            if second:  # words without quotes are one text, but two quoted texts are a mistake
                whole = "put it all in one pair of quotes; attnctl batch reads many texts, attnctl compare two"
                raise UsageError(f"{second[0]!r} is a second text, and {self.name} reads one: {whole}")
            ctx.params[text] = " ".join([first, *words])
            ctx.args = []
        set_flags({parameter.name: flag_of(self.params, parameter.name) for parameter in self.params if parameter.name})
        output.begin_output(quiet_command=ctx.params.pop("quiet") or (ctx.obj is not None and ctx.obj.quiet))
        _forget_defaults_of_another_model(ctx)
        output.say_notes(ctx.meta.get(NOTES, ()))
        if ctx.obj is not None:
            ctx.obj.fill_in(ctx)
        _check_outputs(ctx.params)
        return ctx.args

    def invoke(self, ctx: Context) -> Any:
        """Run the command; an error about a user's default says where the default is set."""
        try:
            typed = [value for name, value in ctx.params.items() if isinstance(value, str) and was_typed(ctx, name)]
            with quiet_stderr() if output.quiet else nullcontext(), functions_were_typed(filter(names_function, typed)):
                return super().invoke(ctx)
        except AttnctlError as error:
            if origin := _origin_of(error, ctx):
                raise type(error)(f"{error} ({origin})") from error
            raise

    def _text_parameter(self) -> str | None:
        """Return the name of the only argument if it is a text; else None."""
        names = [parameter.name for parameter in self.params if isinstance(parameter, TyperArgument)]
        return names[0] if len(names) == 1 and names[0] in TEXTS else None

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print Typer's rich help, without the panels that only --help-all shows."""
        waiting.close()
        if formatter.width < NARROW:  # rich cuts the names of options there
            super(TyperCommand, self).format_help(ctx, formatter)
            return
        from rich.markup import escape

        from attnctl.checks.options import LOOK, OUTPUT, PANELS
        from attnctl.runtime.light_import import help_renderer

        rich_utils = help_renderer()

        printed = copy.copy(self)
        paragraphs = [" ".join(part.split()) for part in (self.help or "").split("\n\n")]
        # square brackets are text: [default: all]
        printed.help, printed.epilog = escape("\n\n".join(paragraphs)), escape(self.epilog or "")
        printed.params, printed.add_help_option = [], False
        for parameter in self.help_parameters(ctx):
            if isinstance(parameter, TyperOption | TyperArgument) and parameter.rich_help_panel not in self.more:
                plain = copy.copy(parameter)
                plain.help = escape(parameter.help or "")
                if isinstance(parameter, TyperOption):
                    plain.rich_help_panel = parameter.rich_help_panel or OUTPUT  # --help
                    # on lines of their own: side by side Rich cuts them at 80 columns
                    long = [flag for flag in (*parameter.opts, *parameter.secondary_opts) if flag.startswith("--")]
                    plain.opts = [flag for flag in parameter.opts if flag not in long] + ["\n".join(long)]
                    plain.secondary_opts = []
                printed.params.append(plain)
        places = {panel: place for place, panel in enumerate(PANELS)}  # the panel of a plug-in is the last
        printed.params.sort(key=lambda parameter: places.get(parameter.rich_help_panel or LOOK, len(places)))  # type: ignore[attr-defined]
        rich_utils.rich_format_help(obj=printed, ctx=ctx, markup_mode="rich")

    def help_parameters(self, ctx: Context) -> list[Parameter]:
        """Return the parameters for a help: in its text "{attnctl.measures}" becomes the names that packages add."""
        parameters: list[Parameter] = []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, TyperOption) and (group := re.search(r"\{(attnctl\.\w+)\}", parameter.help or "")):
                from attnctl.plugins import names_from_packages

                parameter = copy.copy(parameter)
                names = "".join(f", {name}" for name in names_from_packages(group[1]))
                parameter.help = str(parameter.help).replace(group[0], names)
            parameters.append(parameter)
        return parameters

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Write the panels as plain text; on a narrow terminal the help of an option is below its name."""
        for group, rows in self.help_rows(ctx).items():
            with formatter.section(group):
                if formatter.width >= NARROW:
                    formatter.write_dl(rows, col_max=26)
                    continue
                for name, sentence in rows:
                    formatter.write_text(name)
                    with formatter.indentation(), formatter.indentation():
                        formatter.write_text(sentence)

    def help_rows(self, ctx: Context) -> dict[str, list[tuple[str, str]]]:
        """Return the parameters by panel, for the reference: (flags and value, help)."""
        from attnctl.checks.options import OUTPUT

        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.help_parameters(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if isinstance(parameter, TyperArgument) else OUTPUT
                rows.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        return rows


def _origin_of(error: AttnctlError, context: Context) -> str:
    """Return where the wrong value comes from if it is a user's default; else ""."""
    for name, value in context.params.items():
        if origin := default_origin(context, name):
            several = value if isinstance(value, list | tuple) else [value]
            is_named = error.option is None and error.value is not None and str(error.value) in several
            if error.option == name or is_named:
                return origin
    return ""


def _forget_defaults_of_another_model(context: Context) -> None:
    """Forget the user's defaults for a model, except the device, if another model was typed."""
    if not any(was_typed(context, name) for name in ("model", "qkv")):
        return
    from attnctl.cli.groups import ModelOptions

    of_model = {field.name for field in fields(ModelOptions)} - {"device"}
    for parameter in context.command.params:
        if parameter.name in of_model and not was_typed(context, parameter.name):
            context.params[parameter.name] = parameter.default


def _check_outputs(values: Mapping[str, object]) -> None:
    """Raise UsageError if the output file is also an input: writing it would lose its content."""
    read = [path for name, value in values.items() if name != "output" for path in _paths_in(value)]
    for written in _paths_in(values.get("output")):
        for path in read:
            # os.path returns False for an impossible file name; pathlib raises
            if os.path.isfile(written) and os.path.isfile(path) and os.path.samefile(path, written):  # noqa: PTH113, PTH121
                raise UsageError(f"-o {written} is the file that is read, which would be lost: name another")


def _paths_in(value: object) -> list[str]:
    """Return the paths in the value of a parameter: none, one or several."""
    several = value if isinstance(value, list | tuple) else [value]
    return [path for path in several if isinstance(path, str)]
