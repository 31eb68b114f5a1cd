"""The logit of a word taken apart: embedding, heads, MLPs and biases, as they stand in the residual stream at one position.

Blocks are found to add to a residual stream by trying: what a block puts out, less what it was given, must be the sum of
what its own children put out. An architecture of which this is not so (post-norm blocks, residuals mixed across layers) is
refused by name. Norms are taken at the scale they had on this text, so that what is left is linear. Source: direct logit
attribution (Elhage et al. 2021). Of several positions the sums are over the positions.

To first order the log-probability of a word is its logit less the expected logit, and at the scale that its norms had on
this text a logit is a sum over all heads and the tokens that they read (direct logit attribution, Elhage et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from attnctl import attention
from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.interventions import Intervention
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.models.huggingface.attention_interface import architecture_name, watch_attention
from attnctl.models.huggingface.attention_sites import Site, blocks_of
from attnctl.models.huggingface.intervention import apply_interventions
from attnctl.models.huggingface.network import running_network
from attnctl.models.huggingface.replay import first_of
from attnctl.watched.effects import ContributionPart, Contributions, summed_contributions

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output


NEAR = 2e-5  # how close what was put together must come to what the model made, of the largest number


class RefusedError(Exception):
    """Why an architecture cannot be taken apart."""


@contextmanager
def _refusing_by_name(network: PreTrainedModel) -> Iterator[None]:
    """Within this, a RefusedError is an AttnctlError that names the architecture."""
    try:
        yield
    except RefusedError as why:
        raise AttnctlError(
            f"{architecture_name(network)} cannot be taken apart into direct contributions: {why}"
        ) from why


class TargetLogit(NamedTuple):
    """The logit of id `target` (minus that of `against`) at token `query`, which is `tail` positions from the end."""

    tail: int
    query: int
    target: int
    against: int | None


def taken_apart(
    network: PreTrainedModel, inputs: dict[str, object], logit: TargetLogit, base: Intervention
) -> tuple[Contributions, tuple[str, ...]]:
    """A logit as a sum over the model's parts, and notes.

    Raises AttnctlError, naming the architecture, where its logits are no such sum.
    """
    with _refusing_by_name(network):
        forward = RecordedForward(network, logit.tail, logit.query)
        forward.record(inputs, base)
        mix = torch.zeros_like(forward.logits)  # (1, vocabulary)
        mix[0, logit.target] = 1
        if logit.against is not None:
            mix[0, logit.against] -= 1
        return _sum_of_parts(forward, mix)


# --- the forward, recorded -----------------------------------------------------------------------------------------


@dataclass
class SeenCall:
    """One call of a module: what went in and came out at the watched positions, (rows, d) each, in float64."""

    module: Module
    given: Array
    made: Array


@dataclass
class SeenBlock:
    """One block's way: its own call, its children's, and its attention."""

    whole: SeenCall | None = None  # None: it passes on more than one stream
    children: list[SeenCall] = field(default_factory=list)
    linear: list[SeenCall] = field(default_factory=list)  # projections called after the attention
    layer: int = -1
    context: Array | None = None  # weights · values: (heads, rows, d_v)
    weights: Array | None = None  # (heads, rows, n_k), where kept
    values: Array | None = None  # (heads, n_k, d_v), where kept

    @property
    def stream(self) -> SeenCall:
        """The residual stream before and after the block, (rows, d_model) each. Raises RefusedError for several."""
        if self.whole is None:
            raise RefusedError("its blocks pass on more than one stream")
        return self.whole

    @property
    def added(self) -> Array:
        """What the block adds to the stream: (rows, d_model)."""
        return self.stream.made - self.stream.given


class RecordedForward:
    """A forward, recorded at the watched positions: `rows` of them, the first `tail` positions from the end of the stream.

    `query` is the first one's place among the queries. With `keep_weights` each block keeps its weights and values.
    """

    logits: Array  # (rows, vocabulary)

    def __init__(
        self, network: PreTrainedModel, tail: int, query: int, rows: int = 1, *, keep_weights: bool = True
    ) -> None:
        self.network, self.keep_weights = network, keep_weights
        self.tail, self.rows, self.queries = tail, slice(-tail, rows - tail or None), range(query, query + rows)
        self.blocks: list[SeenBlock] = []
        self.outside: list[SeenCall] = []  # norms after the blocks
        self.head: SeenCall | None = None

    def record(self, inputs: dict[str, object], base: Intervention) -> None:
        """Run the text, and keep what every part made of it."""
        head = self.network.get_output_embeddings()  # type: ignore[no-untyped-call]
        if not isinstance(getattr(head, "weight", None), torch.Tensor):
            raise RefusedError("it has no unembedding matrix")
        blocks = blocks_of(self.network)
        inner = {id(module) for block in blocks for module in block.modules()}
        with ExitStack() as stack:
            for block in blocks:
                stack.callback(block.register_forward_pre_hook(lambda *_: self.blocks.append(SeenBlock())).remove)
                self._keep_calls(block, lambda seen: setattr(self.blocks[-1], "whole", seen), stack)
                children = set(block.children())
                for part in set(block.modules()) - {block}:
                    if part in children:
                        self._keep_calls(part, lambda seen: self.blocks[-1].children.append(seen), stack)
                    if getattr(getattr(part, "weight", None), "ndim", 0) == 2:
                        self._keep_calls(part, lambda seen: self.blocks[-1].linear.append(seen), stack)
            for module in self.network.modules():
                if id(module) not in inner and "norm" in type(module).__name__.lower():
                    self._keep_calls(module, self.outside.append, stack)
            self._keep_calls(head, lambda seen: setattr(self, "head", seen), stack)
            stack.enter_context(apply_interventions(self.network, [base], "self"))
            stack.enter_context(watch_attention(self.network, self._attended, lambda site: site.kind == "self"))
            self.logits = self.network(**inputs).logits[0, self.rows].double()  # (rows, vocabulary)

    def _keep_calls(self, module: Module, keep: Callable[[SeenCall], object], stack: ExitStack) -> None:
        """Hand each call of a module to `keep`, where it has one stream in and one out."""

        def end_call(module: Module, args: tuple[Array, ...], kwargs: dict[str, Array], output: Output) -> None:
            given = self._row(args[0] if args else kwargs.get("hidden_states"))
            made = self._row(first_of(output))
            if given is not None and made is not None:
                keep(SeenCall(module, given, made))

        stack.callback(module.register_forward_hook(end_call, with_kwargs=True).remove)

    def _row(self, value: Array) -> Array | None:
        """The watched positions of (1, n, d) or (n, d); None for anything else."""
        if not isinstance(value, torch.Tensor) or value.ndim not in (2, 3):
            return None
        rows = value[0] if value.ndim == 3 else value
        return rows[self.rows].double() if rows.shape[0] >= self.tail else None

    def _attended(self, site: Site, call: Call) -> None:
        block = self.blocks[-1] if self.blocks else None
        if block is None or block.context is not None:
            raise RefusedError("it attends outside its blocks, or twice in one")
        steps = attention.run_call(attention.select_call(call, None, list(self.queries)))
        block.layer, block.context = site.layer, steps.context[0].double()  # (heads, rows, d_v)
        if self.keep_weights:
            block.weights = steps.weights[0].double()  # (heads, rows, n_k)
            block.values = attention.share_heads(call.values, block.weights.shape[0])[0].double()  # (heads, n_k, d_v)
        block.linear.clear()  # what was called before it are its own projections


def is_near(one: Array, other: Array) -> bool:
    """Whether two arrays of one shape agree to NEAR of the largest number."""
    if one.shape != other.shape:
        return False
    return float((one - other).abs().max()) <= NEAR * max(float(other.abs().max()), 1e-6)


# --- the sum -----------------------------------------------------------------------------------------------------


def stream_direction(forward: RecordedForward, mix: Array) -> tuple[Array, float, float, tuple[str, ...]]:
    """The direction along which the residual stream makes a mix of logits (rows, vocabulary), each row its own.

    (rows, d_model), and what biases add along it, the mixed logits themselves, and notes. Raises RefusedError.
    """
    streams = [block.stream for block in forward.blocks or [SeenBlock()]]
    for one, other in zip(streams, streams[1:], strict=False):
        if not is_near(other.given, one.made):
            raise RefusedError("what a block puts out is changed before the next one reads it")
    head, last = forward.head, streams[-1].made
    if head is None:
        raise RefusedError("its unembedding is not called as one")
    scale, cap, notes = _after_head(forward, head.made, forward.logits)
    way, bias = _unembedded(head.module, mix)
    made = head.made if cap is not None else forward.logits
    linear = _Linear() if is_near(head.given, last) else None
    for norm in forward.outside:
        if linear is None and is_near(norm.given, last) and is_near(head.given, norm.made):
            linear = _Linear.of_norm(norm)
    if linear is None:
        raise RefusedError("between its last block and its unembedding stands more than a norm")
    direction = linear.back(way) * scale  # (rows, d_model)
    return direction, (linear.constant(way) + bias) * scale, _along(mix, made), notes


def _sum_of_parts(forward: RecordedForward, mix: Array) -> tuple[Contributions, tuple[str, ...]]:
    direction, bias, logit, notes = stream_direction(forward, mix)
    parts = [ContributionPart(part="embedding", value=_along(forward.blocks[0].stream.given, direction))]
    for block in forward.blocks:
        parts += _block_parts(block, direction, forward.network.config)
    parts.append(ContributionPart(part="bias", value=bias))
    own = _along(mix, forward.logits)
    return summed_contributions(own, parts, None if logit == own else logit), notes


def _along(x: Array, direction: Array) -> float:
    """What (rows, d) adds along each row's direction, over all rows."""
    return float((x * direction).sum())


