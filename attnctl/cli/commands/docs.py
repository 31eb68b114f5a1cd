"""`attnctl docs`: the documentation, in the terminal and as a site; and its samples."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap

from platformdirs import user_cache_path

import attnctl
from attnctl.cli.arguments import check_mode
from attnctl.cli.commands import view
from attnctl.cli.documentation import site as mkdocs
from attnctl.cli.documentation.site import COMMANDS, all_topics, find_topic
from attnctl.cli.output import print_lines, safe_console
from attnctl.errors import UsageError
from attnctl.files import said_plainly, write_whole
from attnctl.render.terminal.console import THEME, WIDEST_PAGE, markdown_page, plain_source

NARROW = 60  # columns, below which what a topic is about stands under its name
MORE = "attnctl docs TOPIC shows a page, attnctl docs COMMAND the options of a command; --open shows them in a browser."


def docs_command(*, topic: str | None, open_: bool, site: str | None, samples: str | None) -> None:
    """Show the documentation: a lesson, how-to guides, and the reference of commands, Python and file formats."""
    chosen = None if topic is None else find_topic(topic)
    if samples is not None:
        check_mode("docs", "--samples")
        print_lines(*write_samples(Path(samples)))
    elif site is not None:
        check_mode("docs", "--site")
        print_lines(str(mkdocs.build_site(Path(site))))
    elif open_:
        first = mkdocs.build_site(user_cache_path("attnctl") / f"docs-{attnctl.__version__}")
        page = str(first if chosen is None else first.with_name(f"{chosen.name}.html"))
        print_lines(page)
        view.show_in_browser(page)
    elif chosen is None:
        list_topics()
    else:
        show_page(chosen.markdown())


def write_samples(target: Path) -> list[str]:
    """Write the samples that come with the package into a folder, which is made; answers their paths.

    Raises UsageError where the folder holds another file of such a name, AttnctlError where it cannot be written.
    """
    package = Path(attnctl.__file__).parent
    places = (package / "samples", package.parent / "samples")  # installed; a checkout, whose wheel takes them along
    samples = {path.name: path.read_bytes() for place in places if place.is_dir() for path in sorted(place.iterdir())}
    with said_plainly("make the folder", target):
        target.mkdir(parents=True, exist_ok=True)
    for name, data in samples.items():
        if (target / name).exists() and (target / name).read_bytes() != data:
            raise UsageError(f"{target / name} is another file: name a new folder")
    for name, data in samples.items():
        write_whole(target / name, data)
    return [str(target / name) for name in samples]


def list_topics() -> None:
    """The topics, a line each, under their sections; on a narrow terminal what they are about stands below them."""
    width = get_terminal_size().columns
    topics = [topic for topic in all_topics().values() if topic.section != COMMANDS]
    column = max(len(topic.name) for topic in topics) + 4
    section, told = "", []
    for topic in topics:
        if topic.section != section:
            told += [""] * bool(section) + [topic.section]
            section = topic.section
        indent = column if width >= NARROW else 4
        about = wrap(topic.about, max(20, width), initial_indent=" " * indent, subsequent_indent=" " * indent)
        if width >= NARROW:
            about[0] = f"  {topic.name:{column - 2}}{about[0].lstrip()}"
        else:
            told.append(f"  {topic.name}")
        told += about
    told += ["", *wrap(MORE, width)]
    print_lines(*told)


def show_page(markdown: str) -> None:
    """A page in the terminal; plain Markdown in a pipe."""
    if not sys.stdout.isatty():
        print_lines(plain_source(markdown).rstrip("\n"))
        return
    terminal = safe_console(theme=THEME)
    terminal.print(markdown_page(markdown), width=min(terminal.width, WIDEST_PAGE), crop=False)
