"""The topics of the documentation, in reading order, the Markdown of each, and all of them as a site.

A page of `WRITTEN` is a file of `attnctl/docs/`: a new page needs a file there and a line here. A page of `MADE`, and the
reference of each command, is made from the program when it is asked for, and so cannot differ from it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from attnctl.cli.command_table import COMMANDS as COMMAND_LIST
from attnctl.cli.documentation import references
from attnctl.errors import AttnctlError, UsageError
from attnctl.interrupts import tidied_up

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


CONFIGURATION = "mkdocs.yml"
COPIED = ("pictures", "web")  # folders beside the pages
SAID_LINES = 3  # of what MkDocs says where it fails
MARK = ".attnctl-site"  # the file that tells a folder with a site of ours, which may be replaced


def index_page() -> str:
    """The Markdown of the first page: every topic, a line each."""
    sections: dict[str, list[str]] = {}
    for topic in all_topics().values():
        sections.setdefault(topic.section, []).append(f"- [{topic.name}]({topic.name}.md): {topic.about}")
    parts = ["# attnctl", (FOLDER / "welcome.md").read_text(encoding="utf-8").strip()]
    parts += ["\n\n".join((f"## {section}", "\n".join(lines))) for section, lines in sections.items()]
    return "\n\n".join(parts) + "\n"


def navigation() -> list[dict[str, str] | dict[str, list[str]]]:
    """The `nav` of MkDocs: sections in reading order, each with its pages."""
    sections: dict[str, list[str]] = {}
    for topic in all_topics().values():
        sections.setdefault(topic.section, []).append(f"{topic.name}.md")
    return [{"Home": "index.md"}, *[dict([entry]) for entry in sections.items()]]


def stage(folder: Path, target: Path) -> Path:
    """Put every page and the configuration into `folder`, so that MkDocs builds into `target`; answers the configuration."""
    pages = folder / "pages"
    pages.mkdir()
    (pages / "index.md").write_text(index_page(), encoding="utf-8")
    for topic in all_topics().values():
        (pages / f"{topic.name}.md").write_text(topic.markdown(), encoding="utf-8")
    for name in COPIED:
        shutil.copytree(FOLDER / name, pages / name)
    settings = {"docs_dir": str(pages), "site_dir": str(target), "nav": navigation()}
    added = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())  # JSON is YAML
    configuration = folder / CONFIGURATION
    configuration.write_text((FOLDER / CONFIGURATION).read_text(encoding="utf-8") + added, encoding="utf-8")
    return configuration


def build_site(target: Path) -> Path:
    """Build the site into the folder `target`, whole or not at all; answers its first page.

    Raises UsageError where MkDocs is not installed or `target` holds something else, AttnctlError for any warning of MkDocs.
    """
    if find_spec("material") is None or find_spec("mkdocs") is None:
        raise UsageError('the site is built by MkDocs: pip install "attnctl[docs]" (attnctl docs TOPIC needs nothing)')
    if target.exists() and not (target / MARK).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} holds other files: name a new folder for the site")
    with tidied_up(), tempfile.TemporaryDirectory() as temporary:
        built = Path(temporary) / "site"
        run_mkdocs(stage(Path(temporary), built))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True, exist_ok=True)
        (target / MARK).touch()
        shutil.copytree(built, target, dirs_exist_ok=True)
    return target / "index.html"


def run_mkdocs(configuration: Path) -> None:
    """Run MkDocs. Raises AttnctlError with what it says where it warns or fails."""
    silenced = {"NO_MKDOCS_2_WARNING": "1"}  # which is about the theme's next version, not about these pages
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | silenced, check=False)
    if done.returncode:
        said = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        wrong = [line for line in said if line.startswith(("WARNING", "ERROR"))] or said
        raise AttnctlError(f"the site was not built: {' '.join(' '.join(wrong[:SAID_LINES]).split())}")