def _unembedded(head: Any, mix: Array) -> tuple[Array, float]:
    """The directions (rows, d_model) before the unembedding that make a mix of logits, and what its bias adds."""
    named = mix.any(0).nonzero()[:, 0]  # (words that are mixed,)
    if len(named) < 8:
        way = mix[:, named] @ head.weight[named].double()  # (rows, d_model)
    else:  # every word is: no copy of the whole matrix in float64
        way = (mix.to(head.weight.dtype) @ head.weight).double()  # (rows, d_model)
    bias = getattr(head, "bias", None)
    return way, 0.0 if bias is None else _along(mix, bias.double().expand_as(mix))


def _after_head(forward: RecordedForward, made: Array, logits: Array) -> tuple[float, float | None, tuple[str, ...]]:
    """What happens to logits after the unembedding: a factor, or a soft cap, before which the sum then is."""
    cap = getattr(forward.network.config.get_text_config(), "final_logit_softcapping", None)
    if cap and is_near(torch.tanh(made / cap) * cap, logits):
        note = (
            f"{architecture_name(forward.network)} caps its logits at ±{cap:g}: the sum is of the logit before the cap."
        )
        return 1.0, float(cap), (note,)
    at = int(made.abs().argmax())
    factor = float(logits.flatten()[at] / made.flatten()[at])
    if not is_near(made * factor, logits):
        raise RefusedError("its logits are changed after the unembedding")
    return factor, None, ()


