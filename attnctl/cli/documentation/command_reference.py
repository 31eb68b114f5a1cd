"""The reference of the commands, made from what their --help says."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

from attnctl.cli import command_named, help_text

ARGUMENTS = "Arguments"


class CommandHelp(NamedTuple):
    """What --help says of one command, in parts."""

    name: str
    usage: str
    paragraphs: list[str]
    example: str
    groups: dict[str, list[tuple[str, str]]]  # heading → (option and its value, what it does)


def command_help(name: str) -> CommandHelp:
    """The help of the command `name`, as its --help has it."""
    command = command_named(name)
    context = command.make_context(name, [], resilient_parsing=True)
    context.info_name = f"attnctl {name}"
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None:
            heading = (
                ARGUMENTS if parameter.param_type_name == "argument" else help_text.option_group(parameter.name or "")
            )
            groups.setdefault(heading, []).append((record[0], one_line(record[1])))
    ordered = {heading: groups[heading] for heading in (ARGUMENTS, *help_text.GROUPS) if heading in groups}
    ordered |= help_text.told_below(name)
    paragraphs = [one_line(part) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    usage = " ".join((f"attnctl {name}", *command.collect_usage_pieces(context)))
    return CommandHelp(name, usage, paragraphs, help_text.EXAMPLES[name], ordered)


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
    for heading, commands in help_text.COMMANDS.items():
        rows = "\n".join(f"- [`attnctl {name}`](attnctl-{name}.md): {said}" for name, said in commands.items())
        parts += [f"## {heading}", rows]
    return "\n\n".join(parts) + "\n"


def root_options() -> list[tuple[str, str]]:
    """The options of `attnctl` itself: (flags, what they do)."""
    import typer

    from attnctl.cli import app

    group = typer.main.get_command(app)
    context = group.make_context("attnctl", [], resilient_parsing=True)
    records = [parameter.get_help_record(context) for parameter in group.get_params(context)]
    return [(record[0], one_line(record[1])) for record in records if record is not None]
