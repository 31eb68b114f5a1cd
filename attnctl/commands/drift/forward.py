"""Run a text through one of two compared models: the attention of its layers, their outputs, and the logits at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from attnctl.attention import Array
from attnctl.errors import UsageError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.source import Predicts, ShowsOutputs, Unembeds
from attnctl.text import counted
from attnctl.trace import ModelInfo

if TYPE_CHECKING:
    from attnctl.models import Model
    from attnctl.source import TextSource

LOGIT_BYTES = 1 << 30  # of the logits of each model, in float32: the last positions of a longer text are compared
KERNELS = ("sdpa", "eager")


class ComparedModel(NamedTuple):
    """A model of the two, its name, and its kernel if that is not the usual one."""

    model: Model
    name: str
    kernel: str | None = None

    @property
    def architecture(self) -> str:
        """Return the class of the model's layers, for messages: "LlamaModel"."""
        return self.model.architecture() if isinstance(self.model, ShowsOutputs) else "a model of layers alone"

    @property
    def sizes(self) -> str:
        """Return the sizes of the model, for messages: "4 layers of 2 heads"."""
        info = self.model.info
        return f"{counted(info.n_layers or 0, 'layer')} of {counted(info.n_heads or 0, 'head')}"

    def attending(self) -> AbstractContextManager[None]:
        """Let the model attend by its kernel within a context. Raises UsageError for a kernel that it does not have."""
        if self.kernel is None:
            return nullcontext()
        if self.kernel not in KERNELS:
            raise UsageError(f"a kernel is {' or '.join(KERNELS)}", value=self.kernel)
        if not isinstance(self.model, ShowsOutputs):
            raise UsageError(f"{self.name} attends in one way: kernels are for checkpoints", value=self.kernel)
        return self.model.attending_by(self.kernel)

    @property
    def kernel_name(self) -> str:
        """Return the function that attends; "" for a built-in model, which has one way."""
        if not isinstance(self.model, ShowsOutputs):
            return ""
        with self.attending():
            return self.model.kernel()


@dataclass
class Forward:
    """What one forward gave: the outputs of layers (n, d_out), by the index of the layer, and the logits at its end."""

    info: ModelInfo
    outputs: dict[int, Array] = field(default_factory=dict)
    logits: Array | None = None  # of the last positions: (positions, vocabulary)
    predicted: Sequence[int] = ()  # the positions in the text at which tokens are predicted
    classifies: bool = False  # whether the logits, (1, labels), are of the label of the text
    notes: tuple[str, ...] = ()


def run_side(
    side: ComparedModel, source: TextSource, first: int, take: Callable[[int, LayerAttention], None]
) -> Forward:
    """Run a text through a model; `take` receives the index of each layer from `first` on, and its attention.

    `take` raises StopForward at a layer that it does not need: the forward ends before this layer attends.
    """
    model = source.model
    done, index = Forward(model.info), -1

    def visit(layer: LayerAttention) -> None:
        nonlocal index
        index += 1
        if index < first:
            return
        take(index, layer)
        if isinstance(layer, ComputedLayer) and layer.forward.after is not None:
            done.outputs[index], _ = layer.forward.output_and_residual
            layer.forget_steps()
            if isinstance(model, Unembeds) and index == (model.info.n_layers or 1) - 1:
                done.logits = model.last_logits(layer.forward.rows_after, LOGIT_BYTES)

    def see_output(output: Array) -> None:
        if index >= first:
            done.outputs.setdefault(index, output)  # (n, d_out)

    def see_logits(logits: Array) -> None:
        done.logits = logits

    with ExitStack() as stack:
        if isinstance(model, ShowsOutputs):
            stack.enter_context(side.attending())
            stack.enter_context(model.outputs_shown(see_output, see_logits, LOGIT_BYTES))
            done.classifies = model.classifies()
        run = model.run(source.tokens, visit, source.input_text)
    done.info, done.notes = run.subject.model, run.subject.notes
    if done.classifies:
        done.predicted = range(len(source.tokens))[-1:]
    elif isinstance(model, Predicts):
        causal = bool(done.info.causal)
        done.predicted = model.predicted_positions(source.tokens, source.input_text, causal=causal)
    return done