@dataclass
class _Linear:
    """A norm at the scale it had: x → (x - its mean, where centred) · scale + shift; without a scale nothing changes."""

    scale: Array | None = None  # (rows, d)
    shift: Array | None = None  # (d,)
    centred: bool = False

    @classmethod
    def of_norm(cls, seen: SeenCall) -> _Linear:
        """The norm as it was on this row. Raises RefusedError for one of another kind than RMS and layer norms."""
        weight, bias = getattr(seen.module, "weight", None), getattr(seen.module, "bias", None)
        gain = torch.ones_like(seen.given) if weight is None else weight.double()  # (d,), or (rows, d) of ones
        shift = torch.zeros_like(seen.given) if bias is None else bias.double()  # (d,)
        names = ("variance_epsilon", "eps", "epsilon", "norm_eps")
        eps = next((float(value) for name in names if (value := getattr(seen.module, name, None)) is not None), 1e-6)
        for centred in (False, True):
            x = seen.given - seen.given.mean(-1, keepdim=True) if centred else seen.given  # (rows, d)
            length = torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)  # (rows, 1)
            for factor in (gain, 1 + gain):
                if is_near(x * length * factor + shift, seen.made):
                    return cls(length * factor, shift, centred)
        raise RefusedError(f"its {type(seen.module).__name__} is no norm that it knows how to hold still")

    def back(self, way: Array) -> Array:
        """The directions before the norm that become `way` after it: (rows, d)."""
        if self.scale is None:
            return way
        before = way * self.scale  # (rows, d)
        return before - before.mean(-1, keepdim=True) if self.centred else before

    def constant(self, way: Array) -> float:
        """What the shift adds along the directions."""
        return 0.0 if self.shift is None else _along(self.shift.expand_as(way), way)


