"""The terminal: its width and colours, plain tables, pages of Markdown."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from attnctl.text import harmless_line, harmless_text

if TYPE_CHECKING:
    from attnctl.readings.traces.consistency import Finding


SAVED_WIDTH = 100  # cells
NARROWEST = 20  # cells of a terminal that lines are laid out for; one that is narrower breaks them
WIDEST = 10_000  # cells that a line fills: no terminal has them, and $COLUMNS may be any number


class SafeConsole(Console):
    """A rich Console without markup of its own, which writes no control character but those that rich makes itself.

    It is NARROWEST cells wide at least, as what is laid out for fewer says nothing, and WIDEST at most.
    """

    def __init__(self, **how: Any) -> None:
        super().__init__(**({"highlight": False, "markup": False, "emoji": False} | how))

    @property
    def size(self) -> ConsoleDimensions:
        """Cells across and down."""
        found = super().size
        return ConsoleDimensions(min(max(NARROWEST, found.width), WIDEST), found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of a renderable, their text made harmless."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(harmless_line(segment.text), segment.style)


def as_text(content: RenderableType, width: int = SAVED_WIDTH) -> str:
    """The renderable as plain text, no line wider than `width` cells."""
    page = io.StringIO()
    SafeConsole(file=page, width=width, color_system=None).print(content)
    return page.getvalue()


def as_svg(content: RenderableType, title: str, cited: str = "") -> str:
    """The renderable as an SVG picture of a terminal, its fonts those of the reader's machine: nothing is fetched.

    `cited`, what the numbers come from, is its description.
    """
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.terminal_theme import SVG_EXPORT_THEME

    console = SafeConsole(
        file=io.StringIO(),
        width=SAVED_WIDTH,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(content)
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace")
    if cited:
        said = html.escape(harmless_text(cited)).replace("{", "{{").replace("}", "}}")
        form = form.replace(">", f"><desc>{said}</desc>", 1)
    return console.export_svg(title=title, code_format=form, theme=SVG_EXPORT_THEME, unique_id="attnctl")


GAP = 2  # cells between columns
LEAST_WRAPPED = 14  # cells of a column whose text may go on below


@dataclass(frozen=True)
class Column:
    """One column: its heading, its cells, and what becomes of it where a table is too wide."""

    heading: Text | str
    cells: Sequence[Text | str]
    rank: int | None = None  # columns of the lowest rank are left out first; None: never
    left: bool = False  # words, not numbers
    wraps: bool = False  # its text may go on below

    @property
    def least_width(self) -> int:
        """Cells that it needs at least."""
        widest = max(cell_len(str(cell)) for cell in (self.heading, *self.cells))
        return min(widest, LEAST_WRAPPED) if self.wraps else widest


def has_colours(console: Console) -> bool:
    """Whether what is written there may be coloured."""
    return console.color_system is not None and not console.no_color


def fitting_columns(columns: Sequence[Column], width: int, gap: int = GAP) -> list[Column]:
    """The columns that fit into `width` cells with `gap` cells between them."""
    kept = list(columns)
    leaving = sorted((one for one in columns if one.rank is not None), key=lambda one: one.rank or 0)
    while leaving and sum(one.least_width for one in kept) + gap * (len(kept) - 1) > width:
        kept.remove(leaving.pop(0))
    return kept


def left_out_for_width(columns: Sequence[Column], kept: Sequence[Column]) -> str:
    """Which of the columns were not `kept`, in words; empty where all were."""
    out = [str(one.heading).strip() for one in columns if one not in kept]
    return f"left out for width: {', '.join(out)}" if out else ""


def table_lines(columns: Sequence[Column], width: int | None = None) -> list[Text]:
    """The columns beside each other, in lines of at most `width` cells (None: as many as they take) without padding."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="not bold")
    for one in columns:
        table.add_column(
            one.heading,
            justify="left" if one.left else "right",
            no_wrap=not one.wraps,
            overflow="fold" if one.wraps else "ellipsis",
        )
    for cells in zip(*(one.cells for one in columns), strict=True):
        table.add_row(*cells)
    console = SafeConsole(width=width or 10_000, file=io.StringIO())
    lines = []
    for segments in console.render_lines(table, pad=False):
        line = Text(no_wrap=True, end="")
        for segment in segments:
            line.append(segment.text, segment.style)
        line.rstrip()
        line.end = "\n"
        lines.append(line)
    return lines


MARKS = {True: "✓", False: "✗", None: "·"}


def finding_lines(findings: Sequence[Finding], width: int | None = None) -> list[str]:
    """A line for each finding of a check: whether it holds (· where it could not be checked), what, and what was found.

    Where what was found has no room in `width` cells (None: any number), it goes on below.
    """
    column = max((len(one.what) for one in findings), default=0)
    lines: list[str] = []
    for one in findings:
        line = f"{MARKS[one.holds]} {one.what:{column}}  {one.found}"
        if width is None or len(line) <= width:
            lines.append(line)
        else:
            lines += wrap(f"{MARKS[one.holds]} {one.what}", max(width, 20), subsequent_indent="  ")
            lines += wrap(one.found, max(width, 20), initial_indent="    ", subsequent_indent="    ")
    return lines


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
