"""Defaults of a user's own: options set in a file or in the environment; the command line wins over both.

`ATTNCTL_MODEL=gpt2` stands for `--model gpt2` in every command that has it, and so for every option. The file is
`config.toml` in the user's configuration folder (see `attnctl config --path`): `model = "gpt2"`, or under `[heatmap]`
for one command alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from typer.core import TyperOption

from attnctl import limits
from attnctl.cli import session
from attnctl.cli.command_table import COMMANDS
from attnctl.cli.options import MODEL_OPTIONS, OPTIONS
from attnctl.cli.suggestions import suggest_choice
from attnctl.errors import AttnctlError

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context

    from attnctl.text import Document
PREFIX = "ATTNCTL_"
# what names the one thing that a call is about, or asks for another act than the command's own, is no default
NEVER = (
    "help", "output", "file", "quiet", "setting", "unset", "path", "site", "samples", "open_", "write_corpus",
)  # fmt: skip


def config_path() -> Path:
    """The defaults file: ATTNCTL_CONFIG, or config.toml in the user's configuration folder."""
    named = os.environ.get(f"{PREFIX}CONFIG")
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("attnctl") / "config.toml"


def read_text() -> str:
    """The text of the defaults file; "" where there is none. Raises AttnctlError where it cannot be read."""
    path = config_path()
    if not os.path.lexists(path):
        return ""
    from attnctl.files import read_bytes

    try:
        return read_bytes(path, limits.DEFAULTS_BYTES).decode()
    except UnicodeDecodeError as error:
        raise AttnctlError(f"{path} is no TOML: {error} (attnctl config --path prints where it is)") from error


def read_defaults() -> Document:
    """What the defaults file says; nothing where there is none. Raises AttnctlError where it is no TOML."""
    import tomllib

    try:
        return tomllib.loads(read_text())
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise AttnctlError(f"{config_path()} is no TOML: {error} (attnctl config --path prints where it is)") from error


def options_of(command: ClickCommand) -> dict[str, TyperOption]:
    """The options of a command that may have a default of the user's own, by their names in Python."""
    return {p.name or "": p for p in command.params if isinstance(p, TyperOption) and p.name not in NEVER}


def apply_defaults(command: ClickCommand, ctx: Context) -> None:
    """Give a command's options the defaults of file and environment. Raises AttnctlError for a value of another type."""
    options = options_of(command)
    for name, option in options.items():
        option.envvar, option.show_envvar = f"{PREFIX}{name.upper()}", False
    if not _may_be_there():
        return
    said = read_defaults()
    if command.name != "config":  # which shows what the file holds, and takes out what is wrong
        _check_names(said, command.name or "", options)
    own = said.get(command.name or "", {})
    table = {k: v for k, v in said.items() if not isinstance(v, dict)} | (own if isinstance(own, dict) else {})
    given = {name.replace("-", "_"): value for name, value in table.items()}
    for name, value in given.items():
        if name in options and not isinstance(value, (str, int, float, bool)):
            raise AttnctlError(f"{config_path()}: {name} is one value: a text, a number, true or false")
    ctx.default_map = {name: _environment_value(value) for name, value in given.items() if name in options}


def _check_names(said: Document, command: str, options: Collection[str]) -> None:
    """Raise AttnctlError for a name in the defaults file that is of no option, or of one that has no default.

    `options` are those of the `command` that runs: its own table holds no others.
    """
    for name, value in said.items():
        table = value if isinstance(value, dict) else None
        if table and name not in COMMANDS:
            near = suggest_choice(name, COMMANDS)
            raise AttnctlError(f"{config_path()}: [{name}]: no command is called so{near}")
        for place in [name] if table is None else [f"{name}.{key}" for key in table]:
            lacking = name == command and place.rpartition(".")[2].replace("-", "_") not in options
            if wrong := why_no_default(place) or f"{command} has no such option" * lacking:
                raise AttnctlError(f"{config_path()}: {place}: {wrong} (attnctl config --unset {place})")


def why_no_default(name: str) -> str:
    """Why no option takes a default of that NAME or COMMAND.NAME; empty where one does."""
    key = name.rpartition(".")[2].replace("-", "_")
    known = {option for option, one in OPTIONS.items() if one.flags}
    if key in known and key not in NEVER:
        return ""
    if key in known:
        return "it has no default, and is given where it is meant"
    return f"no option is called so{suggest_choice(key, known)}"


def unknown_variables() -> list[str]:
    """A sentence on each variable of the environment that is named as a default is, and is none."""
    names = [name for name in sorted(os.environ) if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG"]
    return [f"${name}: {wrong}" for name in names if (wrong := why_no_default(name.removeprefix(PREFIX).lower()))]


def yield_to_typed(command: ClickCommand, ctx: Context) -> None:
    """Forget the defaults that belong to another model, where --model or --qkv was typed; --device is the machine's."""
    if not session.typed & {"model", "qkv"}:
        return
    for parameter in command.params:
        if parameter.name in MODEL_OPTIONS and parameter.name not in {*session.typed, "device"}:
            ctx.params[parameter.name] = parameter.default


def _may_be_there() -> bool:
    """Whether to look for the file at all: a start without one pays for a look at one folder, no more."""
    if os.environ.get(f"{PREFIX}CONFIG"):
        return True
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    # that of os: in a home that may not be looked into (another user's, as a service has it) there are no defaults
    found = os.path.isdir(Path(home, "attnctl"))  # noqa: PTH112
    return os.name != "posix" or os.uname().sysname == "Darwin" or found


def _environment_value(value: str | float) -> str:
    """Numbers, and true and false, go the way of the command line, which checks them."""
    return str(value).lower() if isinstance(value, bool) else str(value)
