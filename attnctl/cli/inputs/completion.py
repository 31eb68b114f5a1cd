"""Completion of what an option takes: models, steps, measures, maps, and the tokens of the text that is typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attnctl.cli.command_table import COMMANDS
from attnctl.cli.options import OPTIONS, TOKENS
from attnctl.named_function import find_named
from attnctl.tokens import split_words

if TYPE_CHECKING:
    from typer._click.core import Context, Parameter

    from attnctl.cli.session import Session


def values_of(option: str, text: str = "") -> list[str]:
    """The values that an option may take, by its name in Python; `text` is what the command asks about."""
    found: list[str] = []
    for value in OPTIONS[option].values if option in OPTIONS else ():
        if value == TOKENS:
            found += dict.fromkeys(token.text for token in split_words(text)[:200])
        elif ":" in value:
            table = find_named(value)
            found += table() if callable(table) else table
        else:
            found.append(value)
    return found


def completions(option: str, incomplete: str, text: str = "") -> list[str]:
    """The values that begin with `incomplete`; of a list, those that its last part begins with."""
    joined = option in OPTIONS and OPTIONS[option].joined
    before, _, last = incomplete.rpartition(",") if joined else ("", "", incomplete)
    lead = f"{before}," if before else ""
    return [lead + value for value in values_of(option, text) if value.casefold().startswith(last.casefold())]


def complete_parameter(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """The completions of one parameter in a user's own shell (bash, zsh, fish, PowerShell)."""
    given: Mapping[str, object] = context.params
    text = next((str(given[name]) for name in ("source", "text") if given.get(name)), " ".join(context.args))
    return completions(parameter.name or "", incomplete, text)


# --- at the prompt of attnctl shell ------------------------------------------------------------------------------


def shell_completions(line: str, here: Session, own: Iterable[str]) -> list[str]:
    """The completions of the last word of a line at the shell's prompt; `own` are its own words."""
    parts = line.split(" ")
    word, last = parts[0], parts[-1]
    if len(parts) == 1:
        return [name for name in (*COMMANDS, *own) if name.startswith(last)]
    if word == "use":
        return completions("model", last)
    if word not in COMMANDS:
        return []
    options = COMMANDS[word].options
    flags = {flag: name for name, option in options.items() for flag in option.every_flag}
    before = flags.get(parts[-2])
    if before is not None and options[before].kind is not bool:
        return completions(before, last, _text_of(line) or here.text or "")
    if last.startswith("-"):
        return [flag for flag in flags if flag.startswith(last)]
    argument = next((name for name, option in options.items() if not option.flags), None)
    return completions(argument, last) if argument else []


def _text_of(line: str) -> str:
    """What is quoted in a line: a text of its own."""
    try:
        return next((part for part in shlex.split(line)[1:] if " " in part), "")
    except ValueError:
        return ""


def shell_completer(here: Session, own: Iterable[str]) -> Any:
    """The completer that prompt_toolkit asks."""
    from prompt_toolkit.completion import Completer, Completion

    class ShellCompleter(Completer):  # type: ignore[misc]
        def get_completions(self, document: Any, _: Any) -> Iterable[Any]:
            last = document.text_before_cursor.split(" ")[-1]
            for value in shell_completions(document.text_before_cursor, here, own):
                yield Completion(f'"{value}"' if " " in value else value, -len(last))

    return ShellCompleter()
