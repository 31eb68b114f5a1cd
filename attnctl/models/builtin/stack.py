"""A built-in model: layers of attention over an embedding, heads ablated and edges cut in it, several texts at once.

What a layer does to its rows is written for any array library: training learns and `explain` shows by these lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnctl import attention
from attnctl.arrays import LONG, Floats, as_numpy, device_for_length, place_array
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer import CHECKED, LayerAttention, LayerTrace
from attnctl.layer.computed import ComputedLayer, Forward
from attnctl.model_options import RANGES
from attnctl.selection import find_token
from attnctl.source.model import TextModel
from attnctl.tokens import BLANKS, Token, Tokenize, split_words, strange_words
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import Note, Prediction, Run, StopForward

if TYPE_CHECKING:
    from attnctl.interventions import Intervention
    from attnctl.model_options import OptionValues
    from attnctl.text import Document


def can_run_together(model: object, n: int) -> bool:
    """Whether texts of n tokens may share a pass: short ones on the CPU, of whose weights none is dropped."""
    return (
        isinstance(model, Stack)
        and n < LONG
        and model.settings.device in ("auto", "cpu")
        and not model.settings.dropout
        and model.intervention is None
    )


def run_together(
    model: Stack, texts: Sequence[Sequence[Token]], visits: Sequence[Callable[[LayerAttention], None]]
) -> list[Run]:
    """What `Stack.run` gives for each text; all have the same number of tokens, and each visitor sees its own layers."""
    rows = [model.input_rows(tokens) for tokens in texts]  # (n, d_model) each
    runs = [model.begin_run(tokens, x) for tokens, x in zip(texts, rows, strict=True)]
    x: Array = np.stack(rows)  # (texts, n, d_model)
    over: set[int] = set()  # the texts of which nothing more is wanted
    for number, parameters in enumerate(model.layers):
        layer = model.layer_attention(number, x, parameters, parameters)
        for at, part in enumerate(_layers_of_texts(layer, len(texts))):
            try:
                if at not in over:
                    visits[at](part)
            except StopForward:
                over.add(at)
        if len(over) == len(visits):
            return runs
        output, residual = layer.forward.output_and_residual
        x = output if residual is None else residual  # (texts, n, d_model)
    for at in set(range(len(runs))) - over:
        runs[at].predictions = model.predicted_words(texts[at], x[at])
    return runs


_OF_ALL_TEXTS = ("mask", "rope_angles")  # arrays that are the same for every text of one length


def _layers_of_texts(layer: ComputedLayer, count: int) -> list[LayerTrace]:
    """Of a layer over all texts (texts, heads, n, d), what each text's own records: every step is found once for all."""
    whole = layer.record()
    arrays: dict[str, Array] = {array.name: there for array, there in whole.arrays_kept() if not array.parameter}
    finite = all(np.isfinite(arrays[name]).all() for name in CHECKED)
    found = []
    for at in range(count):
        own = {name: array if name in _OF_ALL_TEXTS else array[at] for name, array in arrays.items()}
        part = LayerTrace(layer.layer, whole.heads, whole.kv_heads, parameters=whole.parameters, **own)
        part.is_finite = finite
        found.append(part)
    return found


Visit = Callable[[ComputedLayer], None]


def changed_visit(visit: Visit, intervention: Intervention) -> Visit:
    """The visitor, shown each layer with its edges cut; the model goes on with the heads that are off replaced."""

    def visit_changed(layer: ComputedLayer) -> None:
        if intervention.in_layer(layer.layer):
            layer.forward = changed_forward(layer.forward, intervention, layer.layer)
        visit(layer)

    return visit_changed


def changed_forward(forward: Forward, intervention: Intervention, layer: int) -> Forward:
    """A layer's forward under an intervention."""
    from attnctl.interventions import cut_edges, replaced_heads

    after = forward.after
    call = cut_edges(forward.call, [intervention], layer)
    if after is None:
        return replace(forward, call=call)
    return replace(forward, call=call, after=lambda context: after(replaced_heads(context, intervention, layer)))


def outputs_with_zeroed_values(forward: Forward) -> Iterator[Floats]:
    """What a layer hands on where the value of one key after another is zeroed in every head: (1, n, d_model) each."""
    from attnctl.interventions import zeroed_values

    assert forward.after is not None
    steps = forward.all_steps
    weights = steps.weights if steps.dropped is None else steps.dropped  # (heads, n, n)
    values = attention.share_heads(forward.call.values, weights.shape[-3])  # (heads, n, d_v)
    for key in range(values.shape[-2]):
        output, residual = forward.after(attention.context(weights, zeroed_values(values, [key])))
        yield as_numpy(output if residual is None else residual)


