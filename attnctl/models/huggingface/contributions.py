"""A logit as a sum over the parts of a model: embedding, heads, MLPs and biases, in the residual stream at one position.

Whether blocks add to a residual stream is tested: the output of a block minus its input must be the sum of what its parts
put out. An architecture for which this does not hold (post-norm blocks, residuals mixed across layers) is refused by
name. Norms keep the scale that they had on this text, so that the sum is linear. For several positions the parts are
summed over the positions.

To first order, the log-probability of a word is its logit minus the expected logit, and each logit is a sum over all heads
and the tokens that they read. Source: direct logit attribution (Elhage et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.layer.interventions import Intervention
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.models.huggingface.attention_interface import architecture_name, watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.block_recorder import BlockCall, BlockRecorder, PartCall
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.models.huggingface.network import running_network
from attnctl.models.huggingface.optional_fields import config_value, tensor_of
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.watched.effects import ContributionPart, Contributions, summed_contributions

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel


FLOAT32 = 2.0**-23  # relative rounding of a float32
NEAR = 2e-5  # largest difference from what the model computed, relative to the largest number


class RefusedError(AttnctlError):
    """The reason why the logits of an architecture are not such a sum."""


@contextmanager
def _refusing_by_name(network: PreTrainedModel) -> Iterator[None]:
    """Turn a RefusedError into an AttnctlError that names the architecture."""
    try:
        yield
    except RefusedError as why:
        raise AttnctlError(
            f"{architecture_name(network)} cannot be taken apart into direct contributions: {why}"
        ) from why


class TargetLogit(NamedTuple):
    """The logit of id `target` (minus the logit of `against`) at token `query`, which is `tail` positions from the end."""

    tail: int
    query: int
    target: int
    against: int | None


def logit_as_sum(
    network: PreTrainedModel, inputs: dict[str, object], logit: TargetLogit, base: Intervention
) -> tuple[Contributions, tuple[str, ...]]:
    """Return a logit as a sum over the model's parts, and notes.

    Raises AttnctlError, naming the architecture, if its logits are not such a sum.
    """
    with _refusing_by_name(network):
        forward = record_rows(network, inputs, base, logit.tail, range(logit.query, logit.query + 1))
        mix = torch.zeros_like(forward.logits)  # (1, vocabulary)
        mix[0, logit.target] = 1
        if logit.against is not None:
            mix[0, logit.against] -= 1
        return _sum_of_parts(forward, mix)


# --- the forward, recorded -----------------------------------------------------------------------------------------


class Heads(NamedTuple):
    """The contexts, weights and values of one layer's heads for the watched queries, in float64."""

    context: Array  # weights · values: (heads, rows, d_v)
    weights: Array | None  # (heads, rows, n_k), if kept
    values: Array | None  # (heads, n_k, d_v), if kept


@dataclass
class WatchedRows:
    """A forward recorded at some positions of the residual stream: its blocks and their parts (rows, d), and its heads."""

    network: PreTrainedModel
    blocks: list[BlockCall]
    outside: list[PartCall]  # calls of modules outside blocks
    heads: dict[int, Heads]  # number of a block that attends → its heads
    logits: Array  # (rows, vocabulary)

    @property
    def head(self) -> PartCall:
        """Return the call of the unembedding. Raises RefusedError if the network has no unembedding."""
        module = self.network.get_output_embeddings()  # type: ignore[no-untyped-call]
        for part in reversed(self.outside):
            if part.module is module:
                return part
        raise RefusedError("its unembedding is not called as one module")


