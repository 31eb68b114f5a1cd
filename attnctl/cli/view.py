"""`attnctl view`: a trace, or two side by side, as one HTML page to explore."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnctl.cli import options as o
from attnctl.cli.sources import Source, TokenNames, trace_of
from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from attnctl.trace import Trace

MOST_NUMBERS = 400_000_000  # weights in a page: beyond, no browser would open it


@o.with_model_options
def view(
    source: Source = None,
    other: Annotated[
        str | None,
        typer.Argument(help="A second one, to be seen beside the first.", show_default=False, metavar="[TEXT|FILE]"),
    ] = None,
    *,
    file: o.File = None,
    tokens: TokenNames = None,
    layer: o.LayerChoice = None,
    head: o.HeadChoice = None,
    query: o.Query = None,
    output: Annotated[
        str | None, typer.Option("-o", "--output", help='The page: .html, or "-".', show_default=False)
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Write the page, do not open it.")] = False,
    **options: Any,
) -> None:
    """Make one HTML file to explore attention in a browser, and open it: no network, nothing to install.

    With two texts or traces, both are there side by side, with their difference.
    """
    target = target_of(output)
    if other is not None and file is not None:
        raise UsageError("give two sources as arguments, or one as --file, not both")
    if source == other == "-":
        raise UsageError('standard input can be read once: only one of the two may be "-"')
    chosen = [trace_of(source, file, tokens, options, layer, head)]
    if other is not None:
        chosen.append(trace_of(other, None, None, options, layer, head))
    traces = [narrowed(*one) for one in chosen]
    write_page(traces, target or temporary(traces[0]), query=query, shown=not no_open and output != "-")


def narrowed(trace: Trace, layers: list[int] | None, heads: list[int] | None) -> Trace:
    """The trace with the layers and heads asked for alone. Raises AttnctlError where one was not kept."""
    from dataclasses import replace

    from attnctl.trace import HEAD_ARRAYS, LayerTrace

    def cut(part: LayerTrace) -> LayerTrace:
        if heads is None or tuple(heads) == part.heads:
            return part
        places = [part.position_of(head) for head in heads]
        arrays: dict[str, Any] = {
            name: array[places] for name in HEAD_ARRAYS if (array := getattr(part, name)) is not None
        }
        kv_heads = tuple(part.kv_heads[place] for place in places)
        return replace(part, heads=tuple(heads), kv_heads=kv_heads, parameters={}, **arrays)

    kept = trace.layers if layers is None else tuple(trace.layer(index) for index in layers)
    return replace(trace, layers=tuple(cut(part) for part in kept))


def target_of(output: str | None) -> str | None:
    """Where the page goes; None for a temporary file. Raises, before any work, where it cannot be written."""
    if output is None or output == "-":
        return output
    if Path(output).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {output}: view writes .html (for pictures see attnctl heatmap)")
    from attnctl.files import check_writable

    check_writable(output)
    return output


def temporary(trace: Trace) -> str:
    """A file in a fresh temporary folder, named after the text."""
    import re
    import tempfile

    slug = re.sub(r"[^A-Za-z0-9]+", "-", trace.text).strip("-").lower()[:40]
    return str(Path(tempfile.mkdtemp(prefix="attnctl-")) / f"{slug or 'attention'}.html")


def write_page(traces: list[Trace], target: str, *, query: str | None = None, shown: bool = False, **how: Any) -> None:
    """Write the page of `traces` to `target` ("-": standard output), say where, and open it where that is wanted."""
    from attnctl.files import write_whole
    from attnctl.render.page import page

    size = sum(layer.weights.size for trace in traces for layer in trace.layers if layer.weights is not None)
    if size > MOST_NUMBERS:
        raise AttnctlError(
            f"{size:,} weights are too many for a page: choose layers and heads with --layer and --head, or a shorter text"
        )
    html = page(traces, start=start_of(traces[0], query), **how)
    if target == "-":
        sys.stdout.write(html)
        return
    write_whole(target, html.encode())
    print(target)
    if shown and not opened(target):
        from attnctl.cli import complain

        complain(f"note: no browser was found here: open {target} in one")


def start_of(trace: Trace, query: str | None) -> dict[str, int]:
    """What the page has chosen at first, where a query was named."""
    if query is None:
        return {}
    from attnctl.steps import focus
    from attnctl.tokens import find

    at = find(trace.tokens, query)
    found = focus(trace, query=at)
    more = {} if found is None else {"layer": found.layer, "head": found.head, "key": found.key}
    return {"query": at} | more


def opened(target: str) -> bool:
    """Whether a browser took the page. One that would take over the terminal is not asked."""
    import webbrowser

    windows = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME")
    )
    return windows and webbrowser.open(Path(target).resolve().as_uri())
