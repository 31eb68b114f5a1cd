"""Keep of a source what a question needs: a value for each reading.

The statistics of heads are in `attnctl.readings.head_statistics`, the parts of a text in `attnctl.readings.spans`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.readings.comparison import AlignedTokens as AlignedTokens
    from attnctl.readings.comparison import Comparison as Comparison
    from attnctl.readings.comparison import compare_traces as compare_traces
    from attnctl.readings.head_names import HeadNames as HeadNames
    from attnctl.readings.head_names import Names as Names
    from attnctl.readings.head_names import NamesHeads as NamesHeads
    from attnctl.readings.head_names import names_in_file as names_in_file
    from attnctl.readings.heatmap import Evolution as Evolution
    from attnctl.readings.heatmap import HeatmapGrid as HeatmapGrid
    from attnctl.readings.heatmap import OverviewReading as OverviewReading
    from attnctl.readings.heatmap import is_drowned as is_drowned
    from attnctl.readings.heatmap import with_headline as with_headline
    from attnctl.readings.overview import LongRow as LongRow
    from attnctl.readings.overview import Overview as Overview
    from attnctl.readings.picture_heat import queries_of_picture as queries_of_picture
    from attnctl.readings.questions.head_roles import measured_checkpoint as measured_checkpoint
    from attnctl.readings.questions.headline import headline as headline
    from attnctl.readings.questions.headline import walked_heads as walked_heads
    from attnctl.readings.rank_correlation import kendall_tau as kendall_tau
    from attnctl.readings.sinks import least_sink_share as least_sink_share
    from attnctl.readings.statistics_reading import HeadStatisticsReading as HeadStatisticsReading
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.readings.comparison": "AlignedTokens Comparison compare_traces",
            "attnctl.readings.head_names": "HeadNames Names NamesHeads names_in_file",
            "attnctl.readings.heatmap": "Evolution HeatmapGrid OverviewReading is_drowned with_headline",
            "attnctl.readings.overview": "LongRow Overview",
            "attnctl.readings.picture_heat": "queries_of_picture",
            "attnctl.readings.questions.head_roles": "measured_checkpoint",
            "attnctl.readings.questions.headline": "headline walked_heads",
            "attnctl.readings.rank_correlation": "kendall_tau",
            "attnctl.readings.sinks": "least_sink_share",
            "attnctl.readings.statistics_reading": "HeadStatisticsReading",
        },
    )
