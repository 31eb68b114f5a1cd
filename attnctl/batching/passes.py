"""Choose which texts of a batch share a pass through the model, and run them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from attnctl.checks import limits
from attnctl.source import ChangedReading, Model, TextSource
from attnctl.source.model import SharedPass, SharesPasses
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from attnctl.trace.run import Run

Value = TypeVar("Value")


def is_heavy(model: Model) -> bool:
    """Return whether one process with the model is enough: it uses every core, and may fill the memory."""
    return isinstance(model, SharesPasses) and model.is_heavy


def runs_at_once(model: Model) -> bool:
    """Return whether two threads may run passes through the model at once."""
    return isinstance(model, SharesPasses) and model.runs_at_once()


def most_together(model: Model, batch_size: int) -> int:
    """Return how many texts are worth collecting for one pass: `batch_size`, one for a model that is not heavy."""
    return batch_size if is_heavy(model) else 1


def shared_pass_of(model: Model) -> SharedPass | None:
    """Return how texts share a pass through a model; None if each is read alone."""
    return model.shared_pass() if isinstance(model, SharesPasses) else None


class SharedPasses:
    """How many texts share each pass through a model: at most `most`, within limits.PASS_TOKENS and PASS_PADDING."""

    def __init__(self, model: Model, most: int) -> None:
        self._shared = shared_pass_of(model) if most > 1 else None
        self.most = 1 if self._shared is None else most

    def next_size(self, texts: Sequence[Sequence[Token]]) -> int:
        """Return how many of the texts, the shortest first, go through the model next."""
        if self._shared is None:
            return 1
        sizes = [len(tokens) for tokens in texts[: self.most]]
        whole = [
            count * size for count, size in enumerate(sizes, 1)
        ]  # tokens of a pass with this number of texts, padding included
        padding = [padded - total for padded, total in zip(whole, accumulate(sizes), strict=True)]
        fitting = sum(map(_fits_pass, whole, padding)) or 1
        for count in (fitting, min(fitting, sizes.count(sizes[0]))):  # texts of one length where others may not share
            if self._shared.may_share(texts[:count], texts[count:]):
                return count
        return 1


def _fits_pass(tokens: int, padding: int) -> bool:
    return tokens <= limits.PASS_TOKENS and padding <= limits.PASS_PADDING


def run_pass(readings: Sequence[ChangedReading[Value]], fields: Collection[str] | None = None) -> list[Run]:
    """Run the texts of readings, whose layers the readings take: one alone, several in one pass through their model.

    `fields` are the arrays of a layer, beside its weights, that are kept (None: all).
    """
    sources = [reading.prepared.source for reading in readings]
    if len(readings) == 1:
        return [sources[0].run(readings[0].take)]
    assert isinstance(sources[0], TextSource)
    shared = shared_pass_of(sources[0].model)
    assert shared is not None
    return shared.run([source.tokens for source in sources], [reading.take for reading in readings], fields)
