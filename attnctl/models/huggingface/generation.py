"""Texts that a checkpoint continues, greedily, through its key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError, UsageError
from attnctl.models.huggingface.network import running_network
from attnctl.tokens import Token

if TYPE_CHECKING:
    from attnctl.models.huggingface.checkpoint import Checkpoint


def generated_tokens(model: Checkpoint, tokens: Sequence[Token], known: int) -> tuple[Token, ...]:
    """Greedy continuation through the key/value cache; `known` ids of what comes back are not new."""
    import torch

    count = model.generate or 16
    if not hasattr(model.network, "generate") or not model.network.can_generate():
        raise UsageError(f"--generate: {type(model.network).__name__} does not continue texts")
    limit = model.pieces.limit
    if limit is not None and model.kind == "self" and len(tokens) + count > limit:
        raise AttnctlError(
            f"{len(tokens):,} tokens and {count:,} new ones are more than {model.info.name} reads: {limit:,}"
        )
    ids, config = model.token_ids(tokens), model.network.config  # (1, n)
    # the padding token that it names, or the part of it that is about text (Gemma 3)
    padding = (getattr(part, "pad_token_id", None) for part in (config, config.get_text_config()))
    with running_network(model.network, len(tokens), model.info.name):
        made = model.network.generate(  # type: ignore[operator]
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            num_beams=1,
            pad_token_id=next((number for number in padding if isinstance(number, int) and number >= 0), 0),
        )[0].tolist()
    before = [token.id for token in tokens if token.id is not None] if model.kind == "self" else made[:known]
    return model.pieces.continued_tokens(before, made[known:])
