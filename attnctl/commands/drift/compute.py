"""`attnctl.drift`: how far two checkpoints of one architecture drift apart over texts, head by head.

A reads a text, and its queries, keys and outputs stay in memory, up to KEPT_BYTES. B reads the text after it, or at once in
another thread, and the rows of both are compared a block at a time. For a longer text the two take turns: each runs again
for the next layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from attnctl import attention
from attnctl.attention import Array
from attnctl.blockwise import cut_call
from attnctl.checks.argument_types import check_types, is_network
from attnctl.checks.tolerances import WHOLE_ROW
from attnctl.commands.drift.forward import ComparedModel, Forward, run_side
from attnctl.commands.drift.result import (
    Drift,
    HeadDrift,
    LargestDivergence,
    LargestVariation,
    LayerDrift,
    SkippedText,
    TokenPlace,
)
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.layer.computed import ComputedLayer
from attnctl.models import opened_model
from attnctl.readings.head_statistics import LEAST_TOKENS, SINK_MASS
from attnctl.runtime.arrays import MEMORY, Floats, as_numpy, blocks_at_once, work_at_once
from attnctl.source import CallsNetwork, SharesPasses, TextSource
from attnctl.text import counted
from attnctl.text.tokens import Token
from attnctl.trace import ModelInfo, StopForward

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from attnctl.blockwise import Tick
    from attnctl.models import Model, ModelArgument

ROWS = 128  # of a layer's weights that are compared at a time: they stay in the caches of a core
AT_ONCE = 256  # tokens from which A and B run at once: with fewer, their threads mostly wait for one another
KEPT_BYTES = 1 << 30  # of A's queries, keys, values and outputs, between its run and B's


class ComparedText(NamedTuple):
    """A text, its number in the input from 0, and its name for messages; `error` says why it cannot be read."""

    number: int
    name: str
    text: str
    error: str | None = None


def drift(
    a: ModelArgument,
    b: ModelArgument,
    texts: str | Iterable[str],
    *,
    names: tuple[str, str] | None = None,
    kernel_b: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Drift:
    """Return how far model `b` drifts from model `a` over one text or many: `heads`, `layers`, `kl`, `worst(10)`.

    The two have one architecture: a checkpoint and its quantised copy, its fine-tune, or the same in another dtype.
    `tokenizer` is that of transformers models. `kernel_b` is how `b` attends: sdpa, eager, or None, its own.

    >>> from attnctl import drift
    >>> drift("demo", "demo", "Alice will eat pizza").total_variation
    0.0

    Raises AttnctlError, in one line, for models that differ in layers, heads or tokens, and for a text that they cannot
    read.
    """
    check_types("drift", str | None, kernel_b=kernel_b)
    check_types("drift", tuple | list | None, names=names)
    if names is not None and (len(names) != 2 or not all(isinstance(name, str) for name in names)):
        raise TypeError(f"drift(): names is two names, not {names!r}")
    listed = [texts] if isinstance(texts, str) else _listed_texts(texts)
    models = [opened_model("drift", side, {"tokenizer": tokenizer} if is_network(side) else {}) for side in (a, b)]
    sides = [
        ComparedModel(model, model.info.name if names is None else names[place], (None, kernel_b)[place])
        for place, model in enumerate(models)
    ]
    several = len(listed) > 1
    compared = [ComparedText(number, f"text {number}" * several, text) for number, text in enumerate(listed)]
    return measure_drift(sides[0], sides[1], compared)


def _listed_texts(texts: object) -> list[str]:
    """Return texts as a list. Raises TypeError for anything else."""
    if not isinstance(texts, Iterable) or isinstance(texts, bytes):
        raise TypeError(f"drift(): texts is a text, or several, not {type(texts).__name__}")
    listed = list(texts)
    for text in listed:
        if not isinstance(text, str):
            raise TypeError(f"drift(): each of texts is str, not {type(text).__name__}")
    return listed


def measure_drift(
    a: ComparedModel,
    b: ComparedModel,
    texts: Iterable[ComparedText],
    tick: Tick | None = None,
    *,
    skip: bool = False,
) -> Drift:
    """Return the drift of two models over texts; `tick` receives shares of a text's work.

    With `skip` the texts that cannot be compared are listed in `Drift.skipped`. Raises AttnctlError for models that are
    not of one architecture, and, with the name of a text, for one that they cannot read: with `skip` if there is no other.
    """
    for ours, theirs in ((a.architecture, b.architecture), (a.sizes, b.sizes)):
        if ours != theirs:
            why = f"{a.name} is {ours}, {b.name} {theirs}"
            raise AttnctlError(f"{why}: drift is between two checkpoints of one architecture")
    for side in (a, b):
        with side.attending():  # an impossible kernel is refused before any work
            pass
    tally, infos = DriftTally(a, b, tick), [a.model.info, b.model.info]
    first: AttnctlError | None = None
    for text in texts:
        try:
            if text.error is not None:
                raise AttnctlError(text.error)
            infos = tally.add_text(text.number, text.text)
        except AttnctlError as error:
            first = first or type(error)(f"{text.name}: {error}" if text.name else str(error))
            if not skip:
                raise first from error
            tally.skipped.append(SkippedText(text.number, str(error)))
    if not tally.texts and first is not None:
        others = len(tally.skipped) - 1
        raise first if not others else AttnctlError(f"{first}; {counted(others, 'other text')} failed, too")
    if not tally.heads:
        raise AttnctlError("there is no text to compare over")
    return tally.result(infos)


@dataclass
class HeadTally:
    """Sums over the rows of one head."""

    rows: int = 0
    variation: float = 0.0
    largest: LargestVariation | None = None
    sink: float = 0.0  # weight on the sinks in A
    sink_b: float = 0.0  # weight on the same keys in B
    sink_rows: int = 0  # rows of the texts in which the head has a sink


@dataclass
class CosineTally:
    """Sums over the tokens of one layer's output."""

    tokens: int = 0
    cosine: float = 0.0
    smallest: float = np.inf
    place: TokenPlace | None = None


