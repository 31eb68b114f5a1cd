"""`attnctl docs`: the documentation, in the terminal and as a site; and its samples."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated

from typer import Argument, Context, Option

from attnctl import __version__
from attnctl.cli import ONE_CALL, OUTPUT, command, print_lines, refuse_unused, safe_console


@command(example="attnctl docs lesson")
def docs_command(
    context: Context,
    topic: Annotated[
        str | None, Argument(help="The page to show [default: a list of them].", metavar="[TOPIC]")
    ] = None,
    *,
    open_: Annotated[
        bool, Option("--open", envvar=ONE_CALL, help="Open the page in a browser.", rich_help_panel=OUTPUT)
    ] = False,
    site: Annotated[
        str | None,
        Option(
            envvar=ONE_CALL, help="Build all pages into this folder, as HTML.", metavar="FOLDER", rich_help_panel=OUTPUT
        ),
    ] = None,
    samples: Annotated[
        str | None,
        Option(
            envvar=ONE_CALL,
            help="Write the sample files of the pages into this folder.",
            metavar="FOLDER",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Show the documentation: a lesson, how-to guides, and the reference of commands, Python and file formats.

    In a pipe a page is plain Markdown. The site needs MkDocs (pip install "attnctl[docs]"); it can be read offline.
    """
    from attnctl.commands.docs import site as pages

    page = None if topic is None else pages.find_topic(topic)
    if samples is not None:
        refuse_unused(context, "topic", "open_", "site", because="--samples writes the samples alone")
        print_lines(*pages.write_samples(Path(samples)))
    elif site is not None:
        refuse_unused(context, "topic", "open_", because="--site builds all pages")
        print_lines(str(pages.build_site(Path(site))))
    elif open_:
        from platformdirs import user_cache_path

        from attnctl.cli import show_in_browser

        first = pages.build_site(user_cache_path("attnctl") / f"docs-{__version__}")
        place = str(first if page is None else first.with_name(f"{page.name}.html"))
        print_lines(place)
        show_in_browser(place)
    elif page is None:
        print_lines(*pages.listed_topics(get_terminal_size().columns))
    else:
        show_page(page.markdown())


def show_page(markdown: str) -> None:
    """Show a page in the terminal; in a pipe, write plain Markdown."""
    from attnctl.commands.docs.site import THEME, WIDEST_PAGE, PageMarkdown, plain_source

    text = plain_source(markdown)
    if not sys.stdout.isatty():
        print_lines(text.rstrip("\n"))
        return
    terminal = safe_console(theme=THEME)
    terminal.print(PageMarkdown(text, hyperlinks=False), width=min(terminal.width, WIDEST_PAGE), crop=False)
