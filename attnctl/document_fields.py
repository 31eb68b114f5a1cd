"""Define the types of the fields in JSON documents: their meaning, their limits and their JSON Schema."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from attnctl import limits
from attnctl.attention import Array


def about(sentence: str, **schema: object) -> Meta:
    """Return the description of a field, and further schema entries that are not checked when a document is read."""
    return Meta(description=sentence or None, extra_json_schema=schema or None)


ALWAYS = Meta(extra_json_schema={"always": True})  # always written, but not required when it is read

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


# arrays are written as they are, and read as lists, which `finite_floats` turns into arrays
Vector = Annotated[Array, about("", **_lists_of("number"))]
Matrix = Annotated[Array, about("", **_lists_of("array", items={"type": "number"}))]
Mask = Annotated[Array, about("", **_lists_of("array", items={"type": "boolean"}))]
Counts = Annotated[npt.NDArray[np.int64], about("", **_lists_of("array", items={"type": "integer", "minimum": 0}))]


class Part(Struct, omit_defaults=True):
    """An object in a document. A field whose value is its default None, () or UNSET is left out."""
