"""What is known of the command that runs, beside its own options: which were typed, and whether notes are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context, Parameter

typed: set[str] = set()  # names of the parameters that stand on the command line, not in the defaults of a user
quiet = False  # neither notes nor progress


def begin_command(command: ClickCommand, ctx: Context) -> None:
    """Note which parameters of `command` were typed."""
    sources = {name: ctx.get_parameter_source(name) for p in command.params if (name := p.name)}
    typed.clear()
    typed.update(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def set_quiet(_ctx: Context, _param: Parameter, wanted: bool) -> None:
    """The callback of --quiet."""
    global quiet
    quiet = bool(wanted)
