"""How often a head's largest weight is on the right word, beside rules that need no learning.

A relation holds in a sentence where the largest weight that a word gives to another goes to the right word, in one head that
is fixed beforehand on other sentences. Beside it stand an untrained model, and rules that need no learning: a head that
"finds subjects" may only count positions.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.models import open_named_model
from attnctl.models.builtin.stack import Stack
from attnctl.training import network
from attnctl.training.english import draft, grammar
from attnctl.training.english.draft import Link, Sentence
from attnctl.training.english.language import function_words, openness, vocabulary
from attnctl.training.english.lexicon import lexicon, pairs_of, words_of
from attnctl.training.marked import marked_sentences
from attnctl.training.run import GRAMMAR, TrainingRun

if TYPE_CHECKING:
    from attnctl.arrays import Bools, Floats
    from attnctl.attention import Array
    from attnctl.source import Model
    from attnctl.training.train import Training


Rule = Callable[[Sentence, int], int]

OPENING = frozenset('([{“‘"')
PRONOUNS = frozenset(words_of("pronouns"))


@cache
def noun_forms() -> frozenset[str]:
    """Nouns, names and pronouns: what a verb's subject, or what a pronoun stands for, can be."""
    lex = lexicon()
    found = {form for some in lex.nouns.values() for noun in some for form in (noun.singular, noun.plural) if form}
    found |= set(lex.capitalized)
    return frozenset(found - verbs_only() - function_words() | PRONOUNS)


@cache
def verbs_only() -> frozenset[str]:
    """Verb forms that are no plural or singular of a common noun: those in -ed and -ing, and what is mostly a verb."""
    lex = lexicon()
    named = {form for some in lex.nouns.values() for noun in some[:60] for form in (noun.singular, noun.plural) if form}
    return frozenset({form for verb in lex.verbs for form in verb.forms} - named)


@cache
def verb_forms() -> frozenset[str]:
    """Verb forms, the forms of be among them."""
    return verbs_only() | {"is", "are", "was", "were", "am", "be", "been"}


def kind_of_word(relation: str) -> Callable[[str], bool]:
    """Whether a word can be what this relation looks for."""
    if relation == draft.OBJECT_VERB:
        return verb_forms().__contains__
    if relation == draft.PREPOSITION:
        return lambda word: word in verb_forms() or is_noun(word)
    if relation == draft.CLOSING:
        return OPENING.__contains__
    if relation == draft.INDUCTION:
        return lambda word: True
    return is_noun


def is_noun(word: str) -> bool:
    """Whether a word is a noun, a name or a pronoun; a capital makes a name of what is not known."""
    return (
        word in noun_forms()
        or word.lower() in noun_forms()
        or (word[:1].isupper() and word.lower() not in function_words())
    )


def candidate_places(relation: str, sentence: Sentence, query: int) -> Sequence[int]:
    """Where such words stand on the side that the relation looks to, the nearest first; [-1] where there is none."""
    wanted, n = kind_of_word(relation), len(sentence.words)
    after, before = range(query + 1, n), range(query - 1, -1, -1)
    if relation == draft.DETERMINER:
        sides = [*after]
    elif relation == draft.ADJECTIVE:
        sides = sorted([*before, *after], key=lambda at: (abs(at - query), at < query))
    else:
        sides = [*before]
    return [at for at in sides if wanted(sentence.words[at])] or [-1]


def best_offset(links: Iterable[Link]) -> int:
    """The distance that fits these links most often."""
    return Counter(link.key - link.query for link in links).most_common(1)[0][0]


SEEDS = {"validation": 991, "held_out": 992, "unseen": 993}
BY_HAND = "by_hand"
LEAST_LINKS = 5  # of a relation in the validation sentences: of fewer no head can be chosen

GOALS = {
    draft.VERB_SUBJECT: 0.95, draft.PAST_OTHERS: 0.95, draft.OBJECT_VERB: 0.95, draft.PRONOUN: 0.95,
    draft.MEANING: 0.85, draft.ADJECTIVE: 0.85, draft.DETERMINER: 0.85, draft.PREPOSITION: 0.85,
    draft.CLOSING: 0.95, draft.INDUCTION: 0.9,
}  # fmt: skip

# names and nouns that the grammar never makes: what a trained model has not seen
UNSEEN_NAMES = {sex: names.split() for sex, names in pairs_of("unseen names").items()}  # f, m
UNSEEN_NOUNS = words_of("unseen nouns")


class Measured(NamedTuple):
    """One relation: shares of its links, from 0 to 1, where the word found is the right one."""

    relation: str
    layer: int  # of the head that did best on the validation sentences
    head: int
    validation: float
    held_out: float  # no subject-verb-object combination occurred in training
    unseen: float  # nor did the names and nouns
    by_hand: float | None  # on the sentences that were marked by hand before training
    weight: float  # mean weight on the right word, held-out sentences
    untrained: float | None  # the best head of the same network before training
    offset: int  # the fixed offset that fits the validation sentences best
    by_offset: float
    by_nearest: float  # the nearest word of the right kind
    by_first: float
    links: int  # in the held-out sentences
    links_by_hand: int
    goal: float | None


