"""`attnctl help`: what there is, or one command's options."""

from __future__ import annotations

from attnctl.cli.app import COMMANDS, app
from attnctl.cli.suggestions import suggest_command
from attnctl.errors import UsageError


def help_command(*, command: str | None) -> None:
    """Print the commands, or the options of one of them: the same as attnctl COMMAND --help."""
    if command is not None and command not in COMMANDS:
        raise UsageError(suggest_command(command, COMMANDS))
    app(["--help"] if command is None else [command, "--help"], standalone_mode=False)
