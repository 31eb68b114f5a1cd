"""What transformers itself computes, recorded without attnctl: each call of its own attention functions, module by module."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

OVER_LAYERS = "AttentionResidual"  # Inkling 2: each token attends to its own earlier states by the same functions


@dataclass(frozen=True)
class Reference:
    """One call of attention: the module's names, its weights (None of the fused kernel), its context (batch, n, heads, d)."""

    names: tuple[str, ...]
    weights: torch.Tensor | None
    context: torch.Tensor
    half: bool = False  # one of two calls of differential attention


@contextmanager
def recorded(model: Any) -> Iterator[list[Reference]]:
    """Every call of eager_attention_forward, or of the fused kernel, that modules of `model` make in this context."""
    from transformers.modeling_utils import AttentionInterface

    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not type(module).__name__.endswith(OVER_LAYERS):
            names.setdefault(id(module), []).append(name)
    calls: list[Reference] = []

    def recording(kernel: Any) -> Any:
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            context, weights = kernel(module, *args, **kwargs)
            if id(module) in names:
                kept = None if weights is None else weights.detach().clone()
                calls.append(
                    Reference(tuple(names[id(module)]), kept, context.detach().clone(), hasattr(module, "lambda_init"))
                )
            return context, weights

        return run

    files = {sys.modules[cls.__module__] for module in model.modules() for cls in type(module).__mro__[:3]}
    with ExitStack() as stack:
        for module in model.modules():
            if type(module).__name__ in BLOCKS and id(module) in names:
                _record_blocks(model, module, tuple(names[id(module)]), calls, stack)
        for file in files:
            if hasattr(file, "eager_attention_forward"):
                wrapped = recording(file.eager_attention_forward)
                stack.enter_context(patch.object(file, "eager_attention_forward", wrapped))
        fused = AttentionInterface._global_mapping["sdpa"]
        stack.enter_context(patch.dict(AttentionInterface._global_mapping, {"sdpa": recording(fused)}))
        yield calls


# --- modules that attend block by block -----------------------------------------------------------------------------------


def _record_blocks(model: Any, module: Any, names: tuple[str, ...], calls: list[Reference], stack: ExitStack) -> None:
    """Record each call of a module that attends in blocks: what its softmaxes give, each number put where its key is."""
    blocks: list[torch.Tensor] = []
    contexts: list[torch.Tensor] = []  # what its output projection reads: (batch, n, heads * d)
    n = 0
    plain = torch.nn.functional.softmax
    within = ExitStack()
    output = getattr(module, "o", getattr(module, "out_proj", None))

    def recording(*args: Any, **kwargs: Any) -> torch.Tensor:
        weights = plain(*args, **kwargs)
        blocks.append(weights.detach().clone())
        return weights

    def begin_encoder(_: Any, args: Any, kwargs: Any) -> None:
        nonlocal n
        given = [*args, *(kwargs.get(name) for name in ("input_ids", "inputs_embeds"))]
        n = next(part for part in given if part is not None).shape[1]

    def begin(*_: Any) -> None:
        within.enter_context(patch.object(torch.nn.functional, "softmax", recording))

    def end(_: Any, __: Any, out: Any) -> None:
        within.close()
        first = padded_before(model, module)
        weights = BLOCKS[type(module).__name__](module, blocks, n, first)
        context = (contexts or [out[0]])[-1][:, first : first + n]
        context = torch.cat([context, *contexts[:-1]], 1).unflatten(-1, (weights.shape[1], -1))
        calls.append(Reference(names, weights, context.detach().clone()))
        blocks.clear()
        contexts.clear()

    encoder = next(part for part in model.modules() if type(part).__name__.endswith(("Encoder", "T5Stack")))
    stack.callback(encoder.register_forward_pre_hook(begin_encoder, with_kwargs=True).remove)
    stack.callback(module.register_forward_pre_hook(begin).remove)
    stack.callback(module.register_forward_hook(end).remove)
    if output is not None:
        stack.callback(output.register_forward_pre_hook(lambda _, args: contexts.append(args[0])).remove)


