"""`attnctl view`: a trace, or two side by side, as one HTML page to explore."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from attnctl import inputs
from attnctl.argument_types import OptionValues
from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.output import print_lines, put_bytes
from attnctl.errors import UsageError
from attnctl.files import check_writable
from attnctl.pages import page_of_sources
from attnctl.readings.effects.ablation import EffectRequest
from attnctl.source import Changes, Source, TextSource


def view_command(
    *, source: str | None, other: str | None, output: str | None, no_open: bool, sources: bool, **options: Any
) -> None:
    """Make one HTML file to explore attention in a browser, and open it: no network, nothing to install."""
    model = o.model_options(options)
    if output not in (None, "-"):
        if Path(str(output)).suffix.lower() not in (".html", ".htm"):
            raise UsageError(f"-o {output}: view writes .html (for pictures see attnctl heatmap)")
        check_writable(str(output))
    if sources:
        arguments.check_mode("view", "--sources")
        from attnctl.cli.groups import PromptOptions
        from attnctl.commands.sources import find_sources
        from attnctl.render.page.reading_pages import sources_page

        asked = o.taken(PromptOptions, model)
        html, name = sources_page(find_sources(source, options["file"], asked)[0]), "sources"
    else:
        html, name = _page_of_weights(source, other, model, **options)
    if output is None:  # a file in a fresh temporary folder, named after the text
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40]
        output = str(Path(tempfile.mkdtemp(prefix="attnctl-")) / f"{slug or 'attention'}.html")
    put_bytes(html.encode(), output)
    if output != "-":
        print_lines(output)
        if not no_open:
            show_in_browser(output)


def _page_of_weights(
    source: str | None,
    other: str | None,
    model: OptionValues,
    *,
    text: str | None,
    file: str | None,
    tokens: str | None,
    key_tokens: str | None,
    run: str | None,
    effects: bool,
    against: str | None,
    **options: Any,
) -> tuple[str, str]:
    """The page of one source, of two, or of a run's steps, and the text that it is named after."""
    ask = EffectRequest(target=model.pop("target", None), against=against, every_edge=True) if effects else None
    if not effects:
        arguments.check_mode("view", "a page without --effects")
    numbers = any(one == "-" or inputs.names_numbers(one or "") for one in (source, other))
    two = "two models and a text" if text is not None else "two sources" if numbers else "two texts"
    arguments.check_mode("view", "--run" if run is not None else "one source" if other is None else two)
    seen: Iterable[Source]
    if run is not None:
        name = inputs.text_of(source, file)
        seen, steps = inputs.sources_of_run(run, name, lambda path: arguments.model_of(model | {"model": path}))
        labels: list[str] | None = list(steps.values())
    else:
        seen = _opened_sources(source, other, text, file, tokens, key_tokens, model)
        labels = None if text is None else [str(source), str(other)]
        name = seen[0].text
    html = page_of_sources(
        seen,
        o.taken(Changes, options),
        effects=ask,
        labels=labels,
        over_training=run is not None,
        **arguments.page_notes(),
        **o.arguments_of(page_of_sources, options),
    )
    return html, name


def _opened_sources(
    source: str | None,
    other: str | None,
    text: str | None,
    file: str | None,
    tokens: str | None,
    key_tokens: str | None,
    options: OptionValues,
) -> list[Source]:
    """One source, two of them, or a text through two models. Model options are for the texts among two."""
    if text is not None:
        words = inputs.text_of(text, None)
        return [TextSource(arguments.model_of(options | {"model": name}), words) for name in (source, other)]
    if other is None:
        return [arguments.open_source(source, file, tokens, options, key_tokens)]
    if source == other == "-":
        raise UsageError('only one of the two can be "-"')
    inputs.refuse_models("view", source or "", other)
    sides: list[Source] = []
    for one in (source, other):
        if one:
            given = one == "-" or inputs.names_numbers(one)
            own = (tokens, {}, key_tokens) if given else (None, options, None)
            sides.append(arguments.open_source(one, None, *own))
    return sides


def show_in_browser(page: str) -> None:
    """Open a page in a browser, or say that there is none. One that would take over the terminal is not asked."""
    windows = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")
    )
    if not (windows and webbrowser.open(Path(os.path.realpath(page)).as_uri())):
        arguments.say_notes([f"no browser was found here: open {page} in one"])
