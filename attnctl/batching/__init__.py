"""Run many texts: read them as a stream, one by one or in parallel, and write results that a later run can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.batching.engines import LOCAL as LOCAL
    from attnctl.batching.engines import Engine as Engine
    from attnctl.batching.engines import chunks_of_items as chunks_of_items
    from attnctl.batching.folder import Folder as Folder
    from attnctl.batching.formats import BatchFormat as BatchFormat
    from attnctl.batching.formats import MeanFormat as MeanFormat
    from attnctl.batching.formats import NamedFiles as NamedFiles
    from attnctl.batching.formats import Tally as Tally
    from attnctl.batching.formats import merge_means as merge_means
    from attnctl.batching.formats import tally_csv as tally_csv
    from attnctl.batching.formats import tally_of_values as tally_of_values
    from attnctl.batching.items import Item as Item
    from attnctl.batching.items import Pending as Pending
    from attnctl.batching.items import Result as Result
    from attnctl.batching.items import failed_line as failed_line
    from attnctl.batching.texts import TextStream as TextStream
    from attnctl.batching.treebanks import TreebankStream as TreebankStream
    from attnctl.batching.treebanks import sentence_of as sentence_of
    from attnctl.batching.treebanks import sentences_of_document as sentences_of_document
    from attnctl.batching.work import Request as Request
    from attnctl.batching.work import Task as Task
    from attnctl.batching.work import Work as Work
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.batching.engines": "Engine LOCAL chunks_of_items",
            "attnctl.batching.folder": "Folder",
            "attnctl.batching.formats": "BatchFormat MeanFormat NamedFiles Tally merge_means tally_csv tally_of_values",
            "attnctl.batching.items": "Item Pending Result failed_line",
            "attnctl.batching.texts": "TextStream",
            "attnctl.batching.treebanks": "TreebankStream sentence_of sentences_of_document",
            "attnctl.batching.work": "Request Task Work",
        },
    )
