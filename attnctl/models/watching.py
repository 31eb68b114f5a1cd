"""Open a text in a model whose attention can be changed: to measure effects, with heads off, or for the usual probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.checks.selection import heads_by_layer, selected_heads
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.layer.interventions import Intervention
from attnctl.models.builtin.stack import Stack
from attnctl.source import Model, TextSource
from attnctl.source.model import CanIntervene
from attnctl.text import spoken_heads
from attnctl.text.tokens import Token, named_tokens
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Run
from attnctl.watched.measure import Watched

if TYPE_CHECKING:
    from attnctl.models.huggingface.checkpoint import Checkpoint


def watched_text(model: Model, text: str, query: str | None = None, base: Intervention | None = None) -> Watched:
    """Return the text in a model, with the prediction at `query` watched.

    Raises AttnctlError for a model without heads to switch off.
    """
    if model.info.off is not None:  # the heads that are off become the base
        info, base = replace(model.info, name=model.info.card_name, off=None), cast(CanIntervene, model).intervention
        model = replace(model, info=info, intervention=None)  # type: ignore[type-var]
    if model.info.kind == "checkpoint":
        from attnctl.models.huggingface.watched import watch_network

        return watch_network(cast("Checkpoint", model), text, query, base)
    from attnctl.models.builtin.watched import watch_stack

    return watch_stack(model, text, query, base)


def by_cross_attention(model: Model) -> Model:
    """Return an encoder-decoder that shows cross attention, or the decoder's that holds it; others unchanged."""
    checkpoint = cast("Checkpoint", model)
    if model.info.kind != "checkpoint" or checkpoint.kind != "encoder":
        return model
    from attnctl.models.huggingface.attention_sites import merges_source
    from attnctl.models.huggingface.network import network_info

    info, kind = model.info, "decoder" if merges_source(checkpoint.network) else "cross"
    shown_info = network_info(checkpoint.network, info.name, kind).with_origin_of(info)
    return replace(checkpoint, kind=kind, info=replace(shown_info, off=info.off))


def reference_contexts(model: Model, text: str, how: str, file: str | None) -> Mapping[int, Array] | None:
    """Return the replacement for a head's context from a file of texts, one a line; None without a file.

    For mean: layer → (heads, d_v), over all positions of all texts; for resample: layer → (heads, n, d_v) of the first
    text with the same number of tokens as `text`. Raises UsageError if no text has that number.
    """
    if file is None:
        return None
    from attnctl.runtime.files import decode_text, read_bytes

    texts = [line for line in decode_text(read_bytes(file, limits.TEXT_BYTES), file).splitlines() if line.strip()]
    if not texts:
        raise AttnctlError("there is no text in it, one a line", option="reference", value=file)
    if how == "mean":
        return _mean_contexts(model, texts)
    tokens = model.tokenize(text)
    lengths: dict[int, str] = {}
    for candidate in texts:
        candidate_tokens = model.tokenize(candidate)
        lengths.setdefault(len(candidate_tokens), candidate)
        if len(candidate_tokens) == len(tokens) and candidate != text:
            return _layer_contexts(model, candidate)
    lengths_text = ", ".join(str(n) for n in sorted(lengths)[:6])
    raise UsageError(
        f"resample needs another text of {len(tokens)} tokens, as many as this one; its texts have {lengths_text}",
        option="reference",
        value=file,
    )


def _mean_contexts(model: Model, texts: list[str]) -> dict[int, Array]:
    sums: dict[int, Array] = {}
    count = 0
    for text in texts:
        for layer, context in (contexts := _layer_contexts(model, text)).items():
            sums[layer] = sums.get(layer, 0) + context.sum(-2)  # (heads, d_v)
        count += next(iter(contexts.values())).shape[-2]
    return {layer: total / count for layer, total in sums.items()}


def _layer_contexts(model: Model, text: str) -> dict[int, Array]:
    """Return layer → the context of each head at each position, after a gate if there is one: (heads, n, d_v)."""
    contexts: dict[int, Array] = {}

    with ExitStack() as stack:
        if model.info.kind == "checkpoint":
            from attnctl.models.huggingface.intervention import projected_contexts_kept

            checkpoint = cast("Checkpoint", model)
            stack.enter_context(projected_contexts_kept(checkpoint.network, checkpoint.kind, contexts))

        def visit(layer: LayerAttention) -> None:
            contexts[layer.layer] = cast(ComputedLayer, layer).forward.context_of_heads

        model.run(model.tokenize(text), visit, text)
    return contexts


