"""Run several texts through a checkpoint at once: padded to one length, and recorded as if each were alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.layer import CHECKED, LayerAttention, LayerTrace
from attnctl.layer.computed import ComputedLayer, Forward, is_short, step_arrays
from attnctl.models.huggingface.checkpoint import Checkpoint, other_keys_sentence
from attnctl.models.huggingface.optional_fields import output_value
from attnctl.runtime.arrays import as_numpy
from attnctl.text.tokens import Token
from attnctl.trace.run import Run, StopForward
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_interface import WatchOptions, WatchSession
    from attnctl.models.huggingface.attention_sites import Output, Site


Visit = Callable[[LayerAttention], None]
Take = Callable[[int, Array], None]  # called with a layer and its weights (batch, heads, n, n), padding at the end

CLOSE = {"float32": 1e-4}  # largest difference from a text's weights when it is alone; for other dtypes ROUGH
ROUGH = 5e-2


TRIAL_TOKENS = 512  # longest text with which padding is tested for shorter texts


@dataclass
class PaddingTest:
    """The lengths of passes, in tokens, up to which padding changes no weights of a network, and from which it does."""

    sound_to: int = 0
    changed_from: float = math.inf


_padding_tests: WeakKeyDictionary[PreTrainedModel, PaddingTest] = WeakKeyDictionary()  # tested once for each network


class PaddedTexts:
    """Texts that are padded to one length, in one forward of a checkpoint.

    Padding is tested for every pass that is longer than those tested before. If it changes weights, which no architecture
    should do, only texts of one length share a pass.
    """

    def __init__(self, model: Checkpoint) -> None:
        self.model = model
        self._tested = _padding_tests.setdefault(model.network, PaddingTest())

    def may_share(self, texts: Sequence[Sequence[Token]], later: Sequence[Sequence[Token]]) -> bool:
        """Return whether padding to the last text's length leaves the weights of the other texts unchanged.

        The longest of the texts that come `later` is tested first: one test is then enough for all passes of a chunk.
        """
        long = texts[-1]
        # a single token has a weight of 1 in any batch
        padded = [tokens for tokens in texts if 1 < len(tokens) < len(long)]
        longest = [tokens for tokens in later[-1:] if len(tokens) <= TRIAL_TOKENS]
        for tried in (*longest, long) if padded else ():
            if self._tested.sound_to < len(long) and len(tried) < self._tested.changed_from:
                self._try_padding(padded[0], tried)
        return not padded or len(long) <= self._tested.sound_to

    def _try_padding(self, short: Sequence[Token], long: Sequence[Token]) -> None:
        """Record whether a text's weights change beside a longer one; if one of them fails, record nothing."""
        with suppress(AttnctlError):  # the failing text reports its error when it runs alone
            if padding_changes_weights(self.model, short, long):
                self._tested.changed_from = len(long)
            else:
                self._tested.sound_to = len(long)

    def run(
        self, texts: Sequence[tuple[Token, ...]], visits: Sequence[Visit], fields: Collection[str] | None = None
    ) -> list[Run]:
        """Run the texts in one forward; each text's visitor receives its layers. Raises AttnctlError of any text."""
        return run_padded(self.model, texts, visits)

    def weights(self, texts: Sequence[tuple[Token, ...]], take: Take) -> None:
        """Call `take` with each layer's weights (batch, heads, n, n). Raises AttnctlError if a text cannot be read."""
        weights_of_several(self.model, texts, take)


def can_batch(model: Checkpoint) -> bool:
    """Return whether texts may share a forward: the checkpoint reads one text, and its attention can be watched."""
    if not model.reader.shares_passes or model.generate:
        return False
    if model.predict is not None or model.intervention is not None:
        return False
    from attnctl.models.huggingface.attention_sites import model_follows_interface

    return model_follows_interface(model.network)


