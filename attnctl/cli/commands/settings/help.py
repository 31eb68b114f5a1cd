"""`attnctl help`: what there is, or one command's options."""

from __future__ import annotations

from typing import Annotated

import typer

from attnctl.errors import UsageError


def help_command(
    ctx: typer.Context,
    command: Annotated[
        str | None, typer.Argument(help="The command to tell about.", show_default=False, metavar="[COMMAND]")
    ] = None,
) -> None:
    """Print the commands, or the options of one of them: the same as attnctl COMMAND --help."""
    from attnctl.cli import COMMANDS, command_named
    from attnctl.cli.output import print_lines
    from attnctl.cli.suggestions import suggest_command as about

    group = ctx.parent
    assert group is not None
    if command is None:
        print_lines(group.get_help())
        return
    if command not in COMMANDS:
        raise UsageError(about(command, COMMANDS))
    asked = command_named(command)
    print_lines(asked.get_help(type(ctx)(asked, info_name=command, parent=group)))
