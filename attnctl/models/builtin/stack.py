"""A built-in model: layers of attention over an embedding, with ablated heads and cut edges, for one or several texts.

The functions on rows are written for any array library: training and `explain` run the same lines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.checks.model_options import RANGES, USUAL_THETA
from attnctl.checks.selection import find_token
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.arrays import GivenRows
from attnctl.layer import CHECKED, LayerAttention, LayerTrace
from attnctl.layer.computed import ComputedLayer, Forward
from attnctl.runtime.arrays import LONG, Floats, as_numpy, device_for_length, place_array
from attnctl.source.model import TextModel
from attnctl.text.tokens import Token, Tokenize, is_blank, split_words, strange_words, with_places
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import Note
from attnctl.trace.run import Prediction, Run, StopForward
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues
    from attnctl.layer.interventions import Intervention
    from attnctl.text import Document


class EqualLengths:
    """Short texts of one length, in one pass through a stack."""

    def __init__(self, model: Stack) -> None:
        self.model = model

    def may_share(self, texts: Sequence[Sequence[Token]], later: Sequence[Sequence[Token]] = ()) -> bool:
        """Return whether the texts are short, and have one length."""
        return len(texts[-1]) < LONG and len({len(tokens) for tokens in texts}) == 1

    def run(
        self,
        texts: Sequence[Sequence[Token]],
        visits: Sequence[Callable[[LayerAttention], None]],
        fields: Collection[str] | None = None,
    ) -> list[Run]:
        """Return the result of `Stack.run` for each text; each visitor sees its own layers, with these `fields`."""
        return run_together(self.model, texts, visits, fields)

    def weights(self, texts: Sequence[tuple[Token, ...]], take: Callable[[int, Array], None]) -> None:
        """Call `take` with each layer and its weights (texts, heads, n, n): no text is padded."""
        x: Array = self.model.input_rows_of_texts(texts)  # (texts, n, d_model)
        for number, parameters in enumerate(self.model.layers):
            layer = self.model.layer_attention(number, x, parameters, parameters)
            take(number, layer.all_weights())
            if number + 1 < len(self.model.layers):
                x = layer.forward.rows_after  # (texts, n, d_model)


def run_together(
    model: Stack,
    texts: Sequence[Sequence[Token]],
    visits: Sequence[Callable[[LayerAttention], None]],
    fields: Collection[str] | None = None,
) -> list[Run]:
    """Return the result of `Stack.run` for each text; texts have the same length, and each visitor sees its own layers.

    The layers have their weights and the arrays of these `fields` (None: all).
    """
    x: Array = model.input_rows_of_texts(texts)  # (texts, n, d_model)
    runs = [model.begin_run("", tokens, rows) for tokens, rows in zip(texts, x, strict=True)]
    finished: set[int] = set()  # the texts whose visitors are done
    for number, parameters in enumerate(model.layers):
        layer = model.layer_attention(number, x, parameters, parameters)
        for index, part in enumerate(_layers_of_texts(layer, len(texts), fields)):
            try:
                if index not in finished:
                    visits[index](part)
            except StopForward:
                finished.add(index)
        if len(finished) == len(visits):
            return runs
        x = layer.forward.rows_after  # (texts, n, d_model)
    for index in set(range(len(runs))) - finished:
        runs[index].predictions = model.predicted_words(texts[index], x[index])
    return runs


_OF_ALL_TEXTS = ("mask", "rope_angles")  # arrays that are the same for all texts of one length


def _layers_of_texts(layer: ComputedLayer, count: int, fields: Collection[str] | None) -> list[LayerTrace]:
    """Return the layer of each text from a layer over all texts (texts, heads, n, d), computed once for all."""
    whole = layer.record()
    arrays: dict[str, Array] = {array.name: value for array, value in whole.field_arrays()}
    finite = all(np.isfinite(arrays[name]).all() for name in CHECKED)
    if fields is not None:
        arrays = {name: array for name, array in arrays.items() if name in fields or name == "weights"}
    parts = []
    for index in range(count):
        arrays_of_text = {name: array if name in _OF_ALL_TEXTS else array[index] for name, array in arrays.items()}
        part = LayerTrace(layer.layer, whole.heads, whole.kv_heads, parameters=whole.parameters, **arrays_of_text)
        part.is_finite = finite
        parts.append(part)
    return parts


Visit = Callable[[ComputedLayer], None]


def changed_visit(visit: Visit, intervention: Intervention) -> Visit:
    """Return a visitor that sees each layer with its edges cut; the model goes on with its ablated heads replaced."""

    def visit_changed(layer: ComputedLayer) -> None:
        if intervention.in_layer(layer.layer):
            layer.forward = changed_forward(layer.forward, intervention, layer.layer)
        visit(layer)

    return visit_changed


def changed_forward(forward: Forward, intervention: Intervention, layer: int) -> Forward:
    """Return a layer's forward under an intervention."""
    from attnctl.layer.interventions import cut_edges, replaced_heads

    after = forward.after
    call = cut_edges(forward.call, [intervention], layer)
    if after is None:
        return replace(forward, call=call)
    return replace(forward, call=call, after=lambda context: after(replaced_heads(context, intervention, layer)))


