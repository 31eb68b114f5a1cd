"""Commands from outside: what an installed package may give to attnctl, and what such a package may import.

A package names a command, and documents for `attnctl schema`, as entry points:

    [project.entry-points."attnctl.commands"]
    lookback = "attnctl_lookback"

    [project.entry-points."attnctl.documents"]
    lookback = "attnctl_lookback:Lookback"

The module of a command holds a function `lookback_command` under `@command`. A command may import these modules, and of them
what has no underscore before its name. Everything else is private, and may change in any version:

attnctl                                   the functions for Python: attend, capture, load, …
attnctl.arrays                            types of arrays
attnctl.attention                         the mathematics
attnctl.cli.command                       command, refuse_unused
attnctl.cli.groups                        options that several commands have, and their groups
attnctl.cli.opening                       model_of, open_source
attnctl.cli.output                        standard output, notes, the file of -o
attnctl.cli.progress                      cost_progress
attnctl.document_fields                   types of the fields of a document: Part, Share, Count, about, …
attnctl.errors                            AttnctlError, UsageError, exit codes
attnctl.formats.documents.json_documents  JsonDocument, ResultModel, ResultTokens, write_json
attnctl.layer                             LayerAttention: what one layer of attention answers
attnctl.limits                            ranges of numbers
attnctl.render.forms                      Line, Column, Table, Grid
attnctl.render.terminal.console           Shown
attnctl.source                            Source, Reading, prepare
attnctl.tokens                            Token
attnctl.trace                             Trace
attnctl.trace.run                         Run

VERSION rises where one of them changes so that a command from outside would break.

Entry points are read for the help of the program, for a command that is none of attnctl's own, for `attnctl schema`, and
where a user's default is none of the command's own options: any other start does not pay for them.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from attnctl.cli.command import Command, load_module
from attnctl.commands import COMMANDS, CommandPackage
from attnctl.errors import AttnctlError, in_one_line, print_complaint
from attnctl.text import harmless_line, visible_text

if TYPE_CHECKING:
    from attnctl.formats.documents.json_documents import JsonDocument

VERSION = 1

PANEL = "Plug-ins"  # of the help of the program


def plugin_commands() -> dict[str, CommandPackage]:
    """Return the commands of installed packages by name; a name that attnctl has itself is left out with a warning."""
    found: dict[str, CommandPackage] = {}
    for entry in _entries("attnctl.commands"):
        if entry.name in COMMANDS or entry.name in found:
            _warn(f"{_package(entry)} gives a command {entry.name}, which exists already: it is left out")
            continue
        metadata = entry.dist.metadata if entry.dist else None
        summary = metadata["Summary"] if metadata is not None and "Summary" in metadata else ""
        found[entry.name] = CommandPackage(PANEL, harmless_line(summary, visible_text), entry.value)
    return found


def load_plugin(name: str) -> Command:
    """Return the command of this name of an installed package, its module imported.

    Raises AttnctlError if it cannot be imported, and KeyError for a name of no command.
    """
    entry = {entry.name: entry for entry in reversed(_entries("attnctl.commands"))}[name]
    try:
        return load_module(name, entry.value)
    except (Exception, SystemExit) as error:  # whatever a module of strangers does when it is imported
        raise _broken(entry, f"the command {name}", error) from error


def working_plugins() -> dict[str, Command]:
    """Return the commands of installed packages that can be imported; each that cannot is one warning."""
    found = {}
    for name in plugin_commands():
        try:
            found[name] = load_plugin(name)
        except AttnctlError as error:
            _warn(str(error))
    return found


def plugin_documents() -> dict[str, EntryPoint]:
    """Return where the documents of installed packages are, by the names that `attnctl schema` knows them by."""
    return {entry.name: entry for entry in reversed(_entries("attnctl.documents"))}


def load_document(entry: EntryPoint) -> type[JsonDocument]:
    """Return the type of a document of an installed package. Raises AttnctlError if it cannot be imported."""
    try:
        document: type[JsonDocument] = entry.load()
        return document
    except (Exception, SystemExit) as error:
        raise _broken(entry, f"the document {entry.name}", error) from error


def _entries(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, in an order that does not hang on the order of folders."""
    return sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry)))


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else entry.value


def _broken(entry: EntryPoint, what: str, error: BaseException) -> AttnctlError:
    why = f"{type(error).__name__}: {in_one_line(error)}"
    return AttnctlError(f"{what} of {_package(entry)} cannot be imported ({why}): mend it, or remove {_package(entry)}")


@cache
def _warn(message: str) -> None:
    """Print a warning, once."""
    print_complaint(message)
