"""The context of a long text, by a fused kernel or in blocks of rows."""

from __future__ import annotations

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.blockwise import is_short
from attnctl.blockwise.rows import row_blocks


def fused_context(call: Call) -> Array:
    """The context of a call → (heads, n_q, d_v), in its own library: by a fused kernel, or in blocks of rows.

    The kernel takes scale, causality, grouped heads and a mask; what it cannot take goes through `attention.run_call`.
    """
    if is_short(call):
        return attention.run_call(call).context
    bent = call.bends_scores or call.sinks is not None
    square = call.n_q == call.n_k and call.first_position == 0
    same = call.values.shape[-1] == call.queries.shape[-1]
    causal_alone = not call.causal or (square and call.mask is None)
    if bent or call.keep is not None or call.window is not None or not causal_alone or not same:
        return attention.array_namespace(call.queries).concat(
            [steps.context for *_, steps in row_blocks(call)], axis=-2
        )
    import torch

    from attnctl.blockwise.tiles import as_torch

    given = as_torch(call)
    context: Array = torch.nn.functional.scaled_dot_product_attention(
        given.queries[None],
        given.keys[None],
        given.values[None],
        attn_mask=given.mask,
        is_causal=call.causal,
        scale=call.effective_scale / call.temperature,
        enable_gqa=given.queries.shape[0] != given.keys.shape[0],
    )[0]  # (heads, n_q, d_v)
    return context.numpy() if isinstance(call.queries, np.ndarray) else context