def padding_changes_weights(model: Checkpoint, short: Sequence[Token], long: Sequence[Token]) -> bool:
    """Return whether padding a text changes its weights, its classes, or the keys that an indexer picks."""
    from attnctl.models.huggingface.put_out import TopK

    alone_weights: list[Array] = []  # one per layer: (heads, n, n)
    batched_weights: list[Array] = []
    (own_run,) = run_padded(model, [tuple(short)], [lambda layer: alone_weights.append(layer.all_weights())])
    with TopK() as picks:
        visits = [lambda layer: batched_weights.append(layer.all_weights()), lambda _: None]
        padded = run_padded(model, [tuple(short), tuple(long)], visits)[0]
    limit = CLOSE.get(model.info.dtype, ROUGH)
    shares, padded_shares = (
        {prediction.id: prediction.probability for prediction in run.predictions if prediction.is_class}
        for run in (own_run, padded)
    )
    if any(abs(share - padded_shares.get(number, 0.0)) > limit for number, share in shares.items()):
        return True  # the head of a classifier may read padding (XLNet's reads the last position)
    picked = any(scores.shape[-1] == len(long) for scores in picks.taken_of)  # a top-k over keys (DeepSeek-V3.2, Doge)
    return picked or any(np.abs(a - b).max() > limit for a, b in zip(alone_weights, batched_weights, strict=True))


def padded_forward(
    model: Checkpoint,
    texts: Sequence[tuple[Token, ...]],
    see: Callable[[Site, Call], Array | None],
    options: WatchOptions,
) -> tuple[Array, Output | None, list[int] | None, WatchSession]:
    """Run several texts, padded at the end, in one forward; call `see` with each layer's call, until it raises StopForward.

    Return the token ids (batch, n); the network's output, None if it was left; the positions of its logits (None: all); and
    the session. Raises AttnctlError if one of the texts cannot be read.
    """
    from attnctl.models.huggingface.attention_interface import watch_attention
    from attnctl.models.huggingface.network import running_network

    for tokens in texts:
        model.check_tokens(tokens)
    inputs, positions = padded_inputs(model, texts)
    output, n = None, inputs["input_ids"].shape[-1]

    def see_tokens(site: Site, call: Call) -> Array | None:
        if len(texts) > 1 and call.keys.shape[-2] != n:
            raise AttnctlError(other_keys_sentence(f"layer {site.layer} of {model.info.name}", call.keys.shape[-2], n))
        return see(site, call)

    with (
        running_network(model.network, len(texts) * n, model.info.name, several=True),
        suppress(StopForward),
        watch_attention(model.network, see_tokens, lambda site: site.kind == model.kind, options) as session,
    ):
        output = model.network(**inputs)
    return inputs["input_ids"], output, positions, session


# network → is padded → the longest forward in which its kernel was compared with ours
_checked_lengths: WeakKeyDictionary[PreTrainedModel, dict[bool, int]] = WeakKeyDictionary()


@contextmanager
def _compared_with_ours(model: Checkpoint, texts: Sequence[Sequence[Token]]) -> Iterator[tuple[bool, set[int]]]:
    """Yield whether the network's kernel was compared with ours in a forward as long as this, and a set for layers.

    The caller adds each layer to the set: a forward that ends before the last layer has compared nothing of later layers.
    """
    n, padded = max(map(len, texts)), len(set(map(len, texts))) > 1
    checked, layers = _checked_lengths.setdefault(model.network, {}), set[int]()
    yield n <= checked.get(padded, 0), layers
    if (model.info.n_layers or 0) - 1 in layers:
        checked[padded] = max(n, checked.get(padded, 0))