def outputs_with_zeroed_values(forward: Forward) -> Iterator[Floats]:
    """Yield a layer's output with the value of each key in turn zeroed in every head: (1, n, d_model) each."""
    from attnctl.layer.interventions import zeroed_values

    assert forward.after is not None
    steps = forward.all_steps
    weights = steps.weights if steps.dropped is None else steps.dropped  # (heads, n, n)
    values = attention.share_heads(forward.call.values, weights.shape[-3])  # (heads, n, d_v)
    for key in range(values.shape[-2]):
        output, residual = forward.after(attention.context(weights, zeroed_values(values, [key])))
        yield as_numpy(output if residual is None else residual)


PROJECTIONS = ("W_Q", "W_K", "W_V")


def project_rows(x: Array, parameters: Mapping[str, Array], n_heads: int) -> tuple[Array, Array, Array]:
    """Return queries, keys and values of rows x (..., n, d_model).

    → (..., heads, n, d_k), (..., kv_heads, n, d_k), (..., kv_heads, n, d_v). A layer without W_Q uses its rows as all
    three, cut into `n_heads`.
    """
    if "W_Q" not in parameters:
        whole = attention.split_heads(x, n_heads)  # (..., heads, n, d_model / heads)
        return whole, whole, whole
    q, k, v = (attention.project_heads(x, parameters[name], parameters.get(f"b_{name[-1]}")) for name in PROJECTIONS)
    return q, k, v


def row_angles(x: Array, d_k: int, theta: float) -> Array:
    """Return RoPE's angle for each row of x (..., n, d_model), and each pair of dimensions → (n, d_k / 2)."""
    positions = attention.array_namespace(x).arange(x.shape[-2], dtype=x.dtype, device=attention.device_of(x))  # (n,)
    return attention.rope_angles(positions, d_k, theta)


def mix_heads(context: Array, parameters: Mapping[str, Array]) -> Array:
    """Return a layer's output: contexts (..., heads, n, d_v) side by side, times W_O → (..., n, d_out)."""
    return attention.project_output(attention.concatenate_heads(context), parameters.get("W_O"), parameters.get("b_O"))


def unembed_rows(x: Array, parameters: Mapping[str, Array]) -> Array:
    """Return the scores of every word: rows x (..., n, d_model) times the unembedding, or the embedding's table."""
    table = parameters.get("unembedding")
    if table is None:
        table = attention.swap_last(parameters["embedding"])  # (d_model, vocabulary)
    return x @ table  # (..., n, vocabulary)


MOST_LIKELY = 5  # words in each prediction
READABLE = 128  # tokens that any trained model reads without a warning
# `positions` that turn queries and keys → the dimensions that are turned together
ROTARY: dict[str, Literal["half", "interleaved"]] = {"rope": "half", "rope-interleaved": "interleaved"}


@dataclass(frozen=True)
class Settings:
    """How a stack attends: what the command line, or a weights file, says beside the matrices."""

    causal: bool = False
    scale: float | None = None  # None: 1/√d_k
    temperature: float = 1.0
    window: int | None = None
    first_window: int | None = None  # of the first layer, if there is no `window` for all
    offset: int | None = None  # the position of the first query among keys of another number
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
            raise UsageError(f"it is sinusoidal, {' or '.join(ROTARY)}", option="positions", value=self.positions)
        if self.rope_pairs not in ROTARY.values():
            raise UsageError("it is half or interleaved", option="rope_pairs", value=self.rope_pairs)

    def window_of_layer(self, layer: int) -> int | None:
        """Return how many tokens a query of a layer sees; None: all."""
        return self.first_window if self.window is None and not layer else self.window

    def call_of_layer(self, layer: int, queries: Array, keys: Array, values: Array) -> Call:
        """Return the call of attention with these queries, keys and values (heads, n, d) and the settings."""
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
            window=self.window_of_layer(layer),
            offset=self.offset,
            temperature=self.temperature,
            keep=keep,
            dropout=self.dropout,
        )