class Looked(NamedTuple):
    """Where the words of linked pairs look, head by head."""

    right: Bools  # (links, layers, heads) bool: the largest weight on another word is on the right one
    weight: Floats  # (links, layers, heads): the weight on the right word


@dataclass(frozen=True)
class Sample:
    """One set of sentences and its links by relation, as (sentence, query, key)."""

    sentences: list[Sentence]
    links: dict[str, list[tuple[int, Link]]]


def measure_relations(model: Model, *, count: int = 1000, untrained_seed: int = 0) -> list[Measured]:
    """Measure every relation on `count` sentences a set. Raises AttnctlError where the model splits words of the grammar."""
    causal = bool(model.info.causal)
    samples = {name: sample_sentences(name, count, causal) for name in SEEDS} | {
        BY_HAND: _linked_sample(marked_sentences(), causal)
    }
    looked = {name: look_at_words(model, one) for name, one in samples.items()}
    fresh = before_training(model, untrained_seed)
    before = {name: look_at_words(fresh, samples[name]) for name in ("validation", "held_out")} if fresh else {}
    found = [r for r in GOALS if all(len(samples[name].links.get(r, ())) >= LEAST_LINKS for name in SEEDS)]
    return [_measured_relation(relation, samples, looked, before) for relation in found]


def _measured_relation(
    relation: str,
    samples: dict[str, Sample],
    looked: dict[str, dict[str, Looked]],
    before: dict[str, dict[str, Looked]],
) -> Measured:
    """One relation's row: the head is chosen on the validation sentences, and measured on the others."""
    # (layers, heads)
    shares = {name: one[relation].right.mean(axis=0) for name, one in looked.items() if relation in one}
    at = _best_head(shares["validation"])
    untrained = None
    if before:
        own = {name: before[name][relation].right.mean(axis=0) for name in before}  # (layers, heads)
        untrained = float(own["held_out"][_best_head(own["validation"])])
    offset = best_offset(link for _, link in samples["validation"].links[relation])
    held, hand = samples["held_out"], samples[BY_HAND].links.get(relation, [])
    places = partial(candidate_places, relation)
    return Measured(
        relation,
        layer=at[0],
        head=at[1],
        validation=float(shares["validation"][at]),
        held_out=float(shares["held_out"][at]),
        unseen=float(shares["unseen"][at]),
        by_hand=float(shares[BY_HAND][at]) if BY_HAND in shares else None,
        weight=float(looked["held_out"][relation].weight.mean(axis=0)[at]),
        untrained=untrained,
        offset=offset,
        by_offset=_rule_share(held, relation, lambda _, query: query + offset),
        by_nearest=_rule_share(held, relation, lambda sentence, query: places(sentence, query)[0]),
        by_first=_rule_share(held, relation, lambda sentence, query: min(places(sentence, query))),
        links=len(held.links[relation]),
        links_by_hand=len(hand),
        goal=GOALS[relation],
    )


def sample_sentences(name: str, count: int, causal: bool) -> Sample:
    """One of the three sets of sentences, the same each time; of a causal model, links to earlier words alone."""
    chosen = grammar.sentences(count, SEEDS[name], held=name != "validation", causal=causal)
    if name == "unseen":
        draw = random.Random(SEEDS[name])
        chosen = [with_unseen_words(sentence, draw) for sentence in chosen]
    return _linked_sample(chosen, causal)


def _linked_sample(sentences: Sequence[Sentence], causal: bool) -> Sample:
    links: dict[str, list[tuple[int, Link]]] = defaultdict(list)
    for at, sentence in enumerate(sentences):
        for link in sentence.links:
            if link.relation not in GOALS:
                continue
            if not causal or (link.key < link.query and link.relation != draft.MEANING):  # it comes before what tells
                links[link.relation].append((at, link))
    return Sample(list(sentences), links)


@cache
def _plural_nouns() -> frozenset[str]:
    """Every plural of the grammar's nouns."""
    from attnctl.training.english.lexicon import lexicon

    return frozenset(noun.plural for some in lexicon().nouns.values() for noun in some if noun.plural)


def sex_of_name(word: str) -> str | None:
    """F or m of a given name that is mostly one's; None of any other word."""
    from attnctl.training.english.lexicon import lexicon

    return next((sex for sex in "fm" if word in lexicon().names[sex]), None)


