"""Measure effects: ablate every head in turn, cut edges and spans, or approximate all of them by gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from msgspec.structs import asdict
from msgspec.structs import replace as with_fields

from attnctl.attention import Array
from attnctl.blockwise import Tick
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.layer.interventions import Cut, Intervention
from attnctl.readings.rank_correlation import kendall_tau, spearman_rho
from attnctl.readings.spans import box_of
from attnctl.runtime.arrays import Floats
from attnctl.source.model import CanIntervene, Model
from attnctl.text import number_list, percent, visible_text
from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.subject import reads_itself
from attnctl.watched.effects import (
    Agreement,
    Approximation,
    Contributions,
    EdgeEffect,
    Effect,
    Effects,
    HeadEffect,
    LikelyToken,
    LogitScale,
    Looks,
    Outcome,
    SpanEffect,
    Word,
)


@dataclass
class FirstOrder:
    """Effects to first order: layer → log_probability, logit_difference → (heads,), and for edges (heads, n_k)."""

    heads: dict[int, dict[str, Floats]] = field(default_factory=dict)
    edges: dict[int, dict[str, Floats]] = field(default_factory=dict)


class Watched(Protocol):
    """A text in a model whose attention can be changed, and the position whose prediction is watched."""

    text: str
    tokens: tuple[Token, ...]
    key_tokens: tuple[Token, ...] | None
    query: int
    base: Intervention  # the changes in every run
    info: ModelInfo
    scale: LogitScale  # of what it predicts

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a reader must know."""

    @property
    def predicts_words(self) -> bool:
        """Return whether it predicts words; if not, its final states are compared."""

    @property
    def predicts_classes(self) -> bool:
        """Return whether it predicts the labels of a classifier in place of words."""

    def target_word(self, text: str) -> Word:
        """Return the target that a text names. Raises AttnctlError if the vocabulary lacks it."""

    def word_of_id(self, number: int) -> str:
        """Return the text of one id of the vocabulary."""

    def query_weights(self) -> dict[int, Floats]:
        """Return layer → weights of the watched query: (heads, n_k)."""

    def outcomes(
        self, interventions: Sequence[Intervention], continuation: tuple[int, ...] = (), batch_size: int | None = None
    ) -> Iterator[Floats]:
        """Yield logits from the watched position (rows, 1 + continuation, vocabulary), or final states (rows, n, d_model).

        There is one row for each intervention, in their order, in batches; `continuation` are ids appended to the text.
        """

    def gradients(self, target: Word, against: Word | None) -> FirstOrder:
        """Return the effects of every head and every edge to first order."""

    def contributions(self, target: Word, against: Word | None) -> tuple[Contributions, tuple[str, ...]]:
        """Return the logit as a sum of parts, and notes. Raises AttnctlError, naming the architecture, if it cannot."""


@dataclass
class WatchedText:
    """A text in a model that reads single tokens; the prediction at `query` is watched. The base of such a `Watched`."""

    info: ModelInfo
    text: str
    tokens: tuple[Token, ...]
    query: int
    base: Intervention
    key_tokens: tuple[Token, ...] | None = None
    scale: LogitScale = "softmax"
    notes: tuple[str, ...] = ()
    predicts_classes = False


@dataclass(frozen=True)
class EffectRequest:
    """The effects to measure. `edges` are (query, key) pairs; `every_edge`: each key of the watched query."""

    target: str | None = None
    against: str | None = None
    how: str = "zero"
    sweep_heads: bool = True
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    every_edge: bool = False
    edges: Sequence[tuple[int, int]] = ()
    spans: Sequence[tuple[str, tuple[int, ...]]] = ()  # name, tokens
    parts: str | None = None  # what the spans are
    approximate: bool = False
    batch_size: int | None = None


