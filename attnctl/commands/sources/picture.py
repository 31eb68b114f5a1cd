"""Draw the sources of an answer as bars, or over a photograph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.colors import Normalize

from attnctl.checks.document_fields import Box
from attnctl.commands.sources.result import AnswerSources, PartSource
from attnctl.commands.sources.show import answer_probability, headline_of, measured_in_part
from attnctl.formats import CMAP
from attnctl.render import Bars, Drawing, RegionValues, bar_drawing, colour_map, draw_looks_and_effects
from attnctl.text import shortened

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCE_UNIT = "Δ log p(answer)"
LOOKS, AGAINST, FOR = "#8fa8c8", "#b2182b", "#2166ac"
MAX_BARS = 30  # the default of `top`: more bars cannot be read


def _draw_source_regions(sources: AnswerSources, regions: Mapping[Box, PartSource], photograph: Image) -> Drawing:
    answer = shortened(" ".join(sources.answer.text.split()), 60)
    heading = [
        f"{sources.model.name}: “{answer}”",
        f"Left: share of the attention. Right: {SOURCE_UNIT} without the region.",
        answer_probability(sources),
    ]
    heading += [headline_of(sources)] if sources.rests is False else []
    if len(regions) < len(sources.parts):
        heading.append(f"{len(sources.parts) - len(regions)} more regions are not drawn")
    looks, effects = [part.looks for part in regions.values()], [part.matters for part in regions.values()]
    ratios = [part.relative for part in regions.values() if part.relative is not None]
    between = []
    if len(ratios) == len(regions):
        heading[1] = heading[1].replace("Right", "Middle: relative to a neutral prompt. Right")
        between = [RegionValues("relative attention", ratios, ".2f", Normalize(0, max(ratios)), colour_map(CMAP))]
    cited = sources.model.citation
    return draw_looks_and_effects(list(regions), looks, effects, SOURCE_UNIT, photograph, heading, cited, between)


def sources_drawing(sources: AnswerSources, top: int | None = None, photograph: Image | None = None) -> Drawing:
    """Draw the parts, what matters most on top; bars to the left are losses of log-probability, in nats.

    Regions of a picture are drawn over the photograph.
    """
    parts = sources.parts[: top or MAX_BARS]
    regions = {part.box: part for part in parts if part.box is not None and part.alone}
    if photograph is not None and regions:
        return _draw_source_regions(sources, regions, photograph)
    looks = Bars("looks (% of attention)", [100 * part.looks for part in parts], [LOOKS] * len(parts), ".1f")
    bars = [looks]
    if all(part.writes is not None for part in parts):
        written = [part.writes or 0.0 for part in parts]
        bars.append(Bars("writes (nats)", written, [FOR if value > 0 else AGAINST for value in written]))
    losses = [part.matters if part.alone else None for part in parts]
    bars.append(Bars("matters (nats)", losses, [FOR if part.matters < 0 else AGAINST for part in parts]))
    answer = shortened(" ".join(sources.answer.text.split()), 60)
    heading = f"{answer_probability(sources)}\nmatters: {SOURCE_UNIT} without the part"
    if len(parts) < len(sources.parts):
        heading += f"; {len(sources.parts) - len(parts)} more parts are not drawn"
    if sources.rests is False:
        heading += f"\n{headline_of(sources)}"
    heading = "\n".join([heading, *measured_in_part(sources)])
    names = [part.name for part in parts]
    return bar_drawing(f"{sources.model.name}: “{answer}”", heading, names, bars, sources.model.citation)
