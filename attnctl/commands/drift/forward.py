"""Run a text through one of two compared models: the attention of its layers, their outputs, and the logits at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnctl.attention import Array
from attnctl.errors import UsageError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.models.builtin.stack import Stack, unembed_rows
from attnctl.models.huggingface.optional_fields import config_value, output_value
from attnctl.runtime.arrays import as_numpy
from attnctl.text import counted
from attnctl.text.tokens import BLANKS
from attnctl.trace.model_info import ModelInfo

if TYPE_CHECKING:
    from attnctl.models import Model
    from attnctl.models.huggingface.checkpoint import Checkpoint
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
        is_network = self.model.info.kind == "checkpoint"
        return type(checkpoint_of(self.model).network.base_model).__name__ if is_network else "a model of layers alone"

    @property
    def sizes(self) -> str:
        """Return the sizes of the model, for messages: "4 layers of 2 heads"."""
        info = self.model.info
        return f"{counted(info.n_layers or 0, 'layer')} of {counted(info.n_heads or 0, 'head')}"

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Let the model attend by its kernel within this context. Raises UsageError for a kernel that it does not have."""
        if self.kernel is None:
            yield
            return
        if self.kernel not in KERNELS:
            raise UsageError(f"a kernel is {' or '.join(KERNELS)}", value=self.kernel)
        if self.model.info.kind != "checkpoint":
            raise UsageError(f"{self.name} attends in one way: kernels are for checkpoints", value=self.kernel)
        from attnctl.models.huggingface.attention_interface import attention_set_to

        network = checkpoint_of(self.model).network
        if self.kernel == "sdpa" and not network._supports_sdpa:
            raise UsageError(f"{type(network).__name__} attends by eager alone", value=self.kernel)
        with attention_set_to(network, self.kernel):
            yield

    @property
    def kernel_name(self) -> str:
        """Return the attention function of transformers that runs; "" for a built-in model."""
        if self.model.info.kind != "checkpoint":
            return ""
        with self.attending():
            return str(checkpoint_of(self.model).network.config._attn_implementation)


def checkpoint_of(model: Any) -> Checkpoint:
    """Return the model, which is a checkpoint by its ModelInfo."""
    checkpoint: Checkpoint = model
    return checkpoint


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
    model: Any = source.model
    done, index = Forward(model.info), -1

    def visit(layer: LayerAttention) -> None:
        nonlocal index
        index += 1
        if index < first:
            return
        take(index, layer)
        if isinstance(layer, ComputedLayer) and layer.forward.after is not None:
            output, residual = layer.forward.output_and_residual
            done.outputs[index] = output
            layer.forget_steps()
            if isinstance(model, Stack) and index == len(model.layers) - 1 and model.unembedding is not None:
                final = as_numpy(output if residual is None else residual)[
                    -most_positions(model.unembedding.shape[1]) :
                ]
                done.logits = unembed_rows(final, {"unembedding": np.asarray(model.unembedding, np.float32)})

    def see_output(output: Any) -> None:
        rows = output[0] if isinstance(output, tuple | list) else output
        if index >= first and index not in done.outputs:
            done.outputs[index] = rows.detach().reshape(-1, rows.shape[-1])  # (n, d_out)

    def see_logits(logits: Array) -> None:
        done.logits = logits

    with ExitStack() as stack:
        if model.info.kind == "checkpoint":
            stack.enter_context(side.attending())
            stack.enter_context(_network_watched(model, see_output, see_logits))
        run = source.model.run(source.tokens, visit, source.input_text)
    done.info, done.notes = run.subject.model, run.subject.notes
    done.classifies = model.info.kind == "checkpoint" and _classifies(model)
    last = range(len(source.tokens))[-1:]
    done.predicted = last if done.classifies else _predicted_positions(model, source, done.info)
    return done


def most_positions(vocabulary: int) -> int:
    """Return how many positions of a text are compared by their predictions, at most."""
    return max(1, LOGIT_BYTES // (4 * vocabulary))


def _classifies(model: Checkpoint) -> bool:
    """Return whether a model predicts one of several labels for a whole text."""
    from attnctl.models.huggingface.checkpoint import classes_of_network

    return bool(classes_of_network(model.network))


def _predicted_positions(model: Any, source: TextSource, info: ModelInfo) -> Sequence[int]:
    """Return the positions at which a model predicts tokens: all, if it continues a text, else its blanks."""
    every = range(len(source.tokens))
    if model.info.kind != "checkpoint":
        return every if info.causal else [place for place in every if source.tokens[place].text in BLANKS]
    if model.kind in ("decoder", "cross") or info.causal:
        return every
    read = model.read(source.input_text, source.tokens)
    return every if read.together and model.network.can_generate() else read.blanks


@contextmanager
def _network_watched(
    model: Checkpoint, see_output: Callable[[Any], None], see_logits: Callable[[Array], None]
) -> Iterator[None]:
    """Pass the output of each output projection to `see_output`, and the logits of tokens to `see_logits`."""
    from attnctl.models.huggingface.network import lacks_head
    from attnctl.models.huggingface.output_projections import output_projections

    classifies = _classifies(model)
    vocabulary = config_value(model.network.config.get_text_config(), "vocab_size") or 0

    def ask_for_logits(_: object, args: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any] | None:
        if "logits_to_keep" not in keywords:
            return None
        return args, keywords | {"logits_to_keep": most_positions(vocabulary)}

    def end_forward(_: object, __: object, output: Any) -> None:
        logits = output_value(output, "logits")
        if classifies and logits is not None and logits.ndim == 2:
            see_logits(logits[:1])  # (1, labels)
        elif logits is not None and logits.ndim == 3 and logits.shape[-1] >= vocabulary > 0:
            see_logits(logits[0, -most_positions(vocabulary) :])  # (positions, vocabulary)

    with ExitStack() as stack:
        for site, projection in output_projections(model.network).values():
            if site.kind == model.kind:
                hook = projection.register_forward_hook(lambda _, __, output: see_output(output))
                stack.callback(hook.remove)
        if model.kind != "encoder" and not lacks_head(model.network):
            stack.callback(model.network.register_forward_pre_hook(ask_for_logits, with_kwargs=True).remove)
            stack.callback(model.network.register_forward_hook(end_forward).remove)
        yield
