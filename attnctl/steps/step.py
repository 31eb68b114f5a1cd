"""One step of a trace, as every renderer is handed it: its words, and its arrays for one layer and head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Part:
    """One array of a step. `rows` and `columns` say what its axes count: queries, keys, tokens, or dimensions."""

    name: str
    symbol: str
    array: npt.NDArray[np.float32] | npt.NDArray[np.bool_]
    rows: str
    columns: str = "dimensions"


@dataclass(frozen=True)
class Step:
    """One step: what it is called, how it is computed, what it means, and its arrays for one layer and head.

    `layer` and `head` are None where the step belongs to the whole text, or to all heads.
    """

    name: str
    title: str
    formula: str
    sentence: str
    parts: tuple[Part, ...] = ()
    story: str = ""
    layer: int | None = None
    head: int | None = None