PROJECTIONS = ("W_Q", "W_K", "W_V")


def project_rows(x: Array, parameters: Mapping[str, Array], n_heads: int) -> tuple[Array, Array, Array]:
    """Queries, keys and values of rows x (..., n, d_model) → (..., heads, n, d_k), (..., kv_heads, n, d_k | d_v).

    A layer without W_Q reads its rows as all three, cut into `n_heads`.
    """
    if "W_Q" not in parameters:
        whole = attention.split_heads(x, n_heads)  # (..., heads, n, d_model / heads)
        return whole, whole, whole
    q, k, v = (attention.project_heads(x, parameters[name], parameters.get(f"b_{name[-1]}")) for name in PROJECTIONS)
    return q, k, v


def row_angles(x: Array, d_k: int, theta: float) -> Array:
    """RoPE's angle for each row of x (..., n, d_model), and each pair of dimensions → (n, d_k / 2)."""
    at = attention.array_namespace(x).arange(x.shape[-2], dtype=x.dtype, device=attention.device_of(x))  # (n,)
    return attention.rope_angles(at, d_k, theta)


def mix_heads(context: Array, parameters: Mapping[str, Array]) -> Array:
    """What a layer gives back: contexts (..., heads, n, d_v) side by side, through W_O → (..., n, d_out)."""
    return attention.project_output(attention.concatenate_heads(context), parameters.get("W_O"), parameters.get("b_O"))


def unembed_rows(x: Array, parameters: Mapping[str, Array]) -> Array:
    """Scores of every word: rows x (..., n, d_model) by the unembedding, or by the embedding where they share one table."""
    table = parameters.get("unembedding")
    if table is None:
        table = attention.swap_last(parameters["embedding"])  # (d_model, vocabulary)
    return x @ table  # (..., n, vocabulary)


MOST_LIKELY = 5  # words that are named in each prediction
READABLE = 128  # tokens that any trained model reads without a word of warning


@dataclass(frozen=True)
class Settings:
    """How a stack attends: what the command line, or a weights file, says beside the matrices."""

    causal: bool = False
    scale: float | None = None  # None: 1/√d_k
    temperature: float = 1.0
    window: int | None = None
    first_window: int | None = None  # of the first layer, where no window is given for all
    positions: str | None = None  # sinusoidal, or None
    rope_theta: float | None = None
    rope_pairs: Literal["half", "interleaved"] = "half"
    dropout: float = 0.0
    seed: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("dropout", "temperature", "scale", "window", "first_window", "rope_theta"):
            if (value := getattr(self, name)) is not None:
                option = name.removeprefix("first_")
                RANGES[option].check_value(option, value)
        if self.positions not in (None, "sinusoidal"):
            raise UsageError("the only kind to add is sinusoidal", option="positions", value=self.positions)
        if self.rope_pairs not in ("half", "interleaved"):
            raise UsageError("it is half or interleaved", option="rope_pairs", value=self.rope_pairs)

    def call_of_layer(self, layer: int, queries: Array, keys: Array, values: Array) -> Call:
        """These queries, keys and values (heads, n, d), attended to as the settings say."""
        keep = None
        if self.dropout:
            # seeded by name, so that the same weights fall on every machine and device
            shape = (queries.shape[0], queries.shape[1], keys.shape[1])
            keep = place_array(
                uniform_numbers(f"{self.seed or 0}/dropout/{layer}", shape) >= 2 * self.dropout - 1, queries
            )
        return Call(
            queries,
            keys,
            values,
            scale=self.scale,
            causal=self.causal,
            window=self.first_window if self.window is None and not layer else self.window,
            temperature=self.temperature,
            keep=keep,
            dropout=self.dropout,
        )


