"""The commands that installed packages give, and the names of what else they give, for a help."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from attnctl import find_named
from attnctl.cli.command import Command, load_module
from attnctl.commands import COMMANDS, CommandPackage
from attnctl.plugins import entries, load_entry, working_entries
from attnctl.text import harmless_line, visible_text

PANEL = "Plug-ins"  # of the help of the program

# group → its entry points by name, and what loads one of them
OTHERS = {
    "attnctl.measures": ("attnctl.measures:measures_of_packages", "attnctl.measures:load_measure"),
    "attnctl.batch_formats": ("attnctl.batching.formats:formats_of_packages", "attnctl.batching.formats:load_format"),
}


def plugin_commands() -> dict[str, CommandPackage]:
    """Return the commands of installed packages by name; a name that attnctl has itself is left out with a warning."""
    listed: dict[str, CommandPackage] = {}
    for name, entry in entries("attnctl.commands", COMMANDS).items():
        metadata: Any = entry.dist.metadata if entry.dist else {}
        summary = str(metadata["Summary"] or "") if "Summary" in metadata else ""
        listed[name] = CommandPackage(PANEL, harmless_line(summary, visible_text), entry.value)
    return listed


def load_plugin(name: str) -> Command:
    """Return the command of this name of an installed package, its module imported.

    Raises AttnctlError if it cannot be imported, and KeyError for a name of no command.
    """
    return load_entry(entries("attnctl.commands", COMMANDS)[name], _load_command)


def working_plugins() -> dict[str, Command]:
    """Return the commands of installed packages that can be imported; each that cannot is one warning."""
    return working_entries(entries("attnctl.commands", COMMANDS), _load_command)


def names_from_packages(group: str) -> list[str]:
    """Return the names in a group of OTHERS that can be imported; each that cannot is one warning."""
    if not entries(group, ()):
        return []
    of_packages, load = map(find_named, OTHERS[group])
    return list(working_entries(of_packages(), load))


def _load_command(entry: EntryPoint) -> Command:
    return load_module(entry.name, entry.value)
