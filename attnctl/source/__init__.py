"""A source of attention, the changes to it, and the readings of it.

A source gives its layers to a reading, one after another. `prepare` selects layers and heads, and the changes to each
layer. Commands, batches and Python's functions all use it. The protocols of models say what only some models can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.source.changes import NO_CHANGES as NO_CHANGES
    from attnctl.source.changes import Changes as Changes
    from attnctl.source.changes import prepare as prepare
    from attnctl.source.links import TOP_LINKS as TOP_LINKS
    from attnctl.source.links import check_links as check_links
    from attnctl.source.links import named_query as named_query
    from attnctl.source.links import parts_of_keys as parts_of_keys
    from attnctl.source.links import query_row as query_row
    from attnctl.source.links import query_rows as query_rows
    from attnctl.source.links import read_strongest_links as read_strongest_links
    from attnctl.source.model import AlignsTexts as AlignsTexts
    from attnctl.source.model import AnsweredPrompt as AnsweredPrompt
    from attnctl.source.model import AnswersByIds as AnswersByIds
    from attnctl.source.model import AnswersPrompts as AnswersPrompts
    from attnctl.source.model import CallsModule as CallsModule
    from attnctl.source.model import CallsNetwork as CallsNetwork
    from attnctl.source.model import CanBeUntrained as CanBeUntrained
    from attnctl.source.model import CanIntervene as CanIntervene
    from attnctl.source.model import Generates as Generates
    from attnctl.source.model import GivesWeights as GivesWeights
    from attnctl.source.model import HearsSpeech as HearsSpeech
    from attnctl.source.model import Model as Model
    from attnctl.source.model import Predicts as Predicts
    from attnctl.source.model import SharesPasses as SharesPasses
    from attnctl.source.model import ShowsOutputs as ShowsOutputs
    from attnctl.source.model import Unembeds as Unembeds
    from attnctl.source.prepared import ChangedReading as ChangedReading
    from attnctl.source.prepared import Prepared as Prepared
    from attnctl.source.prepared import check_room as check_room
    from attnctl.source.prepared import record_trace as record_trace
    from attnctl.source.probe import ProbeReading as ProbeReading
    from attnctl.source.probe import probe_text as probe_text
    from attnctl.source.reading import KeptReading as KeptReading
    from attnctl.source.reading import Reading as Reading
    from attnctl.source.reading import Say as Say
    from attnctl.source.reading import Visit as Visit
    from attnctl.source.sources import LONG as LONG
    from attnctl.source.sources import OverviewSource as OverviewSource
    from attnctl.source.sources import Source as Source
    from attnctl.source.sources import TextSource as TextSource
    from attnctl.source.sources import TraceSource as TraceSource
    from attnctl.source.sources import check_attention_weights as check_attention_weights
    from attnctl.source.sources import is_long as is_long
    from attnctl.source.sources import listed_tokens as listed_tokens
    from attnctl.source.sources import notes_of_listed as notes_of_listed
    from attnctl.source.zoom import Zoom as Zoom
    from attnctl.source.zoom import cells_to_read as cells_to_read
    from attnctl.source.zoom import labelled_cells as labelled_cells
    from attnctl.source.zoom import read_heatmap as read_heatmap
    from attnctl.source.zoom import zoom_on_sound as zoom_on_sound
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.source.changes": "Changes NO_CHANGES prepare",
            "attnctl.source.links": (
                "TOP_LINKS check_links named_query parts_of_keys query_row query_rows read_strongest_links"
            ),
            "attnctl.source.model": (
                "AlignsTexts AnsweredPrompt AnswersByIds AnswersPrompts CallsModule CallsNetwork CanBeUntrained "
                "CanIntervene Generates HearsSpeech Model GivesWeights Predicts SharesPasses ShowsOutputs Unembeds"
            ),
            "attnctl.source.prepared": "ChangedReading Prepared check_room record_trace",
            "attnctl.source.probe": "ProbeReading probe_text",
            "attnctl.source.reading": "KeptReading Reading Say Visit",
            "attnctl.source.sources": (
                "LONG OverviewSource Source TextSource TraceSource check_attention_weights is_long listed_tokens "
                "notes_of_listed"
            ),
            "attnctl.source.zoom": "Zoom cells_to_read labelled_cells read_heatmap zoom_on_sound",
        },
    )
