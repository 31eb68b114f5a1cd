"""The logit of a word taken apart: embedding, heads, MLPs and biases, as they stand in the residual stream at one position.

Blocks are found to add to a residual stream by trying: what a block puts out, less what it was given, must be the sum of
what its own children put out. An architecture of which this is not so (post-norm blocks, residuals mixed across layers) is
refused by name. Norms are taken at the scale they had on this text, so that what is left is linear. Source: direct logit
attribution (Elhage et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.interventions import Intervention
from attnctl.models.huggingface.attention_interface import architecture, attending
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.effects.intervention import applied
from attnctl.models.huggingface.effects.replay import blocks_of
from attnctl.readings.effects.contributions import Contributions, Part

NEAR = 2e-5  # how close what was put together must come to what the model made, of the largest number


@dataclass
class _Seen:
    """One call of a module: what went in and came out at the watched position, (d,) each, in float64."""

    module: Any
    given: Array
    made: Array


@dataclass
class _Block:
    """One block's way: its input and output at the watched position, its children's calls, and its attention."""

    given: Array | None = None  # (d_model,)
    made: Array | None = None  # (d_model,)
    children: list[_Seen] = field(default_factory=list)
    linear: list[_Seen] = field(default_factory=list)  # projections called after the attention
    layer: int = -1
    weights: Array | None = None  # (heads, n_k)
    values: Array | None = None  # (heads, n_k, d_v)


class _RefusedError(Exception):
    """Why an architecture cannot be taken apart."""


def taken_apart(
    network: Any, inputs: dict[str, Any], tail: int, query: int, target: int, against: int | None, base: Intervention
) -> Contributions:
    """The logit of id `target` (minus that of `against`), `tail` positions from the end, as a sum over the model's parts.

    Raises AttnctlError, naming the architecture, where its logits are no such sum.
    """
    name = architecture(network)
    try:
        forward = _Forward(network, tail, query)
        forward.run(inputs, base)
        return _sum(forward, target, against, base)
    except _RefusedError as why:
        raise AttnctlError(f"{name} cannot be taken apart into direct contributions: {why}") from why


class _Forward:
    """A forward, recorded at the watched position."""

    def __init__(self, network: Any, tail: int, query: int) -> None:
        self.network, self.tail, self.query = network, tail, query
        self.blocks: list[_Block] = []
        self.modules = blocks_of(network)
        self.outside: list[_Seen] = []  # norms after the blocks
        self.head: _Seen | None = None
        self.logits: Array | None = None

    def run(self, inputs: dict[str, Any], base: Intervention) -> None:
        """Run the text, and keep what every part made of it."""
        head = self.network.get_output_embeddings()
        if head is None or not isinstance(getattr(head, "weight", None), torch.Tensor):
            raise _RefusedError("it has no unembedding matrix")
        inner = {id(module) for block in self.modules for module in block.modules()}
        with ExitStack() as stack:
            for block in self.modules:
                self._watch_block(block, stack)
            for module in self.network.modules():
                if id(module) not in inner and "norm" in type(module).__name__.lower():
                    stack.callback(module.register_forward_hook(self._keeper(self.outside)).remove)
            stack.callback(head.register_forward_hook(self._keep_head, with_kwargs=False).remove)
            stack.enter_context(applied(self.network, [base], "self"))
            stack.enter_context(attending(self.network, self._attended, lambda site: site.kind == "self"))
            self.logits = self.network(**inputs).logits[0, -self.tail].double()  # (vocabulary,)

    def _watch_block(self, block: Any, stack: ExitStack) -> None:
        def begin(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = args[0] if args else kwargs.get("hidden_states")
            self.blocks.append(_Block(given=self._row(given)))

        def end(_: Any, __: Any, output: Any) -> None:
            self.blocks[-1].made = self._row(_first(output))

        stack.callback(block.register_forward_pre_hook(begin, with_kwargs=True).remove)
        stack.callback(block.register_forward_hook(end).remove)
        for child in block.modules():
            if child is block:
                continue
            direct = any(child is one for one in block.children())
            flat = hasattr(child, "weight") and child.weight is not None and child.weight.ndim == 2
            if direct:
                hook = self._keeper(None, lambda: self.blocks[-1].children)
                stack.callback(child.register_forward_hook(hook, with_kwargs=True).remove)
            if flat:
                hook = self._keeper(None, lambda: self.blocks[-1].linear)
                stack.callback(child.register_forward_hook(hook, with_kwargs=True).remove)

    def _keeper(self, into: list[_Seen] | None, where: Callable[[], list[_Seen]] | None = None) -> Any:
        def keep(module: Any, args: tuple[Any, ...], *rest: Any) -> None:
            output = rest[-1]
            kwargs = rest[0] if len(rest) > 1 else {}
            given = self._row(args[0] if args else kwargs.get("hidden_states"))
            made = self._row(_first(output))
            if given is not None and made is not None:
                several = where() if where is not None else into
                assert several is not None
                several.append(_Seen(module, given, made))

        return keep

    def _keep_head(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        given, made = args[0], output
        self.head = _Seen(module, given[0, -self.tail].double(), made[0, -self.tail].double())

    def _row(self, value: Any) -> Array | None:
        """The watched position of (1, n, d) or (n, d); None for anything else."""
        if not isinstance(value, torch.Tensor) or value.ndim not in (2, 3):
            return None
        rows = value[0] if value.ndim == 3 else value
        return rows[-self.tail].double() if rows.shape[0] >= self.tail else None

    def _attended(self, site: Site, call: Call) -> None:
        block = self.blocks[-1] if self.blocks else None
        if block is None or block.weights is not None:
            raise _RefusedError("it attends outside its blocks, or twice in one")
        weights = attention.run(attention.select(call, None, [self.query])).weights  # (1, heads, 1, n_k)
        block.layer, block.weights = site.layer, weights[0, :, 0].double()  # (heads, n_k)
        block.values = attention.share_heads(call.values, weights.shape[1])[0].double()  # (heads, n_k, d_v)
        block.linear.clear()  # what was called before it are its own projections


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple | list) else output


def _near(one: Array, other: Array) -> bool:
    if one.shape != other.shape:
        return False
    return float((one - other).abs().max()) <= NEAR * max(float(other.abs().max()), 1e-6)


# --- the sum -----------------------------------------------------------------------------------------------------


def _sum(forward: _Forward, target: int, against: int | None, base: Intervention) -> Contributions:
    blocks = forward.blocks
    if not blocks or any(block.given is None or block.made is None for block in blocks):
        raise _RefusedError("its blocks pass on more than one stream")
    for one, other in zip(blocks, blocks[1:], strict=False):
        if not _near(other.given, one.made):
            raise _RefusedError("what a block puts out is changed before the next one reads it")
    direction, bias, logit, notes = _unembedding(forward, target, against)
    parts = [Part("embedding", float(blocks[0].given @ direction))]
    for block in blocks:
        parts += _block_parts(block, direction, base, forward.network.config)
    parts.append(Part("bias", bias))
    return Contributions(logit, tuple(parts), notes)


def _unembedding(forward: _Forward, target: int, against: int | None) -> tuple[Array, float, float, tuple[str, ...]]:
    """The direction along which the residual stream makes the logit, what biases add to it, and the logit itself."""
    head, last, logits = forward.head, forward.blocks[-1].made, forward.logits
    if head is None or logits is None or last is None:
        raise _RefusedError("its unembedding is not called as one")
    scale, cap, notes = _after_head(forward, head.made, logits)
    weight = head.module.weight.double()  # (vocabulary, d_model)
    own_bias = getattr(head.module, "bias", None)
    way = weight[target] - (0 if against is None else weight[against])  # (d_model,)
    bias = 0.0
    if own_bias is not None:
        bias = float(own_bias[target].double() - (0 if against is None else own_bias[against].double()))
    made = head.made if cap is not None else logits
    logit = float(made[target] - (0 if against is None else made[against]))
    linear = _Linear.identity() if _near(head.given, last) else None
    for norm in forward.outside:
        if linear is None and _near(norm.given, last) and _near(head.given, norm.made):
            linear = _Linear.of(norm)
    if linear is None:
        raise _RefusedError("between its last block and its unembedding stands more than a norm")
    direction = linear.back(way) * scale  # (d_model,)
    return direction, float(linear.constant(way) + bias) * scale, logit, notes


def _after_head(forward: _Forward, made: Array, logits: Array) -> tuple[float, float | None, tuple[str, ...]]:
    """What happens to logits after the unembedding: a factor, or a soft cap, before which the sum then is."""
    cap = getattr(forward.network.config.get_text_config(), "final_logit_softcapping", None)
    if cap and _near(torch.tanh(made / cap) * cap, logits):
        note = f"{architecture(forward.network)} caps its logits at ±{cap:g}: the sum is of the logit before the cap."
        return 1.0, float(cap), (note,)
    at = int(made.abs().argmax())
    factor = float(logits[at] / made[at])
    if not _near(made * factor, logits):
        raise _RefusedError("its logits are changed after the unembedding")
    return factor, None, ()


@dataclass
class _Linear:
    """A norm at the scale it had: x → (x - its mean, where centred) · scale + shift."""

    scale: Array | None = None  # (d,)
    shift: Array | None = None  # (d,)
    centred: bool = False

    @classmethod
    def identity(cls) -> _Linear:
        return cls()

    @classmethod
    def of(cls, seen: _Seen) -> _Linear:
        """The norm as it was on this row. Raises _RefusedError for one of another kind than RMS and layer norms."""
        weight, bias = getattr(seen.module, "weight", None), getattr(seen.module, "bias", None)
        gain = torch.ones_like(seen.given) if weight is None else weight.double()  # (d,)
        shift = torch.zeros_like(seen.given) if bias is None else bias.double()  # (d,)
        names = ("variance_epsilon", "eps", "epsilon", "norm_eps")
        eps = next((float(value) for name in names if (value := getattr(seen.module, name, None)) is not None), 1e-6)
        for centred in (False, True):
            x = seen.given - seen.given.mean() if centred else seen.given  # (d,)
            length = torch.rsqrt((x * x).mean() + eps)
            for factor in (gain, 1 + gain):
                if _near(x * length * factor + shift, seen.made):
                    return cls(length * factor, shift, centred)
        raise _RefusedError(f"its {type(seen.module).__name__} is no norm that it knows how to hold still")

    def back(self, way: Array) -> Array:
        """The direction before the norm that becomes `way` after it: (d,)."""
        if self.scale is None:
            return way
        before = way * self.scale  # (d,)
        return before - before.mean() if self.centred else before

    def constant(self, way: Array) -> float:
        """What the shift adds along a direction."""
        return 0.0 if self.shift is None else float(self.shift @ way)


def _block_parts(block: _Block, direction: Array, base: Intervention, config: Any) -> Iterator[Part]:
    """What a block adds: its heads, its output projection's bias, and its MLP."""
    assert block.given is not None and block.made is not None
    added = block.made - block.given  # (d_model,)
    if block.weights is None:  # no attention in it: a convolution, a state space
        yield Part("mlp", float(added @ direction))
        return
    projection = _projection(block)
    written, linear = _attention_branch(block, projection, added, config)
    way = linear.back(direction) * written  # (d_model,)
    heads, bias = _heads(block, projection, way, base)
    yield from heads
    bias += float(linear.constant(direction)) * written
    if bias:
        yield Part("bias", bias, block.layer)
    attended = float(_through(linear, projection.made) @ direction) * written
    yield Part("mlp", float(added @ direction) - attended, block.layer)


