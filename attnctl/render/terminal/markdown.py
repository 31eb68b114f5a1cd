"""A page of the documentation in a terminal: Markdown without boxes and backgrounds."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

WIDEST_PAGE = 100  # cells: longer lines are hard to read
THEME = Theme(
    {"markdown.code": "cyan", "markdown.item.bullet": "dim", "markdown.h1": "bold underline", "markdown.h2": "bold",
     "markdown.h3": "bold italic"}
)  # fmt: skip


class PlainHeading(Heading):
    """A heading on the left, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The heading as one line of text."""
        yield Text(self.text.plain, Style.combine([console.get_style(f"markdown.{self.tag}", default="bold")]))


class PlainCode(CodeBlock):
    """A block of code in the colours of the terminal, on its own background, its lines whole: they are copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The code, two cells in where all its lines have room for that."""
        code = str(self.text).rstrip()
        indent = "  " * all(cell_len(line) + 2 <= options.max_width for line in code.splitlines())
        shown = Syntax("", self.lexer_name, theme="ansi_dark", background_color="default").highlight(code)
        for line in shown.split():
            yield Text(indent, no_wrap=True, overflow="ignore").append_text(line)


class PageMarkdown(Markdown):
    """Markdown without boxes and backgrounds."""

    elements = {**Markdown.elements, "heading_open": PlainHeading, "fence": PlainCode, "code_block": PlainCode}


def plain_source(markdown: str) -> str:
    """Markdown as it is read outside the site: no comments, pictures by their titles, pages by their commands."""
    text = re.sub(r"<!--.*?-->\n*", "", markdown, flags=re.DOTALL)
    text = re.sub(r"!\[([^\]]*)\]\([^)]*\)", r"(picture: \1)", text)
    return re.sub(r"\[([^\]]+)\]\(([a-z-]+)\.md(?:#[^)]*)?\)", _named_page, text)


def _named_page(link: re.Match[str]) -> str:
    text, topic = link.groups()
    command = f"`attnctl docs {topic.removeprefix('attnctl-')}`"
    return f"{text} ({command})" if text.strip("`") not in (f"attnctl docs {topic}", topic) else command


def markdown_page(markdown: str) -> RenderableType:
    """The page as a renderable, for a console with `THEME`."""
    return PageMarkdown(plain_source(markdown), hyperlinks=False)