@dataclass(frozen=True)
class Stack(TextModel):
    """Layers of self-attention with nothing between them: small enough to follow every number by hand.

    `layers` holds each layer's parameters by name (W_Q (heads, d_model, d_k), …, W_O (heads · d_v, d_out)); a layer
    without W_Q uses its input as queries, keys and values. `embed` returns the rows of tokens, each of its token alone, or
    is a GivenRows. `residual`: each layer's output is added to its input.
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
    letter_rows: int | None = None  # number of rows for pieces of unknown words
    vocabulary: Sequence[str] = ()
    predict: str | None = None  # the token after which, or at which, words are predicted; "all" for every one
    longest: int | None = None  # tokens of the longest sentence that it was trained on
    notes: tuple[str, ...] = field(default=())
    intervention: Intervention | None = None  # heads that are off in every run

    def __repr__(self) -> str:
        return f"Stack {self.info.size_line()}"

    @property
    def predicts_words(self) -> bool:
        """Return whether there is an unembedding."""
        return self.unembedding is not None

    def run(self, tokens: Sequence[Token], visit: Visit, text: str = "") -> Run:
        """Run the tokens through every layer; `visit` receives each layer's attention, and may raise StopForward."""
        embeddings = self.input_rows(tokens)
        run = self.begin_run(text, tokens, embeddings)
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
                return run
            x = layer.forward.rows_after  # (n, d_model)
            del layer  # not beside the arrays of the next layer
        run.predictions = self.predicted_words(tokens, as_numpy(x))
        return run

    def with_heads_off(self, heads: Mapping[int, tuple[int, ...]]) -> Stack:
        """Return this stack with these heads (layer → heads) off in every run, and no others."""
        from attnctl.layer.interventions import Intervention

        return replace(self, info=self.info.with_heads_off(heads), intervention=Intervention(heads) if heads else None)

    def contexts_of_heads(self, text: str) -> dict[int, Array]:
        """Return layer → the context of each head at each position: (heads, n, d_v)."""
        contexts: dict[int, Array] = {}

        def visit(layer: ComputedLayer) -> None:
            contexts[layer.layer] = layer.forward.context_of_heads

        self.run(self.tokenize(text), visit, text)
        return contexts

    def window_of_layer(self, layer: int) -> int | None:
        """Return how many tokens a query of a layer sees; None: all."""
        return self.settings.window_of_layer(layer)

    def predicted_positions(self, tokens: Sequence[Token], text: str, *, causal: bool) -> Sequence[int]:
        """Return the positions at which words are predicted: all if the model continues a text, else its blanks."""
        return [place for place, token in enumerate(tokens) if causal or is_blank(token.text)]

    def last_logits(self, final: Array, most_bytes: int) -> Array | None:
        """Return the logits of the last positions, as many as `most_bytes` hold: (n, d_model) → (positions, vocabulary).

        Return None without an unembedding.
        """
        if self.unembedding is None:
            return None
        positions = max(1, most_bytes // (4 * self.unembedding.shape[1]))
        return self.logits(as_numpy(final)[-positions:])

    @property
    def is_heavy(self) -> bool:
        """Return False: a process for each core is faster."""
        return False

    def runs_at_once(self) -> bool:
        """Return False: its passes are NumPy's, and short."""
        return False

    def shared_pass(self) -> EqualLengths | None:
        """Return how texts share a pass: those of one length, on the CPU, without dropout and with all heads on."""
        settings = self.settings
        alone = settings.device not in ("auto", "cpu") or settings.dropout or self.intervention is not None
        return None if alone else EqualLengths(self)

    def names_by_id(self) -> Mapping[int, str]:
        """Return id → word of the vocabulary's words, without signs and marks."""
        return {number: word for number, word in enumerate(self.vocabulary) if word.isalpha()}

    def listed_tokens(self, text: str, names: Sequence[str]) -> tuple[Token, ...]:
        """Return the tokens of these words, with their places in the text; without a vocabulary any name is a token.

        Raises AttnctlError for a name that is not one token of the vocabulary.
        """
        words = self.tokenize(" ".join(names))  # a capital means something else in the first word of a sentence
        if [word.text for word in words] != list(names):
            ids = {name: number for number, name in enumerate(dict.fromkeys(names))}
            words = tuple(self._word_named(name) if len(self.vocabulary) else Token(name, ids[name]) for name in names)
        return with_places(words, text, names)

    def _word_named(self, name: str) -> Token:
        """Return the token of a name. Raises AttnctlError if it is not one token of the vocabulary."""
        words = self.tokenize(name)
        if len(words) != 1:
            raise AttnctlError(f"{name!r} is not one token of {self.info.name}")
        return words[0]

    def run_with_zeroed_values(
        self,
        tokens: Sequence[Token],
        take: Callable[[LayerAttention, Floats, Iterator[Floats]], None],
        text: str = "",
        layers: Sequence[int] | None = None,
    ) -> Run:
        """Run the tokens; `take` receives each of `layers` (None: all), its output, and its outputs with one value zeroed.

        The output is (n, d_model); the outputs with each key's value in turn zeroed in every head are (1, n, d_model)
        each.
        """

        def visit(layer: ComputedLayer) -> None:
            if layers is None or layer.layer in layers:
                take(layer, as_numpy(layer.forward.rows_after), outputs_with_zeroed_values(layer.forward))

        return self.run(tokens, visit, text)

    def begin_run(self, text: str, tokens: Sequence[Token], embeddings: Floats) -> Run:
        """Return the run of a text (n tokens, embeddings (n, d_model)) as far as it is known before the first layer."""
        doubt = strange_words(self.info.name, tokens)
        if doubt is None and self.longest is not None and len(tokens) > max(self.longest, READABLE):
            doubt = f"{self.info.name} was trained on sentences of up to {self.longest} words, not of {len(tokens):,}"
        guess = () if doubt is None else (Note(f"{doubt}: what its heads find here is a guess", "guess"),)
        off = () if self.intervention is None else (self.intervention.note,)
        return Run(Subject(text, tuple(tokens), self.info, notes=(*self.notes, *guess, *off)), embeddings)

    def input_rows(self, tokens: Sequence[Token]) -> Floats:
        """Return the input of the first layer: embeddings, with positions if they are added → (n, d_model).

        Raises AttnctlError if the text is longer than the learned positions.
        """
        return self._with_positions(self.embed(tokens))  # (n, d_model)

    def input_rows_of_texts(self, texts: Sequence[Sequence[Token]]) -> Floats:
        """Return the input of the first layer for texts of the same length → (texts, n, d_model).

        Raises AttnctlError if they are longer than the learned positions.
        """
        if isinstance(self.embed, GivenRows):  # which are the rows of one text
            embedded: Floats = np.stack([self.embed(tokens) for tokens in texts])  # (texts, n, d_model)
        else:
            rows = self.embed([token for tokens in texts for token in tokens])  # (texts · n, d_model)
            embedded = rows.reshape(len(texts), -1, rows.shape[1])  # (texts, n, d_model)
        return self._with_positions(embedded)

    def _with_positions(self, x: Floats) -> Floats:
        """Return embeddings (…, n, d_model) with positions, if they are added."""
        n, d_model = x.shape[-2:]
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
        """Return one layer's attention over x (..., n, d_model); `placed` are its parameters on the device of x."""
        settings = self.settings
        q, k, v = project_rows(x, placed, self.info.n_heads or 1)  # (heads, n, d_k), (kv_heads, n, d_k | d_v)
        arrays: dict[str, Array] = {"input": x} if number else {}
        if settings.rope_theta is not None:
            angles = row_angles(x, q.shape[-1], settings.rope_theta)  # (n, d_k / 2)
            shared = attention.share_heads(k, q.shape[-3])  # (heads, n, d_k)
            arrays |= {"queries_before_rope": q, "keys_before_rope": shared, "rope_angles": angles}
            q, k = (attention.rotate_positions(part, angles, settings.rope_pairs) for part in (q, k))  # (heads, n, d_k)

        def after(context: Array) -> tuple[Array, Array | None]:
            output = mix_heads(context, placed)  # (n, d_out)
            return output, x + output if self.residual else None  # (n, d_model) each

        return ComputedLayer.of_call(
            number, settings.call_of_layer(number, q, k, v), arrays=arrays, parameters=parameters, after=after
        )

    def logits(self, final: Floats) -> Floats:
        """Return the scores of every word, if there is an unembedding: rows (..., d_model) → (..., vocabulary)."""
        scores: Floats = unembed_rows(final, self._unembedding_table)
        return scores

    @cached_property
    def _unembedding_table(self) -> dict[str, Floats]:
        """Return the unembedding, read once: predicting one word needs all of it, and a half precision is slow."""
        assert self.unembedding is not None
        computed = np.result_type(self.unembedding, np.float32)
        return {"unembedding": np.asarray(self.unembedding, dtype=computed)}  # (d_model, vocabulary)

    def predicted_words(self, tokens: Sequence[Token], final: Floats) -> tuple[Prediction, ...]:
        """Return the most probable words at `predict`, at each blank, or after the last token: final (n, d_model).

        Return none without an unembedding.
        """
        if self.unembedding is None:
            return ()
        blanks = [position for position, token in enumerate(tokens) if is_blank(token.text)]
        predictions = []
        for position in predicted_places(tokens, self.predict, blanks, bool(self.info.causal)):
            # a causal model says what follows, so it fills a blank from the word before it
            source = position - 1 if self.info.causal and is_blank(tokens[position].text) else position
            if source < 0:
                continue
            probability = attention.softmax(self.logits(final[source]))  # (vocabulary,)
            best = most_likely(probability)
            predictions += [
                Prediction(position, self.vocabulary[i], i, float(probability[i]), among=len(probability)) for i in best
            ]
        return tuple(predictions)


def most_likely(probability: Floats) -> list[int]:
    """Return the MOST_LIKELY most probable words of (vocabulary,), largest first, equal ones in order."""
    count = min(MOST_LIKELY, len(probability))
    threshold = np.partition(probability, -count)[-count]  # sorting the whole vocabulary takes ten times as long
    candidates = np.flatnonzero(probability >= threshold)
    best: list[int] = candidates[np.argsort(-probability[candidates], kind="stable")][:count].tolist()
    return best


def predicted_places(
    tokens: Sequence[Token], predict: str | None, blanks: Sequence[int], causal: bool
) -> Sequence[int]:
    """Return where to predict words: at what `predict` names, at blanks, or after the last token if causal."""
    if predict is not None:
        return range(len(tokens)) if predict == "all" else [find_token(tokens, predict, "predict")]
    return blanks or ([len(tokens) - 1] if causal else [])


def chosen_settings(options: OptionValues, file_options: OptionValues | None = None) -> Settings:
    """Return the settings: `options` over `file_options`. Raises UsageError for an impossible setting.

    Rotary positions without a base of their angles turn by the usual angles.
    """
    chosen = (file_options or {}) | options
    if (pairs := ROTARY.get(options.get("positions", ""))) is not None:
        chosen |= {"positions": (file_options or {}).get("positions"), "rope_pairs": pairs}
        chosen.setdefault("rope_theta", USUAL_THETA)
    return Settings(**chosen)


def stack_info(name: str, kind: str, layers: Sequence[dict[str, Floats]], settings: Settings, **more: Any) -> ModelInfo:
    """Return the ModelInfo of a stack: its sizes from its parameters, everything else from its settings.

    A size that differs between layers is None; of the numbers of heads the largest counts.
    """
    sizes: Document = {"positions": settings.positions} | more
    if "W_Q" in layers[0]:
        shared = ({layer[name].shape[axis] for layer in layers} for name, axis in (("W_K", 0), ("W_K", 2), ("W_V", 2)))
        kv_heads, d_k, d_v = (values.pop() if len(values) == 1 else None for values in shared)
        sizes |= {
            "n_heads": max(layer["W_Q"].shape[0] for layer in layers),
            "n_kv_heads": kv_heads,
            "d_model": layers[0]["W_Q"].shape[1],
            "d_k": d_k,
            "d_v": d_v,
        }
    if settings.dropout and sizes.get("seed") is None:
        sizes["seed"] = settings.seed or 0  # the seed of dropout
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
    """Return numbers in [-1, 1) that depend only on `name`, on every machine and in every version: float32 of `shape`.

    They are bits of SHAKE-256, 24 for each number, so that each is exact in float32.
    """
    count = int(np.prod(shape))
    bits = np.frombuffer(hashlib.shake_256(name.encode()).digest(4 * count), dtype="<u4")  # (count,)
    return ((bits >> 8).astype(np.float32) * np.float32(2**-23) - np.float32(1)).reshape(shape)
