"""Define the types of the fields in JSON documents: their meaning, their limits and their JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Meta, Struct

from attnctl.attention import Array
from attnctl.checks import limits


def about(sentence: str, **schema: object) -> Meta:
    """Return the description of a field, and further schema entries that are not checked when a document is read."""
    return Meta(description=sentence or None, extra_json_schema=schema or None)


ALWAYS = Meta(extra_json_schema={"always": True})  # always written, but not required when it is read

NOT_EMPTY = Meta(min_length=1)  # of a list
Index = Annotated[int, Meta(ge=0, le=limits.CONFIGURED_SIZE)]
Count = Annotated[int, Meta(ge=1, le=limits.CONFIGURED_SIZE)]
Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, about("", minimum=0, maximum=1.00001)]  # sums of float32
Portion = Annotated[float, about("", minimum=0, maximum=1)]
Amount = Annotated[float, about("", minimum=0)]
Box = Annotated[
    tuple[int, int, int, int],
    about("Left, top, right, bottom in pixels of a picture; right and bottom are the first pixels outside."),
]
Correlation = Annotated[float, about("", minimum=-1, maximum=1)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


def _lists_of(kind: str, **more: object) -> dict[str, object]:
    return {"type": "array", "items": {"type": kind, **more}}


_NUMBERS = about("", **_lists_of("number"))
_ROWS = about("", **_lists_of("array", items={"type": "number"}))
_SWITCHES = about("", **_lists_of("array", items={"type": "boolean"}))
_COUNTS = about("", **_lists_of("array", items={"type": "integer", "minimum": 0}))
_PLACES = about("", **_lists_of("integer", minimum=0))
_NUMBERS_OR_NULL = about("", type="array", items={"anyOf": [{"type": "number"}, {"type": "null"}]})

# arrays are written as they are; a document's lists are read as such an array, of finite numbers
Vector = Annotated[np.ndarray[tuple[int], np.dtype[np.float32]], _NUMBERS]
Matrix = Annotated[np.ndarray[tuple[int, int], np.dtype[np.float32]], _ROWS]
Mask = Annotated[np.ndarray[tuple[int, int], np.dtype[np.bool_]], _SWITCHES]
Counts = Annotated[np.ndarray[tuple[int, int], np.dtype[np.int64]], _COUNTS]
Places = Annotated[np.ndarray[tuple[int], np.dtype[np.int64]], _PLACES]
Doubles = Annotated[np.ndarray[tuple[int], np.dtype[np.float64]], _NUMBERS]
if TYPE_CHECKING:
    MaskedScores = np.ndarray[tuple[int], np.dtype[np.float64]]
else:  # null stands for -inf
    MaskedScores = Annotated[np.ndarray[tuple[int], np.dtype[np.floating]], _NUMBERS_OR_NULL]
# the same as lists, which the readers of a trace and of an overview turn into arrays
VectorLists = Annotated[Array, _NUMBERS]
MatrixLists = Annotated[Array, _ROWS]
MaskLists = Annotated[Array, _SWITCHES]


class Part(Struct, omit_defaults=True):
    """An object in a document. A field whose value is its default None, () or UNSET is left out."""


class HeadPlace(Part):
    """A layer and a head, by their numbers."""

    layer: Index
    head: Index
