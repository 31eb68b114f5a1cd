"""What was meant by a name that is not there: the nearest one, by its meaning first and its letters second."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from attnctl.cli.command_table import COMMANDS

if TYPE_CHECKING:
    from attnctl.cli.command import Command

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
        return f"{name[:60]!r} is a text, and no command: attnctl explain {name[:60]!r}"
    near = next(iter(get_close_matches(name.casefold(), commands, 1, 0.6)), None)
    if near is None:
        return f"no command {name!r}: there are {', '.join(commands)}"
    return f"no command {name!r}: did you mean attnctl {near}?"


def _meant_by(asked: Command, typed: str) -> str:
    """What to type for a flag that other programs have, where this command has an option that does it; else ""."""
    found = []
    for option in asked.options.values():
        flag = option.flags.split()[0] if option.flags else ""
        for meant in option.meant_by.split():
            other, _, value = meant.partition("=")
            if other == typed and ("." not in value or value.rpartition(".")[2] in option.help):
                found.append(f"{flag} {value}".strip())
    return min(found, key=lambda said: "FILE" not in said, default="")


def suggest_option(asked: Command, name: str) -> str:
    """One line about an option that the command `asked` lacks."""
    own = [flag for option in asked.options.values() for flag in option.every_flag]
    plain = name.split("=")[0]
    if meant := _meant_by(asked, plain.casefold()):
        return f"{asked.name} has no {plain}: did you mean {meant}?"
    if plain.casefold() in ELSEWHERE:
        return f"{asked.name} has no {plain}: {ELSEWHERE[plain.casefold()]}"
    others = [
        other
        for other, entry in COMMANDS.items()
        if other != asked.name and any(plain in option.every_flag for option in entry.options.values())
    ]
    if others:
        return f"{asked.name} has no {plain}: it belongs to {_joined_names(others)} (see attnctl {asked.name} --help)"
    if near := get_close_matches(plain, own, 2, 0.65):
        return f"{asked.name} has no {plain}: did you mean {' or '.join(near)}?"
    return f"{asked.name} has no {plain} (see attnctl {asked.name} --help)"


def suggest_choice(name: str, choices: Iterable[str]) -> str:
    """The question whether a choice near to what was given was meant, as the end of a sentence; nothing where none is."""
    near = get_close_matches(name.casefold(), list(choices), 1, 0.6)
    return f": did you mean {near[0]}?" if near else ""


def _joined_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
