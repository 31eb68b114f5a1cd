"""Measuring effects: every head ablated in turn, edges and spans cut, one prediction watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from attnctl.arrays import Floats
from attnctl.attention import Array
from attnctl.errors import AttnctlError, UsageError
from attnctl.interventions import Intervention
from attnctl.readings.effects.contributions import Contributions
from attnctl.readings.effects.effects import Effect, Effects, HeadEffect, Outcome, Word
from attnctl.readings.effects.rank_correlation import kendall_tau
from attnctl.readings.traces.trace import ModelInfo
from attnctl.tokens import Token


@dataclass
class FirstOrder:
    """Effects to first order: layer → log_probability, logit_difference → (heads,), and for edges (heads, n_k)."""

    heads: dict[int, dict[str, Floats]] = field(default_factory=dict)
    edges: dict[int, dict[str, Floats]] = field(default_factory=dict)


class Watched(Protocol):
    """A text in a model whose attention may be changed, and the position whose prediction is watched."""

    text: str
    tokens: tuple[Token, ...]
    key_tokens: tuple[Token, ...] | None
    query: int
    base: Intervention  # what is changed throughout
    info: ModelInfo
    notes: tuple[str, ...]  # what a reader must know

    @property
    def predicts_words(self) -> bool:
        """Whether it says words; else its final states are compared."""

    def target_word(self, text: str) -> Word:
        """The target that a text names. Raises AttnctlError where the vocabulary lacks it."""

    def word_of_id(self, number: int) -> str:
        """The text of one id of the vocabulary."""

    def query_weights(self) -> dict[int, Floats]:
        """Layer → weights of the watched query: (heads, n_k)."""

    def outcomes(
        self, interventions: Sequence[Intervention], continuation: tuple[int, ...] = (), batch_size: int | None = None
    ) -> Iterator[Floats]:
        """Logits from the watched position on, (rows, 1 + continuation, vocabulary), or final states (rows, n, d_model).

        One row an intervention, in their order, in batches; `continuation` are ids appended to the text.
        """

    def gradients(self, target: Word, against: Word | None) -> FirstOrder:
        """First-order effects of every head and every edge."""

    def contributions(self, target: Word, against: Word | None) -> Contributions:
        """The logit taken apart. Raises AttnctlError, naming the architecture, where it cannot be."""


@dataclass(frozen=True)
class EffectRequest:
    """What is to be measured. `edges`: (query, key) pairs, or None for none; `every_edge`: each key of the watched query."""

    target: str | None = None
    against: str | None = None
    how: str = "zero"
    sweep_heads: bool = True
    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    every_edge: bool = False
    edges: Sequence[tuple[int, int]] = ()
    spans: Sequence[tuple[str, tuple[int, ...]]] = ()  # name, tokens
    approximate: bool = False
    batch_size: int | None = None


Tick = Callable[[int, int], None]  # how many are done, of how many


def baseline_of(watched: Watched, ask: EffectRequest, gauge: Gauge) -> Effects:
    """The prediction as it stands; nothing measured yet."""
    return Effects(
        text=watched.text,
        tokens=watched.tokens,
        model=watched.info,
        how=ask.how,
        query=watched.query,
        target=gauge.target,
        against=gauge.against,
        baseline=gauge.baseline,
        key_tokens=watched.key_tokens,
        notes=(*watched.notes, *gauge.notes),
    )


def with_heads(found: Effects, watched: Watched, jobs: Sequence[tuple[int, int]], effects: Sequence[Effect]) -> Effects:
    """The effects of heads beside where each looks, and how far the two agree."""
    looks = watched.query_weights()
    heads = []
    for (layer, head), effect in zip(jobs, effects, strict=True):
        row = looks[layer][head]  # (n_k,)
        key = int(row.argmax())
        heads.append(HeadEffect(layer, head, key, float(row[key]), None, effect))
    tau = kendall_tau([one.weight for one in heads], [one.effect.absolute_size for one in heads])
    return with_contributions(replace(found, heads=tuple(heads), kendall_tau=tau), watched)


def with_contributions(found: Effects, watched: Watched) -> Effects:
    """The same with the logit taken apart, and what each head writes; a note where that cannot be."""
    if found.target is None:
        return found
    if max(len(word.ids) for word in (found.target, found.against) if word is not None) > 1:
        note = "Direct contributions are those to one token: of several, what each head writes is not told."
        return replace(found, notes=(*found.notes, note))
    try:
        parts = watched.contributions(found.target, found.against)
    except AttnctlError as why:
        return replace(found, notes=(*found.notes, f"{why}."))
    written = {(part.layer, part.head): part.value for part in parts.parts if part.part == "head"}
    heads = tuple(replace(one, writes=written.get((one.layer, one.head))) for one in found.heads)
    return replace(found, heads=heads, contributions=parts, notes=(*found.notes, *parts.notes))


def chosen_heads(watched: Watched, ask: EffectRequest) -> list[tuple[int, int]]:
    """The layers and heads to ablate. Raises UsageError where there are none."""
    there = {layer: len(weights) for layer, weights in sorted(watched.query_weights().items())}
    layers = [layer for layer in (there if ask.layers is None else ask.layers) if layer in there]
    jobs = [
        (layer, head)
        for layer in layers
        for head in (range(there[layer]) if ask.heads is None else ask.heads)
        if head < there[layer]
    ]
    if not jobs:
        raise UsageError(f"{watched.info.name} has no such heads to switch off")
    return jobs


# --- one prediction under many interventions ---------------------------------------------------------------------


@dataclass(frozen=True)
class Gauge:
    """The prediction watched, and how it stands with nothing changed but the base."""

    watched: Watched
    ask: EffectRequest
    target: Word | None
    against: Word | None
    baseline: Outcome
    states: Floats | None
    notes: tuple[str, ...] = ()

    @classmethod
    def of_request(cls, watched: Watched, ask: EffectRequest) -> Gauge:
        """The gauge of what is asked for, its baseline measured. Raises UsageError for a target that cannot be."""
        if not watched.predicts_words:
            if ask.target is not None or ask.against is not None:
                raise UsageError(f"--target: {watched.info.name} predicts no words; its final states are compared")
            states = next(watched.outcomes([watched.base]))[0]  # (n, d_model)
            note = f"{watched.info.name} predicts no words: measured is 1 - cosine of its final states, position by "
            note += "position, averaged."
            return cls(watched, ask, None, None, Outcome(distance=0.0), states, (note,))
        first = next(watched.outcomes([watched.base]))[0, 0]  # (vocabulary,)
        best = int(first.argmax())
        target = Word(watched.word_of_id(best), (best,)) if ask.target is None else watched.target_word(ask.target)
        against = None if ask.against is None else watched.target_word(ask.against)
        notes = []
        for name, word in (("target", target), ("other word", against)):
            if word is not None and len(word.ids) > 1:
                pieces = ", ".join(repr(watched.word_of_id(i)) for i in word.ids)
                notes.append(
                    f"The {name} {word.text!r} is {len(word.ids)} tokens ({pieces}): numbers are sums over them."
                )
        notes += [note for word in (target, against) if word is not None for note in _spaced_note(watched, word, first)]
        gauge = cls(watched, ask, target, against, Outcome(), None, tuple(notes))
        return replace(gauge, baseline=next(gauge.outcomes_under([watched.base])))

    def effects_of_changes(self, interventions: Sequence[Intervention]) -> Iterator[Effect]:
        """What each intervention does, in their order."""
        before = self.baseline
        for after in self.outcomes_under(interventions) if interventions else ():
            yield Effect(
                _difference(after.log_probability, before.log_probability),
                _difference(after.logit_difference, before.logit_difference),
                after.distance,
                after,
            )

    def outcomes_under(self, interventions: Sequence[Intervention]) -> Iterator[Outcome]:
        """The prediction under each intervention."""
        if self.target is None:
            assert self.states is not None
            for states in self.watched.outcomes(interventions, (), self.ask.batch_size):
                for row in states:
                    yield Outcome(distance=_cosine_distance(row, self.states))
            return
        logits = self._logit_rows(interventions, self.target.ids)
        if self.against is None or len(self.against.ids) == 1:
            for row in logits:
                yield self._outcome_of(row, row)
            return
        for row, other in zip(logits, self._logit_rows(interventions, self.against.ids), strict=True):
            yield self._outcome_of(row, other)

    def _logit_rows(self, interventions: Sequence[Intervention], ids: tuple[int, ...]) -> Iterator[Floats]:
        for logits in self.watched.outcomes(interventions, ids[:-1], self.ask.batch_size):
            yield from logits  # (1 + continuation, vocabulary)

    def _outcome_of(self, row: Floats, other: Floats) -> Outcome:
        assert self.target is not None
        logit = float(sum(row[at, number] for at, number in enumerate(self.target.ids)))
        said = sum(log_softmax(row[at])[number] for at, number in enumerate(self.target.ids))
        difference = None
        if self.against is not None:
            difference = logit - float(sum(other[at, number] for at, number in enumerate(self.against.ids)))
        best = int(row[0].argmax())
        share = float(np.exp(log_softmax(row[0])[best]))
        return Outcome(
            float(said), float(np.exp(said)), logit, difference, None, (self.watched.word_of_id(best), share)
        )


def _spaced_note(watched: Watched, word: Word, logits: Floats) -> Iterator[str]:
    """A note where the word with a space before it is another token, and likelier: logits (vocabulary,)."""
    if word.text[:1].isspace() or len(word.ids) > 1:
        return
    try:
        other = watched.target_word(f" {word.text}")
    except AttnctlError:
        return
    if len(other.ids) == 1 and other.ids != word.ids and logits[other.ids[0]] > logits[word.ids[0]]:
        yield f"{other.text!r}, with the space before it, is another token than {word.text!r}, and likelier here."


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def log_softmax(logits: Floats) -> Array:
    """Log-probabilities in nats, computed in float64: (vocabulary,) → (vocabulary,)."""
    x = logits.astype(np.float64)  # (vocabulary,)
    x = x - x.max()  # (vocabulary,)
    return x - np.log(np.exp(x).sum())  # (vocabulary,)


def _cosine_distance(one: Floats, other: Floats) -> float:
    """1 - cosine of two texts' final states (n, d_model), position by position, averaged."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    if np.array_equal(a, b):
        return 0.0
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)  # (n,)
    return float(np.mean(1 - (a * b).sum(-1) / np.maximum(lengths, 1e-30)))
