"""A text in any model whose attention may be changed: opened for the measuring of effects."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnctl import limits
from attnctl.attention import Array
from attnctl.errors import AttnctlError, UsageError
from attnctl.interventions import Intervention
from attnctl.models.switched_off import with_heads_on
from attnctl.readings.effects.ablation import Watched
from attnctl.text import visible_text

if TYPE_CHECKING:
    pass


def watched_text(model: Any, text: str, query: str | None = None, base: Intervention | None = None) -> Watched:
    """The text in a model, the prediction at `query` watched. Raises AttnctlError for a model with no heads to switch."""
    model, off = with_heads_on(model)
    base = base if off is None else off
    if model.info.kind == "checkpoint":
        from attnctl.models.huggingface.effects.watched import watch_network

        return watch_network(model, text, query, base)
    from attnctl.models.builtin.watched import watch_stack as watch_stack

    return watch_stack(model, text, query, base)


def by_cross_attention(model: Any) -> Any:
    """An encoder-decoder looked into by its cross attention, or by the decoder's that holds it; any other model as it is."""
    if getattr(model, "kind", None) != "encoder":
        return model
    from attnctl.models.huggingface.attention_sites import merges_source
    from attnctl.models.huggingface.files.network import network_info

    told = {name: getattr(model.info, name) for name in ("source", "revision", "sha256", "quantised", "off")}
    kind = "decoder" if merges_source(model.network) else "cross"
    return replace(model, kind=kind, info=replace(network_info(model.network, model.info.name, kind), **told))


def reference_contexts(model: Any, text: str, how: str, file: str | None) -> Mapping[int, Array] | None:
    """What takes the place of a head's context: of a file of texts, one a line; None where none is given.

    For mean, layer → (heads, d_v), over all positions of all texts; for resample, layer → (heads, n, d_v) of the first text
    with as many tokens as `text`. Raises AttnctlError where no text has as many.
    """
    if file is None:
        return None
    from attnctl.files import decode_text, read_bytes

    texts = [line for line in decode_text(read_bytes(file, limits.TEXT_BYTES), file).splitlines() if line.strip()]
    if not texts:
        raise AttnctlError(f"--reference {file}: there is no text in it, one a line")
    if how == "mean":
        return _mean_contexts(model, texts)
    tokens = model.tokenize(text)
    lengths: dict[int, str] = {}
    for other in texts:
        there = model.tokenize(other)
        lengths.setdefault(len(there), other)
        if len(there) == len(tokens) and other != text:
            return _layer_contexts(model, other)
    said = ", ".join(str(n) for n in sorted(lengths)[:6])
    raise UsageError(
        f"--reference {visible_text(file)}: resample needs another text of {len(tokens)} tokens, as many as this one; "
        f"its texts have {said}"
    )


def _mean_contexts(model: Any, texts: list[str]) -> dict[int, Array]:
    sums: dict[int, Array] = {}
    count = 0
    for text in texts:
        for layer, context in (found := _layer_contexts(model, text)).items():
            sums[layer] = sums.get(layer, 0) + context.sum(-2)  # (heads, d_v)
        count += next(iter(found.values())).shape[-2]
    return {layer: total / count for layer, total in sums.items()}


def _layer_contexts(model: Any, text: str) -> dict[int, Array]:
    """Layer → what each head takes away from each position, behind a gate where one follows: (heads, n, d_v)."""
    found: dict[int, Array] = {}

    def keep_context(layer: Any) -> None:
        found[layer.layer] = layer.forward.context_of_heads  # (heads, n, d_v)

    with ExitStack() as stack:
        if model.info.kind == "checkpoint":
            from attnctl.models.huggingface.effects.intervention import gated_contexts_kept

            stack.enter_context(gated_contexts_kept(model.network, model.kind, found))
        model.run(model.tokenize(text), keep_context, text)
    return found
