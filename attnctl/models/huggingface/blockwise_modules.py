"""Read modules that attend block by block, in code of their own, as one call of attention over all tokens.

LongT5, BigBird Pegasus and Pegasus-X never make scores of (n, n): each block of queries has a softmax over the keys of a few
blocks. The same rows of weights follow from a mask that hides the keys of other blocks. A key that stands twice in a
block's softmax has twice the weight: log 2 on its score. Keys that belong to no token come after those of the tokens.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from attnctl.attention import Array
from attnctl.errors import AttnctlError

if TYPE_CHECKING:
    from torch.nn import Module

    from attnctl.models.huggingface.attention_call import Answer

OWN_CODE = "own code"  # in the place of the name of a function of transformers' interface
# called with a function, OWN_CODE, a module, queries, keys, values, mask, scaling= and position_bias=
Attend = Callable[..., "Answer"]


@dataclass(frozen=True, eq=False)
class DenseCall:
    """An attention over all tokens: queries (batch, heads, n_q, d), keys and values (batch, heads, n_k, d).

    `visible` is (batch, 1, n_q, n_k), and true where a query sees a key; `bias` (batch or 1, heads or 1, n_q, n_k).
    """

    queries: Array
    keys: Array
    values: Array
    visible: Array
    bias: Array | None
    scale: float


@dataclass(eq=False)
class ModuleOutputs:
    """What the projections of a running module put out, in the order of their calls, and the arguments of the module.

    `count` is the number of tokens that its encoder was given, which pads them to whole blocks; None if it runs alone.
    `shift` is the number of tokens that are padded before them, in a layer with staggered blocks.
    """

    arguments: Mapping[str, Any]
    count: int | None = None
    shift: int = 0
    projected: dict[str, list[Array]] = field(default_factory=dict)

    def heads(self, name: str, heads: int, call: int = 0) -> Array:
        """Return the result of a call of a projection, (batch, n, heads · d), as (batch, heads, n, d)."""
        return self.projected[name][call].unflatten(-1, (heads, -1)).transpose(1, 2)


@dataclass(frozen=True)
class Family:
    """The way in which a class of modules attends: its projections, and the dense call that equals it.

    `output` is the projection of its context, "" if it returns its context. `encoder` is the class of the model that pads.
    """

    projections: tuple[str, str, str]
    output: str
    dense: Callable[[Module, ModuleOutputs], DenseCall]
    encoder: str = ""
    first: Callable[[Module, ModuleOutputs], Array] | None = (
        None  # the context of the rows before those that `output` reads first
    )
    dropout: Callable[[Any], float] = lambda module: float(module.dropout)


# --- LongT5 (Guo et al. 2022) -----------------------------------------------------------------------------------------

HIDDEN = -1e9  # LongT5 adds -1e10 to a score that it hides


def _long_t5(module: Any, outputs: ModuleOutputs) -> DenseCall:
    """Return the call of LongT5's local attention; with global keys, one for each block of tokens, after the tokens."""
    queries, keys, values = (outputs.heads(name, module.n_heads) for name in "qkv")
    n, length, given = queries.shape[-2], module.block_len, outputs.arguments
    mask, bias = given.get("mask"), given.get("position_bias")
    if hasattr(module, "global_block_size"):
        keys, values = (
            torch.cat([array, outputs.heads(name, module.n_heads, 1)], 2)
            for name, array in (("k", keys), ("v", values))
        )
    if bias is None:
        bias = _long_t5_bias(module, mask, queries)
    tokens = torch.arange(n, device=queries.device)
    block = tokens // length if bias.shape[1] > 1 else torch.zeros_like(tokens)
    column = tokens[None] - (tokens[:, None] // length - 1) * length  # (n, n): the place of a key in three blocks
    inside = (column >= 0) & (column < 3 * length)
    within = (tokens % length)[:, None]
    near = bias[:, block[:, None], :, within, column.clamp(0, 3 * length - 1)]  # (n, n, batch, heads)
    near = near.permute(2, 3, 0, 1).masked_fill(~inside, -torch.inf)  # (batch, heads, n, n)
    far = bias[:, block, :, tokens % length, 3 * length :]  # (n, batch, heads, global keys)
    bias = torch.cat([near, far.permute(1, 2, 0, 3)], -1).to(queries)  # (batch, heads, n, n_k)
    visible = (bias > HIDDEN).any(1, keepdim=True)  # (batch, 1, n, n_k)
    return DenseCall(queries, keys, values, visible, bias.masked_fill(bias <= HIDDEN, 0.0), 1.0)


def _long_t5_bias(module: Any, mask: Array | None, queries: Array) -> Array:
    """Return the bias that a layer of LongT5 makes itself: (batch or 1, blocks or 1, heads, length, 3 · length + global)."""
    from transformers.models.longt5 import modeling_longt5

    n, length = queries.shape[-2], module.block_len
    bias: Array = (
        module.compute_bias(length)
        if module.has_relative_attention_bias
        else queries.new_zeros(1, 1, module.n_heads, length, 3 * length)
    )
    if not hasattr(module, "global_block_size"):
        return bias if mask is None else bias + torch.where(mask > 0, 0.0, -1e10).transpose(1, 2)
    if mask is None:
        mask = torch.ones(len(queries), n, device=queries.device)
    else:
        near = modeling_longt5._get_local_attention_mask(mask, length, queries.device)
        bias = bias + torch.where(near > 0, 0.0, -1e10).transpose(1, 2)
    _, segments = modeling_longt5._make_global_fixed_block_ids(mask, module.global_block_size)
    far = modeling_longt5._split_into_blocks(module.compute_side_bias(mask, segments), length, dim=-2).transpose(1, 2)
    blocks, batch = far.shape[1], max(len(far), len(bias))
    both = bias.expand(batch, blocks, *bias.shape[2:]), far.expand(batch, *far.shape[1:])
    return torch.cat([part.to(queries) for part in both], -1)


# --- BigBird (Zaheer et al. 2020) -------------------------------------------------------------------------------------


def _big_bird(module: Any, outputs: ModuleOutputs) -> DenseCall:
    """Return the call of BigBird's sparse attention; outside training, each of its random blocks is the first block."""
    if module.training:
        raise AttnctlError(f"{type(module).__name__} picks its blocks at random in training mode: call model.eval()")
    heads = module.num_attention_heads
    queries, keys, values = (outputs.heads(name, heads) for name in ("query", "key", "value"))
    seen = copies_of_blocks(queries.shape[-2] // module.block_size, module.num_random_blocks)
    seen = seen.to(queries).repeat_interleave(module.block_size, 0).repeat_interleave(module.block_size, 1)  # (n, n)
    real = outputs.arguments["from_mask"] * outputs.arguments["to_mask"] > 0  # (batch, 1, n, n)
    bias = seen.clamp(min=1.0).log()[None, None]  # (1, 1, n, n)
    text = slice(outputs.count)
    queries, keys, values = (array[:, :, text] for array in (queries, keys, values))
    visible, bias = (array[..., text, text] for array in (real & (seen > 0), bias))
    return DenseCall(queries, keys, values, visible, bias, module.attention_head_size**-0.5)


def _big_bird_whole(module: Any, outputs: ModuleOutputs) -> DenseCall:
    """Return the call of the attention that BigBird Pegasus takes for a text that is too short for its blocks."""
    queries, keys, values = (outputs.heads(name, module.num_attention_heads) for name in ("query", "key", "value"))
    n, mask = queries.shape[-2], outputs.arguments.get("attention_mask")  # (batch, 1, 1, n), added to the scores
    visible = torch.ones(len(queries), 1, n, n, dtype=torch.bool, device=queries.device)
    if mask is not None:
        visible = visible & (mask > torch.finfo(mask.dtype).min / 2)
    return DenseCall(queries, keys, values, visible, None, module.attention_head_size**-0.5)


def copies_of_blocks(count: int, random_blocks: int) -> Array:
    """Return how often each block of keys stands in the softmax of each block of queries, outside training: (count, count).

    The first and the last block see all, and are seen by all; others see themselves, their neighbours, and for each random
    block the first one again.
    """
    number = torch.arange(count)
    copies = ((number[:, None] - number).abs() <= 1).float()  # (count, count)
    copies[[0, -1]] = 1.0
    copies[:, [0, -1]] = 1.0
    copies[1:-1, 0] += random_blocks
    return copies


# --- Pegasus-X (Phang et al. 2022) ------------------------------------------------------------------------------------


def _pegasus_x(module: Any, outputs: ModuleOutputs) -> DenseCall:
    """Return the call of Pegasus-X: tokens see their block and the global states, which come after them and see all."""
    mask = outputs.arguments["attention_mask"]  # (batch, n), added to the scores
    block = torch.arange(mask.shape[-1], device=mask.device) // module.block_size
    text = slice(outputs.shift, None if outputs.count is None else outputs.shift + outputs.count)
    queries, keys, values = (
        torch.cat([outputs.heads(name, module.num_heads)[:, :, text], outputs.heads(name, module.num_heads, 1)], 2)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    mask, block = mask[:, text], block[text]
    states = queries.shape[-2] - mask.shape[-1]
    seen = torch.nn.functional.pad(block[:, None] == block, (0, states, 0, states), value=True)  # (n_q, n_k)
    real = torch.nn.functional.pad(mask > torch.finfo(mask.dtype).min / 2, (0, states), value=True)  # (batch, n_k)
    return DenseCall(queries, keys, values, (seen & real[:, None])[:, None], None, module.scaling)


def _pegasus_x_tokens(module: Any, outputs: ModuleOutputs) -> Array:
    """Return the context of the tokens, (batch, n, heads · d_v), by the module's own code, which makes it later."""
    from transformers.models.pegasus_x.modeling_pegasus_x import DimensionInfo

    heads = module.num_heads
    q, k, v = (outputs.heads(name, heads) for name in ("q_proj", "k_proj", "v_proj"))
    states_k, states_v = (outputs.heads(name, heads, 1) for name in ("k_proj", "v_proj"))
    (batch, _, n, width), length = q.shape, module.block_size
    sizes = DimensionInfo(batch, n, length, heads, heads * width, width, n // length, states_k.shape[2], n)
    context, _ = module.compute_local_attention_representations(
        states_k, states_v, q * module.scaling, k, v, outputs.arguments["attention_mask"], sizes
    )
    end = None if outputs.count is None else outputs.shift + outputs.count
    return context.permute(0, 2, 3, 1, 4).reshape(batch, n, -1)[:, outputs.shift : end]


FAMILIES = {
    "LongT5LocalAttention": Family(("q", "k", "v"), "o", _long_t5),
    "LongT5TransientGlobalAttention": Family(("q", "k", "v"), "o", _long_t5),
    "BigBirdPegasusBlockSparseAttention": Family(
        ("query", "key", "value"), "", _big_bird, "BigBirdPegasusEncoder", dropout=lambda module: 0.0
    ),
    "PegasusXGlobalLocalAttention": Family(
        ("q_proj", "k_proj", "v_proj"), "out_proj", _pegasus_x, "PegasusXEncoder", _pegasus_x_tokens
    ),
    "BigBirdPegasusSelfAttention": Family(
        ("query", "key", "value"), "", _big_bird_whole, dropout=lambda module: float(module.dropout.p)
    ),
}


# --- while a model runs -----------------------------------------------------------------------------------------------


def attends_in_blocks(module: Module) -> bool:
    """Return whether a module is of a class that attends block by block, in code of its own."""
    return type(module).__name__ in FAMILIES


def random_blocks_note(model: Module) -> str:
    """Return a sentence about BigBird's random blocks, for a reader of its weights; "" for any other model."""
    for part in model.modules():
        core: Any = part
        if type(core).__name__.endswith("BlockSparseAttention") and core.num_random_blocks:
            again = "once more" if core.num_random_blocks == 1 else f"{core.num_random_blocks} times more"
            return (
                f"Blocks of {core.block_size} tokens: outside training, random blocks are the first block, whose keys the "
                f"softmax holds {again}."
            )
    return ""


def hear_module(model: Module, module: Module, attend: Attend, stack: ExitStack) -> None:
    """Show each attention of a module of `model` that goes block by block to `attend`, until `stack` is closed."""
    family, thread = FAMILIES[type(module).__name__], threading.local()
    shift = 0
    for part in model.modules():
        layer: Any = part
        if getattr(layer, "stagger_blocks_this_layer", False) and layer.self_attn is module:
            shift = layer.block_size // 2

    def begin_encoder(encoder: Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = _arguments(encoder, args, keywords)
        ids = given.get("input_ids")
        thread.count = (given["inputs_embeds"] if ids is None else ids).shape[1]

    def begin(_: Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        thread.outputs = ModuleOutputs(_arguments(module, args, keywords), getattr(thread, "count", None), shift)

    def project(name: str, _: Module, __: object, out: Array) -> None:
        if (outputs := getattr(thread, "outputs", None)) is not None:
            outputs.projected.setdefault(name, []).append(out)

    def changed_context(own: Array) -> Array | None:
        """Return the context (batch, n, heads · d_v) that the module goes on with, or None if it stays its own."""
        outputs, thread.outputs = getattr(thread, "outputs", None), None
        if outputs is None:
            later, thread.later = getattr(thread, "later", None), None
            return later
        before = own[:, :0] if family.first is None else family.first(module, outputs)
        changed = _shown(module, family, family.dense(module, outputs), torch.cat([before, own], 1), attend)
        if changed is not None and family.first is not None:  # the projection reads these rows in its next call
            rest = outputs.arguments["attention_mask"].shape[-1] - outputs.shift - before.shape[1]
            thread.later = torch.nn.functional.pad(changed[:, : before.shape[1]], (0, 0, outputs.shift, rest))
        return None if changed is None else changed[:, before.shape[1] :]

    def begin_output(_: Module, args: tuple[Array, ...]) -> tuple[Array, ...] | None:
        changed = changed_context(args[0])
        return None if changed is None else (changed, *args[1:])

    def end(_: Module, __: object, out: Any) -> Any:
        changed = changed_context(out[0])
        return None if changed is None else (changed, *out[1:])

    for part in model.modules():
        if type(part).__name__ == family.encoder and any(module is inner for inner in part.modules()):
            stack.callback(part.register_forward_pre_hook(begin_encoder, with_kwargs=True).remove)
    stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
    for name in family.projections:
        stack.callback(module.get_submodule(name).register_forward_hook(partial(project, name)).remove)
    if family.output:
        output = module.get_submodule(family.output)
        stack.callback(output.register_forward_pre_hook(begin_output, prepend=True).remove)
    else:
        stack.callback(module.register_forward_hook(end, prepend=True).remove)


def _arguments(module: Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return name → value of the arguments that a module's forward is called with."""
    return inspect.signature(type(module).forward).bind_partial(module, *args, **keywords).arguments


def _shown(module: Module, family: Family, call: DenseCall, own: Array, attend: Attend) -> Array | None:
    """Show a call; return the context (batch, n, heads · d_v) if it is another one than the module's `own`."""
    if module.training and family.dropout(module):
        raise AttnctlError(
            f"{type(module).__name__} drops weights within code of its own in training mode: call model.eval()"
        )
    n = call.queries.shape[-2]
    blind = ~call.visible.any(-1)[:, 0, :, None, None]  # (batch, n, 1, 1): padding, which may see what is no token
    context = own[:, :n].unflatten(-1, (call.queries.shape[1], -1)).masked_fill(blind, 0.0)  # (batch, n, heads, d_v)
    answer, _ = attend(
        lambda *_, **__: (context, None), OWN_CODE, module, call.queries, call.keys, call.values, call.visible,
        scaling=call.scale, position_bias=call.bias,
    )  # fmt: skip
    if answer is context:
        return None
    return torch.nn.functional.pad(answer.flatten(2), (0, 0, 0, own.shape[1] - n))
