"""What each token of a prompt writes to the answer's log-probability, directly: through the heads that read it there.

To first order the log-probability of a word is its logit less the expected logit, and at the scale that its norms had on
this text a logit is a sum over all heads and the tokens that they read (direct logit attribution, Elhage et al. 2021).
"""

from __future__ import annotations

import numpy as np
import torch

from attnctl import attention
from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_interface import architecture_name, watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.effects.answers import AnsweredPrompt
from attnctl.models.huggingface.effects.contributions import head_directions, stream_direction
from attnctl.models.huggingface.effects.recorded_forward import RecordedForward, RefusedError, is_near
from attnctl.models.huggingface.files.network import running_network


def writes_by_token(read: AnsweredPrompt) -> tuple[Floats, tuple[str, ...]]:
    """What each token before the answer's end adds to the answer's log-probability, nats: (n_k,), and notes.

    The sum is over the answer's tokens, all layers and all heads. Raises AttnctlError, naming the architecture, where its
    logits are no such sum.
    """
    network = read.model.network
    try:
        along, notes = _directions(read)
    except RefusedError as why:
        raise AttnctlError(
            f"{architecture_name(network)} cannot be taken apart into direct contributions: {why}"
        ) from why
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
        assert forward.logits is not None
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