def record_rows(
    network: PreTrainedModel,
    inputs: dict[str, object],
    base: Intervention,
    tail: int,
    queries: range,
    *,
    keep_weights: bool = True,
) -> WatchedRows:
    """Run a text under `base`, and keep the inputs and outputs of all parts for the `queries`.

    `tail` is the distance of the first query from the end. With `keep_weights`, weights and values are kept too. Raises
    RefusedError if the network has no unembedding, attends outside its blocks, or attends twice in one block.
    """
    head = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None or tensor_of(head, "weight") is None:
        raise RefusedError("it has no unembedding matrix")
    rows, heads = slice(-tail, len(queries) - tail or None), dict[int, Heads]()

    def keep_rows(value: object) -> Array | None:
        """Return the watched positions of (1, n, d) or (n, d); None for anything else."""
        if not isinstance(value, torch.Tensor) or value.ndim not in (2, 3):
            return None
        states = value[0] if value.ndim == 3 else value
        return states[rows].double() if states.shape[0] >= tail else None

    def keep_heads(_: Site, call: Call) -> None:
        block = recorder.calls[-1] if recorder.calls else None
        if block is None or block.output is not None or len(block.layers) != 1:
            raise RefusedError("it attends outside its blocks, or twice in one")
        steps = attention.run_call(attention.select_call(call, None, list(queries)))
        weights = values = None
        if keep_weights:
            weights = steps.weights[0].double()  # (heads, rows, n_k)
            values = attention.share_heads(call.values, weights.shape[0])[0].double()  # (heads, n_k, d_v)
        heads[len(recorder.calls) - 1] = Heads(steps.context[0].double(), weights, values)

    recorder = BlockRecorder(network)
    with apply_interventions(network, [base], "self"), recorder.recording(keep_heads, keep_rows=keep_rows):
        logits = network(**inputs).logits[0, rows].double()  # (rows, vocabulary)
    return WatchedRows(network, recorder.calls, recorder.outside, heads, logits)


def stream_of_block(block: BlockCall) -> PartCall:
    """Return the residual stream before and after a block, (rows, d_model) each. Raises RefusedError for several streams."""
    for part in block.parts:
        if part.module is block.block:
            return part
    raise RefusedError("its blocks pass on more than one stream")


def added_by_block(block: BlockCall) -> Array:
    """Return what a block adds to the residual stream: (rows, d_model)."""
    stream = stream_of_block(block)
    return stream.rows_out - stream.rows_in


def _matrices_after_attention(block: BlockCall) -> list[PartCall]:
    """Return the calls of a block's projections after its attention; the earlier ones belong to the attention."""
    weights = ((part, tensor_of(part.module, "weight")) for part in block.parts[block.before :])
    return [part for part, weight in weights if weight is not None and weight.ndim == 2]


def is_near(first: Array, second: Array, rounding: float = 0.0) -> bool:
    """Return whether two arrays have the same shape and differ by at most `rounding`, or NEAR times the largest number."""
    if first.shape != second.shape:
        return False
    return float((first - second).abs().max()) <= max(NEAR * max(float(second.abs().max()), 1e-6), rounding)


# --- the sum -----------------------------------------------------------------------------------------------------


def stream_direction(forward: WatchedRows, mix: Array) -> tuple[Array, float, float, tuple[str, ...]]:
    """Return the direction (rows, d_model) along which the residual stream makes a mix of logits (rows, vocabulary).

    Return also the sum of the biases along it, the mixed logits, and notes. Raises RefusedError.
    """
    streams = [stream_of_block(block) for block in forward.blocks]
    if not streams:
        raise RefusedError("it has no blocks")
    for before, after in zip(streams, streams[1:], strict=False):
        if not is_near(after.rows_in, before.rows_out):
            raise RefusedError("what a block puts out is changed before the next one reads it")
    head, last = forward.head, streams[-1].rows_out
    scale, cap, notes = _after_head(forward, head.rows_out, forward.logits)
    unembedded, bias = _unembedded(head.module, mix)
    logits_before_cap = head.rows_out if cap is not None else forward.logits
    linear = _Linear() if is_near(head.rows_in, last) else None
    for norm in forward.outside:
        if "norm" not in type(norm.module).__name__.lower():
            continue
        if linear is None and is_near(norm.rows_in, last) and is_near(head.rows_in, norm.rows_out):
            linear = _Linear.of_norm(norm)
    if linear is None:
        raise RefusedError("there is more than a norm between its last block and its unembedding")
    direction = linear.back(unembedded) * scale  # (rows, d_model)
    return direction, (linear.constant(unembedded) + bias) * scale, _along(mix, logits_before_cap), notes


