"""Count what each head finds in parsed sentences, and in documents, which are read in windows of sentences.

Clark et al. (2019) cut documents to the length that the model reads. Here neighbouring sentences share a window until the
next one does not fit, and no sentence is in two windows. A mention whose antecedents all stand before its window is counted
as a mention, but it is not a case.

Words are made from pieces as in Clark et al. (2019): the attention to a word is the sum over its pieces, the attention from
a word is the mean. A head finds the other word that gets most attention; special tokens and the word itself are left out.
Layers are counted one at a time, so that no n × n matrix stays in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnctl.attention import Array, array_namespace
from attnctl.commands.evaluate.result import MENTION_COUNTS
from attnctl.commands.evaluate.tally import CensusTally, Label
from attnctl.commands.evaluate.words import FARTHEST, AlignedSentence
from attnctl.errors import AttnctlError
from attnctl.formats import ParsedSentence
from attnctl.models import Model
from attnctl.runtime.arrays import as_numpy, place_array
from attnctl.source import GivesWeights, SharesPasses


def windows_of_sizes(sizes: Sequence[int], limit: int) -> list[range]:
    """Return which neighbouring sentences share a window: their sizes sum to at most `limit`.

    A sentence that is larger than `limit` is in no window.
    """
    windows: list[range] = []
    start, room = 0, limit
    for index, size in enumerate(sizes):
        if size > room or size > limit:
            windows.append(range(start, index))
            start, room = (index, limit) if size <= limit else (index + 1, limit)
        room -= size if size <= limit else 0
    return [window for window in (*windows, range(start, len(sizes))) if window]


def mention_counts(sentences: Sequence[ParsedSentence], windows: Sequence[range]) -> dict[str, int]:
    """Return MENTION_COUNTS of a document that is read in these windows."""
    counts = dict.fromkeys(MENTION_COUNTS, 0) | {"documents": 1, "windows": len(windows)}
    window_of = {index: number for number, window in enumerate(windows) for index in window}
    last_window: dict[str, int | None] = {}  # entity → the last window that it was mentioned in
    for index, sentence in enumerate(sentences):
        current = window_of.get(index)
        for mention in sentence.mentions:
            counts["mentions"] += 1
            if current is None:
                counts["unread"] += 1
            elif mention.entity not in last_window:
                counts["new"] += 1
            elif last_window[mention.entity] != current:
                counts["outside"] += 1
            last_window[mention.entity] = current
    return counts


def maximum_spanning_trees(ties: Array, present: Array) -> Array:
    """Return parents in the maximum spanning tree of each graph (Prim 1957): (graphs, n, n), (graphs, n) → (graphs, n).

    `ties` are symmetric: the tie of words i and j is the weight that i gives j plus the weight that j gives i. Words that
    are not `present` are not in the tree. Their parent is -1, and so is the parent of each tree's first word.
    """
    graphs, n = present.shape
    parents = np.full((graphs, n), -1)  # (graphs, n)
    if not n:
        return parents
    rows = np.arange(graphs)
    flat, first_rows = ties.reshape(graphs * n, n), rows * n
    outside = present.copy()  # (graphs, n), words that the tree has not reached yet
    newest = present.argmax(-1)  # (graphs,)
    outside[rows, newest] = False
    best = np.full((graphs, n), -np.inf, ties.dtype)  # (graphs, n), the strongest tie of each outside word to the tree
    for _ in range(int(present.sum(-1).max(initial=1)) - 1):
        new = flat.take(first_rows + newest, axis=0)  # (graphs, n)
        closer = (new > best) & outside  # (graphs, n)
        np.copyto(best, new, where=closer)
        np.copyto(parents, newest[:, None], where=closer)
        newest = best.argmax(-1)  # (graphs,)
        outside[rows, newest] = False
        best[rows, newest] = -np.inf
    return parents


def edges_found(parents: Array, edges: Array) -> Array:
    """Return how many edges of each tree are in `edges`: parents (graphs, n), edges (graphs, n, n) symmetric → (graphs,)."""
    graphs, n = parents.shape
    matches = edges[np.arange(graphs)[:, None], np.arange(n)[None, :], parents]  # (graphs, n)
    return (matches & (parents >= 0)).sum(-1)


def right_branching(present: Array) -> Array:
    """Return the tree that joins each word to the next: present (n,) → parents (n,).

    The parent of the first word, and of words that are not present, is -1.
    """
    words = np.flatnonzero(present)
    parents = np.full(len(present), -1)  # (n,)
    parents[words[1:]] = words[:-1]
    return parents


# sums for each head over the words of a sentence; edges: edges of the gold tree that the head's tree has too
SUMS = ("entropy", "self", "special", "words", "distance", "linked", "edges", "looking")


class Census:
    """The counts of sentences that share a pass: call `count_layer` with the weights of each layer, then `tallies`.

    `shape` is (layers, heads). All counts of a layer that was not counted, and of heads that it does not have, are 0.
    """

    def __init__(self, sentences: Sequence[AlignedSentence], shape: tuple[int, int]) -> None:
        self.sentences, self.shape = sentences, shape
        n, units = max(len(s.tokens) for s in sentences), max(s.unit_count for s in sentences)
        batch = len(sentences)
        self._pool = np.zeros((batch, n, units), np.float32)  # (batch, n, units)
        self._linked, self._edges = np.zeros((2, batch, units, units), bool)  # (batch, units, units)
        self._is_word = np.zeros((batch, units), bool)  # (batch, units)
        for b, sentence in enumerate(sentences):
            u = sentence.unit_count
            self._pool[b, : len(sentence.tokens), :u] = sentence.pool
            self._linked[b, :u, :u] = sentence.linked
            self._edges[b, :u, :u] = sentence.edges
            self._is_word[b, :u] = sentence.is_word
        pieces = self._pool.sum(-2)  # (batch, units)
        self._mean = self._pool / np.maximum(pieces, 1)[:, None, :]  # (batch, n, units)
        numbered = [
            (b, number, q) for b, sentence in enumerate(sentences) for number, q in enumerate(sentence.questions)
        ]
        plain = [(b, number, q.query, q.target) for b, number, q in numbered if not q.choices]
        self._plain = np.array(plain, int).reshape(-1, 4)  # (questions, 4): sentence, question, query, target
        self._choosing = [(b, number, q) for b, number, q in numbered if q.choices]
        self._counts: dict[int, dict[str, Array]] = {}

    def count_layer(self, layer: int, weights: Array) -> None:
        """Count what a layer's weights (batch, heads, n, n) find in all sentences; padding is at the end."""
        words, special, entropy = self._word_weights(weights)
        xp = array_namespace(words)
        own_mass = xp.linalg.trace(words)  # (batch, heads)
        places = np.arange(words.shape[-1])
        words[..., places, places] = 0.0  # only attention to other words remains
        best = xp.argmax(words, axis=-1)  # (batch, heads, units)
        best, mass = as_numpy(best), as_numpy(words)
        top = np.take_along_axis(mass, best[..., None], -1)[..., 0]  # (batch, heads, units)
        best = np.where(top > 0, best, -1)  # (batch, heads, units)
        if not np.isfinite(entropy).all():
            raise AttnctlError(f"the weights of layer {layer} are not finite numbers")
        sums = self._mass_sums(mass) | {"entropy": entropy, "special": special, "self": as_numpy(own_mass)}
        trees = self._tree_counts(mass)
        sums |= {"looking": (best >= 0).sum(-1), "edges": trees[:, :-1]}
        off = np.where(best >= 0, best - places, FARTHEST + 1)  # (batch, heads, units)
        self._counts[layer] = {
            "right": self._right_answers(mass, best),
            "offsets": np.stack([(off == offset).sum(-1) for offset in range(-FARTHEST, FARTHEST + 1)], -1),
            "layer_edges": trees[:, -1],
            **sums,
        }

    def tallies(self) -> list[CensusTally]:
        """Return the counts of each sentence."""
        return [self._tally_of(b, sentence) for b, sentence in enumerate(self.sentences)]

    def _tally_of(self, b: int, sentence: AlignedSentence) -> CensusTally:
        tally, half = CensusTally(self.shape), sentence.scored
        self._count_answers(tally, b, sentence)
        chain = edges_found(right_branching(sentence.is_word)[None], sentence.edges[None])  # (1,)
        edges = int(sentence.edges.sum()) // 2
        tally.count(np.array([1, sentence.unit_count, sentence.within, edges, chain[0]]), half, "sentences")
        tally.count(self._head_counts("offsets", b, 2 * FARTHEST + 1).astype(np.int32), half, "offsets")
        layer_edges = np.zeros(self.shape[0], np.int64)  # (layers,), gold edges in the tree of a layer's mean weights
        for layer, counts in self._counts.items():
            layer_edges[layer] = counts["layer_edges"][b]
        tally.count(layer_edges, half, "layer_edges")
        for name in SUMS:
            tally.count(self._head_counts(name, b), half, "sums", name)
        return tally

    def _head_counts(self, name: str, b: int, *more: int) -> Array:
        """Return a count of one sentence: (layers, heads, *more); 0 for heads that a layer does not have."""
        values = np.zeros((*self.shape, *more))  # (layers, heads, *more)
        for layer, counts in self._counts.items():
            of_layer = counts[name][b]  # (heads of the layer, *more)
            values[layer, : len(of_layer)] = of_layer
        return values

    def _count_answers(self, tally: CensusTally, b: int, sentence: AlignedSentence) -> None:
        """Count the right answers of the heads, and of simple rules, to the questions of a sentence."""
        half, questions = sentence.scored, sentence.questions
        right = self._head_counts("right", b, len(questions))  # (layers, heads, questions)
        places: dict[Label, list[int]] = {}
        for index, question in enumerate(questions):
            places.setdefault((question.relation, question.direction), []).append(index)
        for label, indexes in places.items():
            tally.count(right[..., indexes].sum(-1).astype(np.int32), half, "right", *label)
            for question in (questions[index] for index in indexes):
                tally.count(np.array([1, question.first, question.head_match, 0]), half, "rules", *label)
                tally.count(np.array([1, *question.nearest]), half, "tags", *label, question.tag)
            offsets = [questions[index].target - questions[index].query for index in indexes]
            near = [offset + FARTHEST for offset in offsets if abs(offset) <= FARTHEST]
            tally.count(np.bincount(np.array(near, int), minlength=2 * FARTHEST + 1), half, "offsets", *label)
        for label in sentence.ahead:
            tally.count(np.array([0, 0, 0, 1]), half, "rules", *label)

    def _word_weights(self, weights: Array) -> tuple[Array, Array, Array]:
        """Return weights between units (batch, heads, units, units); mass elsewhere and entropy, summed over rows."""
        xp = array_namespace(weights)
        weights = xp.astype(weights, xp.float32, copy=False)  # (batch, heads, n, n)
        batch, heads, n, _ = weights.shape
        pool, mean = place_array(self._pool, weights), place_array(self._mean, weights)  # (batch, n, units)
        to_words = xp.reshape(xp.reshape(weights, (batch, heads * n, n)) @ pool, (batch, heads, n, -1))
        words = xp.matrix_transpose(mean)[:, None] @ to_words  # (batch, heads, units, units)
        rows = xp.sum(mean, axis=-1)[:, None]  # (batch, 1, n), the weight of each token's row
        elsewhere = xp.sum((xp.sum(weights, axis=-1) - xp.sum(to_words, axis=-1)) * rows, axis=-1)  # (batch, heads)
        smallest = xp.asarray(np.finfo(np.float32).tiny, dtype=weights.dtype)
        logs = xp.log(xp.maximum(weights, smallest))  # (batch, heads, n, n)
        entropy = -xp.sum(xp.sum(weights * logs, axis=-1) * rows, axis=-1)  # (batch, heads), nats
        return words, as_numpy(elsewhere), as_numpy(entropy)

    def _right_answers(self, mass: Array, best: Array) -> list[Array]:
        """Return which questions of each sentence each head answers rightly: (heads, questions) bool."""
        right = [np.zeros((mass.shape[1], len(s.questions)), bool) for s in self.sentences]
        sentence, question, query, target = self._plain.T
        answers = best[sentence, :, query] == target[:, None]  # (questions, heads)
        for b, answers_of_sentence in enumerate(right):
            is_in_sentence = sentence == b
            answers_of_sentence[:, question[is_in_sentence]] = answers[is_in_sentence].T
        for b, number, case in self._choosing:
            choices = mass[b, :, case.query][:, list(case.choices)]  # (heads, choices)
            picked = np.asarray(case.choices)[choices.argmax(-1)]  # (heads,)
            right[b][:, number] = np.isin(picked, case.right) & (choices.max(-1) > 0)
        return right

    def _mass_sums(self, mass: Array) -> dict[str, Array]:
        """Return the mass on other words, the mass on linked words, and mass times distance: each (batch, heads)."""
        places = np.arange(mass.shape[-1])
        far = np.abs(places[:, None] - places[None, :]).astype(np.float32)  # (units, units)
        return {
            "words": mass.sum((-1, -2)),
            "distance": np.einsum("bhij,ij->bh", mass, far),
            "linked": np.einsum("bhij,bij->bh", mass, self._linked.astype(np.float32)),
        }

    def _tree_counts(self, mass: Array) -> Array:
        """Return how many gold edges are in the tree of each head and, last, of their mean weights: (batch, heads + 1)."""
        batch, heads, units, _ = mass.shape
        if not self._edges.any():
            return np.zeros((batch, heads + 1), np.int64)  # (batch, heads + 1)
        graphs = np.empty((batch, heads + 1, units, units), np.float32)  # (batch, heads + 1, units, units)
        np.add(mass, np.swapaxes(mass, -1, -2), out=graphs[:, :heads])
        graphs[:, heads] = graphs[:, :heads].mean(1)
        present = np.repeat(self._is_word, heads + 1, 0)  # (graphs, units)
        parents = maximum_spanning_trees(graphs.reshape(-1, units, units), present)  # (graphs, units)
        edges = np.repeat(self._edges, heads + 1, 0)  # (graphs, units, units)
        return edges_found(parents, edges).reshape(batch, heads + 1)  # (batch, heads + 1)