def with_unseen_words(sentence: Sentence, draw: random.Random) -> Sentence:
    """The sentence with names and nouns that training never meets.

    Where a pronoun has to find its noun by gender or by meaning, that noun or the other keeps its word: of two strangers
    nobody could tell which is "she", or which is hungry. What is repeated stays the same word, a man's name a man's.
    """
    spared: set[str] = set()
    known = frozenset(vocabulary())
    words = sentence.words
    for link in sentence.links:
        if link.relation in (draft.PRONOUN, draft.MEANING):
            both = [at for at in range(link.query) if openness().get(words[at]) == 1 and words[at] not in spared]
            spared.add(words[draw.choice(both)] if both else words[link.key])
    names = {sex: [name for name in some if name not in known] for sex, some in UNSEEN_NAMES.items()}
    nouns = [noun for noun in UNSEEN_NOUNS if noun not in known]
    for some in (*names.values(), nouns):
        draw.shuffle(some)
    new: dict[str, str] = {}
    for word in words:
        if (
            word not in spared
            and word not in new
            and openness().get(word) == 1
            and (own := names[sex_of_name(word) or draw.choice("fm")] if word[0].isupper() else nouns)
        ):
            new[word] = own.pop() if word[0].isupper() else own.pop() + "s" * (word in _plural_nouns())
    return Sentence([new.get(word, word) for word in words], sentence.links, sentence.facts)


def before_training(model: Model, seed: int) -> Model | None:
    """The same network with the random parameters that training starts from; None where the model is no such network."""
    if not isinstance(model, Stack) or model.unembedding is None:
        return None
    info = model.info
    sizes = network.Sizes(
        len(model.vocabulary),
        0 if model.positions is None else len(model.positions),
        info.d_model or 1,
        info.n_heads or 1,
        len(model.layers),
        "b_Q" in model.layers[0],
        rope=model.positions is None,
        tied=model.tied,
        d_k=info.d_k,
        pieces=model.letter_rows,
    )
    parameters = network.initial(sizes, seed)
    return replace(
        model,
        layers=tuple(network.layers_of(parameters)),
        embed=lambda tokens: network.sentence_rows(
            parameters, [token.id or 0 for token in tokens], [token.text for token in tokens]
        ),
        positions=parameters.get("positions"),
        unembedding=None,
    )


def look_at_words(model: Model, sample: Sample) -> dict[str, Looked]:
    """Where each linked word of the sample looks under `model`."""
    wanted: dict[int, list[Link]] = defaultdict(list)
    for links in sample.links.values():
        for at, link in links:
            wanted[at].append(link)
    right: dict[str, list[Array]] = defaultdict(list)
    weight: dict[str, list[Array]] = defaultdict(list)
    for at, own in wanted.items():
        w = word_weights(model, sample.sentences[at])  # (layers, heads, n, n)
        others = w - 2 * np.eye(w.shape[-1])  # (layers, heads, n, n), a word never finds itself
        found = others.argmax(axis=-1)  # (layers, heads, n)
        for link in own:
            right[link.relation].append(found[:, :, link.query] == link.key)
            weight[link.relation].append(w[:, :, link.query, link.key])
    return {relation: Looked(np.stack(right[relation]), np.stack(weight[relation])) for relation in right}


def word_weights(model: Model, sentence: Sentence) -> Array:
    """Attention between the words of a sentence: (layers, heads, words, words).

    A word that the model splits looks as its last piece does, and is looked at by the sum of what its pieces get.
    """
    text = " ".join(sentence.words)
    starts = np.cumsum([0] + [len(word) + 1 for word in sentence.words])[:-1]  # (words,)
    tokens = model.tokenize(text)
    word_of = np.full(len(tokens), -1)  # (n,), -1 for tokens that are no word's
    for at, token in enumerate(tokens):
        if not token.special and token.start is not None and token.end is not None and token.end > token.start:
            word_of[at] = np.searchsorted(starts, token.end, side="left") - 1
    if set(range(len(sentence.words))) - set(word_of.tolist()):
        raise AttnctlError(f"{model.info.name} does not split text at words: it cannot be measured on them")
    last = [int(np.nonzero(word_of == word)[0][-1]) for word in range(len(sentence.words))]
    pool = (word_of[:, None] == np.arange(len(sentence.words))[None, :]).astype(np.float32)  # (n, words)
    kept: dict[int, Array] = {}

    def keep_weights(layer: LayerAttention) -> None:
        kept[layer.layer] = layer.weights()[:, last] @ pool  # (heads, words, words)

    model.run(tokens, keep_weights, text)
    return np.stack([kept[layer] for layer in sorted(kept)])  # (layers, heads, words, words)


def _best_head(shares: Floats) -> tuple[int, int]:
    layer, head = np.unravel_index(int(shares.argmax()), shares.shape)
    return int(layer), int(head)


def _rule_share(of: Sample, relation: str, rule: Rule) -> float:
    """How often a rule finds the right word."""
    links = of.links[relation]
    return sum(rule(of.sentences[at], link.query) == link.key for at, link in links) / len(links)


MEASURED_FROM = 1000  # a run of fewer steps has learned nothing worth measuring


def measure_run(training: Training, run: TrainingRun) -> list[Measured] | None:
    """What the heads of a finished run on the grammar learned, written into its weights; None for another run."""
    if training.recipe.corpus != GRAMMAR or training.step < MEASURED_FROM:
        return None
    table = measure_relations(
        open_named_model(str(run.path / "weights.safetensors")), untrained_seed=training.recipe.seed
    )
    run.write_findings(training, table)
    return table
