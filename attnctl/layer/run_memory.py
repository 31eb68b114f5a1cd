"""The layers of the last texts that went through a model, so that a second question about a text needs no second run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from attnctl.arrays import LONG
from attnctl.layer import LayerAttention, Run, StopForward

if TYPE_CHECKING:
    from attnctl.tokens import Token

Visit = Callable[[LayerAttention], None]

MOST_TEXTS = 3
MOST_BYTES = 3 << 30  # of queries, keys and values: 24,000 tokens through SmolLM2


class Runnable(Protocol):
    """A model, as far as it is remembered."""

    def run(self, tokens: Sequence[Token], visit: Visit, text: str = "") -> Run:
        """The tokens through every layer, each shown to `visit`."""


@dataclass
class KeptRun:
    """One text's way through one model: its layers in order, and what the model told beside them."""

    model: Runnable
    tokens: tuple[Token, ...]
    text: str
    layers: list[LayerAttention]
    run: Run


class RunMemory:
    """Runs of models, the last few of them kept: `run` takes the place of `model.run`.

    A text's first run goes through all layers, also where a reading has seen enough, since the next question may be about
    the others. Runs of more than `most_bytes` are not kept, and end where the reading does.
    """

    def __init__(self, most_bytes: float = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._kept: list[KeptRun] = []

    def run(self, model: Runnable, tokens: Sequence[Token], visit: Visit, text: str = "") -> Run:
        """What `model.run` would answer, `visit` having seen the same layers."""
        same = (one for one in self._kept if one.model is model and one.tokens == tuple(tokens) and one.text == text)
        kept = next(same, None)
        if kept is None:
            return self._first(model, tuple(tokens), visit, text)
        self._kept.remove(kept)
        self._kept.append(kept)  # the last to be forgotten
        stopped = False
        try:
            for layer in kept.layers:
                visit(layer)
                # let go of the n × n arrays of a long text, which a layer keeps once they were asked for
                if layer.n_q > LONG and (forward := getattr(layer, "forward", None)) is not None:
                    forward.forget_steps()
        except StopForward:
            stopped = True
        return _told(kept.run, stopped)

    def _first(self, model: Runnable, tokens: tuple[Token, ...], visit: Visit, text: str) -> Run:
        layers: list[LayerAttention] = []
        stopped, size = False, 0.0

        def seen(layer: LayerAttention) -> None:
            nonlocal stopped, size
            if not stopped:
                try:
                    visit(layer)
                except StopForward:
                    stopped = True
            size += layer_bytes(layer)
            if size <= self.most_bytes:
                layers.append(layer)
            elif stopped:
                raise StopForward

        run = model.run(tokens, seen, text)
        if size <= self.most_bytes:
            self._kept = [*self._kept, KeptRun(model, tokens, text, layers, replace(run))][-MOST_TEXTS:]
        return _told(run, stopped)


def layer_bytes(layer: LayerAttention) -> float:
    """The memory that a layer's own arrays hold, about: weights where they are stored, else queries, keys and values."""
    call = getattr(getattr(layer, "forward", None), "call", None)
    if call is None:
        return 4.0 * len(layer.heads) * layer.n_q * layer.n_k
    arrays = (call.queries, call.keys, call.values, call.bias, call.mask)
    return float(sum(array.nbytes for array in arrays if array is not None))


def _told(run: Run, stopped: bool) -> Run:
    """A run of its own for the reading, which completes it; without predictions where the model would have been left."""
    return replace(run, predictions=() if stopped else run.predictions)
