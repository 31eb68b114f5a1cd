"""One statistic of every head as a figure."""

from __future__ import annotations

from collections.abc import Sequence

from attnctl.formats import PLAIN, Look
from attnctl.readings.head_statistics import STATISTICS, HeadStatistics
from attnctl.render import Panels, Scale, colour_map, colour_norm, panel_of_heads


def statistic_panels(
    heads: Sequence[HeadStatistics], name: str, title: str, look: Look = PLAIN, cited: str = ""
) -> Panels:
    """Return a picture of the statistic `name` as colour and number, one cell a head; a head without it is hatched."""
    values = {(head.layer, head.head): head[name] for head in heads}
    numbers = [0.0, *(value for value in values.values() if value is not None)]
    low, top = min(numbers), max(numbers)
    ends = low if look.vmin is None else look.vmin, look.vmax if look.vmax is not None else top or float(low == 0)
    scale = Scale(colour_norm(*ends), colour_map(look.cmap), STATISTICS[name].unit or name)
    heading = title if look.title is None else look.title
    return panel_of_heads(values, scale, heading, STATISTICS[name].title_with_unit, "no value", cited)
