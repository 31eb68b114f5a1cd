"""The protocol of a reading: what receives the layers of a text, and returns one value at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

from attnctl.layer import LayerAttention

if TYPE_CHECKING:
    from attnctl.readings.overview import LongRow, Overview
    from attnctl.trace.run import Run


Value = TypeVar("Value", covariant=True)
Result = TypeVar("Result")

Visit = Callable[[LayerAttention], None]  # receives a layer while the model runs, until it raises StopForward
Say = Callable[[Sequence[str]], None]  # receives notes for the user before long work


class Reading(Protocol[Value]):
    """A result computed from a text's attention: `take` receives each chosen layer in order, `value` returns the result.

    `predicts` asks the model to run on after the last chosen layer, for its predictions.
    """

    predicts: bool

    def take(self, layer: LayerAttention) -> None:
        """Keep what the reading needs of one layer."""

    def value(self, run: Run) -> Value:
        """Return the result after the last layer; `run` is what the model gave beside the layers."""


@runtime_checkable
class KeptReading(Protocol[Value]):
    """A reading whose result may be stored in the file of an overview."""

    def kept_in(self, overview: Overview | LongRow, name: str, /) -> Value:
        """Return the result from an overview. Raises AttnctlError, with the source's `name`, if the overview lacks it."""


@runtime_checkable
class LaggingReading(Protocol):
    """A reading that may take a layer in another thread while the model goes on."""

    def may_lag(self, layer: LayerAttention, /) -> bool:
        """Return whether to `take` the layer asks nothing of the model, and builds no steps with which it would go on."""


def lagging(reading: Reading[Any]) -> LaggingReading | None:
    """Return the reading if it may lag behind the model, else None."""
    return cast("LaggingReading", reading) if _may_lag(type(reading)) else None


@cache  # a question to a protocol takes as long as a tenth of a short text
def _may_lag(kind: type) -> bool:
    return issubclass(kind, LaggingReading)
