"""The sources of an answer as a picture: bars, or over a photograph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.colors import Normalize

from attnctl.commands.sources.result import AnswerSources, PartSource
from attnctl.document_fields import Box
from attnctl.formats.pictures import CMAP
from attnctl.render.figure.bars import Bars, bar_drawing
from attnctl.render.figure.heatmap import colour_map
from attnctl.render.figure.layout import Drawing
from attnctl.render.figure.photograph import RegionValues, draw_looks_and_effects
from attnctl.text import probability_text, shortened

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCE_UNIT = "Δ log p(answer)"
LOOKS, AGAINST, FOR = "#8fa8c8", "#b2182b", "#2166ac"
MOST = 30  # parts, unless told otherwise: more cannot be read


def _draw_source_regions(found: AnswerSources, regions: Mapping[Box, PartSource], photograph: Image) -> Drawing:
    answer = shortened(" ".join(found.answer.text.split()), 60)
    said = [
        f"{found.model.name}: “{answer}”",
        f"Left: share of the attention. Right: {SOURCE_UNIT} without the region.",
    ]
    if len(regions) < len(found.parts):
        said.append(f"{len(found.parts) - len(regions)} more regions are not drawn")
    looks, does = [one.looks for one in regions.values()], [one.matters for one in regions.values()]
    times = [one.relative for one in regions.values() if one.relative is not None]
    between = []
    if len(times) == len(regions):
        said[1] = said[1].replace("Right", "Middle: relative to a neutral prompt. Right")
        between = [RegionValues("relative attention", times, ".2f", Normalize(0, max(times)), colour_map(CMAP))]
    cited = found.model.citation
    return draw_looks_and_effects(list(regions), looks, does, SOURCE_UNIT, photograph, said, cited, between)


def sources_drawing(found: AnswerSources, top: int | None = None, photograph: Image | None = None) -> Drawing:
    """The parts, what matters most on top; bars to the left are losses of log-probability, in nats.

    Regions of a picture are drawn over the photograph.
    """
    parts = found.parts[: top or MOST]
    regions = {one.box: one for one in parts if one.box is not None and one.alone}
    if photograph is not None and regions:
        return _draw_source_regions(found, regions, photograph)
    looks = Bars("looks (% of attention)", [100 * one.looks for one in parts], [LOOKS] * len(parts), ".1f")
    several = [looks]
    if all(one.writes is not None for one in parts):
        written = [one.writes or 0.0 for one in parts]
        several.append(Bars("writes (nats)", written, [FOR if value > 0 else AGAINST for value in written]))
    losses = [one.matters if one.alone else None for one in parts]
    several.append(Bars("matters (nats)", losses, [FOR if one.matters < 0 else AGAINST for one in parts]))
    answer = shortened(" ".join(found.answer.text.split()), 60)
    said = f"probability {probability_text(found.answer.log_probability)}; matters: {SOURCE_UNIT} without the part"
    if len(parts) < len(found.parts):
        said += f"; {len(found.parts) - len(parts)} more parts are not drawn"
    names = [one.name for one in parts]
    return bar_drawing(f"{found.model.name}: “{answer}”", said, names, several, found.model.citation)