def padded_before(model: Any, module: Any) -> int:
    """How many tokens Pegasus-X pads before the text in a layer with staggered blocks; 0 of all else."""
    for part in model.modules():
        if getattr(part, "stagger_blocks_this_layer", False) and part.self_attn is module:
            return int(module.block_size // 2)
    return 0


def _of_long_t5(module: Any, blocks: list[torch.Tensor], n: int, _: int) -> torch.Tensor:
    """(batch, heads, n, n and global keys) of one softmax over three blocks and the global keys."""
    (found,), length = blocks, module.block_len
    batch, _, heads, _, columns = found.shape
    wide = torch.zeros(batch, heads, n, n + columns - 3 * length, dtype=found.dtype, device=found.device)
    for query in range(n):
        block, row = divmod(query, length)
        for column in range(columns):
            key = (block - 1) * length + column if column < 3 * length else n + column - 3 * length
            if key >= n if column >= 3 * length else 0 <= key < n:
                wide[:, :, query, key] += found[:, block, :, row, column]
    return wide


def _of_big_bird(module: Any, blocks: list[torch.Tensor], n: int, _: int) -> torch.Tensor:
    """(batch, heads, n, n) of five softmaxes: the first block, the second, those between, the last but one, the last."""
    first, second, middle, before_last, last = blocks
    size, count = module.block_size, first.shape[-1] // module.block_size
    wide = torch.zeros(*first.shape[:2], count * size, count * size, dtype=first.dtype, device=first.device)
    chance = [0] * module.num_random_blocks  # outside training
    for block in range(count):
        if block in (0, count - 1):
            found, keys = (first, last)[block > 0], list(range(count))
        elif block == 1:
            found, keys = second, [0, 1, 2, count - 1, *chance]
        elif block == count - 2:
            found, keys = before_last, [0, count - 3, count - 2, count - 1, *chance]
        else:
            found, keys = middle[:, :, block - 2], [0, block - 1, block, block + 1, *chance, count - 1]
        for place, key in enumerate(keys):
            part = found[..., place * size : (place + 1) * size]
            wide[:, :, block * size : (block + 1) * size, key * size : (key + 1) * size] += part
    return wide[:, :, :n, :n]


def _of_pegasus_x(module: Any, blocks: list[torch.Tensor], n: int, first: int) -> torch.Tensor:
    """(batch, heads, n and states, n and states) of two softmaxes: global states over all, a block over states and itself."""
    (states, local), size = blocks, module.block_size
    count = states.shape[2]
    wide = torch.zeros(*states.shape[:2], n + count, n + count, dtype=states.dtype, device=states.device)
    wide[:, :, n:, n:], wide[:, :, n:, :n] = states[..., :count], states[..., count + first : count + first + n]
    for query in range(n):
        block, row = divmod(query + first, size)
        wide[:, :, query, n:] = local[:, :, block, row, :count]
        for column in range(size):
            key = block * size + column - first
            if 0 <= key < n:
                wide[:, :, query, key] = local[:, :, block, row, count + column]
    return wide


BLOCKS = {
    "LongT5LocalAttention": _of_long_t5,
    "LongT5TransientGlobalAttention": _of_long_t5,
    "BigBirdPegasusBlockSparseAttention": _of_big_bird,
    "PegasusXGlobalLocalAttention": _of_pegasus_x,
}


# --- families that put out something else than their weights ----------------------------------------------------------

# families → the kinds of attention of which they do
PUT_OUT_OTHERWISE = {
    "led": ("encoder",),
    "longformer": ("self",),
    "prophetnet": ("encoder", "cross"),
    "squeezebert": ("self",),
}


@contextmanager
def softmaxes(model: Any) -> Iterator[dict[str, list[torch.Tensor]]]:
    """What each module's softmax gives in this context: name of the innermost module that runs → one tensor a call."""
    running: list[str] = []
    found: dict[str, list[torch.Tensor]] = {}
    plain = torch.nn.functional.softmax

    def recording(*args: Any, **kwargs: Any) -> torch.Tensor:
        weights = plain(*args, **kwargs)
        found.setdefault(running[-1], []).append(weights.detach().clone())
        return weights

    def leave(*_: Any) -> None:
        running.pop()

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if any(True for _ in module.children()) and not isinstance(module, torch.nn.Softmax):
                stack.callback(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)).remove)
                stack.callback(module.register_forward_hook(leave).remove)
        stack.enter_context(patch.object(torch.nn.functional, "softmax", recording))
        yield found


def true_weights(family: str, found: dict[str, list[torch.Tensor]], put_out: dict[str, Any]) -> dict[str, Any]:
    """What was put out, (kind → forwards → layers), with the weights by the modules' own softmax in its place."""
    for kind in PUT_OUT_OTHERWISE[family]:
        forwards = put_out.get(kind, [])
        names = sorted(name for name in found if _is_of_kind(name, kind))
        told = (layers for layers in forwards if any(part is not None for part in layers))
        for step, layers in enumerate(list(told)):
            forwards[[id(one) for one in forwards].index(id(layers))] = tuple(
                _laid_out(found[name][step], part) for name, part in zip(names, layers, strict=True)
            )
    return put_out


def _is_of_kind(name: str, kind: str) -> bool:
    cross, decoder = "cross_attn" in name or "encoder_attn" in name, ".decoder." in name or name.startswith("decoder.")
    return {"self": True, "cross": cross, "decoder": decoder and not cross, "encoder": not decoder}[kind]


def _laid_out(weights: torch.Tensor, put_out: torch.Tensor) -> torch.Tensor:
    """Weights (batch, heads, n, n); of a window's columns (batch, n, heads, 2 side + 1), each put where its key is."""
    if weights.shape == put_out.shape:
        return weights
    batch, heads, n, width = put_out.shape
    weights = weights.to(put_out.device)
    wide = torch.zeros(batch, heads, n, n, dtype=weights.dtype, device=put_out.device)
    for query in range(n):
        for column in range(width):
            key = query + column - width // 2
            if 0 <= key < n:
                wide[:, :, query, key] = weights[:, query, :, column]
    return wide * (put_out.sum(-1, keepdim=True) > 0)  # padding asks nothing
