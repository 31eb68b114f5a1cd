"""The layers of the last texts that went through a model, so that a second question about a text needs no second run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnctl.layer import LayerAttention
from attnctl.trace.run import Run, StopForward

if TYPE_CHECKING:
    from attnctl.tokens import Token

Visit = Callable[[LayerAttention], None]

MOST_TEXTS = 3
MOST_BYTES = 3 << 30  # of queries, keys and values: 24,000 tokens through SmolLM2


@dataclass
class KeptRun:
    """One text's way through one model: its layers in order, and what the model told beside them."""

    model: Any
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

    def run(self, model: Any, tokens: Sequence[Token], visit: Visit, text: str = "") -> Run:
        """What `model.run` would answer, `visit` having seen the same layers; no predictions where it stopped."""
        tokens, stopped, size = tuple(tokens), False, 0.0
        same = (one for one in self._kept if one.model is model and one.tokens == tokens and one.text == text)
        kept = next(same, None)
        layers: list[LayerAttention] = []

        def show(layer: LayerAttention) -> None:
            nonlocal stopped
            if not stopped:
                try:
                    visit(layer)
                except StopForward:
                    stopped = True

        def take(layer: LayerAttention) -> None:
            nonlocal size
            if layers:
                layers[-1].forget_steps()  # the model is past it
            show(layer)
            size += layer.memory_bytes
            if size <= self.most_bytes:
                layers.append(layer)
            elif stopped:
                raise StopForward

        if kept is None:
            run: Run = model.run(tokens, take, text)
            if layers:
                layers[-1].forget_steps()
            if size <= self.most_bytes:
                self._kept = [*self._kept, KeptRun(model, tokens, text, layers, replace(run))][-MOST_TEXTS:]
        else:
            run = kept.run
            self._kept.remove(kept)
            self._kept.append(kept)  # the last to be forgotten
            for layer in kept.layers:
                show(layer)
                layer.forget_steps()
        return replace(run, predictions=() if stopped else run.predictions)  # its own, which a reading completes