def with_heads(
    measured: Effects, watched: Watched, jobs: Sequence[tuple[int, int]], effects: Sequence[Effect]
) -> Effects:
    """Add the effects of heads, the key with each head's largest weight, and how far effects and weights agree."""
    looks = watched.query_weights()
    heads = []
    for (layer, head), effect in zip(jobs, effects, strict=True):
        row = looks[layer][head]  # (n_k,)
        key = int(row.argmax())
        heads.append(HeadEffect(layer, head, Looks(key, float(row[key])), **asdict(effect)))
    tau = kendall_tau([entry.looks.weight for entry in heads], [entry.absolute_size for entry in heads])
    return with_contributions(with_fields(measured, heads=tuple(heads), agreement=Agreement(tau)), watched)


def measure_contributions(watched: Watched, ask: EffectRequest) -> Effects:
    """Return the target's logit as a sum over the parts of the model, with its notes.

    Raises UsageError if the model predicts no words, or a word is several tokens, which have a logit each.
    """
    measured = Gauge.of_request(watched, ask).effects
    if measured.target is None:
        raise UsageError(f"{watched.info.name} predicts no words: there is no logit to split into parts")
    for option, word in (("target", measured.target), ("against", measured.against)):
        if word is not None and word.ids:
            spaced = _spaced(watched, word)
            advice = "name one of them" if spaced is None else f"{spaced.text!r}, with the space before it, is one"
            why = f"it is {_pieces(watched, word)}, each with a logit of its own: {advice}"
            raise UsageError(why, option=option, value=word.text)
    parts, notes = watched.contributions(measured.target, measured.against)
    return with_fields(measured, contributions=parts, notes=(*measured.notes, *notes))


def _pieces(watched: Watched, word: Word) -> str:
    """Return how many tokens a word is, and which."""
    return f"{len(word.ids)} tokens ({', '.join(repr(watched.word_of_id(number)) for number in word.ids)})"


def with_contributions(measured: Effects, watched: Watched) -> Effects:
    """Return the effects with the logit as a sum of parts, and what each head writes; a note if that is impossible."""
    if measured.target is None:
        return measured
    if any(word.ids for word in (measured.target, measured.against) if word is not None):
        note = "Direct contributions are those to one token: for several tokens, they are not computed."
        return with_fields(measured, notes=(*measured.notes, note))
    try:
        parts, notes = watched.contributions(measured.target, measured.against)
    except AttnctlError as why:
        return with_fields(measured, notes=(*measured.notes, f"{why}."))
    written = {(part.layer, part.head): part.value for part in parts.parts if part.part == "head"}
    heads = tuple(with_fields(entry, writes=written.get((entry.layer, entry.head))) for entry in measured.heads)
    return with_fields(measured, heads=heads, contributions=parts, notes=(*measured.notes, *notes))


def chosen_heads(watched: Watched, ask: EffectRequest) -> list[tuple[int, int]]:
    """Return the layers and heads to ablate. Raises UsageError if there are none."""
    counts = {layer: len(weights) for layer, weights in sorted(watched.query_weights().items())}
    layers = [layer for layer in (counts if ask.layers is None else ask.layers) if layer in counts]
    jobs = [
        (layer, head)
        for layer in layers
        for head in (range(counts[layer]) if ask.heads is None else ask.heads)
        if head < counts[layer]
    ]
    if not jobs:
        raise UsageError(f"{watched.info.name} has no such heads to switch off")
    return jobs


# --- one prediction under many interventions ---------------------------------------------------------------------