def _sum_of_parts(forward: WatchedRows, mix: Array) -> tuple[Contributions, tuple[str, ...]]:
    direction, bias, logit, notes = stream_direction(forward, mix)
    parts = [ContributionPart(part="embedding", value=_along(stream_of_block(forward.blocks[0]).rows_in, direction))]
    for number, block in enumerate(forward.blocks):
        parts += _block_parts(block, forward.heads.get(number), direction, forward.network.config)
    parts.append(ContributionPart(part="bias", value=bias))
    final_logit = _along(mix, forward.logits)
    return summed_contributions(final_logit, parts, None if logit == final_logit else logit), notes


def _along(x: Array, direction: Array) -> float:
    """Return the dot product of x (rows, d) and the directions, summed over all rows."""
    return float((x * direction).sum())


def _unembedded(head: Module, mix: Array) -> tuple[Array, float]:
    """Return the directions (rows, d_model) before the unembedding that make a mix of logits, and its bias along them."""
    mixed = mix.any(0).nonzero()[:, 0]  # (words that are mixed,)
    unembedding: Array = head.weight  # (vocabulary, d_model)
    if len(mixed) < 8:
        direction = mix[:, mixed] @ unembedding[mixed].double()  # (rows, d_model)
    else:  # all words: avoid a float64 copy of the whole matrix
        direction = (mix.to(unembedding.dtype) @ unembedding).double()  # (rows, d_model)
    bias = tensor_of(head, "bias")
    return direction, 0.0 if bias is None else _along(mix, bias.double().expand_as(mix))


def _after_head(forward: WatchedRows, unembedded: Array, logits: Array) -> tuple[float, float | None, tuple[str, ...]]:
    """Return the factor on the logits after the unembedding; or 1 and a soft cap, before which the sum is; and notes."""
    cap = config_value(forward.network.config.get_text_config(), "final_logit_softcapping")
    if cap and is_near(torch.tanh(unembedded / cap) * cap, logits):
        note = (
            f"{architecture_name(forward.network)} caps its logits at ±{cap:g}: the sum is of the logit before the cap."
        )
        return 1.0, float(cap), (note,)
    largest = int(unembedded.abs().argmax())
    factor = float(logits.flatten()[largest] / unembedded.flatten()[largest])
    if not is_near(unembedded * factor, logits):
        raise RefusedError("its logits are changed after the unembedding")
    return factor, None, ()


@dataclass
class _Linear:
    """A norm at a fixed scale: x → (x - its mean, if centred) · scale + shift; the identity if scale is None."""

    scale: Array | None = None  # (rows, d)
    shift: Array | None = None  # (d,)
    centred: bool = False

    @classmethod
    def of_norm(cls, norm: PartCall) -> _Linear:
        """Return the norm at the scale of these rows. Raises RefusedError if it is neither an RMS norm nor a layer norm."""
        weight, bias = tensor_of(norm.module, "weight"), tensor_of(norm.module, "bias")
        gain = torch.ones_like(norm.rows_in) if weight is None else weight.double()  # (d,), or (rows, d) of ones
        shift = torch.zeros_like(norm.rows_in) if bias is None else bias.double()  # (d,)
        names = ("variance_epsilon", "eps", "epsilon", "norm_eps")
        eps = next((float(value) for name in names if (value := getattr(norm.module, name, None)) is not None), 1e-6)
        for centred in (False, True):
            x = norm.rows_in - norm.rows_in.mean(-1, keepdim=True) if centred else norm.rows_in  # (rows, d)
            length = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)  # (rows, 1)
            for factor in (gain, 1 + gain):
                if is_near(x * length * factor + shift, norm.rows_out):
                    return cls(length * factor, shift, centred)
        raise RefusedError(f"its {type(norm.module).__name__} is neither an RMS norm nor a layer norm")

    def back(self, direction: Array) -> Array:
        """Return the directions before the norm that become `direction` after it: (rows, d)."""
        if self.scale is None:
            return direction
        before = direction * self.scale  # (rows, d)
        return before - before.mean(-1, keepdim=True) if self.centred else before

    def constant(self, direction: Array) -> float:
        """Return the shift along the directions, summed over the rows."""
        return 0.0 if self.shift is None else _along(self.shift.expand_as(direction), direction)


