"""The reference of the commands, made from what their --help says."""

from __future__ import annotations

import re
from typing import NamedTuple

from attnctl.cli.command import Command
from attnctl.cli.command_table import COMMANDS, commands_by_heading


class CommandHelp(NamedTuple):
    """What --help says of one command, in parts."""

    name: str
    usage: str
    paragraphs: list[str]
    example: str
    groups: dict[str, list[tuple[str, str]]]  # heading → (option and its value, what it does)


def command_help(name: str) -> CommandHelp:
    """The help of the command `name`, as its --help has it."""
    command = Command(name)
    context = command.make_context(name, [], resilient_parsing=True)
    context.info_name = f"attnctl {name}"
    rows = command.help_rows(context)
    groups = {heading: [(flags, one_line(said)) for flags, said in several] for heading, several in rows.items()}
    paragraphs = [one_line(part) for part in (command.help or "").split("\n\n")]
    usage = " ".join((f"attnctl {name}", *command.collect_usage_pieces(context)))
    return CommandHelp(name, usage, paragraphs, COMMANDS[name].example, groups)


def one_line(text: str) -> str:
    """A text on one line, its spaces single."""
    return " ".join(text.split())


def as_markdown(text: str) -> str:
    """Plain text as Markdown that shows it as it is; what stands between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<])", r"\\\1", part) for part in parts)


def command_page(name: str) -> str:
    """The Markdown of the reference of one command."""
    told = command_help(name)
    parts = [f"# attnctl {name}", *(as_markdown(paragraph) for paragraph in told.paragraphs)]
    parts += [f"```text\n{told.usage}\n```", "For example", f"```text\n{told.example}\n```"]
    for heading, records in told.groups.items():
        parts += [f"## {heading}", "\n".join(f"- `{flags}`: {as_markdown(said)}" for flags, said in records)]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """The Markdown of the list of commands."""
    parts = [
        "# Commands",
        "An option means the same in every command that has it. Results go to standard output; progress, notes and errors "
        "to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some items of a batch failed, 130 interrupted.",
    ]
    for heading, commands in commands_by_heading().items():
        rows = "\n".join(f"- [`attnctl {name}`](attnctl-{name}.md): {entry.about}" for name, entry in commands.items())
        parts += [f"## {heading}", rows]
    return "\n\n".join(parts) + "\n"