@dataclass(frozen=True)
class Gauge:
    """The watched prediction, and `effects`: its baseline, with nothing measured yet."""

    watched: Watched
    ask: EffectRequest
    effects: Effects
    states: Floats | None = None  # final (n, d_model), where no words are predicted

    @classmethod
    def of_request(cls, watched: Watched, ask: EffectRequest) -> Gauge:
        """Return the gauge for a request, with its baseline. Raises UsageError for an impossible target."""
        new_effects = partial(
            Effects,
            text=watched.text,
            tokens=watched.tokens,
            model=watched.info,
            how=ask.how,
            query=watched.query,
            key_tokens=watched.key_tokens,
            parts=ask.parts,
        )
        if not watched.predicts_words and (ask.target is not None or ask.against is not None):
            option, value = ("target", ask.target) if ask.target is not None else ("against", ask.against)
            why = f"{watched.info.name} predicts no words; its final states are compared"
            raise UsageError(why, option=option, value=value)
        first = next(watched.outcomes([watched.base]))[0]  # (1, vocabulary), or (n, d_model)
        if not watched.predicts_words:
            note = f"{watched.info.name} predicts no words: measured is 1 - cosine of its final states, position by "
            note += "position, averaged."
            return cls(watched, ask, new_effects(baseline=Outcome(distance=0.0), notes=(*watched.notes, note)), first)
        best = 0 if watched.scale == "number" else int(first[0].argmax())
        likeliest = Word(watched.word_of_id(best), best, is_class=watched.predicts_classes)
        target = likeliest if ask.target is None else watched.target_word(ask.target)
        against = None if ask.against is None else _other_word(watched, ask.against)
        notes = [*watched.notes]
        if against is None and (other := _next_label(watched, target, first[0])) is not None:
            against = other
            notes.append(
                f"“{visible_text(target.text)}” has more than {percent(SATURATED, 1)}, and its probability hardly moves: "
                f"its logit is held against that of “{visible_text(other.text)}”, as with "
                f"{option_name('against', other.text)}."
            )
        if watched.scale == "number" and ask.target is None and first.shape[-1] > 1:
            notes.append(
                f"{watched.info.name} puts out {first.shape[-1]} numbers: this is the first; see {option_name('target')}."
            )
        for name, word in (("target", target), ("other word", against)):
            if word is not None and word.ids:
                notes.append(f"The {name} {word.text!r} is {_pieces(watched, word)}: numbers are sums over them.")
        for word in (target, against):
            notes += [] if word is None else _spaced_note(watched, word, first[0])
        gauge = cls(watched, ask, new_effects(target=target, against=against, baseline=Outcome(), notes=tuple(notes)))
        return replace(gauge, effects=with_fields(gauge.effects, baseline=next(gauge.outcomes_under([watched.base]))))

    def effects_of_changes(self, interventions: Sequence[Intervention]) -> Iterator[Effect]:
        """Yield the effect of each intervention, in their order."""
        before = self.effects.baseline
        for after in self.outcomes_under(interventions) if interventions else ():
            yield Effect(
                log_probability=_difference(after.log_probability, before.log_probability),
                number=_difference(after.logit, before.logit) if self.watched.scale == "number" else None,
                logit_difference=_difference(after.logit_difference, before.logit_difference),
                distance=after.distance,
                probability=after.probability,
                best=after.best,
            )

    def outcomes_under(self, interventions: Sequence[Intervention]) -> Iterator[Outcome]:
        """Yield the prediction under each intervention."""
        target, against = self.effects.target, self.effects.against
        if target is None:
            assert self.states is not None
            for states in self.watched.outcomes(interventions, (), self.ask.batch_size):
                for row in states:
                    yield Outcome(distance=_cosine_distance(row, self.states))
            return
        rows = self._logit_rows(interventions, target)
        pairs: Iterable[tuple[Floats, Floats]] = ((row, row) for row in rows)
        if against is not None and against.ids:
            pairs = zip(rows, self._logit_rows(interventions, against), strict=True)
        for row, other_row in pairs:
            logit = _sum_at(row, target)
            difference = None if against is None else logit - _sum_at(other_row, against)
            if self.watched.scale == "number":
                yield Outcome(logit=logit, logit_difference=difference)
                continue
            logs = list(map(log_sigmoid if self.watched.scale == "sigmoid" else log_softmax, row))
            log_probability = _sum_at(logs, target)
            best = int(row[0].argmax())
            likely = LikelyToken(self.watched.word_of_id(best), float(np.exp(logs[0][best])))
            yield Outcome(log_probability, float(np.exp(log_probability)), logit, difference, best=likely)

    def _logit_rows(self, interventions: Sequence[Intervention], word: Word) -> Iterator[Floats]:
        for logits in self.watched.outcomes(interventions, word.all_ids[:-1], self.ask.batch_size):
            yield from logits  # (1 + continuation, vocabulary)


