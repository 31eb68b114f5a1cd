"""`attnctl config`: defaults of a user's own, shown and set."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Context, Option

from attnctl import limits
from attnctl.cli import defaults
from attnctl.cli.app import all_commands, load_command
from attnctl.cli.command import command, refuse_unused
from attnctl.cli.groups import OUTPUT
from attnctl.cli.output import print_lines, print_wrapped, say_notes
from attnctl.cli.suggestions import suggest_choice
from attnctl.commands import COMMANDS
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import lock_file, said_plainly, write_whole

if TYPE_CHECKING:
    from attnctl.text import Document

LOCK_SECONDS = 10  # that a process waits for others that set defaults: each takes a tenth of a second


# words that belong to no option are told how a default is set
@command(example="attnctl config --set model=smollm2", parsing={"allow_extra_args": True})
def config_command(
    context: Context,
    *,
    setting: Annotated[
        list[str] | None,
        Option(
            "--set",
            help="NAME=VALUE, or COMMAND.NAME=VALUE for one command.",
            metavar="NAME=VALUE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        Option("--unset", help="Forget a default: NAME, or COMMAND.NAME.", metavar="NAME", rich_help_panel=OUTPUT),
    ] = None,
    path: Annotated[bool, Option("--path", help="Print the path of the file.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Show or set defaults: options that every command takes as given unless the command line says otherwise.

    They stand in a TOML file, or in the environment: ATTNCTL_MODEL=gpt2 is --model gpt2. The command line wins over the
    environment, the environment over the file. Without options every default is shown, and where it comes from.
    """
    if context.args:
        raise UsageError(
            f"{context.args[0]!r}: a default is set by attnctl config --set NAME=VALUE, such as --set model=smollm2"
        )
    if path:
        refuse_unused(context, "setting", "unset", because="--path prints the path alone")
        print_lines(str(defaults.config_path()))
        return
    if setting or unset:
        _change_settings(setting or [], unset or [], context)
        return
    _show_settings(context)


def _change_settings(setting: list[str], unset: list[str], context: Context) -> None:
    """Set and unset defaults in the file; its comments, its order and every other line stay as they are."""
    where = defaults.config_path()
    with said_plainly("make", where.parent):
        where.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_file(where, LOCK_SECONDS)  # what another process sets meanwhile is read first
    try:
        _change_file(where, setting, unset, context)
    finally:
        lock.release()
    say_notes([f"{item} is kept in {where}" for item in setting] + [f"{item} is no default any more" for item in unset])


def _change_file(where: Path, setting: list[str], unset: list[str], context: Context) -> None:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    defaults.read_defaults()  # a damaged file is told of, not written into
    try:
        document = tomlkit.parse(defaults.read_text())
        for item in setting:
            name, equals, value = item.partition("=")
            if not equals or not value:
                raise UsageError(f"--set {item!r}: it is NAME=VALUE, like model=smollm2")
            command, key = _command_and_key(name)
            _check_value(item, _option_types(name, command, key, context), value)
            table, same = _table_and_keys(document, command, key)
            table.update(dict.fromkeys(same or [key], _typed_value(value)))
        for item in unset:
            command, key = _command_and_key(item)
            table, same = _table_and_keys(document, command, key)
            if not same:
                _option_types(item, command, key, context)
                raise UsageError(f"--unset {item}: there is no such default (see attnctl config)")
            for name in same:
                del table[name]
        text = tomlkit.dumps(document)
    except (TOMLKitError, RecursionError) as error:
        raise AttnctlError(f"{where} cannot be changed here: change it by hand") from error
    write_whole(where, text.encode())


def _command_and_key(name: str) -> tuple[str, str]:
    """NAME or COMMAND.NAME as the command ("" for all of them) and the option's name in Python."""
    command, _, key = name.rpartition(".")
    return command, key.strip().lstrip("-").replace("-", "_")


