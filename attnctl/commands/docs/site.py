"""The topics of the documentation in reading order, the Markdown of each, a page in the terminal, and the site.

A page of `WRITTEN` is a file of `attnctl/docs/`: a new page needs a file there and a line here, or in the entry of its
command. A page of `MADE`, and the reference of each command, is made from the program: that of Python beforehand, the
others when they are asked for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

import attnctl
from attnctl.commands.docs import references
from attnctl.errors import AttnctlError, UsageError
from attnctl.registry import COMMANDS as COMMAND_LIST
from attnctl.runtime.files import said_plainly, write_whole
from attnctl.runtime.interrupts import tidied_up

FOLDER = Path(attnctl.__file__).parent / "docs"
COMMAND_PREFIX = "attnctl-"  # the reference of a command is named like its man page

# how a page looks in a terminal
WIDEST_PAGE = 100  # cells: longer lines are hard to read
THEME = Theme(
    {"markdown.code": "cyan", "markdown.item.bullet": "dim", "markdown.h1": "bold underline", "markdown.h2": "bold",
     "markdown.h3": "bold italic"}
)  # fmt: skip

# section → topic → what it is about, in one line
WRITTEN: dict[str, dict[str, str]] = {
    "Start": {
        "first-minutes": "install, and look at a sentence: terminal, picture, page, JSON",
        "lesson": "attention by hand: every step on four words, then a second layer",
    },
    "How to": {
        "paper-figure": "make a picture of attention for a paper",
        "my-checkpoint": "look into a checkpoint, or into a model while it runs",
        "own-model": "see where a torch model of your own looks, whatever its class",
        "long-prompt": "see where a long prompt looks, without its n × n matrix",
        **{topic: about for command in COMMAND_LIST.values() for topic, about in command.guides.items()},
    },
    "Explanation": {
        "models": "the models, and what the trained ones find",
        "architectures": "which architectures of checkpoints are shown exactly, tried one by one",
        "gguf": "GGUF files, of llama.cpp and Ollama: what is shown, and which are read",
        "frameworks": "what torch, JAX, Keras, ONNX, MLX, Marian and others mean by causal, and by an empty row",
        "speed": "how fast attnctl is, measured against other tools",
        "architecture": "how attnctl is built, and how to add to it",
        "models-inside": "how checkpoints, GGUF files and torch modules are read and watched",
        "plug-ins": "write a command, a measure or a format of your own, in a package of your own",
    },
}


def stored_page(name: str) -> Callable[[], str]:
    """Return a function that reads the Markdown of the page of that name."""
    return partial((FOLDER / f"{name}.md").read_text, encoding="utf-8")


# topic → what it is about, and the function that makes its Markdown
MADE: dict[str, tuple[str, Callable[[], str]]] = {
    "commands": ("every command, a line each", references.commands_page),
    "python": ("the functions and classes of the Python package", stored_page("python")),
    "formats": ("the files that attnctl writes, field by field", references.formats_page),
}
REFERENCE, COMMANDS = "Reference", "Commands"

NARROW = 60  # columns: on a narrower terminal the subject of a topic is below its name
MORE = "attnctl docs TOPIC shows a page, attnctl docs COMMAND the options of a command; --open shows them in a browser."


class Topic(NamedTuple):
    """One page: its name, its subject, and the function that makes its Markdown."""

    name: str
    about: str
    markdown: Callable[[], str]


def topics_by_section() -> dict[str, list[Topic]]:
    """Return section → its topics, all in reading order; the references of the commands are last."""
    sections = {
        section: [Topic(name, about, stored_page(name)) for name, about in pages.items()]
        for section, pages in WRITTEN.items()
    }
    sections[REFERENCE] = [Topic(name, about, make) for name, (about, make) in MADE.items()]
    sections[COMMANDS] = [
        Topic(f"{COMMAND_PREFIX}{name}", entry.about, partial(references.command_page, name))
        for name, entry in COMMAND_LIST.items()
    ]
    return sections


def all_topics() -> dict[str, Topic]:
    """Return every topic by its name, in reading order."""
    return {topic.name: topic for topics in topics_by_section().values() for topic in topics}


def find_topic(name: str) -> Topic:
    """Return the topic, or the reference of the command, of that name. Raises UsageError naming the nearest one."""
    topics = all_topics()
    plain = name.casefold().removesuffix(".md").replace(" ", "-").replace("_", "-")
    for candidate in (plain, f"{COMMAND_PREFIX}{plain}"):
        if candidate in topics:
            return topics[candidate]
    matches = get_close_matches(plain, [topic.removeprefix(COMMAND_PREFIX) for topic in topics], 1, 0.6)
    advice = f"did you mean attnctl docs {matches[0]}?" if matches else "attnctl docs lists the topics"
    raise UsageError(f"no topic {name!r}: {advice}")


def listed_topics(width: int) -> list[str]:
    """Return the topics by section, one a line; if `width` is small, the subjects are below the names."""
    sections = topics_by_section()
    del sections[COMMANDS]
    column = max(len(topic.name) for topics in sections.values() for topic in topics) + 4
    lines = []
    for section, topics in sections.items():
        lines += [section]
        for topic in topics:
            indent = column if width >= NARROW else 4
            about = wrap(topic.about, max(20, width), initial_indent=" " * indent, subsequent_indent=" " * indent)
            if width >= NARROW:
                about[0] = f"  {topic.name:{column - 2}}{about[0].lstrip()}"
            else:
                lines.append(f"  {topic.name}")
            lines += about
        lines.append("")
    return [*lines, *wrap(MORE, width)]


def write_samples(target: Path) -> list[str]:
    """Write the samples that come with the package into a folder, created if needed. Return their paths.

    Raises UsageError if the folder holds another file of such a name, AttnctlError if it cannot be written.
    """
    package = FOLDER.parent
    places = (
        package / "samples",
        package.parent / "samples",
    )  # installed; in a checkout, from which the wheel copies them
    samples = {
        path.relative_to(place).as_posix(): path.read_bytes()
        for place in places
        for path in sorted([*place.glob("*"), *place.glob("own_model/*.py")])
        if path.is_file()
    }
    with said_plainly("make the folder", target):
        (target / "own_model").mkdir(parents=True, exist_ok=True)
    for name, data in samples.items():
        if (target / name).exists() and (target / name).read_bytes() != data:
            raise UsageError(f"{target / name} is another file: name a new folder")
    for name, data in samples.items():
        write_whole(target / name, data)
    return [str(target / name) for name in samples]


CONFIGURATION = "mkdocs.yml"
COPIED = ("pictures", "web")  # folders beside the pages
SAID_LINES = 3  # lines of MkDocs' message if it fails
MARK = ".attnctl-site"  # the file that marks a folder with a site of ours, which may be replaced


def stage(folder: Path, target: Path) -> Path:
    """Write every page and the configuration into `folder`, for a site in `target`. Return the configuration."""
    pages = folder / "pages"
    pages.mkdir()
    index = ["# attnctl", (FOLDER / "welcome.md").read_text(encoding="utf-8").strip()]
    navigation: list[dict[str, str | list[str]]] = [{"Home": "index.md"}]
    for section, topics in topics_by_section().items():
        index += [f"## {section}", "\n".join(f"- [{entry.name}]({entry.name}.md): {entry.about}" for entry in topics)]
        navigation.append({section: [f"{topic.name}.md" for topic in topics]})
        for topic in topics:
            (pages / f"{topic.name}.md").write_text(topic.markdown(), encoding="utf-8")
    (pages / "index.md").write_text("\n\n".join(index) + "\n", encoding="utf-8")
    for name in COPIED:
        shutil.copytree(FOLDER / name, pages / name)
    settings = {"docs_dir": str(pages), "site_dir": str(target), "nav": navigation}
    added = "".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items())  # JSON is YAML
    configuration = folder / CONFIGURATION
    configuration.write_text((FOLDER / CONFIGURATION).read_text(encoding="utf-8") + added, encoding="utf-8")
    return configuration


def build_site(target: Path) -> Path:
    """Build the site in the folder `target`, whole or not at all. Return its first page.

    Raises UsageError if MkDocs is not installed or `target` holds something else, AttnctlError for any warning of MkDocs.
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
    """Run MkDocs. Raises AttnctlError with its message if it warns or fails."""
    silenced = {
        "NO_MKDOCS_2_WARNING": "1"
    }  # this warning is about the next version of the theme, not about these pages
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ | silenced, check=False)
    if process.returncode:
        messages = [line.strip() for line in (process.stdout + process.stderr).splitlines() if line.strip()]
        wrong = [line for line in messages if line.startswith(("WARNING", "ERROR"))] or messages
        raise AttnctlError(f"the site was not built: {' '.join(' '.join(wrong[:SAID_LINES]).split())}")