def switch_heads_off(model: Model, off: str) -> Model:
    """Return the model with the heads of `23.3,0.5` off.

    Raises UsageError for heads that do not exist or cannot be switched off.
    """
    info = model.info
    if info.kind == "module":
        why = f"{info.name} is a module of your own, which is changed in Python: attnctl.intervene(module, heads=…)"
        raise UsageError(why, option="off", value=off)
    if info.kind == "matrix":
        why = f"{info.name} has no heads to switch off: its numbers are given, not computed"
        raise UsageError(why, option="off", value=off)
    if info.kind == "checkpoint":
        from attnctl.models.huggingface.watched import check_switchable

        check_switchable(cast("Checkpoint", model).network)
    intervention = Intervention(off_heads(info, off))
    named = replace(info, name=f"{info.name} without {spoken_heads(intervention.heads)}", off=intervention.heads)
    return replace(model, info=named, intervention=intervention)  # type: ignore[type-var]


def off_heads(info: ModelInfo, off: str) -> dict[int, tuple[int, ...]]:
    """Return layer → heads that `off` selects. Raises UsageError for one that does not exist, and if it names all."""
    n_layers, n_heads = info.n_layers or 1, info.n_heads or 1
    heads = selected_heads(off, n_layers, n_heads, info.name, "off")
    if len(heads) == n_layers * n_heads:
        why = f"that is every head of {info.name}, and nothing is left to look at"
        raise UsageError(why, option="off", value=off)
    return heads_by_layer(heads)


PROBED = 100  # tokens that a probe repeats


class ProbeReading:
    """The induction and duplicate scores of heads on a text of `length` tokens, repeated once.

    They are mean weights over the second half: on the token after the first copy, and on the first copy.
    """

    predicts = False

    def __init__(self, length: int = PROBED) -> None:
        self._length = length
        self._scores: dict[tuple[int, int], tuple[float, float]] = {}

    def take(self, layer: LayerAttention) -> None:
        """Keep the scores of one layer."""
        length, second_half = self._length, slice(layer.n_q - self._length, None)
        scores = [layer.at_offset(back)[:, second_half].mean(-1) for back in (1 - length, -length)]  # (heads,) each
        for head, after, on in zip(layer.heads, *scores, strict=True):
            self._scores[layer.layer, head] = float(after), float(on)

    def value(self, run: Run) -> dict[tuple[int, int], tuple[float, float]]:
        """Return (layer, head) → (induction, duplicate)."""
        return self._scores


def probe_text(model: Model, length: int = PROBED) -> TextSource:
    """Return `length` random tokens of the model's vocabulary, twice, after the tokens that begin every text."""
    rng = np.random.default_rng(0)
    if model.info.kind == "checkpoint":
        pieces = cast("Checkpoint", model).pieces
        added = set(pieces.tokenizer.get_added_tokens_decoder())
        ids = [number for number in range(pieces.tokenizer.get_vocab_size()) if number not in added]
        first = [token for token in model.tokenize("a")[:1] if token.special]
        names = {number: pieces.tokenizer.id_to_token(number) or str(number) for number in ids}
    else:
        vocabulary: Sequence[str] = model.vocabulary if isinstance(model, Stack) else ()
        words = [word for word in vocabulary if word.isalpha()]
        words = words if len(words) > 1 else [f"word{number}" for number in range(10 * length)]
        ids_of_words = {word: number for number, word in enumerate(vocabulary)}
        names, first = {ids_of_words.get(word, number): word for number, word in enumerate(words)}, []
        ids = list(names)
    drawn = rng.choice(ids, length, replace=len(ids) < length).tolist()
    repeated = [*first, *(Token(names[number], number) for number in 2 * drawn)]
    placed = zip(repeated, named_tokens([token.text for token in repeated]), strict=True)
    tokens = tuple(replace(token, start=place.start, end=place.end) for token, place in placed)
    return TextSource(model, " ".join(token.text for token in tokens), tokens)
