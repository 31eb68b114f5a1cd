"""A source of attention, the changes to it, and the readings of it: what commands and plug-ins import.

A source gives its layers to a reading, one after another. `prepare` selects layers and heads, and the changes to each
layer. Commands, batches and Python's functions all use it.
"""

from __future__ import annotations

from attnctl.source.changes import NO_CHANGES, Changes, prepare
from attnctl.source.model import Model
from attnctl.source.prepared import ChangedReading, Prepared, check_room, record_trace
from attnctl.source.reading import KeptReading, Reading, Say, Visit
from attnctl.source.sources import (
    LONG,
    OverviewSource,
    Source,
    TextSource,
    TraceSource,
    check_attention_weights,
    is_long,
)

__all__ = [
    "LONG",
    "NO_CHANGES",
    "ChangedReading",
    "Changes",
    "KeptReading",
    "Model",
    "OverviewSource",
    "Prepared",
    "Reading",
    "Say",
    "Source",
    "TextSource",
    "TraceSource",
    "Visit",
    "check_attention_weights",
    "check_room",
    "is_long",
    "prepare",
    "record_trace",
]