class PlainHeading(Heading):
    """A heading on the left without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the heading as one line of text."""
        yield Text(self.text.plain, Style.combine([console.get_style(f"markdown.{self.tag}", default="bold")]))


class PlainCode(CodeBlock):
    """A block of code in the colours of the terminal, without a background; lines are never cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the code, indented by two cells if all its lines have room."""
        code = str(self.text).rstrip()
        indent = "  " * all(cell_len(line) + 2 <= options.max_width for line in code.splitlines())
        text = Syntax("", self.lexer_name, theme="ansi_dark", background_color="default").highlight(code)
        for line in text.split():
            yield Text(indent, no_wrap=True, overflow="ignore").append_text(line)


class PageMarkdown(Markdown):
    """Markdown without boxes and backgrounds."""

    elements = {**Markdown.elements, "heading_open": PlainHeading, "fence": PlainCode, "code_block": PlainCode}


def plain_source(markdown: str) -> str:
    """Return Markdown for reading outside the site: without comments, pictures as titles, pages as commands."""
    text = re.sub(r"<!--.*?-->\n*", "", markdown, flags=re.DOTALL)
    text = re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"(picture: \1)", text)
    return re.sub(r"\[([^\]]+)\]\(([a-z-]+)\.md(?:#[^)]*)?\)", _named_page, text)


def _named_page(link: re.Match[str]) -> str:
    text, topic = link.groups()
    command = f"`attnctl docs {topic.removeprefix('attnctl-')}`"
    return f"{text} ({command})" if text.strip("`") not in (f"attnctl docs {topic}", topic) else command
