"""`attnctl docs`: the documentation, in the terminal and as a site; and its samples."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size

from platformdirs import user_cache_path

import attnctl
from attnctl.cli.arguments import check_mode
from attnctl.cli.commands import view
from attnctl.cli.output import print_lines, safe_console
from attnctl.docs import site as pages
from attnctl.docs.site import THEME, WIDEST_PAGE, PageMarkdown, plain_source


def docs_command(*, topic: str | None, open_: bool, site: str | None, samples: str | None) -> None:
    """Show the documentation: a lesson, how-to guides, and the reference of commands, Python and file formats."""
    chosen = None if topic is None else pages.find_topic(topic)
    if samples is not None:
        check_mode("docs", "--samples")
        print_lines(*pages.write_samples(Path(samples)))
    elif site is not None:
        check_mode("docs", "--site")
        print_lines(str(pages.build_site(Path(site))))
    elif open_:
        first = pages.build_site(user_cache_path("attnctl") / f"docs-{attnctl.__version__}")
        page = str(first if chosen is None else first.with_name(f"{chosen.name}.html"))
        print_lines(page)
        view.show_in_browser(page)
    elif chosen is None:
        print_lines(*pages.listed_topics(get_terminal_size().columns))
    else:
        show_page(chosen.markdown())


def show_page(markdown: str) -> None:
    """A page in the terminal; plain Markdown in a pipe."""
    text = plain_source(markdown)
    if not sys.stdout.isatty():
        print_lines(text.rstrip("\n"))
        return
    terminal = safe_console(theme=THEME)
    terminal.print(PageMarkdown(text, hyperlinks=False), width=min(terminal.width, WIDEST_PAGE), crop=False)