def _projection(block: _Block) -> _Seen:
    """The output projection: the first matrix that the heads side by side go through."""
    assert block.weights is not None and block.values is not None
    width = block.weights.shape[0] * block.values.shape[-1]
    for seen in block.linear:
        if seen.given.shape[-1] == width and block.given is not None and seen.made.shape == block.given.shape:
            return seen
    raise _RefusedError("its heads do not go through an output projection of their own")


def _attention_branch(block: _Block, projection: _Seen, added: Array, config: Any) -> tuple[float, _Linear]:
    """The factor on what attention adds to the stream, and the norm it goes through first.

    Raises _RefusedError where what the block adds is not the sum of its children: the stream is normalised in it.
    """
    candidates: list[tuple[Array, _Linear]] = [(projection.made, _Linear.identity())]
    for child in block.children:
        if _near(child.given, projection.made) and "norm" in type(child.module).__name__.lower():
            candidates.insert(0, (child.made, _Linear.of(child)))
    factors = [1.0]
    if (multiplier := getattr(config.get_text_config(), "residual_multiplier", None)) is not None:
        factors.insert(0, float(multiplier))
    others = [child.made for child in block.children if child.made.shape == added.shape]
    others += [seen.made for seen in block.linear if seen.made.shape == added.shape and seen is not projection]
    for factor in factors:
        for attended, linear in candidates:
            rest = added - factor * attended  # (d_model,)
            if any(_near(factor * sum(several), rest) for count in (1, 2) for several in combinations(others, count)):
                return factor, linear
    raise _RefusedError("it normalises the residual stream inside its blocks (post-norm), or mixes it")


