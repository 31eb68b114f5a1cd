"""What a figure shows, for tests."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def texts_within(figure: Figure) -> set[str]:
    """Return the texts of a figure; none is cut at an edge."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    for text in texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width, text.get_text()
    return {text.get_text() for text in texts}
