"""Load the commands of installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from attnctl.cli.command_form import Command, load_module
from attnctl.plugins import entries, load_entry, working_entries
from attnctl.registry import COMMANDS, CommandPackage
from attnctl.text import harmless_line, visible_text

PANEL = "Plug-ins"  # in the help of the program


def plugin_commands() -> dict[str, CommandPackage]:
    """Return the commands of installed packages by name; a name of attnctl's own is left out with a warning."""
    listed: dict[str, CommandPackage] = {}
    for name, entry in entries("attnctl.commands", COMMANDS).items():
        metadata: Any = entry.dist.metadata if entry.dist else {}
        summary = str(metadata["Summary"] or "") if "Summary" in metadata else ""
        listed[name] = CommandPackage(PANEL, harmless_line(summary, visible_text), entry.value)
    return listed


def load_plugin(name: str) -> Command:
    """Import and return the command of this name of an installed package.

    Raises AttnctlError if it cannot be imported, and KeyError if no package has it.
    """
    return load_entry(entries("attnctl.commands", COMMANDS)[name], _load_command)


def working_plugins() -> dict[str, Command]:
    """Return the commands of installed packages that can be imported; print a warning for each other one."""
    return working_entries(entries("attnctl.commands", COMMANDS), _load_command)


def _load_command(entry: EntryPoint) -> Command:
    return load_module(entry.name, entry.value)