def _block_parts(
    block: BlockCall, heads: Heads | None, direction: Array, config: PreTrainedConfig
) -> Iterator[ContributionPart]:
    """Yield the contributions of a block: its heads, the bias of its output projection, and its MLP."""
    if heads is None:  # no attention in it: a convolution, a state space
        yield ContributionPart(part="mlp", value=_along(added_by_block(block), direction))
        return
    reached, layer = head_directions(block, heads, direction, config), block.layers[0]
    yield from _head_parts(layer, heads, reached.along, reached.contexts)
    if reached.bias:
        yield ContributionPart(part="bias", layer=layer, value=reached.bias)
    yield ContributionPart(part="mlp", layer=layer, value=_along(added_by_block(block), direction) - reached.attended)


@dataclass
class HeadDirections:
    """How a block's heads add to a direction of the residual stream."""

    along: Array  # direction in the space of each head's context: (rows, heads, d_v)
    contexts: Array  # input of the output projection: (rows, heads, d_v)
    bias: float  # what the projection's bias and the norm after it add
    attended: float  # what the whole attention adds


def head_directions(
    block: BlockCall, head_outputs: Heads, direction: Array, config: PreTrainedConfig
) -> HeadDirections:
    """Return what each head's context adds along `direction` (rows, d_model).

    Raises RefusedError if the block's output is not a sum of its parts.
    """
    heads, _, d_v = head_outputs.context.shape
    projection = _output_projection(block, heads * d_v)
    written, linear = _attention_branch(block, projection, added_by_block(block), config)
    branch_direction = linear.back(direction) * written  # (rows, d_model)
    matrix, shift = _projection_matrix(projection, branch_direction)
    bias = _along(shift.expand_as(branch_direction), branch_direction) + linear.constant(direction) * written
    output = projection.rows_out  # (rows, d_model)
    if linear.scale is not None and linear.shift is not None:
        output = (output - output.mean(-1, keepdim=True) if linear.centred else output) * linear.scale + linear.shift
    attended = _along(output, direction) * written
    along = (branch_direction @ matrix).reshape(-1, heads, d_v)  # (rows, heads, d_v)
    return HeadDirections(along, projection.rows_in.reshape(-1, heads, d_v), bias, attended)


def _output_projection(block: BlockCall, width: int) -> PartCall:
    """Return the call of the output projection: the first matrix after attention whose input has this `width`."""
    for part in _matrices_after_attention(block):
        if part.rows_in.shape[-1] == width and part.rows_out.shape == stream_of_block(block).rows_in.shape:
            return part
    raise RefusedError("its heads do not go through an output projection of their own")


def _attention_branch(
    block: BlockCall, projection: PartCall, added: Array, config: PreTrainedConfig
) -> tuple[float, _Linear]:
    """Return the factor on what attention adds to the residual stream, and the norm that it passes first.

    Raises RefusedError if the block does not add the sum of its parts: it normalises the residual stream.
    """
    candidates: list[tuple[Array, _Linear]] = [(projection.rows_out, _Linear())]
    children = set(block.block.children())
    called = [part for part in block.parts if part.module in children]
    for child in called:
        if is_near(child.rows_in, projection.rows_out) and "norm" in type(child.module).__name__.lower():
            candidates.insert(0, (child.rows_out, _Linear.of_norm(child)))
    factors = [1.0]
    if (multiplier := config_value(config.get_text_config(), "residual_multiplier")) is not None:
        factors.insert(0, float(multiplier))
    other_outputs = [child.rows_out for child in called if child.rows_out.shape == added.shape]
    matrices = [part for part in _matrices_after_attention(block) if part is not projection]
    other_outputs += [part.rows_out for part in matrices if part.rows_out.shape == added.shape]
    # what a block adds is the difference of two streams, which a first token makes large (27,000 in SmolLM2)
    rounding = FLOAT32 * float(stream_of_block(block).rows_in.abs().max())
    for factor in factors:
        for attended, linear in candidates:
            difference = added - factor * attended  # (rows, d_model)
            if any(
                is_near(factor * sum(chosen), difference, rounding)
                for count in (1, 2)
                for chosen in combinations(other_outputs, count)
            ):
                return factor, linear
    raise RefusedError("it normalises the residual stream inside its blocks (post-norm), or mixes it")