class PassForward(Forward):
    """One layer of all texts of a short pass: its steps are computed once, and become NumPy once."""

    @cached_property
    def arrays_of_texts(self) -> dict[str, Array]:
        """Return name → array of all texts, padded, without the mask: (batch, heads, n, …)."""
        return step_arrays(self.call, self.all_steps._replace(mask=None))

    @cached_property
    def is_finite(self) -> bool:
        """Return whether the arrays of CHECKED hold only finite numbers."""
        return all(bool(np.isfinite(self.arrays_of_texts[name]).all()) for name in CHECKED)

    @cached_property
    def visible(self) -> Array | None:
        """Return the mask of all texts as NumPy; None if nothing is hidden."""
        return None if self.all_steps.mask is None else as_numpy(self.all_steps.mask)

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """Return the key/value head that each head reads."""
        heads, kv_heads = self.call.queries.shape[-3], self.call.keys.shape[-3]
        return tuple(head * kv_heads // heads for head in range(heads))

    def mask_of_text(self, place: int, n: int) -> Array | None:
        """Return a text's mask (n, n) as NumPy; None if it hides nothing, as for the text alone."""
        mask = self.visible
        if mask is None:
            return None
        part = mask[..., :n, :n] if mask.ndim == 2 else mask[place if len(mask) > 1 else 0, :n, :n]
        return None if self.call.window is None and part.all() else part


class TextForward(Forward):
    """One text's part of a pass; its call is made where it is asked for, its steps are cut out of those of all texts."""

    def __init__(self, whole: PassForward, place: int, n: int, output_matrix: Callable[[], Array | None]) -> None:
        self.whole, self.place, self.n = whole, place, n
        self.arrays, self.parameters, self.output_matrix = {}, {}, output_matrix
        self.after = self.own_context = None

    @cached_property
    def call(self) -> Call:  # type: ignore[override]
        """Return the text's call, without padding."""
        from attnctl.models.huggingface.attention_call import call_of_text

        return call_of_text(self.whole.call, self.place, self.n)

    @cached_property
    def all_steps(self) -> attention.Attended:
        """Return every step of the text, without padding."""
        import torch

        scores, scaled, _, weights, _, context = self.whole.all_steps
        rows = slice(0, self.n)
        square = self.place, slice(None), rows, rows
        visible = self.whole.mask_of_text(self.place, self.n)
        mask = None if visible is None else torch.as_tensor(visible, device=weights.device)
        of_rows = context[self.place, :, rows]  # (heads, n, d_v)
        return attention.Attended(scores[square], scaled[square], mask, weights[square], None, of_rows)


@dataclass(eq=False)
class TextLayer(ComputedLayer):
    """A layer of one text of a pass."""

    forward: TextForward

    @property
    def is_finite(self) -> bool:  # type: ignore[override]
        """Return whether the scores and weights of all texts of the pass are finite."""
        return self.forward.whole.is_finite

    @property
    def _all_heads(self) -> bool:
        return self.heads == tuple(range(self.forward.whole.call.queries.shape[-3]))

    @property
    def n_q(self) -> int:
        """Return the number of tokens."""
        return self.forward.n

    @property
    def n_k(self) -> int:
        """Return the number of tokens."""
        return self.forward.n

    @property
    def window(self) -> int | None:  # type: ignore[override]
        """Return how many keys back a query sees; None for all."""
        return self.forward.whole.call.window

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the key/value head that each head reads."""
        every = self.forward.whole.kv_heads
        return every if self._all_heads else tuple(every[head] for head in self.heads)

    def record(self, rows: Sequence[int] | None = None) -> LayerTrace:
        """Return every known array of this layer, for some queries (None: all), as NumPy: views of those of the pass."""
        whole, place, n = self.forward.whole, self.forward.place, self.n_q
        if rows is not None or not self._all_heads:
            return super().record(rows)
        arrays = {}
        for name, array in whole.arrays_of_texts.items():
            if name == "bias" and not array[place, :, :n, :n].any():  # the bias was for padding only
                continue
            by_keys = name in ("scores", "scaled_scores", "weights", "bias")
            arrays[name] = array[place, :, :n, :n] if by_keys else array[place, :, :n]
        if (mask := whole.mask_of_text(place, n)) is not None:
            arrays["mask"] = mask
        layer = LayerTrace(self.layer, self.heads, self.kv_heads, **arrays)
        layer.is_finite = whole.is_finite
        return layer


def run_padded(model: Checkpoint, texts: Sequence[tuple[Token, ...]], visits: Sequence[Visit]) -> list[Run]:
    """Run the texts in one forward; call each text's visitor with its layers. Raises AttnctlError of any text."""
    from attnctl.models.huggingface.attention_call import call_of_text
    from attnctl.models.huggingface.attention_interface import WatchOptions
    from attnctl.models.huggingface.family_traits import Traits

    traits = Traits(model.network, model.kind, padded=True)
    finished: set[int] = set()  # the texts whose visitors are done

    def see_padded(site: Site, call: Call) -> Array | None:
        layers.add(site.layer)
        matrix = traits.see_call(site, call)
        contexts: list[Array | None] = []
        shares_steps = len(texts) > 1 and is_short(call) and call.keep is None
        whole = PassForward(call) if shares_steps else None
        for b, visit in enumerate(visits):
            n = len(texts[b])
            if whole is None:
                layer = ComputedLayer.of_call(site.layer, call_of_text(call, b, n), output_matrix=matrix)
            else:
                heads = tuple(range(call.queries.shape[-3]))
                layer = TextLayer(site.layer, heads, TextForward(whole, b, n, matrix))
            try:
                visit(layer)
            except StopForward:
                finished.add(b)
            if whole is None:
                contexts.append(None if b in finished else layer.forward.context_so_far)
        if len(finished) == len(visits):
            raise StopForward
        if whole is not None:
            return whole.context_so_far
        if any(context is None for context in contexts):
            return None
        all_contexts = call.queries.new_zeros(
            (*call.queries.shape[:-1], call.values.shape[-1])
        )  # (batch, heads, n, d_v)
        for b, context in enumerate(contexts):
            all_contexts[b, :, : len(texts[b])] = context
        return all_contexts

    with traits.watch(), _compared_with_ours(model, texts) as (trusted, layers):
        options = WatchOptions(after=traits.see_context, trusted=trusted)
        ids, output, positions, session = padded_forward(model, texts, see_padded, options)
    embeddings = as_numpy(model.network.get_input_embeddings()(ids).detach())  # (batch, n, d_model)
    runs, silent = [], session.silent
    for b, tokens in enumerate(texts):
        logits = None if output is None else _text_logits(output, b, len(tokens), positions, bool(model.classes))
        text_output = None if output is None else SimpleNamespace(logits=logits)
        gates = traits.gates_of_text(b, len(tokens))
        result = Run(Subject("", tokens, model.info), embeddings[b, : len(tokens)], gates=gates)
        model.finish_run(result, model.read("", tokens), traits, silent, text_output)
        runs.append(result)
    return runs


def padded_inputs(model: Checkpoint, texts: Sequence[tuple[Token, ...]]) -> tuple[dict[str, Array], list[int] | None]:
    """Return the network's inputs, and the positions of the logits that it returns (None: all, if any)."""
    import torch

    from attnctl.models.huggingface.network import device_of_inputs

    n, device = max(map(len, texts)), device_of_inputs(model.network)
    pad = model.network.config.get_text_config().pad_token_id or 0
    ids = [[token.id for token in tokens] + [pad] * (n - len(tokens)) for tokens in texts]
    inputs: dict[str, object] = {"input_ids": torch.tensor(ids, device=device)}  # (batch, n)
    if "token_type_ids" in model.forward_keywords and any(token.type for tokens in texts for token in tokens):
        types = [[token.type or 0 for token in tokens] + [0] * (n - len(tokens)) for tokens in texts]
        inputs["token_type_ids"] = torch.tensor(types, device=device)  # (batch, n)
    if any(len(tokens) < n for tokens in texts):
        is_token = [[1] * len(tokens) + [0] * (n - len(tokens)) for tokens in texts]
        inputs["attention_mask"] = torch.tensor(is_token, device=device)  # (batch, n)
    if "use_cache" in model.forward_keywords:
        inputs["use_cache"] = False
    if "logits_to_keep" not in model.forward_keywords or any(model.pieces.mask_positions(tokens) for tokens in texts):
        return inputs, None
    positions = sorted({len(tokens) - 1 for tokens in texts})  # only the prediction after the last token is used
    return inputs | {"logits_to_keep": torch.tensor(positions, device=device)}, positions


def _text_logits(output: Output, b: int, n: int, positions: list[int] | None, classifies: bool) -> Array | None:
    """Return one text's logits (1, positions, vocabulary), up to its last token; for a classifier (1, classes)."""
    logits = output_value(output, "logits")
    if logits is not None and classifies:
        return logits[b : b + 1]
    if logits is None or logits.ndim != 3:
        return None
    if positions is None:
        return logits[b : b + 1, :n]
    place = positions.index(n - 1)
    return logits[b : b + 1, place : place + 1]


def weights_of_several(model: Checkpoint, texts: Sequence[Sequence[Token]], take: Take) -> None:
    """Call `take` with each layer's weights, then leave the network. Raises AttnctlError if a text cannot be read."""
    from attnctl.models.huggingface.attention_interface import WatchOptions

    all_tokens = [tuple(tokens) for tokens in texts]
    n, last = max(map(len, all_tokens)), (model.info.n_layers or 0) - 1

    def see_layer(site: Site, call: Call) -> Array:
        steps = attention.run_call(call)
        layers.add(site.layer)
        take(site.layer, steps.weights[..., :n])  # keys of merged tokens come after the others
        if site.layer == last:
            raise StopForward
        return steps.context

    with _compared_with_ours(model, all_tokens) as (trusted, layers):
        padded_forward(model, all_tokens, see_layer, WatchOptions(trusted=trusted))
