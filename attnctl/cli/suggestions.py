"""What was meant by a name that is not there: the nearest one, by its meaning first and its letters second."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from typer import Context
from typer.core import TyperGroup

from attnctl import find_named
from attnctl.cli.options import OPTIONS, TOKENS
from attnctl.text import for_pasting
from attnctl.tokens import split_words

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context as ClickContext
    from typer._click.core import Parameter

    from attnctl.cli.arguments import Session
    from attnctl.cli.table_command import TableCommand


# an option that none has, and what does it
ELSEWHERE = {
    **dict.fromkeys(("--no-color", "--no-colour"), "NO_COLOR=1 before the command does that"),
    **dict.fromkeys(("--color", "--colour"), "FORCE_COLOR=1 before the command does that"),
    **dict.fromkeys(("--pretty", "--indent"), "--json is one line, which | jq lays out"),
    **dict.fromkeys(("--verbose", "--debug"), "there is no more to say"),
    **dict.fromkeys(("--average", "--mean"), "heads are shown one by one"),
}


def suggest_command(name: str, commands: Collection[str]) -> str:
    """One line about a command that is not there."""
    if len(name.split()) > 1:
        return f"{name[:60]!r} is a text, and no command: attnctl explain {for_pasting(name[:60])}"
    near = next(iter(get_close_matches(name.casefold(), commands, 1, 0.6)), None)
    if near is None:
        return f"no command {name!r}: there are {', '.join(commands)}"
    return f"no command {name!r}: did you mean attnctl {near}?"


def _meant_by(asked: TableCommand, typed: str) -> str:
    """What to type for a flag that other programs have, where this command has an option that does it; else ""."""
    found = []
    for option in asked.options.values():
        flag = option.flags.split()[0] if option.flags else ""
        for meant in option.meant_by.split():
            other, _, value = meant.partition("=")
            if other == typed and ("." not in value or value.rpartition(".")[2] in option.help):
                found.append(f"{flag} {value}".strip())
    return min(found, key=lambda said: "FILE" not in said, default="")


def suggest_option(asked: TableCommand, name: str, ctx: ClickContext) -> str:
    """One line about an option that the command `asked` lacks."""
    plain, help_ = name.split("=")[0], f"(see attnctl {asked.name} --help)"
    lacks = f"{asked.name} has no {plain}"
    if meant := _meant_by(asked, plain.casefold()):
        return f"{lacks}: did you mean {meant}?"
    if plain.casefold() in ELSEWHERE:
        return f"{lacks}: {ELSEWHERE[plain.casefold()]}"
    own = list(flags_of(asked))
    group = ctx.find_root().command
    flags: dict[str, dict[str, Parameter]] = {}
    if isinstance(group, TyperGroup):
        flags = {name: flags_of(known) for name in group.list_commands(ctx) if (known := group.get_command(ctx, name))}
    flags.pop(asked.name or "", None)
    if others := [other for other, known in flags.items() if plain in known]:
        named = f"{', '.join(others[:-1])} and {others[-1]}" if len(others) > 1 else others[0]
        return f"{lacks}: it belongs to {named} {help_}"
    if near := get_close_matches(plain, own, 2, 0.65):
        return f"{lacks}: did you mean {' or '.join(near)}?"
    return f"{lacks} {help_}"


def flags_of(command: ClickCommand) -> dict[str, Parameter]:
    """Return each flag of a command, --log and --no-log, and its option."""
    options = [one for one in command.params if one.param_type_name == "option"]
    return {flag: one for one in options for flag in (*one.opts, *one.secondary_opts)}


def suggest_choice(name: str, choices: Iterable[str]) -> str:
    """The question whether a choice near to what was given was meant, as the end of a sentence; nothing where none is."""
    near = get_close_matches(name.casefold(), list(choices), 1, 0.6)
    return f": did you mean {near[0]}?" if near else ""


def values_of(option: str, text: str = "") -> list[str]:
    """Return the values that an option of the table may take; `text` is what the command asks about."""
    return named_values(OPTIONS[option].values if option in OPTIONS else (), text)


def named_values(values: Iterable[str], text: str = "") -> list[str]:
    """Return values as they stand; for "module:attribute" those of a table, for TOKENS the words of the text."""
    found: list[str] = []
    for value in values:
        if value == TOKENS:
            found += dict.fromkeys(token.text for token in split_words(text)[:200])
        elif ":" in value:
            table = find_named(value)
            found += table() if callable(table) else table
        else:
            found.append(value)
    return found


def completions(option: str, incomplete: str, text: str = "") -> list[str]:
    """Return the values of an option of the table that begin with `incomplete`."""
    joined = option in OPTIONS and OPTIONS[option].joined
    return _beginning_with(values_of(option, text), incomplete, joined)


def _beginning_with(values: Iterable[str], incomplete: str, joined: bool) -> list[str]:
    """Return the values that begin with `incomplete`; of a list, those that its last part begins with."""
    before, _, last = incomplete.rpartition(",") if joined else ("", "", incomplete)
    lead = f"{before}," if before else ""
    return [lead + value for value in values if value.casefold().startswith(last.casefold())]


def completing(*values: str, joined: bool = False) -> Callable[[Context, str], list[str]]:
    """Return the `autocompletion` of an option that takes these values, as `named_values` reads them.

    With `joined` several values may be given, with commas between them.
    """

    def complete(ctx: Context, incomplete: str) -> list[str]:
        return _beginning_with(named_values(values, _text_of_context(ctx)), incomplete, joined)

    return complete


def complete_parameter(context: ClickContext, parameter: Parameter, incomplete: str) -> list[str]:
    """Return the completions of one parameter of the table in a user's own shell (bash, zsh, fish, PowerShell)."""
    return completions(parameter.name or "", incomplete, _text_of_context(context))


