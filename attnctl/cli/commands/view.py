"""`attnctl view`: a trace, or two side by side, as one HTML page to explore."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnctl.cli import arguments
from attnctl.cli import options as o
from attnctl.cli.commands.page import (
    Choice,
    PageContent,
    check_pooled,
    of_one,
    of_two,
    over_training,
    page_look,
    two_models,
    with_effects,
    write_page,
)
from attnctl.cli.inputs.sources import is_file, open_source, refuse_models
from attnctl.cli.output import print_lines, put_bytes
from attnctl.errors import UsageError
from attnctl.source.changes import Changes

if TYPE_CHECKING:
    from attnctl.models.option_types import OptionValues
    from attnctl.readings.effects.ablation import EffectRequest


class ViewSources(NamedTuple):
    """What is to be seen."""

    source: str | None = None
    other: str | None = None
    text: str | None = None
    file: str | None = None
    tokens: str | None = None
    run: str | None = None

    def content(
        self, choice: Choice, options: OptionValues, query: str | None, effects: EffectRequest | None
    ) -> PageContent:
        """What the page shows of them, shaded by `effects`. Raises UsageError for arguments that exclude each other."""
        if choice.measure is not None:
            from attnctl.readings.measures import check_measure

            check_measure(choice.measure, choice.head is not None)
        numbers = any(one == "-" or is_file(one or "") for one in (self.source, self.other))
        two = "two models and a text" if self.text is not None else "two sources" if numbers else "two texts"
        arguments.check_mode("view", "--run" if self.run is not None else "one source" if self.other is None else two)
        if self.run is not None:
            return over_training(self.run, arguments.text_of(self.source, self.file), choice, options)
        if self.text is not None:
            return two_models(self.source or "", self.other or "", self.text, choice, options)
        if self.other is None:
            opened = open_source(self.source, self.file, self.tokens, options)
            content = of_one(opened, choice)
            return content if effects is None else with_effects(content, opened, query, effects)
        if self.source == self.other == "-":
            raise UsageError('only one of the two can be "-"')
        refuse_models("view", self.source or "", self.other)
        return PageContent([of_two(part, self.tokens, choice, options) for part in (self.source, self.other) if part])


def view_command(
    *,
    layer: str | None,
    head: str | None,
    query: str | None,
    output: str | None,
    no_open: bool,
    log: bool | None,
    effects: bool,
    against: str | None,
    sources: bool,
    **options: object,
) -> None:
    """Make one HTML file to explore attention in a browser, and open it: no network, nothing to install."""
    seen = o.taken(ViewSources, options)
    target = target_of(output)
    weights = o.taken(Changes, options)
    choice = Choice(layer, head, weights.measure)
    if sources:
        arguments.check_mode("view", "--sources")
        from attnctl.cli.commands.sources import answer_page

        target = target or temporary_page("sources")
        put_bytes(answer_page(seen.source, seen.file, options).encode(), target)
    else:
        look = page_look(weights.drop or (), weights.renormalise, bool(log), words=weights.words)
        content = seen.content(choice, options, query, _effect_request(effects, against, options))
        check_pooled(content.traces, look, choice.measure)
        target = target or temporary_page(content.traces[0].text)
        write_page(content, target, query=query, look=look)
    _shown(target, no_open)


def _effect_request(effects: bool, against: str | None, options: OptionValues) -> EffectRequest | None:
    """What --effects measures, --target taken out of `options`; None without it."""
    if not effects:
        arguments.check_mode("view", "a page without --effects")
        return None
    from attnctl.readings.effects.ablation import EffectRequest

    return EffectRequest(target=options.pop("target", None), against=against, every_edge=True)


def _shown(target: str, no_open: bool) -> None:
    """Say where the page is, and open it in a browser."""
    if target == "-":
        return
    print_lines(target)
    if not no_open and not opened_in_browser(target):
        arguments.say_notes([f"no browser was found here: open {target} in one"])


def target_of(output: str | None) -> str | None:
    """Where the page goes; None for a temporary file. Raises, before any work, where it cannot be written."""
    if output is None or output == "-":
        return output
    if Path(output).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {output}: view writes .html (for pictures see attnctl heatmap)")
    from attnctl.files import check_writable

    check_writable(output)
    return output


def temporary_page(text: str) -> str:
    """A file in a fresh temporary folder, named after the text."""
    import re
    import tempfile

    slug = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:40]
    return str(Path(tempfile.mkdtemp(prefix="attnctl-")) / f"{slug or 'attention'}.html")


def opened_in_browser(target: str) -> bool:
    """Whether a browser took the page. One that would take over the terminal is not asked."""
    import webbrowser

    windows = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")
    )
    return windows and webbrowser.open(Path(os.path.realpath(target)).as_uri())