def count_sentence(model: Model, sentence: AlignedSentence) -> CensusTally:
    """Return what the heads of a model find in one sentence; keys after the tokens (merged ones) count as no word."""
    census, n = Census([sentence], tally_shape(model)), len(sentence.tokens)
    model.run(sentence.tokens, lambda step: census.count_layer(step.layer, step.all_weights()[None, ..., :n]), "")
    return census.tallies()[0]


def count_sentences(model: Model, sentences: Sequence[AlignedSentence]) -> list[CensusTally]:
    """Return what the heads of a model find in sentences, the shortest first, in one pass where texts may share it.

    Raises AttnctlError if a weight is not a finite number, or the model cannot read a sentence.
    """
    texts = [sentence.tokens for sentence in sentences]
    with np.errstate(all="ignore"):
        shared = model.shared_pass() if isinstance(model, SharesPasses) else None
        if not isinstance(shared, GivesWeights) or not shared.may_share(texts, ()):
            return [count_sentence(model, sentence) for sentence in sentences]
        census = Census(sentences, tally_shape(model))
        shared.weights(texts, census.count_layer)
        return census.tallies()


def tally_shape(model: Model) -> tuple[int, int]:
    """Return the layers and heads of a model, as a census counts them."""
    return model.info.n_layers or 1, model.info.n_heads or 1