@dataclass(frozen=True)
class Stack(TextModel):
    """Layers of self-attention without anything between them: enough to follow every number by hand.

    `layers` holds each layer's parameters by name (W_Q (heads, d_model, d_k), …, W_O (heads · d_v, d_out)); a layer with no
    W_Q reads its input as queries, keys and values at once. `embed` gives a token's row. `residual`: each layer's output is
    added to its input.
    """

    info: ModelInfo
    settings: Settings
    layers: tuple[dict[str, Floats], ...]
    embed: Callable[[Sequence[Token]], Floats]
    tokenize: Tokenize = split_words
    residual: bool = False
    positions: Floats | None = None  # (max_length, d_model)
    unembedding: Floats | None = None  # (d_model, vocabulary)
    tied: bool = False  # the unembedding is the embedding's own table
    letter_rows: int | None = None  # how many rows of pieces the letters of unknown words have
    vocabulary: Sequence[str] = ()
    predict: str | None = None  # the token after which, or at which, words are predicted; "all" for every one
    longest: int | None = None  # tokens of the longest sentence that it was trained on
    notes: tuple[str, ...] = field(default=())
    intervention: Intervention | None = None  # heads that are off in all that it does

    def __repr__(self) -> str:
        return f"Stack {self.info.size_line()}"

    @property
    def predicts_words(self) -> bool:
        """Whether there is an unembedding."""
        return self.unembedding is not None

    def run(self, tokens: Sequence[Token], visit: Visit, text: str = "") -> Run:
        """The tokens through every layer; `visit` sees each layer's attention, and may raise StopForward."""
        embeddings = self.input_rows(tokens)
        ran = self.begin_run(tokens, embeddings)
        visit = visit if self.intervention is None else changed_visit(visit, self.intervention)
        device = device_for_length(self.settings.device, len(tokens))
        x = place_array(embeddings, device)  # (n, d_model)
        for number, parameters in enumerate(self.layers):
            layer = self.layer_attention(
                number, x, parameters, {name: place_array(w, device) for name, w in parameters.items()}
            )
            try:
                visit(layer)
            except StopForward:
                return ran
            output, residual = layer.forward.output_and_residual
            x = output if residual is None else residual  # (n, d_model)
        ran.predictions = self.predicted_words(tokens, as_numpy(x))
        return ran

    def run_with_zeroed_values(
        self,
        tokens: Sequence[Token],
        take: Callable[[LayerAttention, Floats, Iterator[Floats]], None],
        text: str = "",
        layers: Sequence[int] | None = None,
    ) -> Run:
        """The tokens through every layer; `take` sees each of `layers` (None: all) with what it puts out, and that again
        with the value of one key after another zeroed in every head: (n, d_model), and (1, n, d_model) for each key.
        """

        def visit(layer: ComputedLayer) -> None:
            if layers is None or layer.layer in layers:
                output, residual = layer.forward.output_and_residual
                take(
                    layer, as_numpy(output if residual is None else residual), outputs_with_zeroed_values(layer.forward)
                )

        return self.run(tokens, visit, text)

    def begin_run(self, tokens: Sequence[Token], embeddings: Floats) -> Run:
        """What is known of a text (n tokens, embeddings (n, d_model)) before its first layer."""
        doubt = strange_words(self.info.name, tokens)
        if doubt is None and self.longest is not None and len(tokens) > max(self.longest, READABLE):
            doubt = f"{self.info.name} was trained on sentences of up to {self.longest} words, not of {len(tokens):,}"
        guess = () if doubt is None else (Note(f"{doubt}: what its heads find here is a guess", "guess"),)
        off = () if self.intervention is None else (self.intervention.note,)
        return Run(tuple(tokens), embeddings, notes=(*self.notes, *guess, *off))

    def input_rows(self, tokens: Sequence[Token]) -> Floats:
        """What the first layer reads: embeddings, and positions where they are added → (n, d_model)."""
        x = self.embed(tokens)  # (n, d_model)
        n, d_model = x.shape
        if self.positions is not None:
            if n > len(self.positions):
                raise AttnctlError(
                    f"the text has {n} tokens, but {self.info.name} knows {len(self.positions)} positions: shorten it"
                )
            x = x + self.positions[:n]  # (n, d_model)
        if self.settings.positions == "sinusoidal":
            x = x + attention.sinusoidal_positions(np.arange(n, dtype=np.float32), d_model)  # (n, d_model)
        return x

    def layer_attention(
        self, number: int, x: Array, parameters: dict[str, Floats], placed: dict[str, Array]
    ) -> ComputedLayer:
        """One layer's attention over x (..., n, d_model); `placed` are its parameters where x is."""
        settings = self.settings
        q, k, v = project_rows(x, placed, self.info.n_heads or 1)  # (heads, n, d_k), (kv_heads, n, d_k | d_v)
        known: dict[str, Array] = {"input": x} if number else {}
        if settings.rope_theta is not None:
            angles = row_angles(x, q.shape[-1], settings.rope_theta)  # (n, d_k / 2)
            shared = attention.share_heads(k, q.shape[-3])  # (heads, n, d_k)
            known |= {"queries_before_rope": q, "keys_before_rope": shared, "rope_angles": angles}
            q, k = (attention.rotate_positions(part, angles, settings.rope_pairs) for part in (q, k))  # (heads, n, d_k)

        def after(context: Array) -> tuple[Array, Array | None]:
            output = mix_heads(context, placed)  # (n, d_out)
            return output, x + output if self.residual else None  # (n, d_model) each

        return ComputedLayer.of_call(
            number, settings.call_of_layer(number, q, k, v), known=known, parameters=parameters, after=after
        )

    @cached_property
    def _unembedding_table(self) -> dict[str, Floats]:
        """The unembedding, read once: whoever predicts one word needs all of it."""
        assert self.unembedding is not None
        return {"unembedding": np.asarray(self.unembedding, dtype=np.float32)}  # (d_model, vocabulary)

    def predicted_words(self, tokens: Sequence[Token], final: Floats) -> tuple[Prediction, ...]:
        """The most probable words where they are asked for, at each blank, or after the last: final (n, d_model).

        None of a model without an unembedding.
        """
        if self.unembedding is None:
            return ()
        blanks = [at for at, token in enumerate(tokens) if token.text in BLANKS]
        found = []
        for at in predicted_places(tokens, self.predict, blanks, bool(self.info.causal)):
            # a causal model says what follows, so it fills a blank from the word before it
            source = at - 1 if self.info.causal and tokens[at].text in BLANKS else at
            if source < 0:
                continue
            probability = attention.softmax(unembed_rows(final[source], self._unembedding_table))  # (vocabulary,)
            best = most_likely(probability)
            found += [Prediction(at, self.vocabulary[i], i, float(probability[i])) for i in best]
        return tuple(found)


