"""`attnctl config`: defaults of a user's own, shown and set."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tomllib

from attnctl import limits
from attnctl.cli import Command, session
from attnctl.cli.arguments import check_mode, say_notes
from attnctl.cli.command_table import COMMANDS
from attnctl.cli.output import print_lines, print_wrapped
from attnctl.cli.suggestions import suggest_choice, suggest_command
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import write_whole


def config_command(*, setting: list[str] | None, unset: list[str] | None, path: bool) -> None:
    """Show or set defaults: options that every command takes as given unless the command line says otherwise."""
    if session.left_over:
        raise UsageError(
            f"{session.left_over[0]!r}: a default is set by attnctl config --set NAME=VALUE, such as --set model=smollm2"
        )
    if path:
        check_mode("config", "--path")
        print_lines(str(session.config_path()))
        return
    if setting or unset:
        check_mode("config", "--set and --unset")
        _change_settings(setting or [], unset or [])
        return
    _show_settings()


def _change_settings(setting: list[str], unset: list[str]) -> None:
    where = session.config_path()
    session.read_defaults()  # a damaged file is told of, not written into
    text = session.read_text()
    for item in setting:
        name, equals, value = item.partition("=")
        if not equals or not value:
            raise UsageError(f"--set {item!r}: it is NAME=VALUE, like model=smollm2")
        place = _place_of_setting(name)
        _check_value(item, *place, value)
        text = with_setting(text, *place, _typed_value(value))
    for item in unset:
        command, _, key = item.rpartition(".")
        changed = with_setting(text, command, key.strip().lstrip("-").replace("-", "_"), None)
        if changed == text:
            _place_of_setting(item)
            raise UsageError(f"--unset {item}: there is no such default (see attnctl config)")
        text = changed
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnctlError(f"cannot make {where.parent}: {(error.strerror or str(error)).lower()}") from error
    write_whole(where, text.encode())
    say_notes([f"{item} is kept in {where}" for item in setting] + [f"{item} is no default any more" for item in unset])


def _place_of_setting(name: str) -> tuple[str, str]:
    """The table that NAME or COMMAND.NAME belongs in ("" at the top), and its key.

    Raises UsageError where no command has such an option.
    """
    command, dot, rest = name.rpartition(".")
    key = rest.strip().lstrip("-").replace("-", "_")
    if dot and command not in COMMANDS:
        raise UsageError(suggest_command(command, COMMANDS))
    known = {option for each in ([command] if dot else COMMANDS) for option in session.options_of(Command(each))}
    if key in session.NEVER:
        raise UsageError(f"--{rest} has no default: it is given where it is meant")
    if key not in known:
        raise UsageError(
            f"{command or 'no command'} has {'no ' if dot else 'an '}option --{rest}{suggest_choice(key, known)}"
        )
    return command, key


def _check_value(item: str, command: str, key: str, value: str) -> None:
    """Raise UsageError where no command's option of this name reads the value: "x" as a whole number."""
    tables = [session.options_of(Command(each)) for each in ([command] if command else COMMANDS)]
    types = {table[key].type.name for table in tables if key in table}
    read = {
        "int": limits.whole_number,
        "float": limits.decimal_number,
        "boolean": {"true": True, "false": False}.__getitem__,
    }
    wanted = {"int": "a whole number", "float": "a number", "boolean": "true or false"}
    for kind in types:
        if kind not in read:
            return
        with contextlib.suppress(ValueError, KeyError):
            read[kind](value)
            return
    raise UsageError(f"--set {item}: it is {' or '.join(sorted(wanted[kind] for kind in types))}")


def _typed_value(value: str) -> bool | int | float | str:
    """A value as TOML has it: true and false, finite numbers, else text."""
    if value in ("true", "false"):
        return value == "true"
    for read in (limits.whole_number, limits.decimal_number):
        with contextlib.suppress(ValueError):
            number: float = read(value)
            return number if abs(number) < limits.EXACT else value
    return value


