"""Run many texts: read them as a stream, one by one or in parallel, and write results that a later run can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.batching.formats import FILES as FILES
    from attnctl.batching.formats import TABLES as TABLES
    from attnctl.batching.formats import BatchFormat as BatchFormat
    from attnctl.batching.formats import MeanFormat as MeanFormat
    from attnctl.batching.formats import NamedFiles as NamedFiles
    from attnctl.batching.formats import Tally as Tally
    from attnctl.batching.formats import format_named as format_named
    from attnctl.batching.formats import merge_means as merge_means
    from attnctl.batching.formats import tally_csv as tally_csv
    from attnctl.batching.formats import tally_of_values as tally_of_values
    from attnctl.batching.items import Item as Item
    from attnctl.batching.items import Pending as Pending
    from attnctl.batching.items import Result as Result
    from attnctl.batching.items import failed_line as failed_line
    from attnctl.batching.texts import TextStream as TextStream
    from attnctl.batching.traces import batch as batch
    from attnctl.batching.work import Task as Task
    from attnctl.batching.work import Work as Work
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.batching.formats": (
                "BatchFormat FILES MeanFormat NamedFiles TABLES Tally format_named merge_means tally_csv "
                "tally_of_values"
            ),
            "attnctl.batching.items": "Item Pending Result failed_line",
            "attnctl.batching.texts": "TextStream",
            "attnctl.batching.traces": "batch",
            "attnctl.batching.work": "Task Work",
        },
    )
