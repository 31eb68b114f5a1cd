"""Turn the arguments of a model's attention function into an `attention.Call`, and compare both results."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.blockwise.rows import masked_context
from attnctl.checks.tolerances import KERNEL, NOTHING, tolerance
from attnctl.errors import AttnctlError, option_name

if TYPE_CHECKING:
    from torch.nn import Module

    from attnctl.models.huggingface.attention_sites import Keywords


Answer = tuple[Array, Array | None]  # the result of an attention function: context (batch, n_q, heads, d_v), weights


# keywords that change a score, each read by `call_of`; dropout has an effect only in training
KNOWN = frozenset({"scaling", "dropout", "is_causal", "softcap", "s_aux", "sinks", "position_bias"})
# keywords that reach the attention function and do not change the scores, by purpose
HARMLESS = frozenset(
    # the model's inputs, passed through
    {"input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds", "token_type_ids", "mm_token_type_ids"}
    | {
        "position_ids",
        "cache_position",
        "position_embeddings",
        "encoder_hidden_states",
        "pixel_values",
        "input_features",
    }
    | {"use_cache", "cache", "past_key_values", "num_items_in_batch", "labels", "logits_to_keep"}
    # what the model returns
    | {"output_attentions", "output_hidden_states", "output_router_logits", "return_dict"}
    # hints to other kernels, which the mask already contains
    | {"sliding_window", "deterministic", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"}
    | {"indices", "block_indices"}
)


def check_keywords(architecture: str, keywords: Mapping[str, object]) -> None:
    """Raise AttnctlError for a keyword that has a value and that attnctl does not know."""
    for keyword, value in keywords.items():
        if value is not None and keyword not in KNOWN and keyword not in HARMLESS:
            raise AttnctlError(
                f"{architecture} passes the keyword {keyword!r} to its attention, which may change a score and which "
                "attnctl does not know: nothing is shown rather than something wrong"
            )


def call_of(
    module: Module,
    arrays: tuple[Array, Array, Array, Array | None],
    keywords: Keywords,
    *,
    fused: bool,
    architecture: str,
) -> Call:
    """Return the Call for a module's queries, keys, values, mask and keywords; the batch axis comes first.

    Without a mask, transformers' eager functions hide nothing; torch's `fused` kernel hides the future if the module is
    causal and there are several queries. Raises AttnctlError for unknown keywords, masks and sinks.
    """
    check_keywords(architecture, keywords)
    query, key, value, attention_mask = arrays
    n_q, n_k = query.shape[-2], key.shape[-2]
    position_bias, scaling, is_causal = (
        keywords.get("position_bias"),
        keywords.get("scaling"),
        keywords.get("is_causal"),
    )
    if fused and position_bias is not None and attention_mask is not None and attention_mask.dtype == torch.bool:
        dark = torch.finfo(query.dtype).min  # with a bias, transformers gives the fused kernel a mask of numbers
        attention_mask = torch.zeros_like(attention_mask, dtype=query.dtype).masked_fill(~attention_mask, dark)
    mask, bias = mask_and_bias(attention_mask, n_q, n_k, query.dtype)
    if position_bias is not None:
        position_bias = position_bias[..., :n_k]  # (1, heads, n_q, n_k)
        if bool(position_bias.any()) or position_bias.requires_grad:  # the bias of T5's cross attention is 0
            bias = position_bias if bias is None else position_bias + bias  # (batch, heads, n_q, n_k)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = fused and bool(is_causal) and attention_mask is None and n_q > 1
    return Call(
        query,
        key,
        value,
        scale=None if scaling is None else float(scaling),
        soft_cap=keywords.get("softcap"),
        bias=bias,
        causal=causal,
        offset=0 if causal else None,
        mask=mask,
        sinks=_read_sinks(keywords.get("s_aux") if keywords.get("s_aux") is not None else keywords.get("sinks"), query),
        dropout=float(keywords.get("dropout") or 0.0) if module.training else 0.0,
    )


def all_finite(array: Array) -> bool:
    """Return whether an array of torch holds neither NaN nor infinity.

    A finite sum tells so in a tenth of the time; the sum of finite numbers may overflow.
    """
    return bool(torch.isfinite(array.sum())) or bool(torch.isfinite(array).all())


def check_finite(call: Call, where: str) -> None:
    """Raise AttnctlError if queries or keys hold NaN or infinity (a damaged checkpoint, or float16 is too narrow)."""
    for name, array in (("queries", call.queries), ("keys", call.keys)):
        if not all_finite(array):
            raise AttnctlError(
                f"the {name} of {where} are not finite numbers: its weights up to there are not, or "
                f"{str(array.dtype).removeprefix('torch.')} is too narrow for them (see {option_name('dtype')})"
            )


def _read_sinks(sinks: Array | None, query: Array) -> Array | None:
    """Return learned sinks, one per head (heads,) or one per query and head (batch, heads, n_q); None if it has none."""
    batch, heads, n_q = query.shape[:-1]
    if sinks is None:
        return None
    if sinks.numel() == heads:
        return sinks.reshape(-1)  # (heads,)
    if tuple(sinks.shape) == (batch, heads, n_q, 1):
        return sinks[..., 0]  # (batch, heads, n_q)
    raise AttnctlError(
        f"learned sinks of shape {tuple(sinks.shape)}: attnctl reads one for each head, or for each query of each head"
    )


def mask_and_bias(
    mask: Array | None, n_q: int, n_k: int, dtype: torch.dtype = torch.float32
) -> tuple[Array | None, Array | None]:
    """Split a model's mask, (batch, 1 or heads, n_q, n_k), into the visible keys (batch, n_q, n_k) and a bias on the scores.

    A boolean mask gives no bias; a row without visible keys then has no weights. A mask of numbers is added to the scores: a
    row with the lowest number everywhere sees all keys alike, as the model computes it.
    """
    if mask is None:
        return None, None
    if mask.ndim != 4 or mask.shape[-2] not in (1, n_q) or mask.shape[-1] < n_k:
        raise AttnctlError(
            f"a mask of shape {tuple(mask.shape)} for {n_q} queries and {n_k} keys: attnctl reads "
            "(batch, 1, queries, keys)"
        )
    mask = mask[..., :n_k]  # a static cache's mask may be longer than its keys
    if mask.dtype == torch.bool:
        visible, bias = mask, None
    else:
        mask = mask if mask.is_floating_point() else mask.to(dtype)
        lowest = torch.finfo(mask.dtype).min
        visible = mask > lowest / 2  # (batch, 1 or heads, n_q, n_k)
        visible = visible | (~visible.any(-1, keepdim=True) & mask.isfinite())
        bias = torch.where(visible, mask, torch.zeros_like(mask))  # (batch, 1 or heads, n_q, n_k)
        bias = bias if bool(bias.any()) or bias.requires_grad else None
    # some models hide different keys from each head: a key of one head is visible, with weight 0 in others
    if visible.shape[1] > 1:
        union = visible.any(1, keepdim=True)  # (batch, 1, n_q, n_k)
        if not bool((visible == union).all()):
            bias = torch.zeros(visible.shape, dtype=dtype, device=mask.device) if bias is None else bias
            bias = bias.masked_fill(~visible & union, torch.finfo(bias.dtype).min)  # (batch, heads, n_q, n_k)
        visible = union
    visible = visible[:, 0]  # (batch, n_q, n_k)
    return (None if bool(visible.all()) else visible), bias


def added_mask(mask: Array | None, dtype: torch.dtype) -> Array | None:
    """Return a mask of true and false as the 1 and 0 that eager attention adds to the scores; None for any other mask."""
    return mask.to(dtype) if mask is not None and mask.dtype == torch.bool else None


FUSED_KEYS = 512  # from this length on, a changed call uses a fused kernel, which builds no n × n weights


def changed_context(call: Call) -> Array:
    """Return the context of a changed call, (batch, heads, n_q, d_v); long texts use the kernel that builds no weights."""
    return attention.run_call(call).context if call.n_k < FUSED_KEYS else masked_context(call)


# --- compared with the model itself ---------------------------------------------------------------------------------

CHECKED_ROWS = 8  # rows of each call that are compared with the result of the model's own function


@torch.no_grad()
def context_disagreement(call: Call, context: Array, weights: Array | None) -> float | None:
    """Return how far the model's context (batch, n_q, heads, d_v) and weights differ from the Call's; None: they agree.

    A few rows are compared, which costs n_k numbers each.
    """
    n_q = call.queries.shape[-2]
    rows = sorted(
        {number * (n_q - 1) // max(1, min(n_q, CHECKED_ROWS) - 1) for number in range(min(n_q, CHECKED_ROWS))}
    )
    sampled = attention.select_call(call, rows=rows)
    with torch.no_grad():
        steps = attention.run_call(sampled)
    dtype, kind = call.queries.dtype, call.queries.device.type
    if dtype == torch.float32 and torch.is_autocast_enabled(kind):  # sums of products are then in half precision
        dtype = torch.get_autocast_dtype(kind)
    limit = tolerance(KERNEL, dtype)
    gaps = [(0.0, limit)]
    if isinstance(weights, torch.Tensor) and weights.ndim == 4 and weights.shape[-2] == n_q:
        ours, theirs = steps.weights.float(), weights[:, :, rows].float()  # (batch, heads, rows, n_k)
        if ours.shape != theirs.shape:
            return float("inf")
        differences = (ours - theirs).detach().abs().nan_to_num(0.0).amax(-1)  # (batch, heads, rows)
        if call.sinks is not None:  # some models return the weights divided by their sum without the sink
            shares = (_shares_of_row(ours) - _shares_of_row(theirs)).detach().abs().amax(-1)  # (batch, heads, rows)
            differences = torch.where(ours.sum(-1) > NOTHING, differences.minimum(shares), 0.0)
        gaps.append((float(differences.max()), limit))
    ours, theirs = steps.context.transpose(1, 2), context[:, rows]  # (batch, rows, heads, d_v)
    if ours.shape != theirs.shape:
        return float("inf")
    if dtype in HALF:
        gaps.append((_half_disagreement(sampled, theirs.transpose(1, 2), dtype), 0.0))
    else:
        largest = call.values.abs().max().clamp(min=1e-6)
        gaps.append((float((ours - theirs).detach().abs().nan_to_num(0.0).max() / largest.detach()), limit))
    return max((gap for gap, allowed in gaps if gap > allowed), default=None)


HALF = (torch.bfloat16, torch.float16)
SCORE_ROUNDINGS = 3  # at most, of a score in half precision: its product, its scale or bias, its sum
OTHER_ROUNDINGS = 4  # of a context: its weights, their sum, the rescaling of blocks of keys, the context itself
NUMBERS_TOGETHER = 1 << 24  # numbers of keys and values in float32 at the same time


def _half_disagreement(call: Call, context: Array, dtype: torch.dtype) -> float:
    """Return how far a context in half precision (batch, heads, rows, d_v) differs from the call's, relative to the values.

    Return 0 if rounding explains the difference. The call is computed again in float32, with queries, keys and values in
    `dtype`. With u half the epsilon of the type, a rounded score s is off by u·|s|, so its weight p is off by a factor of
    exp(u·|s|) before the row is divided by its sum: at most Σ p·(1 - p)·|v| · 2·(exp(u·|s|) - 1), which is close to 0 for a
    row that looks at one key. Later steps round to u·Σ p·|v| each. Sums in float32 add its epsilon for each of the row's
    n_k keys; float16 loses as much to numbers that are too small for it.
    """
    heads, n_k = call.queries.shape[-3], call.n_k
    group = max(1, NUMBERS_TOGETHER // (n_k * (call.queries.shape[-1] + call.values.shape[-1])))
    half = torch.finfo(dtype).eps / 2
    worst = 0.0
    for first in range(0, heads, group):
        group_heads = list(range(first, min(first + group, heads)))
        part = attention.select_call(call, heads=group_heads) if len(group_heads) < heads else call
        queries, keys, values = (array.to(dtype).float() for array in (part.queries, part.keys, part.values))
        bias, sinks = (None if array is None else array.float() for array in (part.bias, part.sinks))
        part = replace(part, queries=queries, keys=keys, values=values, bias=bias, sinks=sinks)
        with torch.autocast(context.device.type, enabled=False):
            steps = attention.run_call(part)
            weights = steps.weights  # (batch, heads, rows, n_k)
            sizes = attention.share_heads(values.abs(), len(group_heads))  # (…, n_k, d_v)
            raw = steps.scores.abs() * abs(call.effective_scale)  # (batch, heads, rows, n_k)
            matters = weights > half * weights.amax(-1, keepdim=True)  # smaller weights disappear in rounding
            reach = torch.where(matters, raw.maximum(steps.scaled_scores.abs()), 0.0).amax(-1, keepdim=True)
            if sinks is not None:
                reach = reach.maximum(attention.sink_column(sinks).abs())
            moved = weights * (1 - weights) * 2 * torch.expm1(SCORE_ROUNDINGS * half * reach)
            allowed = (OTHER_ROUNDINGS * half * weights + moved + torch.finfo(torch.float32).eps) @ sizes
            differences = (steps.context - context[:, group_heads].float()).abs()  # (batch, heads, rows, d_v)
        differences = differences.where(weights.sum(-1, keepdim=True) > NOTHING, 0.0).where(
            steps.context.isfinite(), 0.0
        )
        differences = differences.nan_to_num(torch.inf)
        beyond = differences > allowed + torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        if bool(beyond.any()):
            largest = sizes.amax().clamp(min=1e-6)
            worst = max(worst, float((differences / largest)[beyond].max()))
    return worst


def _shares_of_row(weights: Array) -> Array:
    """Return the rows (..., n_k) divided by their sums."""
    return weights / weights.sum(-1, keepdim=True).clamp(min=NOTHING)  # (..., n_k)


def joined_calls(module: Module, query: Array, value: Array, answer: Answer) -> tuple[int, Array, Answer | None]:
    """Return the two calls of differential attention (Ye et al. 2024) as one: start of the second half, values, answer.

    Such a module attends twice with the same queries and keys, each time to one half of each value: after the first call
    the answer is None, because nothing can be shown yet.
    """
    place = (threading.get_ident(), id(module))
    first = _halves.pop(place, None)
    if first is None or first[0] is not query:
        _halves[place] = (query, value, answer[0])
        return 0, value, None
    values = torch.cat([first[1], value], dim=-1)  # (batch, kv_heads, n_k, d_v)
    context = torch.cat([first[2], answer[0]], dim=-1)  # (batch, n_q, heads, d_v)
    return first[1].shape[-1], values, (context, answer[1])


# (thread, module) after the first of its two calls → queries, values, context
_halves: dict[tuple[int, int], tuple[Array, Array, Array]] = {}


def call_of_text(call: Call, item: int = 0, n: int | None = None) -> Call:
    """Return one text's part of a batch's call, without the batch axis; only its `n` tokens if it is padded.

    A mask that hides nothing, and a bias that adds nothing, become None.
    """

    def part_of_text(part: Array | None, ndim: int, *axes: int) -> Array | None:
        """Return the text's part of an array that has `ndim` axes in a batch; keep the first n numbers along `axes`."""
        if part is None:
            return None
        part = part[item if part.shape[0] > 1 else 0] if part.ndim == ndim else part
        for axis in axes if n is not None else ():
            part = part.narrow(axis, 0, min(n, part.shape[axis]))
        return part

    mask, bias = part_of_text(call.mask, 3, -2, -1), part_of_text(call.bias, 4, -2, -1)
    alone = n == 1
    return replace(
        call,
        queries=part_of_text(call.queries, 4, -2),
        keys=part_of_text(call.keys, 4, -2),
        values=part_of_text(call.values, 4, -2),
        mask=None if mask is None or bool(mask.all()) else mask,
        bias=None if bias is None or not bool(bias.any()) else bias,  # the bias was for padding only
        sinks=call.sinks
        if call.sinks is None or call.sinks.ndim == 1
        else part_of_text(call.sinks, 3, -1),  # or (heads, n_q)
        causal=call.causal and not alone,
        offset=None if alone else call.offset,
    )