def most_likely(probability: Floats) -> list[int]:
    """The places of the MOST_LIKELY largest of (vocabulary,), the largest first, of equal ones the earlier."""
    count = min(MOST_LIKELY, len(probability))
    least = np.partition(probability, -count)[-count]  # sorting the whole vocabulary takes ten times as long
    among = np.flatnonzero(probability >= least)
    best: list[int] = among[np.argsort(-probability[among], kind="stable")][:count].tolist()
    return best


def predicted_places(
    tokens: Sequence[Token], predict: str | None, blanks: Sequence[int], causal: bool
) -> Sequence[int]:
    """Where words are predicted: at what `predict` names, at the blanks, or after the last token of a causal model."""
    if predict is not None:
        return range(len(tokens)) if predict == "all" else [find_token(tokens, predict, "predict")]
    return blanks or ([len(tokens) - 1] if causal else [])


def chosen_settings(given: OptionValues, own: OptionValues | None = None) -> Settings:
    """The settings that are given, over those that a file has of its `own`. Raises UsageError for one that cannot be."""
    settings = Settings(**(own or {}) | given)
    if given.get("rope_pairs") is not None and settings.rope_theta is None:
        why = f"says which dimensions turn together: give {option_name('rope_theta')} too, which turns them"
        raise UsageError(why, option="rope_pairs")
    return settings


def stack_info(name: str, kind: str, layers: Sequence[dict[str, Floats]], settings: Settings, **more: Any) -> ModelInfo:
    """The ModelInfo of a stack: its sizes read off its parameters, the rest from its settings.

    A size that differs from layer to layer is not given; of heads, the most.
    """
    sizes: Document = {"positions": settings.positions} | more
    if "W_Q" in layers[0]:
        shared = ({layer[name].shape[axis] for layer in layers} for name, axis in (("W_K", 0), ("W_K", 2), ("W_V", 2)))
        kv_heads, d_k, d_v = (found.pop() if len(found) == 1 else None for found in shared)
        sizes |= {
            "n_heads": max(layer["W_Q"].shape[0] for layer in layers),
            "n_kv_heads": kv_heads,
            "d_model": layers[0]["W_Q"].shape[1],
            "d_k": d_k,
            "d_v": d_v,
        }
    if settings.dropout and sizes.get("seed") is None:
        sizes["seed"] = settings.seed or 0  # by which weights are dropped
    return ModelInfo(
        name=name,
        kind=kind,
        n_layers=len(layers),
        causal=settings.causal,
        scale=attention.default_scale(sizes["d_k"]) if settings.scale is None and sizes["d_k"] else settings.scale,
        window=settings.window,
        temperature=settings.temperature if settings.temperature != 1.0 else None,
        dropout=settings.dropout or None,
        rope_theta=settings.rope_theta,
        rope_pairs=settings.rope_pairs if settings.rope_theta is not None else None,
        device=settings.device if settings.device != "auto" else "cpu",
        **sizes,
    )


def uniform_numbers(name: str, shape: tuple[int, ...]) -> Floats:
    """Numbers in [-1, 1) that depend on `name` alone: the same on every machine, in every version of every library.

    Bits of SHAKE-256, 24 a number, so that each is exact in float32. → float32 of `shape`.
    """
    count = int(np.prod(shape))
    bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), dtype="<u4")  # (count,)
    return ((bits >> 8).astype(np.float32) * np.float32(2**-23) - np.float32(1)).reshape(shape)