def _block_parts(block: SeenBlock, direction: Array, config: PreTrainedConfig) -> Iterator[ContributionPart]:
    """What a block adds: its heads, its output projection's bias, and its MLP."""
    if block.context is None:  # no attention in it: a convolution, a state space
        yield ContributionPart(part="mlp", value=_along(block.added, direction))
        return
    read = head_directions(block, direction, config)
    yield from _head_parts(block, read.along, read.given)
    if read.bias:
        yield ContributionPart(part="bias", layer=block.layer, value=read.bias)
    yield ContributionPart(part="mlp", layer=block.layer, value=_along(block.added, direction) - read.attended)


@dataclass
class HeadDirections:
    """How a block's heads reach a direction of the residual stream."""

    along: Array  # what each head's context is worth along the direction: (rows, heads, d_v)
    given: Array  # the contexts that went into the output projection: (rows, heads, d_v)
    bias: float  # what the projection's bias and the norm behind it add
    attended: float  # what the whole attention adds


def head_directions(block: SeenBlock, direction: Array, config: PreTrainedConfig) -> HeadDirections:
    """What each head's context is worth along `direction` (rows, d_model). Raises RefusedError where it is no such sum."""
    assert block.context is not None
    projection = _output_projection(block)
    written, linear = _attention_branch(block, projection, block.added, config)
    way = linear.back(direction) * written  # (rows, d_model)
    matrix, shift = _projection_matrix(projection, way)
    heads, _, d_v = block.context.shape
    bias = _along(shift.expand_as(way), way) + linear.constant(direction) * written
    made = projection.made  # (rows, d_model)
    if linear.scale is not None and linear.shift is not None:
        made = (made - made.mean(-1, keepdim=True) if linear.centred else made) * linear.scale + linear.shift
    attended = _along(made, direction) * written
    along = (way @ matrix).reshape(-1, heads, d_v)  # (rows, heads, d_v)
    return HeadDirections(along, projection.given.reshape(-1, heads, d_v), bias, attended)


def _output_projection(block: SeenBlock) -> SeenCall:
    """The output projection: the first matrix that the heads side by side go through."""
    assert block.context is not None
    width = block.context.shape[0] * block.context.shape[-1]
    for seen in block.linear:
        if seen.given.shape[-1] == width and seen.made.shape == block.stream.given.shape:
            return seen
    raise RefusedError("its heads do not go through an output projection of their own")


def _attention_branch(
    block: SeenBlock, projection: SeenCall, added: Array, config: PreTrainedConfig
) -> tuple[float, _Linear]:
    """The factor on what attention adds to the stream, and the norm it goes through first.

    Raises RefusedError where what the block adds is not the sum of its children: the stream is normalised in it.
    """
    candidates: list[tuple[Array, _Linear]] = [(projection.made, _Linear())]
    for child in block.children:
        if is_near(child.given, projection.made) and "norm" in type(child.module).__name__.lower():
            candidates.insert(0, (child.made, _Linear.of_norm(child)))
    factors = [1.0]
    if (multiplier := getattr(config.get_text_config(), "residual_multiplier", None)) is not None:
        factors.insert(0, float(multiplier))
    others = [child.made for child in block.children if child.made.shape == added.shape]
    others += [seen.made for seen in block.linear if seen.made.shape == added.shape and seen is not projection]
    for factor in factors:
        for attended, linear in candidates:
            rest = added - factor * attended  # (rows, d_model)
            if any(is_near(factor * sum(several), rest) for count in (1, 2) for several in combinations(others, count)):
                return factor, linear
    raise RefusedError("it normalises the residual stream inside its blocks (post-norm), or mixes it")


