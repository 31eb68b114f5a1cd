"""Man pages, attnctl.1 and one a command, made from what --help says."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap

from attnctl import __version__
from attnctl.cli.command_table import COMMANDS, commands_by_heading
from attnctl.cli.documentation.command_reference import command_help, root_options
from attnctl.cli.documentation.topics import WRITTEN
from attnctl.errors import AttnctlError
from attnctl.files import said_plainly, write_whole

ABOUT = "compute self-attention and show it"
EXIT_CODES = {
    "0": "done", "1": "failed", "2": "wrong usage", "3": "some items of a batch failed", "130": "interrupted",
}  # fmt: skip
SOURCE_WIDTH = 60  # characters of a source line before escapes are added; no line is then longer than 80
# letters that the default fonts of groff have under another name
NAMED_LETTERS = {"→": r"\(->", "×": r"\(mu", "Δ": r"\(*D", "√": r"\(sr", "≤": r"\(<=", "≥": r"\(>=", "…": "..."}


def roff(text: str) -> str:
    """A paragraph as roff, filled by the reader's terminal: short lines, none of them read as a request."""
    return "\n".join(literal(line) for line in wrap(text, SOURCE_WIDTH, break_on_hyphens=False, break_long_words=False))


def literal(text: str) -> str:
    """Plain text as roff that shows it as it is, its hyphens such that they can be copied."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    escaped = "".join(NAMED_LETTERS.get(letter, letter) for letter in escaped)
    escaped = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in escaped)
    return rf"\&{escaped}" if escaped.startswith(".") else escaped


def roff_argument(text: str) -> str:
    """Plain text as one argument of a roff request."""
    return '"' + literal(text).replace('"', r"\(dq") + '"'


def head(name: str, about: str) -> list[str]:
    """The first lines of a page."""
    title = f'.TH {roff_argument(name.upper())} 1 {_date()} {roff_argument(f"attnctl {__version__}")} "attnctl manual"'
    return [title, ".ad l", ".nh", ".SH NAME", f"{literal(name)} \\- {literal(about)}"]


def _date() -> str:
    """The day of this version: that of the installed files."""
    from datetime import UTC, datetime

    import attnctl

    return datetime.fromtimestamp(Path(attnctl.__file__).stat().st_mtime, UTC).date().isoformat()


def terms(records: list[tuple[str, str]]) -> list[str]:
    """A list of flags, each with what it does."""
    return [line for flags, said in records for line in (".TP", f".B {roff_argument(flags)}", roff(said))]


def command_man(name: str) -> str:
    """The man page of one command, as roff."""
    told = command_help(name)
    about = COMMANDS[name].about
    page = head(f"attnctl-{name}", about)
    page += [
        ".SH SYNOPSIS",
        f".B {roff_argument(f'attnctl {name}')}",
        roff(told.usage.removeprefix(f"attnctl {name} ")),
    ]
    page += [".SH DESCRIPTION", *paragraphs(told.paragraphs), ".SH OPTIONS"]
    for heading, records in told.groups.items():
        page += [f".SS {roff_argument(heading)}", *terms(records)]
    page += [".SH EXAMPLES", ".EX", literal(told.example), ".EE", *see_also()]
    return "\n".join(page) + "\n"


def paragraphs(texts: list[str]) -> list[str]:
    """Paragraphs one after the other."""
    return [line for number, text in enumerate(texts) for line in ([".PP"] * (number > 0) + [roff(text)])]


def program_man() -> str:
    """The man page of attnctl itself, as roff."""
    page = head("attnctl", ABOUT)
    page += [".SH SYNOPSIS", ".B attnctl", roff("COMMAND [OPTIONS] [ARGUMENTS]"), ".SH DESCRIPTION"]
    page += paragraphs(
        [
            "attnctl computes self-attention and shows it: the numbers step by step in a terminal, the grid as a picture, "
            "the whole run as JSON, or a page to explore. Each command has a page of its own: man attnctl-explain.",
            "Results go to standard output; progress, notes and errors to standard error.",
        ]
    )
    page.append(".SH COMMANDS")
    for heading, commands in commands_by_heading().items():
        page += [
            f".SS {roff_argument(heading)}",
            *terms([(f"attnctl {name}", entry.about) for name, entry in commands.items()]),
        ]
    page += [".SH OPTIONS", *terms(root_options()), ".SH EXIT STATUS", *terms(list(EXIT_CODES.items()))]
    page += [".SH ENVIRONMENT", *terms([("ATTNCTL_OPTION", "The default of --option, for every command that has it.")])]
    return "\n".join([*page, *see_also()]) + "\n"


def see_also() -> list[str]:
    """The last section: where to read more."""
    topics = ", ".join(topic for pages in WRITTEN.values() for topic in pages)
    return [".SH SEE ALSO", roff(f"attnctl docs TOPIC, where TOPIC is one of {topics}.")]


def write_man_pages(folder: str) -> list[str]:
    """Write every man page into a folder, which is made; answers their paths. Raises AttnctlError where it cannot."""
    target = Path(folder)
    if target.exists() and not target.is_dir():
        raise AttnctlError(f"cannot write man pages into {folder}: it is no folder")
    with said_plainly("make the folder", folder):
        target.mkdir(parents=True, exist_ok=True)
    pages = {"attnctl.1": program_man()}
    pages |= {f"attnctl-{name}.1": command_man(name) for name in COMMANDS}
    for name, page in pages.items():
        write_whole(target / name, page.encode())
    return [str(target / name) for name in pages]