class KeptLayers:
    """A's layers of one turn. B takes each when it has come: A runs at once in another thread, or has run before."""

    def __init__(self, d_model: int) -> None:
        self.count = 0
        self.are_all = True  # whether A's last layer was kept, too
        self._layers: dict[int, LayerAttention] = {}  # index → layer
        self.is_over = False  # whether no more layers come
        self._size, self._d_model = 0.0, d_model
        self._changed = Condition()

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Let A run within this context: after it, no more layers come."""
        try:
            yield
        finally:
            with self._changed:
                self.is_over = True
                self._changed.notify()

    def keep(self, index: int, layer: LayerAttention) -> None:
        """Keep a layer of A. Raises StopForward if it is one too many for the memory."""
        self._size += layer.memory_bytes + 4.0 * layer.n_q * self._d_model  # and its output
        if self.count and self._size > KEPT_BYTES:
            self.are_all = False
            raise StopForward
        with self._changed:
            self._layers[index] = layer
            self.count += 1
            self._changed.notify()

    def take(self, index: int) -> LayerAttention | None:
        """Wait for a layer of A, and return it; None if it does not come."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or index in self._layers)
            return self._layers.pop(index, None)


class DriftTally:
    """What was measured so far, over all texts."""

    def __init__(self, a: ComparedModel, b: ComparedModel, tick: Tick | None) -> None:
        self.a, self.b, self.tick = a, b, tick
        self.texts = self.tokens = self.predictions = self.agreeing = 0
        self.heads: dict[tuple[int, int], HeadTally] = {}
        self.layers: dict[int, CosineTally] = {}
        self.kl = 0.0
        self.largest_kl: LargestDivergence | None = None
        self.notes: dict[str, None] = {}
        self.skipped: list[SkippedText] = []
        self.predicted: Literal["token", "label"] = "token"

    def add_text(self, number: int, text: str) -> list[ModelInfo]:
        """Compare the two models over a text, and return what their runs say of them; if it fails, add nothing of it."""
        heads = {place: replace(head) for place, head in self.heads.items()}
        layers = {layer: replace(cosines) for layer, cosines in self.layers.items()}
        try:
            return self._add_whole_text(number, text)
        except AttnctlError:
            self.heads, self.layers = heads, layers
            raise

    def _add_whole_text(self, number: int, text: str) -> list[ModelInfo]:
        sources = [TextSource(side.model, text) for side in (self.a, self.b)]
        tokens = sources[0].tokens
        self._check_tokens(sources)
        first, at_once = 0, len(tokens) >= AT_ONCE and may_run_at_once(self.a.model, self.b.model)
        take_threads = every_thread(at_once)
        while True:
            kept = KeptLayers(self.a.model.info.d_model or 0)
            compared: dict[int, int] = {}  # index → number of the layer

            def compare(index: int, layer: LayerAttention) -> None:
                ours = kept.take(index)  # noqa: B023  # called within this turn alone
                if ours is None and not kept.are_all:  # noqa: B023
                    raise StopForward
                if ours is None:
                    raise AttnctlError(f"{self.b.name} has more layers with attention than {self.a.name}")
                if kept.is_over:  # noqa: B023
                    take_threads()
                self._add_weights(number, tokens, ours, layer)
                compared[index] = layer.layer  # noqa: B023

            def run(place: int) -> Forward:
                if place:
                    return run_side(self.b, sources[1], first, compare)  # noqa: B023
                with kept.filling():  # noqa: B023
                    return run_side(self.a, sources[0], first, kept.keep)  # noqa: B023

            ours, theirs = work_at_once(run, (0, 1), at_once)
            if len(compared) < kept.count:
                raise AttnctlError(f"{self.b.name} has fewer layers with attention than {self.a.name}")
            for index, layer_number in compared.items():
                if index in ours.outputs and index in theirs.outputs:
                    self._add_outputs(number, tokens, layer_number, ours.outputs[index], theirs.outputs[index])
            if kept.are_all:
                break
            first += kept.count
        self._add_predictions(number, tokens, ours, theirs)
        self.notes |= dict.fromkeys((*ours.notes, *theirs.notes))
        self.texts += 1
        self.tokens += len(tokens)
        return [ours.info, theirs.info]

    def _check_tokens(self, sources: Sequence[TextSource]) -> None:
        """Raise AttnctlError if the two models do not read the same tokens."""
        for ours, theirs in zip(*(source.tokens for source in sources), strict=False):
            if (ours.id, ours.text) != (theirs.id, theirs.text):
                raise AttnctlError(
                    f"{self.a.name} reads {ours.text!r} ({ours.id}) where {self.b.name} reads {theirs.text!r} "
                    f"({theirs.id}): drift is between models with one tokenizer"
                )
        counts = [len(source.tokens) for source in sources]
        if counts[0] != counts[1]:
            raise AttnctlError(
                f"{self.a.name} reads {counted(counts[0], 'token')}, {self.b.name} {counts[1]:,}: drift is between models "
                "with one tokenizer"
            )

    def _add_weights(self, number: int, tokens: Sequence[Token], a: LayerAttention, b: LayerAttention) -> None:
        """Add the rows of one layer: their total variation, and what sinks take of them."""
        shapes = [(layer.layer, len(layer.heads), layer.n_q, layer.n_k) for layer in (a, b)]
        if shapes[0] != shapes[1]:
            (layer, heads, n_q, n_k), (layer_b, heads_b, n_q_b, n_k_b) = shapes
            raise AttnctlError(
                f"layer {layer} of {self.a.name} has {counted(heads, 'head')}, {n_q} × {n_k} weights each; layer {layer_b} "
                f"of {self.b.name} has {heads_b}, {n_q_b} × {n_k_b}"
            )
        n_heads, n_q, n_k = shapes[0][1:]
        rows_a, rows_b = float_rows(a), float_rows(b)
        mass = np.zeros((2, n_heads, n_k))
        learned = np.zeros((2, n_heads))
        variation = np.zeros((n_heads, n_q))
        step = max(1, min(ROWS, MEMORY // (96 * n_heads * n_k)))  # two blocks are in memory at once

        def compare_block(lo: int) -> tuple[int, Floats, list[Floats], list[Floats]]:
            """Return the first row, variation (heads, rows), and of both the mass (heads, n_k) and sums (heads, rows)."""
            hi = min(lo + step, n_q)
            pair = rows_a(lo, hi), rows_b(lo, hi)  # (heads, rows, n_k) each
            if isinstance(pair[0], np.ndarray) or isinstance(pair[1], np.ndarray) or pair[0].device != pair[1].device:
                pair = as_numpy(pair[0]), as_numpy(pair[1])
            xp = attention.array_namespace(pair[0])
            sums = [xp.sum(weights, axis=-1) for weights in pair]  # (heads, rows): less than 1 with a learned sink
            moved = xp.sum(xp.abs(pair[0] - pair[1]), axis=-1) + xp.abs(sums[0] - sums[1])
            masses = [as_numpy(xp.sum(weights, axis=1)) for weights in pair]
            return lo, as_numpy(moved) / 2, masses, [as_numpy(total) for total in sums]

        first_rows = b.call.queries if isinstance(b, ComputedLayer) else mass
        for lo, moved, masses, totals in blocks_at_once(compare_block, range(0, n_q, step), first_rows):
            variation[:, lo : lo + step] = moved
            mass += masses
            for place, total in enumerate(totals):  # 0 of a row that sees nothing
                learned[place] += np.where((total > 0) & (1 - total > WHOLE_ROW), 1 - total, 0).sum(-1)
        taking = np.zeros((n_heads, n_k), bool)  # keys that are sinks, of a text that is long enough to tell
        if n_q >= LEAST_TOKENS:
            taking = np.any(mass >= SINK_MASS * n_q, axis=0)
        on_sinks = (mass * taking).sum(-1) + learned  # (2, heads)
        for place, head in enumerate(a.heads):
            tally = self.heads.setdefault((a.layer, head), HeadTally())
            tally.rows += n_q
            tally.variation += float(variation[place].sum())
            query = int(variation[place].argmax())
            value = float(variation[place, query])
            if tally.largest is None or value > tally.largest.total_variation:
                tally.largest = LargestVariation(number, query, tokens[query].text, value)
            if taking[place].any() or learned[:, place].any():
                tally.sink += float(on_sinks[0, place])
                tally.sink_b += float(on_sinks[1, place])
                tally.sink_rows += n_q
        if self.tick is not None:
            self.tick(1 / (self.a.model.info.n_layers or 1))

    def _add_outputs(self, number: int, tokens: Sequence[Token], layer: int, a: Array, b: Array) -> None:
        """Add the cosines of one layer's outputs, (n, d_out) each."""
        if a.shape != b.shape:
            raise AttnctlError(
                f"layer {layer}: the outputs of {self.a.name} are {tuple(a.shape)}, those of {self.b.name} {tuple(b.shape)}"
            )
        cosines = cosine_of_rows(as_numpy(a).astype(np.float64), as_numpy(b).astype(np.float64))  # (n,)
        tally = self.layers.setdefault(layer, CosineTally())
        tally.tokens += len(cosines)
        tally.cosine += float(cosines.sum())
        place = int(cosines.argmin())
        if cosines[place] < tally.smallest:
            tally.smallest = float(cosines[place])
            tally.place = TokenPlace(number, place, tokens[place].text if place < len(tokens) else "")

    def _add_predictions(self, number: int, tokens: Sequence[Token], ours: Forward, theirs: Forward) -> None:
        """Add the divergence of the predictions, and the agreement of the likeliest tokens; or a note why there is none."""
        if ours.logits is None or theirs.logits is None or not ours.predicted:
            return
        if ours.logits.shape != theirs.logits.shape:
            sizes = " and ".join(
                f"{forward.logits.shape[-1]:,}" for forward in (ours, theirs) if forward.logits is not None
            )
            what = f"classifiers have {sizes} labels" if ours.classifies else f"vocabularies have {sizes} tokens"
            self.notes[f"The {what}: predictions are not compared."] = None
            return
        self.predicted = "label" if ours.classifies else "token"
        hidden = len(tokens) - len(ours.logits)  # first positions without logits
        places = [place for place in ours.predicted if place >= hidden]
        if len(places) < len(ours.predicted):
            note = f"Of a long text the predictions of the last {len(ours.logits):,} tokens are compared."
            self.notes[note] = None
        step = max(1, MEMORY // (128 * int(ours.logits.shape[-1])))  # two blocks are in memory at once

        def compare_block(lo: int) -> tuple[list[int], Floats, int]:
            """Return the places with finite logits, the divergence at each, and how many likeliest tokens agree."""
            block = places[lo : lo + step]
            rows = [place - hidden for place in block]
            pair = [as_numpy(forward.logits[rows]).astype(np.float64) for forward in (ours, theirs)]  # type: ignore[index]
            if not all(np.isfinite(logits).all() for logits in pair):
                self.notes["Some logits are not finite: the predictions there are not compared."] = None
                finite = np.isfinite(pair[0]).all(-1) & np.isfinite(pair[1]).all(-1)
                block = [place for place, is_finite in zip(block, finite, strict=True) if is_finite]
                pair = [logits[finite] for logits in pair]
            return block, kl_of_logits(*pair), int((pair[0].argmax(-1) == pair[1].argmax(-1)).sum())

        blocks = range(0, len(places), step)
        for block, divergence, agreeing in blocks_at_once(compare_block, blocks, ours.logits):
            if not block:
                continue
            self.predictions += len(block)
            self.kl += float(divergence.sum())
            self.agreeing += agreeing
            worst = int(divergence.argmax())
            if self.largest_kl is None or divergence[worst] > self.largest_kl.kl:
                place = block[worst]
                self.largest_kl = LargestDivergence(number, place, tokens[place].text, float(divergence[worst]))

    def result(self, infos: Sequence[ModelInfo]) -> Drift:
        """Return the means over all texts; `infos` are what the last runs say of A and B."""
        heads = []
        for (layer, head), tally in sorted(self.heads.items()):
            assert tally.largest is not None
            rows = tally.sink_rows
            sinks = (tally.sink / rows, (tally.sink_b - tally.sink) / rows) if rows else (None, None)
            heads.append(HeadDrift(layer, head, tally.variation / tally.rows, tally.largest, *sinks))
        layers = [
            LayerDrift(layer, cosines.cosine / cosines.tokens, cosines.smallest, cosines.place)
            for layer, cosines in sorted(self.layers.items())
            if cosines.place is not None
        ]
        compared = self.predictions > 0
        kernels = self.a.kernel_name, self.b.kernel_name
        return Drift(
            a=replace(infos[0], name=self.a.name),
            b=replace(infos[1], name=self.b.name),
            kernels=kernels if all(kernels) else None,
            texts=self.texts,
            tokens=self.tokens,
            heads=tuple(heads),
            layers=tuple(layers),
            kl=self.kl / self.predictions if compared else None,
            largest_kl=self.largest_kl,
            top_token_agreement=self.agreeing / self.predictions if compared else None,
            predictions=self.predictions,
            predicted=self.predicted if compared else None,
            skipped=tuple(self.skipped),
            notes=tuple(self.notes),
        )


def may_run_at_once(a: Model, b: Model) -> bool:
    """Return whether two threads may run one model each: networks that are two, and keep nothing of a forward."""
    networks = {id(model.network) for model in (a, b) if isinstance(model, CallsNetwork)}
    return len(networks) == 2 and all(isinstance(model, SharesPasses) and model.runs_at_once() for model in (a, b))


def every_thread(needed: bool) -> Callable[[], None]:
    """Return a function that gives the calling thread all of torch's threads, if `needed`."""
    if not needed:
        return lambda: None
    import torch

    return partial(torch.set_num_threads, torch.get_num_threads())


def float_rows(layer: LayerAttention) -> Callable[[int, int], Array]:
    """Return a function that returns the weights of queries [lo, hi) in float32 → (heads, rows, n_k).

    They are computed from queries and keys, and not from the layer's steps: so the model goes on with its own kernel.
    """
    if not isinstance(layer, ComputedLayer):
        return lambda lo, hi: layer.rows_of(range(lo, hi))
    given, xp = layer.call, attention.array_namespace(layer.call.queries)

    def in_float32(array: Array | None) -> Array | None:
        return None if array is None else xp.astype(array, xp.float32)

    call = replace(
        given,
        queries=in_float32(given.queries),
        keys=in_float32(given.keys),
        values=given.values[..., :0],  # no context is needed
        bias=in_float32(given.bias),
        sinks=in_float32(given.sinks),
        keep=None,
    )

    def rows(lo: int, hi: int) -> Array:
        part = cut_call(call, lo, hi)
        weights = attention.run_call(part).weights  # (heads, rows, keys that they may see)
        before = lo + call.first_position - int(part.offset or 0)
        after = layer.n_k - before - weights.shape[-1]
        if not before and not after:
            return weights
        sides = [
            xp.zeros((*weights.shape[:-1], size), dtype=weights.dtype, device=attention.device_of(weights))
            for size in (before, after)
        ]
        return xp.concat([sides[0], weights, sides[1]], axis=-1)  # (heads, rows, n_k)

    return rows


def cosine_of_rows(a: Array, b: Array) -> Array:
    """Return the cosine of each row of a and b, (n, d) each → (n,): exactly 1 for equal rows, 0 if one alone is zero."""
    squares = (a * a).sum(-1) * (b * b).sum(-1)  # (n,)
    cosines = (a * b).sum(-1) / np.sqrt(np.where(squares > 0, squares, 1))
    return np.where((a == b).all(-1), 1.0, np.clip(cosines, -1, 1))


def kl_of_logits(a: Array, b: Array) -> Array:
    """Return KL(softmax(a) ‖ softmax(b)) in nats, (positions, vocabulary) each → (positions,); at least 0."""
    tops = [rows.max(-1, keepdims=True) for rows in (a, b)]
    exponentials = [np.exp(rows - top) for rows, top in zip((a, b), tops, strict=True)]
    totals = [rows.sum(-1) for rows in exponentials]
    change = np.log(totals[0] / totals[1]) + (tops[0] - tops[1])[:, 0]  # log Σ exp(a) - log Σ exp(b)
    divergence = np.einsum("ij,ij->i", exponentials[0], a - b) / totals[0] - change
    return np.maximum(divergence, 0)
