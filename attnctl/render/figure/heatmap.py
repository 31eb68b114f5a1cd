"""A trace as a picture: one head as an annotated grid, several as labelled small multiples with one colour bar."""

from __future__ import annotations

import difflib
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib
from matplotlib import colormaps
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnctl.errors import UsageError
from attnctl.readings.heatmap import Reading, log_span, read, span
from attnctl.readings.trace import Trace
from attnctl.render.figure.drawing import Sheet
from attnctl.render.figure.labels import Labels
from attnctl.text import harmless

CMAP = "viridis"  # perceptually uniform, safe for colour-blind eyes, and in order when printed in grey
DPI = 200
FORMATS = ("png", "svg", "pdf")


class Drawing(NamedTuple):
    """A picture, and what a user should know about it, in sentences."""

    figure: Figure
    notes: tuple[str, ...]


def heatmap(trace: Trace, **options: Any) -> Figure:
    """The weights of a trace as a matplotlib Figure; options as of `drawn`."""
    return draw(trace, **options).figure


def draw(trace: Trace | Reading, **options: Any) -> Drawing:
    """The weights of a trace, or of what was read already, as a picture; options as of `drawn`."""
    sheet = drawn(Sheet, trace, **options)
    return Drawing(sheet.figure, sheet.labels.notes)


def drawn(
    kind: type[Sheet],
    trace: Trace | Reading,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    cmap: str = CMAP,
    size: tuple[float, float] | None = None,
    title: str | None = None,
    values: bool | None = None,
    log: bool = False,
    drop: Sequence[str] = (),
    renormalise: bool = False,
    dpi: float = DPI,
) -> Any:
    """The weights of a trace, or of what was read already, on a sheet of this `kind`: queries down, keys across.

    `layers` and `heads` choose (None: all there are). `cmap` is a colour map of matplotlib, `size` (width, height) in
    inches. `values` writes the weights into the cells (None: where they fit). `log` makes the colours logarithmic.
    `drop` leaves keys out ("first", "special", a token or its index), `renormalise` then rescales the rows; the
    picture says so.
    Raises AttnctlError where there is nothing to draw, UsageError for an option that cannot be.
    """
    if isinstance(trace, Reading):
        reading = trace
    else:
        names = (drop,) if isinstance(drop, str) else drop
        reading = read(trace, layers=layers, heads=heads, drop=names, renormalise=renormalise)
    said, scale = reading.said, Normalize(*span(reading))
    if log:
        low, high, words = log_span(reading)
        scale, said = LogNorm(low, high), (*said, words)
    colours = colour_map(cmap)
    title = reading.title if title is None else title
    labels = Labels([title, *said, *(token.text for token in (*reading.queries, *reading.keys))])
    with plain_settings():
        sheet = kind(reading, labels, colours, scale, title, said, size, dpi)
        sheet.draw(values)
    return sheet


def image(figure: Figure, form: str) -> bytes:
    """The figure as the bytes of a PNG, SVG or PDF file: the same bytes for the same figure."""
    if form not in FORMATS:
        raise UsageError(f"a picture is written as {', '.join(FORMATS)}, not as {form or 'a name without suffix'}")
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Software": "attnctl"},
        "svg": {"Date": None, "Creator": "attnctl"},
        "pdf": {"CreationDate": None, "Producer": "attnctl", "Creator": "attnctl"},
    }
    for text in figure.findobj(Text):
        text.set_text(harmless(text.get_text()).replace("\t", " "))
    out = io.BytesIO()
    with plain_settings():
        # vector files hold the cells as an image: fine enough that their edges stay sharp in print
        dpi = figure.dpi if form == "png" else max(figure.dpi, 300)
        figure.savefig(out, format=form, dpi=dpi, metadata=metadata[form])
    return out.getvalue()


@contextmanager
def plain_settings() -> Iterator[None]:
    """Matplotlib as it comes, without the user's matplotlibrc, for as long as something is drawn."""
    defaults: dict[str, Any] = {
        name: value for name, value in dict.items(matplotlib.rcParamsDefault) if not name.startswith("backend")
    }
    defaults |= {"svg.hashsalt": "attnctl", "pdf.fonttype": 42, "image.composite_image": False}
    settings: Any = matplotlib.rcParams
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # `Labels` tells the user
        dict.update(settings, defaults)  # they need no validation, which takes 5 ms
        yield


def colour_map(name: str) -> Colormap:
    """A colour map of matplotlib. Raises UsageError naming those that come close."""
    if name in colormaps:
        return colormaps[name]
    near = difflib.get_close_matches(name, list(colormaps), 3)
    meant = f"did you mean {' or '.join(near)}?" if near else "try viridis, cividis, magma or gray_r"
    raise UsageError(f"no colour map {name!r}: {meant}")
