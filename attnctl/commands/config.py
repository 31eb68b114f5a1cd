"""`attnctl config`: show and set the user's defaults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import BadParameter, Context, Option
from typer.core import TyperOption

from attnctl.checks import limits
from attnctl.cli import (
    ONE_CALL,
    OUTPUT,
    VARIABLE_PREFIX,
    all_commands,
    command,
    config_path,
    load_command,
    options_of_all,
    print_lines,
    print_wrapped,
    read_defaults,
    refuse_unused,
    say_notes,
    stored_defaults,
    suggest_choice,
    why_no_default,
)
from attnctl.errors import AttnctlError, UsageError
from attnctl.runtime.files import lock_file, said_plainly, write_whole

if TYPE_CHECKING:
    from attnctl.text import Document

LOCK_SECONDS = 10  # how long to wait for other processes that set defaults; each takes a tenth of a second


# for words outside an option, the error says how to set a default
@command(example="attnctl config --set model=smollm2", parsing={"allow_extra_args": True})
def config_command(
    context: Context,
    *,
    setting: Annotated[
        list[str] | None,
        Option(
            "--set",
            envvar=ONE_CALL,
            help="Set a default: NAME=VALUE, or COMMAND.NAME=VALUE for one command.",
            metavar="NAME=VALUE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        Option(
            "--unset",
            envvar=ONE_CALL,
            help="Remove a default: NAME, or COMMAND.NAME.",
            metavar="NAME",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    path: Annotated[
        bool, Option("--path", envvar=ONE_CALL, help="Print the path of the file.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show or set your defaults: values of options, for every command line that does not give the option.

    Defaults are in a TOML file, or in the environment: ATTNCTL_MODEL=gpt2 is --model gpt2. The command line wins over the
    environment, and the environment over the file. Without options, every default is shown with its origin.
    """
    if context.args:
        raise UsageError(
            f"{context.args[0]!r}: a default is set by attnctl config --set NAME=VALUE, such as --set model=smollm2"
        )
    if path:
        refuse_unused(context, "setting", "unset", because="--path prints the path alone")
        print_lines(str(config_path()))
        return
    if setting or unset:
        _change_settings(setting or [], unset or [])
        return
    _show_settings()


def _change_settings(setting: list[str], unset: list[str]) -> None:
    """Set and unset defaults in the file; keep its comments, its order and every other line."""
    list(all_commands())  # imported before the file is locked, so that others wait for the change alone
    where = config_path()
    with said_plainly("make", where.parent):
        where.parent.mkdir(parents=True, exist_ok=True)
    lock = lock_file(where, LOCK_SECONDS)  # read the file only after other processes have written it
    try:
        _change_file(where, setting, unset)
    finally:
        lock.release()
    say_notes([f"{item} is kept in {where}" for item in setting] + [f"{item} is no longer a default" for item in unset])


def _change_file(where: Path, setting: list[str], unset: list[str]) -> None:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    read_defaults()  # raises for a damaged file, before it is changed
    try:
        document = tomlkit.parse(stored_defaults())
        for item in setting:
            name, equals, value = item.partition("=")
            if not equals or not value:
                raise UsageError("it is NAME=VALUE, like model=smollm2", option="setting", value=item)
            command, key = _command_and_key(name)
            _check_value(item, _options_named(name, command, key), value)
            table, same = _table_and_keys(document, command, key)
            table.update(dict.fromkeys(same or [key], _typed_value(value)))
        for item in unset:
            command, key = _command_and_key(item)
            table, same = _table_and_keys(document, command, key)
            if not same:
                _options_named(item, command, key)
                raise UsageError("there is no such default (see attnctl config)", option="unset", value=item)
            for name in same:
                del table[name]
        text = tomlkit.dumps(document)
    except (TOMLKitError, RecursionError) as error:
        raise AttnctlError(f"{where} cannot be changed here: change it by hand") from error
    write_whole(where, text.encode())


def _command_and_key(name: str) -> tuple[str, str]:
    """Split NAME or COMMAND.NAME into the command ("" for all) and the option's name in Python."""
    command, _, key = name.rpartition(".")
    return command, key.strip().lstrip("-").replace("-", "_")


def _table_and_keys(document: Document, command: str, key: str) -> tuple[Document, list[str]]:
    """Return the table of a command's defaults, created if absent, and its keys that name the option.

    Hyphens and underscores are equal. Raises AttnctlError if the file has a table in place of a value, or the reverse.
    """
    table = document.setdefault(command, {}) if command else document
    same = [name for name in table if name.replace("-", "_") == key] if isinstance(table, dict) else []
    if not isinstance(table, dict) or (not command and any(isinstance(table[name], dict) for name in same)):
        full_name = f"{command}.{key}" if command else key
        raise AttnctlError(
            f"the defaults file holds {full_name} in a way that cannot be changed here: change it by hand"
        )
    return table, same


def _options_named(name: str, command: str, key: str) -> list[TyperOption]:
    """Return the options with the name `key`, of one command or of all.

    Raises UsageError if there is no such option, or if it cannot have a default; `name` is what the user typed.
    """
    names = [each.name or "" for each in all_commands()]
    if "." in name and command not in names:
        raise UsageError(f"no command {command!r}{suggest_choice(command, names)}")
    if options_of_all(all_commands()).get(key) is False:
        raise UsageError("takes no default: give it on the command line", option=name.rpartition(".")[2])
    commands = [load_command(command)] if command else all_commands()
    options = [
        option for each in commands for option in each.params if isinstance(option, TyperOption) and option.envvar
    ]
    if not (same := [option for option in options if option.name == key]):
        has = f"{command} has no" if command else "no command has an"
        near = suggest_choice(key, [option.name or "" for option in options])
        raise UsageError(f"{has} option --{name.rpartition('.')[2]}{near}")
    return same


def _check_value(item: str, options: Sequence[TyperOption], value: str) -> None:
    """Raise UsageError if the value is not Unicode, or if no option accepts it."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError("it is not UTF-8 text", option="setting", value=value) from None
    wrong = []
    for option in options:
        try:
            option.type.convert(value, option, None)
            return
        except BadParameter as error:
            wrong.append(" ".join(error.message.split()).rstrip("."))
    raise UsageError(wrong[0], option="setting", value=item)


def _typed_value(value: str) -> object:
    """Return a value with its type in TOML: true or false, a finite number, or else text."""
    for read in (limits.whole_number, limits.decimal_number, {"true": True, "false": False}.__getitem__):
        with contextlib.suppress(ValueError, KeyError):
            return number if abs(number := read(value)) < limits.EXACT else value
    return value


def _show_settings() -> None:
    settings = read_defaults()
    where = config_path()
    rows = [(key, value, str(where)) for key, value in settings.items() if not isinstance(value, dict)]
    for name, table in settings.items():
        if isinstance(table, dict):
            rows += [(f"{name}.{key}", value, str(where)) for key, value in table.items()]
    for name, value in sorted(os.environ.items()):
        if name.startswith(VARIABLE_PREFIX) and name != f"{VARIABLE_PREFIX}CONFIG" and value:
            rows.append((name.removeprefix(VARIABLE_PREFIX).lower(), value, f"${name}"))
    if not rows:
        print_wrapped("no defaults are set; attnctl config --set model=smollm2 writes them to")
        print_lines(str(where))
        return
    options = options_of_all(all_commands())
    width = max(len(f"{name} = {value}") for name, value, _ in rows)
    for name, value, source in rows:
        wrong = why_no_default(name, options)
        print_lines(f"{f'{name} = {value}':{width}}  {source}{f' ({wrong})' * bool(wrong)}")