def _sum_at(rows: Iterable[Array], word: Word) -> float:
    """Return the sum over a word's tokens of the number of each in its row: (1 + continuation, vocabulary)."""
    return float(sum(row[number] for row, number in zip(rows, word.all_ids, strict=False)))


SATURATED = 0.999  # a label with a larger probability is held against the next one


def _next_label(watched: Watched, target: Word, logits: Floats) -> Word | None:
    """Return the likeliest other label of a classifier that is nearly certain of the target; else None: logits (labels,)."""
    if not watched.predicts_classes or watched.scale != "softmax" or len(logits) < 2:
        return None
    if np.exp(log_softmax(logits)[target.id]) <= SATURATED:
        return None
    number = next(int(place) for place in np.argsort(-logits, kind="stable") if place != target.id)
    return Word(watched.word_of_id(number), number, is_class=True)


def _spaced_note(watched: Watched, word: Word, logits: Floats) -> Iterator[str]:
    """Yield a note if the word with a space before it is another, likelier token: logits (vocabulary,)."""
    spaced = _spaced(watched, word)
    if spaced is not None and logits[spaced.id] > logits[word.id]:  # several tokens are no likelier than their first
        other = "one token" if word.ids else f"another token than {word.text!r}"
        yield f"{spaced.text!r}, with the space before it, is {other}, and likelier here."


def _spaced(watched: Watched, word: Word) -> Word | None:
    """Return the word with a space before it, if that is one other token; else None."""
    if word.text[:1].isspace():
        return None
    try:
        spaced = watched.target_word(f" {word.text}")
    except AttnctlError:
        return None
    return spaced if not spaced.ids and spaced.id != word.id else None


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def log_softmax(logits: Floats) -> Array:
    """Return log-probabilities in nats, computed in float64: (vocabulary,) → (vocabulary,)."""
    x = logits.astype(np.float64)  # (vocabulary,)
    x = x - x.max()  # (vocabulary,)
    return x - np.log(np.exp(x).sum())  # (vocabulary,)


def log_sigmoid(logits: Floats) -> Array:
    """Return the log-probability of each label alone in nats, computed in float64: (labels,) → (labels,)."""
    return -np.logaddexp(0.0, -logits.astype(np.float64))  # (labels,)


def _cosine_distance(states: Floats, other_states: Floats) -> float:
    """Return 1 - cosine of two texts' final states (n, d_model), position by position, averaged."""
    a, b = states.astype(np.float64), other_states.astype(np.float64)
    if np.array_equal(a, b):
        return 0.0
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)  # (n,)
    return float(np.mean(1 - (a * b).sum(-1) / np.maximum(lengths, 1e-30)))


def measure_effects(watched: Watched, ask: EffectRequest, tick: Tick = lambda share: None) -> Effects:
    """Return all requested effects over one text; `tick` receives each share of the layers that run again.

    Raises UsageError and AttnctlError in one line.
    """
    gauge = Gauge.of_request(watched, ask)
    if ask.approximate:
        return approximate_effects(gauge, tick)
    jobs = chosen_heads(watched, ask) if ask.sweep_heads else []
    edges, spans = _edges_to_cut(watched, ask), _spans_to_cut(watched, ask)
    changes = [
        *(watched.base.with_head(*place) for place in jobs),
        *(cuts for *_, cuts in edges),
        *spans,
    ]
    layers_to_run = [max((watched.info.n_layers or 1) - change.first_layer(), 1) for change in changes]  # layers
    effects: list[Effect] = []
    for effect, layers in zip(gauge.effects_of_changes(changes), layers_to_run, strict=True):
        effects.append(effect)
        tick(layers / sum(layers_to_run))
    measured = with_heads(gauge.effects, watched, jobs, effects[: len(jobs)]) if jobs else gauge.effects
    cut_effects = effects[len(jobs) :]
    places = (("layer", ask.layers), ("head", ask.heads))
    named = [
        f"{name}{'s' * (len(numbers) > 1)} {number_list(numbers)}" for name, numbers in places if numbers is not None
    ]
    note = (f"Cut in {', '.join(named)} alone: elsewhere the key is seen.",) if named and cut_effects else ()
    return with_fields(
        measured,
        notes=(*measured.notes, *note, *_own_part_note(watched, ask)),
        edges=tuple(
            EdgeEffect(key, None if key is None or query == watched.query else query, key is None, **asdict(effect))
            for (query, key, _), effect in zip(edges, cut_effects, strict=False)
        ),
        spans=tuple(
            _span_effect(watched, name, tokens, effect)
            for (name, tokens), effect in zip(ask.spans, cut_effects[len(edges) :], strict=True)
        ),
    )


