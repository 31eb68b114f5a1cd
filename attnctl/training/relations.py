"""What the heads of a model have learned of sentences: which word looks at the word it belongs to, beside simple rules.

A relation holds in a sentence where the largest weight that a word gives to another goes to the right word, in one head that
is fixed beforehand on other sentences. Beside it stand an untrained model, and rules that need no learning: a head that
"finds subjects" may only count positions.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.models.builtin.stack import Stack
from attnctl.training import grammar, lexicon, network
from attnctl.training.grammar import Habits, Link, Sentence

SEEDS = {"validation": 991, "held_out": 992, "unseen": 993}
GOALS = {
    grammar.VERB_SUBJECT: 0.95,
    grammar.OBJECT_VERB: 0.95,
    grammar.PAST_DISTRACTOR: 0.90,
    grammar.PRONOUN: 0.85,
}
BOTH_WAYS = {grammar.VERB_SUBJECT: "subject → verb", grammar.OBJECT_VERB: "verb → object"}
GOALS_BOTH_WAYS = {grammar.VERB_SUBJECT: 0.85, BOTH_WAYS[grammar.VERB_SUBJECT]: 0.85}

_WHO = lexicon.AGENT_WORDS
_NOUNS = lexicon.AGENT_WORDS | lexicon.THING_WORDS | lexicon.PLACE_WORDS


class Measured(NamedTuple):
    """One relation: shares of sentences, from 0 to 1, where the word found is the right one."""

    relation: str
    layer: int  # of the head that did best on the validation sentences
    head: int
    validation: float
    held_out: float  # no subject-verb-object combination occurred in training
    unseen: float  # nor did the names and nouns
    weight: float  # mean weight on the right word, held-out sentences
    untrained: float | None  # the best head of the same network before training
    offset: int  # the fixed offset that fits the validation sentences best
    by_offset: float
    by_nearest: float  # the nearest name, noun or verb, as the relation wants
    by_first: float
    links: int  # held-out sentences that have it
    goal: float | None


class Looked(NamedTuple):
    """Where the words of linked pairs look, head by head."""

    right: Any  # (links, layers, heads) bool: the largest weight on another word is on the right one
    weight: Any  # (links, layers, heads): the weight on the right word


@dataclass(frozen=True)
class Sample:
    """One set of sentences and its links by relation, as (sentence, query, key)."""

    sentences: list[Sentence]
    links: dict[str, list[tuple[int, Link]]]


def evaluate(model: Any, *, count: int = 1000, untrained_seed: int = 0) -> list[Measured]:
    """Measure every relation on `count` sentences a set. Raises AttnctlError where the model splits words of the grammar."""
    causal = bool(model.info.causal)
    habits = grammar.NEXT_WORD if causal else grammar.MASKED_WORD
    samples = {name: _sample(name, count, habits, causal) for name in SEEDS}
    looked = {name: look(model, sample) for name, sample in samples.items()}
    fresh = before_training(model, untrained_seed)
    fresh_looked = {name: look(fresh, samples[name]) for name in ("validation", "held_out")} if fresh else {}
    goals = GOALS if causal else GOALS_BOTH_WAYS
    table = []
    seen_by_all = [r for r in samples["validation"].links if all(r in sample.links for sample in samples.values())]
    for relation in seen_by_all:  # a rare one may be missing from a small sample
        shares = {name: looked[name][relation].right.mean(axis=0) for name in looked}  # (layers, heads)
        at = _best(shares["validation"])
        untrained = None
        if fresh_looked:
            before = {name: fresh_looked[name][relation].right.mean(axis=0) for name in fresh_looked}
            untrained = float(before["held_out"][_best(before["validation"])])
        offset = _best_offset(link for _, link in samples["validation"].links[relation])
        held = samples["held_out"]
        table.append(
            Measured(
                relation,
                layer=at[0],
                head=at[1],
                validation=float(shares["validation"][at]),
                held_out=float(shares["held_out"][at]),
                unseen=float(shares["unseen"][at]),
                weight=float(looked["held_out"][relation].weight.mean(axis=0)[at]),
                untrained=untrained,
                offset=offset,
                by_offset=_share(held, relation, lambda s, q, o=offset: q + o),  # type: ignore[misc]
                by_nearest=_share(held, relation, _nearest(relation)),
                by_first=_share(held, relation, _first(relation)),
                links=len(held.links[relation]),
                goal=goals.get(relation),
            )
        )
    order = [*GOALS, *BOTH_WAYS.values(), grammar.INNER_SUBJECT, grammar.MEANING]
    return sorted(table, key=lambda m: order.index(m.relation))


def _sample(name: str, count: int, habits: Habits, causal: bool) -> Sample:
    chosen = grammar.sentences(count, SEEDS[name], habits, held=name != "validation")
    if name == "unseen":
        draw = random.Random(SEEDS[name])
        chosen = [with_unseen_words(sentence, draw) for sentence in chosen]
    links: dict[str, list[tuple[int, Link]]] = defaultdict(list)
    for at, sentence in enumerate(chosen):
        for link in sentence.links:
            links[link.relation].append((at, link))
            if not causal and link.relation in BOTH_WAYS:
                back = Link(BOTH_WAYS[link.relation], link.key, link.query)
                links[back.relation].append((at, back))
    return Sample(chosen, links)


def with_unseen_words(sentence: Sentence, draw: random.Random) -> Sentence:
    """The sentence with names and nouns that training never meets.

    Where a pronoun has to find its antecedent by gender, one of the two people keeps their name: of two strangers nobody
    could tell which is "she".
    """
    spared: set[int] = set()
    for link in sentence.links:
        if link.relation == grammar.PRONOUN:
            people = [at for at in range(link.query) if sentence.words[at] in _WHO]
            spared.add(draw.choice(people))
    names, nouns = lexicon.UNSEEN_NAMES[:], lexicon.UNSEEN_NOUNS[:]
    draw.shuffle(names)
    draw.shuffle(nouns)
    words = [
        word if at in spared or word not in _NOUNS else names.pop() if word[0].isupper() else nouns.pop()
        for at, word in enumerate(sentence.words)
    ]
    return Sentence(words, sentence.links, sentence.facts)


def before_training(model: Any, seed: int) -> Stack | None:
    """The same network with the random parameters that training starts from; None where the model is no such network."""
    if not isinstance(model, Stack) or model.unembedding is None or model.positions is None:
        return None
    info = model.info
    sizes = network.Sizes(
        len(model.vocabulary),
        len(model.positions),
        info.d_model or 1,
        info.n_heads or 1,
        len(model.layers),
        "b_Q" in model.layers[0],
    )
    parameters = network.initial(sizes, seed)
    layers = tuple({name: parameters[f"layers.{at}.{name}"] for name in model.layers[at]} for at in range(sizes.layers))
    table = parameters["embedding"]
    return replace(
        model,
        layers=layers,
        embed=lambda tokens: table[[token.id or 0 for token in tokens]],
        positions=parameters["positions"],
        unembedding=None,
    )


def look(model: Any, sample: Sample) -> dict[str, Looked]:
    """Where each linked word of the sample looks under `model`."""
    wanted: dict[int, list[Link]] = defaultdict(list)
    for links in sample.links.values():
        for at, link in links:
            wanted[at].append(link)
    right: dict[str, list[Any]] = defaultdict(list)
    weight: dict[str, list[Any]] = defaultdict(list)
    for at, own in wanted.items():
        w = word_weights(model, sample.sentences[at])  # (layers, heads, n, n)
        others = w - 2 * np.eye(w.shape[-1])  # (layers, heads, n, n), a word never finds itself
        found = others.argmax(axis=-1)  # (layers, heads, n)
        for link in own:
            right[link.relation].append(found[:, :, link.query] == link.key)
            weight[link.relation].append(w[:, :, link.query, link.key])
    return {relation: Looked(np.stack(right[relation]), np.stack(weight[relation])) for relation in right}


def word_weights(model: Any, sentence: Sentence) -> Any:
    """Attention between the words of a sentence: (layers, heads, words, words).

    A word that the model splits looks as its last piece does, and is looked at by the sum of what its pieces get.
    """
    text = " ".join(sentence.words)
    tokens = model.tokenize(text)
    starts = np.cumsum([0] + [len(word) + 1 for word in sentence.words])
    word_of = np.full(len(tokens), -1)  # (n,), -1 for tokens that are no word's
    for at, token in enumerate(tokens):
        if not token.special and token.end > token.start:
            word_of[at] = np.searchsorted(starts, token.end, side="left") - 1
    if set(range(len(sentence.words))) - set(word_of.tolist()):
        raise AttnctlError(f"{model.info.name} does not split text at words: it cannot be measured on them")
    last = [int(np.nonzero(word_of == word)[0][-1]) for word in range(len(sentence.words))]
    pool = (word_of[:, None] == np.arange(len(sentence.words))[None, :]).astype(np.float32)  # (n, words)
    kept: dict[int, Any] = {}

    def visit(layer: LayerAttention) -> None:
        kept[layer.layer] = layer.weights()[:, last] @ pool  # (heads, words, words)

    model.run(tokens, visit, text)
    return np.stack([kept[layer] for layer in sorted(kept)])  # (layers, heads, words, words)


def _best(shares: Any) -> tuple[int, int]:
    layer, head = np.unravel_index(int(shares.argmax()), shares.shape)
    return int(layer), int(head)


# --- rules that need no learning ---------------------------------------------------------------------------------

Rule = Callable[[Sentence, int], int]


def _share(sample: Sample, relation: str, rule: Rule) -> float:
    links = sample.links[relation]
    return sum(rule(sample.sentences[at], link.query) == link.key for at, link in links) / len(links)


def _best_offset(links: Iterable[Link]) -> int:
    return Counter(link.key - link.query for link in links).most_common(1)[0][0]


def _kind(relation: str) -> set[str]:
    """The words that a relation's key can be."""
    if relation in (grammar.OBJECT_VERB, BOTH_WAYS[grammar.VERB_SUBJECT]):
        return lexicon.VERB_WORDS
    return _NOUNS if relation in (grammar.MEANING, BOTH_WAYS[grammar.OBJECT_VERB]) else _WHO


def _places(relation: str, sentence: Sentence, query: int) -> Sequence[int]:
    """Where such words stand on the side that the relation looks to."""
    kind = _kind(relation)
    side = range(query + 1, len(sentence.words)) if relation in BOTH_WAYS.values() else range(query - 1, -1, -1)
    return [at for at in side if sentence.words[at] in kind] or [-1]


def _nearest(relation: str) -> Rule:
    return lambda sentence, query: _places(relation, sentence, query)[0]


def _first(relation: str) -> Rule:
    return lambda sentence, query: min(_places(relation, sentence, query))