def _through(linear: _Linear, x: Array) -> Array:
    if linear.scale is None or linear.shift is None:
        return x
    return (x - x.mean() if linear.centred else x) * linear.scale + linear.shift


def _heads(block: _Block, projection: _Seen, way: Array, base: Intervention) -> tuple[list[Part], float]:
    """What each head writes along a direction, by source token where it stands for weights × values, and the bias."""
    assert block.weights is not None and block.values is not None
    matrix = projection.module.weight.double()  # (d_model, heads · d_v), or of a Conv1D the other way around
    if matrix.shape[0] == projection.given.shape[0] and type(projection.module).__name__ == "Conv1D":
        matrix = matrix.T
    if matrix.shape != (way.shape[0], projection.given.shape[0]):
        raise _RefusedError("its output projection is packed")
    bias = getattr(projection.module, "bias", None)
    shift = torch.zeros_like(projection.made) if bias is None else bias.double()  # (d_model,)
    if not _near(matrix @ projection.given + shift, projection.made):
        raise _RefusedError("its output projection is more than a matrix")
    n_heads, d_v = block.weights.shape[0], block.values.shape[-1]
    given = projection.given.reshape(n_heads, d_v)  # (heads, d_v)
    along = (way @ matrix).reshape(n_heads, d_v)  # (heads, d_v)
    plain = torch.einsum("hk,hkd->hd", block.weights, block.values)  # (heads, d_v)
    by_key = block.weights * torch.einsum("hkd,hd->hk", block.values, along)  # (heads, n_k)
    parts = []
    for head in range(n_heads):
        keys = (
            tuple(by_key[head].tolist()) if _near(plain[head], given[head]) else None
        )  # gated or ablated: not its own
        parts.append(Part("head", float(given[head] @ along[head]), block.layer, head, keys))
    return parts, float(shift @ way)