def _text_of_context(context: ClickContext) -> str:
    """Return what a command that is being typed asks about."""
    given: Mapping[str, object] = context.params
    return next((str(given[name]) for name in ("source", "text") if given.get(name)), " ".join(context.args))


# --- at the prompt of attnctl shell ------------------------------------------------------------------------------


def shell_completions(line: str, here: Session, own: Iterable[str], group: TyperGroup) -> list[str]:
    """The completions of the last word of a line at the shell's prompt; `own` are its own words."""
    context = Context(group)
    commands = group.list_commands(context)
    parts = line.split(" ")
    word, last = parts[0], parts[-1]
    if len(parts) == 1:
        return [name for name in (*commands, *own) if name.startswith(last)]
    if word == "use":
        return completions("model", last)
    command = group.get_command(context, word)
    if command is None:
        return []
    context = Context(command, info_name=word)
    context.params["text"] = _text_of(line) or here.text or ""
    flags = flags_of(command)
    asked = flags.get(parts[-2])
    if asked is None or getattr(asked, "is_flag", False):
        if last.startswith("-"):
            return [flag for flag in flags if flag.startswith(last)]
        asked = next((one for one in command.params if one.param_type_name == "argument"), None)
    return [item.value for item in asked.shell_complete(context, last)] if asked else []


def _text_of(line: str) -> str:
    """What is quoted in a line: a text of its own."""
    try:
        return next((part for part in shlex.split(line)[1:] if " " in part), "")
    except ValueError:
        return ""


def shell_completer(here: Session, own: Iterable[str], group: TyperGroup) -> Any:
    """The completer that prompt_toolkit asks."""
    from prompt_toolkit.completion import Completer, Completion

    class ShellCompleter(Completer):  # type: ignore[misc]
        def get_completions(self, document: Any, _: Any) -> Iterable[Any]:
            last = document.text_before_cursor.split(" ")[-1]
            for value in shell_completions(document.text_before_cursor, here, own, group):
                yield Completion(f'"{value}"' if " " in value else value, -len(last))

    return ShellCompleter()