def _show_settings() -> None:
    said = session.read_defaults()
    where = session.config_path()
    rows = [(key, value, str(where)) for key, value in said.items() if not isinstance(value, dict)]
    for command, table in said.items():
        if isinstance(table, dict):
            rows += [(f"{command}.{key}", value, str(where)) for key, value in table.items()]
    for name, value in sorted(os.environ.items()):
        if name.startswith(session.PREFIX) and name != f"{session.PREFIX}CONFIG" and value:
            rows.append((name.removeprefix(session.PREFIX).lower(), value, f"${name}"))
    if not rows:
        print_wrapped("no defaults are set; attnctl config --set model=smollm2 writes them to")
        print_lines(str(where))
        return
    width = max(len(f"{name} = {value}") for name, value, _ in rows)
    for name, value, source in rows:
        wrong = session.why_no_default(name)
        print_lines(f"{f'{name} = {value}':{width}}  {source}{f' ({wrong})' * bool(wrong)}")


# --- a default written into the text of the file: its line alone changes, comments and all else stay as they are ---

_HEADING = re.compile(r"\s*\[")


def with_setting(text: str, table: str, key: str, value: bool | float | str | None) -> str:
    """The text of a TOML file with `key` of `table` ("" is the top) set to `value`, or without it for None.

    Raises UsageError for text that is not Unicode, and AttnctlError where the file holds the key in a way that no single
    line can change: over several lines, or in a table within a table.
    """
    lines = text.rstrip("\n").split("\n") if text.strip() else []
    first, last = _section(lines, table)
    named = re.compile(rf"""\s*["']?{re.escape(key).replace("_", "[_-]")}["']?\s*=""")
    found = [at for at in range(first, last) if named.match(lines[at])]
    if value is None and not found:
        return text
    line = [] if value is None else [f"{key} = {_toml_value(value)}"]
    if found:
        lines[found[0] : found[0] + 1] = line
    elif first > len(lines):  # there is no such table yet
        lines += [*([""] if lines else []), f"[{table}]", *line]
    else:
        while last > first and not lines[last - 1].strip():
            last -= 1
        lines[last:last] = line if last == len(lines) or not lines[last].strip() else [*line, ""]
    changed = "\n".join(lines).strip("\n") + "\n"
    _check_change(text, changed, table, key, value)
    return changed


def _section(lines: list[str], table: str) -> tuple[int, int]:
    """The lines of a table, its heading left out: from, to. Beyond the last line where there is no such table."""
    headings = [at for at, line in enumerate(lines) if _HEADING.match(line)]
    edges = [*headings, len(lines)]
    if not table:
        return 0, edges[0]
    for at, end in zip(headings, edges[1:], strict=True):
        if re.fullmatch(rf"""\s*\[\s*["']?{re.escape(table)}["']?\s*\]\s*(#.*)?""", lines[at]):
            return at + 1, end
    return len(lines) + 1, len(lines) + 1


def _toml_value(value: bool | float | str) -> str:
    """A value as TOML writes it. Raises UsageError for text that is not Unicode."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"--set {value!r}: it is not UTF-8 text") from None
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _check_change(before: str, after: str, table: str, key: str, value: bool | float | str | None) -> None:
    """Raise AttnctlError where a change changes anything else, or does not do what it is for."""
    wanted, own = tomllib.loads(before), f"{table}.{key}" if table else key
    within = wanted.setdefault(table, {}) if table else wanted
    try:
        got = tomllib.loads(after)
        if not isinstance(within, dict):
            raise ValueError(table)
        for name in [name for name in within if name.replace("-", "_") == key]:
            del within[name]
        if value is not None:
            within[key] = value
    except ValueError:
        got = None
    if got is None or (got | ({table: got.get(table, {})} if table else {})) != wanted:
        raise AttnctlError(f"the defaults file holds {own} in a way that cannot be changed here: change it by hand")
