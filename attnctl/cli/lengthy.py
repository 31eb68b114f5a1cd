"""What the commands share about long texts: when a text is one, what it will cost, and how far the work has come."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl import limits
from attnctl.cli import invocation
from attnctl.cli import options as o
from attnctl.cli.output import complain, console
from attnctl.cli.sources import Asked, Given
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from attnctl.readings.heatmap import Reading
    from attnctl.readings.overview import Part
    from attnctl.readings.trace import ModelInfo
    from attnctl.sources import Source
    from attnctl.tokens import Token

PAIRS_A_SECOND = 2e8  # weights swept by one thread
SAID = 20.0  # seconds, from which the cost is told beforehand
SIZE = 256  # cells a side of an overview
MANY = 4  # heads, beyond which each is drawn small


class Zoom(NamedTuple):
    """What of a long text is looked at, and how: the options of that name."""

    rows: str | None = None
    columns: str | None = None
    pool: str | None = None
    spans: str | None = None


def long_tokens(given: Asked | Given, zoom: Zoom, named: bool = False) -> tuple[Token, ...] | None:
    """The tokens of a text that is to be summed up, being long or zoomed into; None where every weight is shown."""
    options = [f"--{name}" for name, value in zip(zoom._fields, zoom, strict=True) if value is not None]
    if isinstance(given, Given):
        if options:
            raise UsageError(f"{options[0]} is for a text and its model: the numbers of {given.where} are shown whole")
        return None
    named = named or bool(options)
    if not named and len(given.text) <= o.LONG and not getattr(given.model, "generate", 0):
        return None
    from attnctl.tokens import checked

    tokens: tuple[Token, ...] = given.model.tokenize(checked(given.text))
    return tokens if named or len(tokens) > o.LONG else None


def overview(
    given: Asked | Given,
    tokens: tuple[Token, ...],
    zoom: Zoom,
    layer: str | None,
    head: str | None,
    drop: Sequence[str],
    renormalise: bool,
    room: int | None,
    log: bool = False,
) -> Reading:
    """The pooled grids of a long text, at most `room` cells wide. Raises UsageError for a zoom that is not there."""
    from attnctl.readings.grid import GridReading
    from attnctl.readings.heatmap import left_out, of_overview, told
    from attnctl.readings.survey import OverviewReading
    from attnctl.sources import LayerwiseSource, TextSource

    assert isinstance(given, Asked)
    info = given.model.info
    layers = o.selection(layer, info.n_layers or 1, "layer", info.name)
    heads = o.selection(head, info.n_heads or 1, "head", info.name)
    count = len(layers or range(info.n_layers or 1)) * len(heads or range(info.n_heads or 1))
    size = SIZE if count <= MANY else SIZE // 4
    if room is not None:
        size = min(room, size) if count <= MANY else 32
    out = left_out(tokens, drop)
    rows, columns = _parts(given.text, tokens, zoom, size, out, count == 1 or room is not None)
    check_cost(info, len(tokens), count)
    how = "mass" if zoom.spans is not None else zoom.pool or "mean"
    source: Source = TextSource(given.model, given.text, tokens)
    if renormalise:
        source = LayerwiseSource(source, lambda layer: layer.without_keys(out))
    with progress(f"{len(tokens):,} tokens, {count} heads") as tick:
        found = source.read(OverviewReading(GridReading(rows, columns, how)), layers, heads, tick)
    o.say(found.notes)
    o.say_unknown(tokens)
    reading = of_overview(found, told(tokens, out, renormalise))
    if not log and drowned(reading):
        o.say(("a few cells hold most of the weight: --log shows the others, --drop first leaves the first token out",))
    return reading


def drowned(reading: Reading) -> bool:
    """Whether most cells would have the colour of zero."""
    import numpy as np

    shown = np.concatenate([w.ravel() if mask is None else w[mask] for _, _, w, mask in reading.panels()])
    return bool(np.median(shown) < 0.02 * shown.max())


def _parts(
    text: str, tokens: Sequence[Token], zoom: Zoom, size: int, out: Sequence[int], single: bool
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The rows and the columns of the grid."""
    if zoom.pool not in (None, "mean", "max"):
        raise UsageError(f"--pool {zoom.pool}: it is mean or max")
    if zoom.spans is not None:
        if zoom[:3] != (None, None, None):
            raise UsageError("--spans goes without --rows, --columns and --pool: its cells are the parts' shares")
        from attnctl.readings.spans import parts_of

        parts = parts_of(zoom.spans, text, tokens)
        return parts, tuple(kept for part in parts if (kept := without(part, out)) is not None)
    a, b = stretch(zoom.rows, len(tokens), "--rows")
    c, d = stretch(zoom.columns, len(tokens), "--columns")
    name = 18 if single else 13  # characters, as many as a picture writes
    rows = cells(tokens, a, b, size, text, name)
    columns = (without(part, out) for part in cells(tokens, c, d, size, text, name))
    return rows, tuple(part for part in columns if part is not None)


