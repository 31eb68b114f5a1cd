"""What is known of the command that runs, beside its own options: which were typed, and whether notes are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

typed: set[str] = set()  # names of the parameters that stand on the command line, not in the defaults of a user
quiet = False  # neither notes nor progress


def begin_command(command: Any, ctx: click.Context) -> None:
    """Note which parameters of `command` were typed."""
    sources = {p.name: ctx.get_parameter_source(p.name) for p in command.params}
    typed.clear()
    typed.update(name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE")


def set_quiet(_ctx: Any, _param: Any, wanted: bool) -> None:
    """The callback of --quiet."""
    global quiet
    quiet = bool(wanted)