def _projection_matrix(projection: SeenCall, way: Array) -> tuple[Array, Array]:
    """The output projection as a matrix (d_model, heads · d_v), and its bias (d_model,). Raises RefusedError for another."""
    weight: Array = projection.module.weight
    matrix = weight.double()  # (d_model, heads · d_v), or of a Conv1D the other way around
    width = projection.given.shape[-1]
    if matrix.shape[0] == width and type(projection.module).__name__ == "Conv1D":
        matrix = matrix.T
    if matrix.shape != (way.shape[-1], width):
        raise RefusedError("its output projection is packed")
    bias = getattr(projection.module, "bias", None)
    shift = torch.zeros_like(projection.made[0]) if bias is None else bias.double()  # (d_model,)
    if not is_near(projection.given @ matrix.T + shift, projection.made):
        raise RefusedError("its output projection is more than a matrix")
    return matrix, shift


def _head_parts(block: SeenBlock, along: Array, given: Array) -> Iterator[ContributionPart]:
    """What each head writes along a direction, by source token where it stands for weights × values."""
    assert block.weights is not None and block.values is not None and block.context is not None
    read = torch.einsum("hkd,rhd->hrk", block.values, along)  # (heads, rows, n_k)
    by_key = (block.weights * read).sum(1)  # (heads, n_k)
    for head in range(len(by_key)):
        own = is_near(block.context[head], given[:, head])  # else gated or ablated: not its own
        value = _along(given[:, head], along[:, head])
        keys = tuple(by_key[head].tolist()) if own else None
        yield ContributionPart(part="head", layer=block.layer, head=head, value=value, keys=keys)


def writes_by_token(read: AnsweredPrompt) -> tuple[Floats, tuple[str, ...]]:
    """What each token before the answer's end adds to the answer's log-probability, nats: (n_k,), and notes.

    The sum is over the answer's tokens, all layers and all heads. Raises AttnctlError, naming the architecture, where its
    logits are no such sum.
    """
    network = read.model.network
    with _refusing_by_name(network):
        along, notes = _directions(read)
    total = np.zeros(len(read.prompt) + len(read.answer) - 1)  # (n_k,)

    def add_writes(site: Site, call: Call) -> Array | None:
        weights = attention.run_call(call).weights[0]  # (heads, m, n_k)
        values = attention.share_heads(call.values, weights.shape[0])[0]  # (heads, n_k, d_v)
        worth = torch.einsum("hkd,rhd->hrk", values, along[site.layer].to(values))  # (heads, m, n_k)
        written = weights * worth  # (heads, m, n_k)
        written[list(read.base.heads.get(site.layer, ()))] = 0  # what is off writes nothing
        total[:] += as_numpy(written.sum((0, 1)))  # (n_k,)
        return None

    with watch_attention(network, add_writes, lambda site: site.layer in along):
        read.run_answer()
    summed: Floats = total.astype(np.float32)  # (n_k,)
    return summed, notes


def _directions(read: AnsweredPrompt) -> tuple[dict[int, Array], tuple[str, ...]]:
    """Layer → what each head's context is worth for each answer token's log-probability (m, heads, d_v), and notes."""
    m = len(read.answer)
    forward = RecordedForward(read.model.network, m, 0, m, keep_weights=False)
    with running_network(read.model.network, m, read.model.info.name):
        forward.record(read.answer_inputs(), read.base)
        mix = -torch.softmax(forward.logits, -1)  # (m, vocabulary)
        mix[torch.arange(m), list(read.answer)] += 1
        direction, _, _, notes = stream_direction(forward, mix)
        along = {}
        for block in forward.blocks:
            if block.context is None:  # no attention in it
                continue
            found = head_directions(block, direction, read.model.network.config)
            context = block.context.transpose(0, 1).clone()  # (m, heads, d_v)
            context[:, list(read.base.heads.get(block.layer, ()))] = 0
            if not is_near(context, found.given):
                raise RefusedError("its heads' outputs are changed before its output projection")
            along[block.layer] = found.along.float()  # (m, heads, d_v)
    return along, notes