def without(part: Part, out: Sequence[int]) -> Part | None:
    """The part with the tokens `out` left out; None where nothing is left."""
    from attnctl.readings.overview import Part

    ranges = []
    for a, b in part.ranges:
        edges = [a, *(at for token in out if a <= token < b for at in (token, token + 1)), b]
        ranges += [(x, y) for x, y in zip(edges[::2], edges[1::2], strict=True) if x < y]
    return Part(part.name, tuple(ranges)) if ranges else None


def stretch(spec: str | None, n: int, option: str) -> tuple[int, int]:
    """--rows and --columns: A:B, A:, :B; tokens [A, B) of n. Raises UsageError where there are none such."""
    if spec is None:
        return 0, n
    match = re.fullmatch(r"(-?[0-9]{1,15})?:(-?[0-9]{1,15})?", spec.strip())
    if not match:
        raise UsageError(f"{option} {spec[:40]!r}: it is FIRST:LAST, like 3000:3100, LAST not included")
    a, b = int(match[1] or 0), int(match[2] or n)
    a, b = (a + n if a < 0 else a), (b + n if b < 0 else b)
    if not 0 <= a < b <= n:
        raise UsageError(f"{option} {spec}: the text has tokens 0 to {n - 1}, so it is within 0:{n}")
    return a, b


def cells(tokens: Sequence[Token], first: int, last: int, size: int, text: str, name: int = 18) -> tuple[Part, ...]:
    """Tokens [first, last) in at most `size` even cells, each named by its position and the beginning of its text."""
    from attnctl.blockwise import even
    from attnctl.readings.overview import Part, snippet

    return tuple(Part(snippet(tokens, a, b, text, name), ((a, b),)) for ((a, b),) in even(first, last, size))


def check_cost(info: ModelInfo, n: int, heads: int, size: int = SIZE) -> None:
    """Say on stderr what so many heads of all layers will take, where that is much.

    Raises AttnctlError where memory will not do.
    """
    threads = os.cpu_count() or 1
    d_k, d_model = info.d_k or 64, info.d_model or 64
    every = info.n_heads or 1
    # queries, keys, values and their copies; the stream with its layers; each thread's masses
    need = 4.0 * n * (8 * every * d_k + 12 * d_model + 2 * threads * size)
    limits.check_memory(need, f"a text of {n:,} tokens", "shorten it, or cut it into parts")
    seconds = heads * float(n) ** 2 * (0.5 if info.causal else 1.0) / (PAIRS_A_SECOND * threads)
    if info.device == "cpu" and seconds > SAID:
        complain(
            f"{heads} heads over {n:,} tokens: about {_time(seconds)} and {limits.said(need)} on the CPU "
            "(--layer and --head take fewer)"
        )


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@contextmanager
def progress(what: str) -> Iterator[Callable[[float], None] | None]:
    """A bar on stderr where that is a terminal, and nothing in a pipe."""
    if invocation.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: Any = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, advance=share)