def _table_and_keys(document: Document, command: str, key: str) -> tuple[Document, list[str]]:
    """The table of a command's defaults, made where there is none, and the keys in it that name the option.

    Hyphens and underscores are alike. Raises AttnctlError where a table stands in place of a value, or a value of a table.
    """
    table = document.setdefault(command, {}) if command else document
    same = [name for name in table if name.replace("-", "_") == key] if isinstance(table, dict) else []
    if not isinstance(table, dict) or (not command and any(isinstance(table[name], dict) for name in same)):
        own = f"{command}.{key}" if command else key
        raise AttnctlError(f"the defaults file holds {own} in a way that cannot be changed here: change it by hand")
    return table, same


def _option_types(name: str, command: str, key: str, context: Context) -> set[type]:
    """The kinds of value of the option `key`, of one command or of all.

    Raises UsageError where no command, or not the one that is named, has an option of this `name` that may have a default.
    """
    if "." in name and command not in COMMANDS:
        raise UsageError(f"no command {command!r}{suggest_choice(command, COMMANDS)}")
    if defaults.options_of_all(all_commands()).get(key) is False:
        raise UsageError(f"--{name.rpartition('.')[2]} has no default: it is given where it is meant")
    kinds: dict[str, set[type]] = {}
    for each in [command] if command else COMMANDS:
        for one in load_command(each).params:
            if one.envvar and one.name:
                kind = bool if getattr(one, "is_flag", False) else _KINDS.get(one.type.name, str)
                kinds.setdefault(one.name, set()).add(kind)
    if key not in kinds:
        has = f"{command} has no" if command else "no command has an"
        raise UsageError(f"{has} option --{name.rpartition('.')[2]}{suggest_choice(key, kinds)}")
    return kinds[key]


_KINDS: dict[str, type] = {"int": int, "float": float}  # names of the types of Typer
_READERS: dict[type, tuple[Callable[[str], float], str]] = {
    int: (limits.whole_number, "a whole number"),
    float: (limits.decimal_number, "a number"),
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
}


def _check_value(item: str, kinds: Collection[type], value: str) -> None:
    """Raise UsageError where no option of these kinds reads the value: "x" as a whole number; or where it is not Unicode."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"--set {value!r}: it is not UTF-8 text") from None
    for kind in kinds:
        if kind not in _READERS:
            return
        with contextlib.suppress(ValueError, KeyError):
            _READERS[kind][0](value)
            return
    raise UsageError(f"--set {item}: it is {' or '.join(sorted(_READERS[kind][1] for kind in kinds))}")


def _typed_value(value: str) -> object:
    """A value as TOML has it: true and false, finite numbers, else text."""
    for read, _ in _READERS.values():
        with contextlib.suppress(ValueError, KeyError):
            return found if abs(found := read(value)) < limits.EXACT else value
    return value


def _show_settings(context: Context) -> None:
    said = defaults.read_defaults()
    where = defaults.config_path()
    rows = [(key, value, str(where)) for key, value in said.items() if not isinstance(value, dict)]
    for name, table in said.items():
        if isinstance(table, dict):
            rows += [(f"{name}.{key}", value, str(where)) for key, value in table.items()]
    for name, value in sorted(os.environ.items()):
        if name.startswith(defaults.PREFIX) and name != f"{defaults.PREFIX}CONFIG" and value:
            rows.append((name.removeprefix(defaults.PREFIX).lower(), value, f"${name}"))
    if not rows:
        print_wrapped("no defaults are set; attnctl config --set model=smollm2 writes them to")
        print_lines(str(where))
        return
    known = defaults.options_of_all(all_commands())
    width = max(len(f"{name} = {value}") for name, value, _ in rows)
    for name, value, source in rows:
        wrong = defaults.why_no_default(name, known)
        print_lines(f"{f'{name} = {value}':{width}}  {source}{f' ({wrong})' * bool(wrong)}")
