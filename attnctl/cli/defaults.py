"""Read the user's defaults: `model = "gpt2"` in a TOML file means `--model gpt2` in every command that has the option.

A table such as `[heatmap]` is for one command. The file becomes Click's `default_map`. Typer reads the environment,
`ATTNCTL_MODEL=gpt2`, itself (`envvar` of an option); the environment wins over the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from typer.core import TyperOption

from attnctl.checks import limits
from attnctl.cli.suggestions import suggest_choice
from attnctl.errors import AttnctlError
from attnctl.registry import moved_option
from attnctl.runtime.files import read_bytes
from attnctl.text import for_pasting

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context

    from attnctl.text import Document

VARIABLE_PREFIX = "ATTNCTL_"  # of the environment variable of an option


def config_path() -> Path:
    """Return the path of the defaults file: $ATTNCTL_CONFIG, or config.toml in the user's configuration folder."""
    if named := os.environ.get(f"{VARIABLE_PREFIX}CONFIG"):
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("attnctl") / "config.toml"


def stored_defaults() -> str:
    """Return the text of the defaults file, "" if it does not exist. Raises AttnctlError if it cannot be read."""
    path = config_path()
    if not os.path.lexists(path):
        return ""
    try:
        return read_bytes(path, limits.DEFAULTS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise AttnctlError(f"{path} is not valid TOML: {error} (attnctl config --path prints where it is)") from error


def read_defaults() -> Document:
    """Return the content of the defaults file, {} if it does not exist. Raises AttnctlError if it is not TOML."""
    import tomllib

    try:
        return tomllib.loads(stored_defaults())
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AttnctlError(
            f"{config_path()} is not valid TOML: {error} (attnctl config --path prints where it is)"
        ) from error


def default_map(command: ClickCommand, all_commands: Callable[[], Iterable[ClickCommand]]) -> dict[str, object]:
    """Return the defaults of a command's options, as Click reads them from a `default_map`.

    `all_commands` yields every command of the program; it is called if the file holds a name that is not an option of this
    command. Numbers and truth values become text, which Typer checks as it checks the command line. Raises AttnctlError
    for a name that is not an option, and for a value of another type.
    """
    stored = read_defaults() if _may_exist() else {}
    if not stored:
        return {}
    name = command.name or ""
    options = {option.name: option for option in command.params if isinstance(option, TyperOption) and option.envvar}
    if name != "config":  # `config` shows the content of the file, and removes what is wrong
        _check_names(stored, command, all_commands)
    table = stored.get(name)
    values = {key: value for key, value in stored.items() if not isinstance(value, dict)}
    values |= table if isinstance(table, dict) else {}
    return {
        key: _as_typed(key, value, options[key].multiple)
        for key, value in ((key.replace("-", "_"), value) for key, value in values.items())
        if key in options
    }


def _as_typed(name: str, value: object, several: bool) -> object:
    """Return a default as a user would type it: a text, or a list of texts for a repeated option."""
    values = value if several and isinstance(value, list) else [value]
    if not all(isinstance(each, str | int | float) for each in values):
        kind = "a list of values, or one value" if several else "one value"
        raise AttnctlError(f"{config_path()}: {name} is {kind}: a text, a number, true or false")
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
    return texts if several else texts[0]


def _check_names(stored: Document, command: ClickCommand, all_commands: Callable[[], Iterable[ClickCommand]]) -> None:
    """Raise AttnctlError for a name in the defaults file that is not an option, or an option that takes no default."""
    options = {option.name for option in command.params if isinstance(option, TyperOption) and option.envvar}
    tables = {"": stored} | {name: value for name, value in stored.items() if isinstance(value, dict)}
    places = [(table, key) for table, values in tables.items() for key in values if table or key not in tables]
    elsewhere = [
        place for place in places if place[0] not in ("", command.name) or place[1].replace("-", "_") not in options
    ]
    if not elsewhere:
        return  # a start does not import the modules of all commands
    program = list(all_commands())
    names, options_of_program = [each.name or "" for each in program], options_of_all(program)
    for table, key in elsewhere:
        if table and table not in names:
            suggestion = suggest_choice(table, names)
            raise AttnctlError(f"{config_path()}: [{table}]: there is no such command{suggestion}")
        place = f"{table}.{key}" if table else key
        wrong = why_no_default(place, options_of_program)
        if not wrong and table == command.name:
            wrong = f"{table} has no such option"
        if wrong:
            raise AttnctlError(f"{config_path()}: {place}: {wrong} (attnctl config --unset {for_pasting(place)})")


def why_no_default(name: str, options: Mapping[str, bool]) -> str:
    """Return why no option takes a default of this NAME or COMMAND.NAME, or ""; `options` are `options_of_all`."""
    key = name.rpartition(".")[2].replace("-", "_")
    if options.get(key):
        return ""
    if key in options:
        return "it takes no default: give it on the command line"
    new = moved_option(name.rpartition(".")[0], f"--{key.replace('_', '-')}")
    return f"there is no such option{f': {new} does that' if new else suggest_choice(key, options)}"


def options_of_all(all_commands: Iterable[ClickCommand]) -> dict[str, bool]:
    """Return option → whether it may have a default, for the options of all commands."""
    return {
        option.name or "": bool(option.envvar)
        for command in all_commands
        for option in command.params
        if isinstance(option, TyperOption)
    }


def unknown_variables(all_commands: Callable[[], Iterable[ClickCommand]]) -> list[str]:
    """Return a sentence for each variable of the environment that has the name of a default but is not one."""
    names = [
        name for name in sorted(os.environ) if name.startswith(VARIABLE_PREFIX) and name != f"{VARIABLE_PREFIX}CONFIG"
    ]
    options = options_of_all(all_commands()) if names else {}
    return [
        f"${name}: {wrong}"
        for name in names
        if (wrong := why_no_default(name.removeprefix(VARIABLE_PREFIX).lower(), options))
    ]


def default_origin(context: Context, name: str) -> str:
    """Return where a parameter's value comes from if it is a user's default; else ""."""
    source = context.get_parameter_source(name)
    if source is None or source.name not in ("ENVIRONMENT", "DEFAULT_MAP"):
        return ""
    return (
        f"${VARIABLE_PREFIX}{name.upper()}" if source.name == "ENVIRONMENT" else "the defaults file, see attnctl config"
    )


def _may_exist() -> bool:
    """Return whether the file may exist: a start without defaults looks at one folder only."""
    if os.environ.get(f"{VARIABLE_PREFIX}CONFIG") or os.name != "posix" or os.uname().sysname == "Darwin":
        return True
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    # os.path: in a home without access (another user's, as for a service) there are no defaults, and no error
    return os.path.isdir(Path(home, "attnctl"))  # noqa: PTH112
