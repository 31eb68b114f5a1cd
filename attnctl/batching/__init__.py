"""Run many texts: read them as a stream, one by one or in parallel, and write results that a later run can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.batching.engines import LOCAL as LOCAL
    from attnctl.batching.engines import SHARED as SHARED
    from attnctl.batching.engines import Engine as Engine
    from attnctl.batching.engines import chunks_of_items as chunks_of_items
    from attnctl.batching.engines import results_of_items as results_of_items
    from attnctl.batching.folder import Folder as Folder
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
    from attnctl.batching.passes import most_together as most_together
    from attnctl.batching.texts import TextStream as TextStream
    from attnctl.batching.treebanks import TreebankStream as TreebankStream
    from attnctl.batching.treebanks import sentence_of as sentence_of
    from attnctl.batching.treebanks import sentences_of_document as sentences_of_document
    from attnctl.batching.work import Request as Request
    from attnctl.batching.work import Task as Task
    from attnctl.batching.work import Work as Work
    from attnctl.batching.work import open_work_model as open_work_model
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.batching.engines": "Engine LOCAL SHARED chunks_of_items results_of_items",
            "attnctl.batching.folder": "Folder",
            "attnctl.batching.formats": (
                "BatchFormat FILES MeanFormat NamedFiles TABLES Tally format_named merge_means tally_csv "
                "tally_of_values"
            ),
            "attnctl.batching.items": "Item Pending Result failed_line",
            "attnctl.batching.passes": "most_together",
            "attnctl.batching.texts": "TextStream",
            "attnctl.batching.treebanks": "TreebankStream sentence_of sentences_of_document",
            "attnctl.batching.work": "Request Task Work open_work_model",
        },
    )
