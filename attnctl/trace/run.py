"""Results of a model for one text beside the attention of its layers: predictions, embeddings, gates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from attnctl.attention import Array

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from attnctl.checks.document_fields import Count, Index, Portion, about
    from attnctl.trace.subject import Subject


@dataclass(frozen=True, slots=True)
class Prediction:
    """A word that the model expects at a position, or a class of the whole, with its probability (0 to 1)."""

    position: Index
    text: str
    id: Index
    probability: Portion
    is_class: Annotated[bool, about("Whether it is a class of the whole text or picture.")] = False
    among: Annotated[Count | None, about("How many words, tokens or classes share the probability of 1.")] = None


class StopForward(BaseException):
    """Raised by a visitor that needs no more layers: the model leaves the others out.

    It is not an Exception, so that a network's own code cannot take it for an error and go on.
    """


@dataclass
class Run:
    """The results of a model for one text beside the attention of its layers; arrays are NumPy, one row for each token."""

    subject: Subject
    embeddings: Array | None = None  # (n, d_model)
    predictions: tuple[Prediction, ...] = ()
    gates: dict[int, Array] = field(
        default_factory=dict
    )  # layer → how far gates after the context are open (heads, n_q)
    positions: Callable[[], Any] | None = None  # returns what the position explains of a checkpoint's weights