def _edges_to_cut(watched: Watched, ask: EffectRequest) -> list[tuple[int, int | None, Intervention]]:
    """Return (query, key, intervention) for each edge alone, and with key None for all named edges together."""
    pairs, square = list(ask.edges), reads_itself(watched.tokens, watched.key_tokens, watched.info)
    if ask.every_edge:
        row = np.max([weights.max(axis=0) for weights in watched.query_weights().values()], axis=0)  # (n_k,)
        row = row[: len(watched.tokens)] if square else row
        pairs += [(watched.query, key) for key in range(len(row)) if row[key] > 0]
    for query, key in pairs:
        if square and key >= len(watched.tokens):
            name = (watched.key_tokens or watched.tokens)[key].text
            raise UsageError(f"no edge to {name!r}: it is a token of another text, beside those that ask")
        if square and watched.info.causal and key > query:
            query_text, key_text = watched.tokens[query].text, watched.tokens[key].text
            raise UsageError(
                f"no edge {query_text!r} → {key_text!r}: it looks into the future, which {watched.info.name} hides"
            )
    cuts = [(query, key, _cut_of(ask, (key,), (query,))) for query, key in pairs]
    edges: list[tuple[int, int | None, Intervention]] = [(q, k, watched.base.with_cuts(cut)) for q, k, cut in cuts]
    if len(ask.edges) > 1:
        together = [cut for *_, cut in cuts[: len(ask.edges)]]
        edges.append((ask.edges[0][0], None, watched.base.with_cuts(*together)))
    return edges


def _spans_to_cut(watched: Watched, ask: EffectRequest) -> list[Intervention]:
    """Return for each span the intervention that hides it from every other token, before, after or among its own."""
    square = reads_itself(watched.tokens, watched.key_tokens, watched.info)
    queries = None if square else (watched.query,)
    return [watched.base.with_cuts(replace(_cut_of(ask, tokens, queries), apart=True)) for _, tokens in ask.spans]


def _own_part_note(watched: Watched, ask: EffectRequest) -> Iterator[str]:
    """Yield a note about a part that no token sees whose prediction is watched: hiding it changes nothing."""
    square = reads_itself(watched.tokens, watched.key_tokens, watched.info)
    for name, tokens in ask.spans if watched.info.causal and square else ():
        if watched.query in tokens and tokens[-1] - tokens[0] < len(tokens):
            yield (
                f"Hiding “{visible_text(name)}” changes nothing: the prediction is made at its end, and no token before it "
                "sees it."
            )


def _span_effect(watched: Watched, name: str, tokens: tuple[int, ...], effect: Effect) -> SpanEffect:
    """Return the effect of cutting these tokens, with the watched query's weight on them."""
    heads = np.concatenate(list(watched.query_weights().values()))  # (layers and heads, n_k)
    looked = float(heads[:, list(tokens)].sum(-1).mean())
    ranges = [(token, token + 1) for token in tokens]
    box = box_of(ranges, watched.key_tokens or watched.tokens)
    return SpanEffect(name, tokens[0], tokens[-1] + 1, len(tokens), min(looked, 1.0), box, **asdict(effect))


def _cut_of(ask: EffectRequest, keys: tuple[int, ...], queries: tuple[int, ...] | None) -> Cut:
    layers = None if ask.layers is None else frozenset(ask.layers)
    return Cut(keys, queries, layers, None if ask.heads is None else frozenset(ask.heads))


CHECKED = 20  # heads that are also ablated exactly


