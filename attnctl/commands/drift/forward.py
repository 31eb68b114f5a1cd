"""Run a text through one of two compared models: the attention of its layers, their outputs, and the logits at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.attention import Array
from attnctl.errors import UsageError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.models.huggingface.optional_fields import config_value, output_value
from attnctl.source.model import CallsNetwork, Predicts, Unembeds
from attnctl.text import counted
from attnctl.trace.model_info import ModelInfo

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    def network(self) -> PreTrainedModel | None:
        """Return the network of transformers that the model calls; None if it calls none."""
        return self.model.network if isinstance(self.model, CallsNetwork) else None

    @property
    def architecture(self) -> str:
        """Return the class of the model's layers, for messages: "LlamaModel"."""
        return "a model of layers alone" if self.network is None else type(self.network.base_model).__name__

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
        if self.network is None:
            raise UsageError(f"{self.name} attends in one way: kernels are for checkpoints", value=self.kernel)
        from attnctl.models.huggingface.attention_interface import attention_set_to

        if self.kernel == "sdpa" and not self.network._supports_sdpa:
            raise UsageError(f"{type(self.network).__name__} attends by eager alone", value=self.kernel)
        with attention_set_to(self.network, self.kernel):
            yield

    @property
    def kernel_name(self) -> str:
        """Return the attention function of transformers that runs; "" for a built-in model."""
        if self.network is None:
            return ""
        with self.attending():
            return str(self.network.config._attn_implementation)


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
            output, residual = layer.forward.output_and_residual
            done.outputs[index] = output
            layer.forget_steps()
            if isinstance(model, Unembeds) and index == (model.info.n_layers or 1) - 1:
                done.logits = model.last_logits(output if residual is None else residual, LOGIT_BYTES)

    def see_output(output: Any) -> None:
        rows = output[0] if isinstance(output, tuple | list) else output
        if index >= first and index not in done.outputs:
            done.outputs[index] = rows.detach().reshape(-1, rows.shape[-1])  # (n, d_out)

    def see_logits(logits: Array) -> None:
        done.logits = logits

    with ExitStack() as stack:
        if isinstance(model, CallsNetwork):
            stack.enter_context(side.attending())
            stack.enter_context(_network_watched(model, see_output, see_logits))
            done.classifies = _classifies(model)
        run = model.run(source.tokens, visit, source.input_text)
    done.info, done.notes = run.subject.model, run.subject.notes
    if done.classifies:
        done.predicted = range(len(source.tokens))[-1:]
    elif isinstance(model, Predicts):
        causal = bool(done.info.causal)
        done.predicted = model.predicted_positions(source.tokens, source.input_text, causal=causal)
    return done


def most_positions(vocabulary: int) -> int:
    """Return how many positions of a text are compared by their predictions, at most."""
    return max(1, LOGIT_BYTES // (4 * vocabulary))


def _classifies(model: CallsNetwork) -> bool:
    """Return whether a model predicts one of several labels for a whole text."""
    from attnctl.models.huggingface.checkpoint import classes_of_network

    return bool(classes_of_network(model.network))


@contextmanager
def _network_watched(
    model: CallsNetwork, see_output: Callable[[Any], None], see_logits: Callable[[Array], None]
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
