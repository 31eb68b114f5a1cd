"""The topics of the documentation, in reading order, and the Markdown of each.

A page of `WRITTEN` is a file of `attnctl/docs/`: a new page needs a file there and a line here. A page of `MADE`, and the
reference of each command, is made from the program when it is asked for, and so cannot differ from it.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

from attnctl.cli.command_table import COMMANDS as COMMAND_LIST
from attnctl.cli.documentation import references
from attnctl.errors import UsageError

FOLDER = Path(__file__).parents[2] / "docs"
COMMAND_PREFIX = "attnctl-"  # the reference of a command is named like its man page

# section → topic → what it is about, in one line
WRITTEN: dict[str, dict[str, str]] = {
    "Start": {
        "first-minutes": "install, and look at a sentence: terminal, picture, page, JSON",
        "lesson": "attention by hand: every step on four words, then a second layer",
    },
    "How to": {
        "paper-figure": "make a picture of attention for a paper",
        "my-checkpoint": "look into a checkpoint, or into a model while it runs",
        "long-prompt": "see where a long prompt looks, without its n × n matrix",
        "many-texts": "take a file of sentences, on one machine or on a cluster",
        "attention-or-effect": "find out whether the head that looks also decides",
        "census": "count what each head finds in a treebank, beside rules that need no attention",
        "answer-sources": "find out which document an answer came from",
    },
    "Explanation": {
        "models": "the models, and what the trained ones find",
        "architectures": "which architectures of checkpoints are shown exactly, tried one by one",
        "architecture": "how attnctl is built, and how to add to it",
    },
}

# topic → what it is about, and the function that makes its Markdown
MADE: dict[str, tuple[str, Callable[[], str]]] = {
    "commands": ("every command, a line each", references.commands_page),
    "python": ("the functions and classes of the Python package", references.python_page),
    "formats": ("the files that attnctl writes, field by field", references.formats_page),
}
REFERENCE, COMMANDS = "Reference", "Commands"


class Topic(NamedTuple):
    """One page: its name, the section it stands in, what it is about, and how its Markdown is made."""

    name: str
    section: str
    about: str
    markdown: Callable[[], str]


def all_topics() -> dict[str, Topic]:
    """Every topic by its name, in reading order."""
    topics = [
        Topic(name, section, about, partial((FOLDER / f"{name}.md").read_text, encoding="utf-8"))
        for section, pages in WRITTEN.items()
        for name, about in pages.items()
    ]
    topics += [Topic(name, REFERENCE, about, made) for name, (about, made) in MADE.items()]
    topics += [
        Topic(f"{COMMAND_PREFIX}{name}", COMMANDS, entry.about, partial(references.command_page, name))
        for name, entry in COMMAND_LIST.items()
    ]
    return {topic.name: topic for topic in topics}


def find_topic(name: str) -> Topic:
    """The topic of that name, or the reference of the command of that name. Raises UsageError naming the nearest one."""
    topics = all_topics()
    plain = name.casefold().removesuffix(".md").replace(" ", "-").replace("_", "-")
    for candidate in (plain, f"{COMMAND_PREFIX}{plain}"):
        if candidate in topics:
            return topics[candidate]
    near = get_close_matches(plain, [topic.removeprefix(COMMAND_PREFIX) for topic in topics], 1, 0.6)
    asked = f"did you mean attnctl docs {near[0]}?" if near else "attnctl docs lists the topics"
    raise UsageError(f"no topic {name!r}: {asked}")