def approximate_effects(gauge: Gauge, tick: Tick) -> Effects:
    """Return the effects of every head and every edge to first order, and their rank correlation to exact ablation.

    Raises UsageError if there is no prediction whose gradient can be taken.
    """
    watched, ask, measured = gauge.watched, gauge.ask, gauge.effects
    if measured.target is None:
        raise UsageError(f"follows a prediction back, and {watched.info.name} makes none", option="approximate")
    if watched.scale != "softmax":
        why = f"follows the probability of one class or word, and {watched.info.name} chooses none"
        raise UsageError(why, option="approximate")
    if measured.against is not None and measured.against.ids:
        why = f"takes one token for {option_name('against')}: leave it out, or ablate exactly"
        raise UsageError(why, option="approximate")
    jobs = chosen_heads(watched, ask)
    slopes = watched.gradients(measured.target, measured.against)
    effects = [Effect(**_numbers_at(head, slopes.heads[layer])) for layer, head in jobs]
    measured = with_heads(measured, watched, jobs, effects)
    measured = with_fields(measured, edges=_edge_effects(measured, ask, slopes))
    first = sorted(measured.strongest(CHECKED), key=lambda entry: (entry.layer, entry.head))
    exact = []
    for effect in gauge.effects_of_changes([watched.base.with_head(entry.layer, entry.head) for entry in first]):
        exact.append(effect.signed_size)
        tick(1 / len(first))
    rank = spearman_rho([entry.signed_size for entry in first], exact)
    return with_fields(measured, approximation=None if rank is None else Approximation(rank, len(first)))


def _edge_effects(measured: Effects, ask: EffectRequest, slopes: FirstOrder) -> tuple[EdgeEffect, ...]:
    """Return the effect of each key of the watched query, in the chosen layers and heads."""
    sums: dict[str, Floats] = {}
    square = measured.reads_itself
    for layer, numbers in slopes.edges.items():
        if ask.layers is not None and layer not in ask.layers:
            continue
        for name, values in numbers.items():
            chosen = values if ask.heads is None else values[[head for head in ask.heads if head < len(values)]]
            columns = slice(len(measured.tokens)) if square else slice(None)  # without another text's tokens after them
            sums[name] = sums.get(name, 0) + chosen.sum(axis=0)[columns]  # (n_k,)
    n_k = (
        measured.query + 1
        if measured.model.causal and square
        else len(measured.tokens if square else measured.key_axis)
    )
    return tuple(EdgeEffect(key, **_numbers_at(key, sums)) for key in range(n_k))


def _numbers_at(index: int, arrays: Mapping[str, Floats]) -> dict[str, Any]:
    return {name: float(values[index]) for name, values in arrays.items()}


def _other_word(watched: Watched, text: str) -> Word:
    """Return the word that the target is compared with. Raises UsageError as for a target, about `against`."""
    try:
        return watched.target_word(text)
    except UsageError as error:
        error.option = "against"
        raise


# --- a text in a model ---


@runtime_checkable
class CanBeWatched(CanIntervene, Protocol):
    """A model whose prediction can be watched while its attention is changed."""

    def watch(self, text: str, query: str | None, base: Intervention) -> Watched:
        """Return the text with the prediction at `query` watched; `base` is changed in every run.

        Raises AttnctlError for an architecture whose heads cannot be switched off, UsageError for an unknown query.
        """


def watched_text(model: Model, text: str, query: str | None = None, base: Intervention | None = None) -> Watched:
    """Return the text in a model, with the prediction at `query` watched.

    Raises AttnctlError for a model without heads to switch off.
    """
    if not isinstance(model, CanBeWatched):
        raise AttnctlError(why_none_is_off(model.info))
    if model.intervention is not None:  # the heads that are off become the base
        base, model = model.intervention, model.with_heads_off({})
        assert isinstance(model, CanBeWatched)
    return model.watch(text, query, Intervention() if base is None else base)


def why_none_is_off(info: ModelInfo) -> str:
    """Return a sentence that says why no head of a model can be switched off."""
    return f"{info.name} has no heads to switch off: its numbers are given, not computed"
