"""Choose what is taken away in a model: heads that are off, and what replaces a head's output."""

from __future__ import annotations

from collections.abc import Mapping

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.checks.selection import heads_by_layer, selected_heads
from attnctl.errors import AttnctlError, UsageError
from attnctl.runtime.files import decode_text, read_bytes
from attnctl.source.model import CanIntervene, Generates, Model
from attnctl.trace.model_info import ModelInfo
from attnctl.watched.measure import why_none_is_off


def by_cross_attention(model: Model) -> Model:
    """Return an encoder-decoder that shows cross attention, or the decoder's that holds it; others unchanged."""
    return model.with_cross_attention() if isinstance(model, Generates) else model


def switch_heads_off(model: Model, off: str) -> Model:
    """Return the model with the heads of `23.3,0.5` off.

    Raises UsageError for heads that do not exist or cannot be switched off.
    """
    if not isinstance(model, CanIntervene):
        raise UsageError(why_none_is_off(model.info), option="off", value=off)
    return model.with_heads_off(off_heads(model.info, off))


def off_heads(info: ModelInfo, off: str) -> dict[int, tuple[int, ...]]:
    """Return layer → heads that `off` selects. Raises UsageError for one that does not exist, and if it names all."""
    if info.n_layers is None and not info.nature.knows_layers:
        why = f"the layers of {info.name} are known only once it ran: in Python, attnctl.intervene switches heads off"
        raise UsageError(why, option="off", value=off)
    n_layers, n_heads = info.n_layers or 1, info.n_heads or 1
    heads = selected_heads(off, n_layers, n_heads, info.name, "off")
    if len(heads) == n_layers * n_heads:
        why = f"that is every head of {info.name}, and nothing is left to look at"
        raise UsageError(why, option="off", value=off)
    return heads_by_layer(heads)


def reference_contexts(model: Model, text: str, how: str, file: str | None) -> Mapping[int, Array] | None:
    """Return the replacement for a head's context from a file of texts, one a line; None without a file.

    For mean: layer → (heads, d_v), over all positions of all texts; for resample: layer → (heads, n, d_v) of the first
    text with the same number of tokens as `text`. Raises UsageError if no text has that number.
    """
    if file is None:
        return None
    texts = [line for line in decode_text(read_bytes(file, limits.TEXT_BYTES), file).splitlines() if line.strip()]
    if not texts:
        raise AttnctlError("there is no text in it, one a line", option="reference", value=file)
    if not isinstance(model, CanIntervene):
        raise AttnctlError(why_none_is_off(model.info))
    if how == "mean":
        return _mean_contexts(model, texts)
    tokens = model.tokenize(text)
    lengths: dict[int, str] = {}
    for candidate in texts:
        candidate_tokens = model.tokenize(candidate)
        lengths.setdefault(len(candidate_tokens), candidate)
        if len(candidate_tokens) == len(tokens) and candidate != text:
            return model.contexts_of_heads(candidate)
    lengths_text = ", ".join(str(n) for n in sorted(lengths)[:6])
    raise UsageError(
        f"resample needs another text of {len(tokens)} tokens, as many as this one; its texts have {lengths_text}",
        option="reference",
        value=file,
    )


def _mean_contexts(model: CanIntervene, texts: list[str]) -> dict[int, Array]:
    sums: dict[int, Array] = {}
    count = 0
    for text in texts:
        for layer, context in (contexts := model.contexts_of_heads(text)).items():
            sums[layer] = sums.get(layer, 0) + context.sum(-2)  # (heads, d_v)
        count += next(iter(contexts.values())).shape[-2]
    return {layer: total / count for layer, total in sums.items()}