def _projection_matrix(projection: PartCall, direction: Array) -> tuple[Array, Array]:
    """Return the output projection as a matrix (d_model, heads · d_v), and its bias (d_model,).

    Raises RefusedError for a projection of another kind.
    """
    weight: Array = projection.module.weight
    matrix = weight.double()  # (d_model, heads · d_v); transposed for a Conv1D
    width = projection.rows_in.shape[-1]
    if matrix.shape[0] == width and type(projection.module).__name__ == "Conv1D":
        matrix = matrix.T
    if matrix.shape != (direction.shape[-1], width):
        raise RefusedError("its output projection is packed")
    bias = tensor_of(projection.module, "bias")
    shift = torch.zeros_like(projection.rows_out[0]) if bias is None else bias.double()  # (d_model,)
    if not is_near(projection.rows_in @ matrix.T + shift, projection.rows_out):
        raise RefusedError("its output projection is more than a matrix")
    return matrix, shift


def _head_parts(layer: int, heads: Heads, along: Array, projected: Array) -> Iterator[ContributionPart]:
    """Yield what each head adds along a direction, split by source token if the head's output is weights × values."""
    assert heads.weights is not None and heads.values is not None
    value_along = torch.einsum("hkd,rhd->hrk", heads.values, along)  # (heads, rows, n_k)
    by_key = (heads.weights * value_along).sum(1)  # (heads, n_k)
    for head in range(len(by_key)):
        is_whole = is_near(heads.context[head], projected[:, head])  # else it is gated or ablated
        value = _along(projected[:, head], along[:, head])
        keys = tuple(by_key[head].tolist()) if is_whole else None
        yield ContributionPart(part="head", layer=layer, head=head, value=value, keys=keys)


class AttributedPrompt(AnsweredPrompt):
    """An answered prompt that tells which tokens write the answer."""

    def writes_by_token(self) -> tuple[Floats, tuple[str, ...]]:
        """Return what each token before the end of the answer adds to its log-probability, in nats (n_k,), and notes.

        The sum is over the answer's tokens, all layers and all heads. Raises AttnctlError, naming the architecture, if its
        logits are not such a sum.
        """
        network = self.model.network
        with _refusing_by_name(network):
            along, notes = _directions(self)
        total = np.zeros(len(self.prompt) + len(self.answer) - 1)  # (n_k,)

        def add_writes(site: Site, call: Call) -> Array | None:
            weights = attention.run_call(call).weights[0]  # (heads, m, n_k)
            values = attention.share_heads(call.values, weights.shape[0])[0]  # (heads, n_k, d_v)
            worth = torch.einsum("hkd,rhd->hrk", values, along[site.layer].to(values))  # (heads, m, n_k)
            written = weights * worth  # (heads, m, n_k)
            written[list(self.base.heads.get(site.layer, ()))] = 0  # heads that are off write nothing
            total[:] += as_numpy(written.sum((0, 1)))  # (n_k,)
            return None

        with watch_attention(network, add_writes, lambda site: site.layer in along):
            self.run_answer()
        summed: Floats = total.astype(np.float32)  # (n_k,)
        return summed, notes


def _directions(read: AnsweredPrompt) -> tuple[dict[int, Array], tuple[str, ...]]:
    """Return layer → what each head's context adds to each answer token's log-probability (m, heads, d_v), and notes."""
    m, network = len(read.answer), read.model.network
    with running_network(network, m, read.model.info.name):
        forward = record_rows(network, read.answer_inputs(), read.base, m, range(m), keep_weights=False)
        mix = -torch.softmax(forward.logits, -1)  # (m, vocabulary)
        mix[torch.arange(m), list(read.answer)] += 1
        direction, _, _, notes = stream_direction(forward, mix)
        along = {}
        for number, heads in forward.heads.items():
            block = forward.blocks[number]
            layer, reached = block.layers[0], head_directions(block, heads, direction, network.config)
            context = heads.context.transpose(0, 1).clone()  # (m, heads, d_v)
            context[:, list(read.base.heads.get(layer, ()))] = 0
            if not is_near(context, reached.contexts):
                raise RefusedError("its heads' outputs are changed before its output projection")
            along[layer] = reached.along.float()  # (m, heads, d_v)
    return along, notes
