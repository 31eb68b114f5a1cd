"""A census: documents of parsed sentences read in windows, and what each head finds in them, counted.

Clark et al. (2019) cut documents to what the model reads. Here sentences that follow one another share a window until the
next would not fit, and none stands in two: a mention whose antecedents all stand before its window is counted, and no case.

Words from pieces as Clark et al. (2019): attention to a word is the sum over its pieces, from a word the mean. A head finds
the other word that gets most; special tokens and the word itself are set apart. One layer at a time, nothing n × n is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnctl.arrays import as_numpy, place_array
from attnctl.attention import Array, array_namespace
from attnctl.commands.evaluate.result import MENTION_COUNTS
from attnctl.commands.evaluate.tally import CensusTally, Label
from attnctl.commands.evaluate.words import FARTHEST, AlignedSentence
from attnctl.errors import AttnctlError
from attnctl.formats.conllu import ParsedSentence
from attnctl.models import Model


def windows_of_sizes(sizes: Sequence[int], most: int) -> list[range]:
    """Which sentences share a window: neighbours whose sizes add up to `most` at most; one larger by itself is in none."""
    windows: list[range] = []
    start, room = 0, most
    for at, size in enumerate(sizes):
        if size > room or size > most:
            windows.append(range(start, at))
            start, room = (at, most) if size <= most else (at + 1, most)
        room -= size if size <= most else 0
    return [window for window in (*windows, range(start, len(sizes))) if window]


def mention_counts(sentences: Sequence[ParsedSentence], windows: Sequence[range]) -> dict[str, int]:
    """MENTION_COUNTS of one document that is read in these windows."""
    counts = dict.fromkeys(MENTION_COUNTS, 0) | {"documents": 1, "windows": len(windows)}
    window_of = {at: number for number, window in enumerate(windows) for at in window}
    seen: dict[str, int | None] = {}  # entity → the last window that it was mentioned in
    for at, sentence in enumerate(sentences):
        here = window_of.get(at)
        for mention in sentence.mentions:
            counts["mentions"] += 1
            if here is None:
                counts["unread"] += 1
            elif mention.entity not in seen:
                counts["new"] += 1
            elif seen[mention.entity] != here:
                counts["outside"] += 1
            seen[mention.entity] = here
    return counts


def maximum_spanning_trees(ties: Array, there: Array) -> Array:
    """Parents in the maximum spanning tree of each graph (Prim 1957): (graphs, n, n), (graphs, n) → (graphs, n).

    `ties` are symmetric: words i and j are joined by the weight i gives j and that which j gives i, added. Words that
    are not `there` have no place in the tree; they, and the word that each tree starts from (the first), have the parent -1.
    """
    graphs, n = there.shape
    parents = np.full((graphs, n), -1)  # (graphs, n)
    if not n:
        return parents
    rows = np.arange(graphs)
    flat, first_rows = ties.reshape(graphs * n, n), rows * n
    outside = there.copy()  # (graphs, n), the words that the tree has yet to reach
    newest = there.argmax(-1)  # (graphs,)
    outside[rows, newest] = False
    best = np.full((graphs, n), -np.inf, ties.dtype)  # (graphs, n), the strongest tie to the tree of what is outside
    for _ in range(int(there.sum(-1).max(initial=1)) - 1):
        new = flat.take(first_rows + newest, axis=0)  # (graphs, n)
        closer = (new > best) & outside  # (graphs, n)
        np.copyto(best, new, where=closer)
        np.copyto(parents, newest[:, None], where=closer)
        newest = best.argmax(-1)  # (graphs,)
        outside[rows, newest] = False
        best[rows, newest] = -np.inf
    return parents


def edges_found(parents: Array, edges: Array) -> Array:
    """How many edges of each tree are in `edges`: parents (graphs, n), edges (graphs, n, n) symmetric → (graphs,)."""
    graphs, n = parents.shape
    found = edges[np.arange(graphs)[:, None], np.arange(n)[None, :], parents]  # (graphs, n)
    return (found & (parents >= 0)).sum(-1)


def right_branching(there: Array) -> Array:
    """The tree that joins each word to the next: there (n,) → parents (n,), -1 for the first word and those not there."""
    words = np.flatnonzero(there)
    parents = np.full(len(there), -1)  # (n,)
    parents[words[1:]] = words[:-1]
    return parents


# what is added up for each head over the words of a sentence; edges are those of the gold tree that the head's tree has
SUMS = ("entropy", "self", "special", "words", "distance", "linked", "edges", "looking")


class Census:
    """A reading of several sentences that share a pass: `take` each layer's weights, then `value`.

    `shape` is (layers, heads); of a layer that is not taken, and heads that it does not have, everything is 0.
    """

    def __init__(self, sentences: Sequence[AlignedSentence], shape: tuple[int, int]) -> None:
        self.sentences, self.shape = sentences, shape
        n, units = max(len(s.tokens) for s in sentences), max(s.unit_count for s in sentences)
        batch = len(sentences)
        self._pool = np.zeros((batch, n, units), np.float32)  # (batch, n, units)
        self._linked, self._edges = np.zeros((2, batch, units, units), bool)  # (batch, units, units)
        self._kept = np.zeros((batch, units), bool)  # (batch, units)
        for b, sentence in enumerate(sentences):
            u = sentence.unit_count
            self._pool[b, : len(sentence.tokens), :u] = sentence.pool
            self._linked[b, :u, :u] = sentence.linked
            self._edges[b, :u, :u] = sentence.edges
            self._kept[b, :u] = sentence.kept
        pieces = self._pool.sum(-2)  # (batch, units)
        self._mean = self._pool / np.maximum(pieces, 1)[:, None, :]  # (batch, n, units)
        asked = [(b, at, q) for b, sentence in enumerate(sentences) for at, q in enumerate(sentence.questions)]
        plain = [(b, at, q.query, q.target) for b, at, q in asked if not q.choices]
        self._plain = np.array(plain, int).reshape(-1, 4)  # (questions, 4): sentence, question, query, target
        self._choosing = [(b, at, q) for b, at, q in asked if q.choices]
        self._taken: dict[int, dict[str, Array]] = {}

    def count_layer(self, layer: int, weights: Array) -> None:
        """Take in a layer's weights, of all sentences: (batch, heads, n, n), padding at the end."""
        words, special, entropy = self._word_weights(weights)
        xp = array_namespace(words)
        itself = xp.linalg.trace(words)  # (batch, heads)
        at = np.arange(words.shape[-1])
        words[..., at, at] = 0.0  # what is left is given to other words
        found = xp.argmax(words, axis=-1)  # (batch, heads, units)
        found, given = as_numpy(found), as_numpy(words)
        top = np.take_along_axis(given, found[..., None], -1)[..., 0]  # (batch, heads, units)
        found = np.where(top > 0, found, -1)  # (batch, heads, units)
        if not np.isfinite(entropy).all():
            raise AttnctlError(f"the weights of layer {layer} are no finite numbers")
        sums = self._mass_sums(given) | {"entropy": entropy, "special": special, "self": as_numpy(itself)}
        trees = self._tree_counts(given)
        sums |= {"looking": (found >= 0).sum(-1), "edges": trees[:, :-1]}
        off = np.where(found >= 0, found - at, FARTHEST + 1)  # (batch, heads, units)
        self._taken[layer] = {
            "right": self._right_answers(given, found),
            "offsets": np.stack([(off == offset).sum(-1) for offset in range(-FARTHEST, FARTHEST + 1)], -1),
            "layer_edges": trees[:, -1],
            **sums,
        }

    def tallies(self) -> list[CensusTally]:
        """What was counted, sentence by sentence."""
        return [self._tally_of(b, sentence) for b, sentence in enumerate(self.sentences)]

    def _tally_of(self, b: int, sentence: AlignedSentence) -> CensusTally:
        tally, half = CensusTally(self.shape), sentence.scored
        self._count_answers(tally, b, sentence)
        chain = edges_found(right_branching(sentence.kept)[None], sentence.edges[None])  # (1,)
        edges = int(sentence.edges.sum()) // 2
        tally.count(np.array([1, sentence.unit_count, sentence.within, edges, chain[0]]), half, "sentences")
        tally.count(self._taken_of_heads("offsets", b, 2 * FARTHEST + 1).astype(np.int32), half, "offsets")
        layer_edges = np.zeros(self.shape[0], np.int64)  # (layers,), edges that the tree of a layer's mean has
        for layer, taken in self._taken.items():
            layer_edges[layer] = taken["layer_edges"][b]
        tally.count(layer_edges, half, "layer_edges")
        for name in SUMS:
            tally.count(self._taken_of_heads(name, b), half, "sums", name)
        return tally

    def _taken_of_heads(self, name: str, b: int, *more: int) -> Array:
        """What was taken of a sentence: (layers, heads, *more), 0 of heads that there are not."""
        found = np.zeros((*self.shape, *more))  # (layers, heads, *more)
        for layer, taken in self._taken.items():
            own = taken[name][b]  # (heads of the layer, *more)
            found[layer, : len(own)] = own
        return found

    def _count_answers(self, tally: CensusTally, b: int, sentence: AlignedSentence) -> None:
        """Count what the heads, and simple rules, answer to the questions of a sentence."""
        half, questions = sentence.scored, sentence.questions
        right = self._taken_of_heads("right", b, len(questions))  # (layers, heads, questions)
        places: dict[Label, list[int]] = {}
        for at, question in enumerate(questions):
            places.setdefault((question.relation, question.direction), []).append(at)
        for label, several in places.items():
            tally.count(right[..., several].sum(-1).astype(np.int32), half, "right", *label)
            for question in (questions[at] for at in several):
                tally.count(np.array([1, question.first, question.head_match, 0]), half, "rules", *label)
                tally.count(np.array([1, *question.nearest]), half, "tags", *label, question.tag)
            offsets = [questions[at].target - questions[at].query for at in several]
            near = [offset + FARTHEST for offset in offsets if abs(offset) <= FARTHEST]
            tally.count(np.bincount(np.array(near, int), minlength=2 * FARTHEST + 1), half, "offsets", *label)
        for label in sentence.ahead:
            tally.count(np.array([0, 0, 0, 1]), half, "rules", *label)

    def _word_weights(self, weights: Array) -> tuple[Array, Array, Array]:
        """Weights between units (batch, heads, units, units); of their rows, the mass elsewhere and the entropy, summed."""
        xp = array_namespace(weights)
        weights = xp.astype(weights, xp.float32, copy=False)  # (batch, heads, n, n)
        batch, heads, n, _ = weights.shape
        pool, mean = place_array(self._pool, weights), place_array(self._mean, weights)  # (batch, n, units)
        to_words = xp.reshape(xp.reshape(weights, (batch, heads * n, n)) @ pool, (batch, heads, n, -1))
        words = xp.matrix_transpose(mean)[:, None] @ to_words  # (batch, heads, units, units)
        rows = xp.sum(mean, axis=-1)[:, None]  # (batch, 1, n), what a token's row counts for
        elsewhere = xp.sum((xp.sum(weights, axis=-1) - xp.sum(to_words, axis=-1)) * rows, axis=-1)  # (batch, heads)
        least = xp.asarray(np.finfo(np.float32).tiny, dtype=weights.dtype)
        logs = xp.log(xp.maximum(weights, least))  # (batch, heads, n, n)
        entropy = -xp.sum(xp.sum(weights * logs, axis=-1) * rows, axis=-1)  # (batch, heads), nats
        return words, as_numpy(elsewhere), as_numpy(entropy)

    def _right_answers(self, given: Array, found: Array) -> list[Array]:
        """Each sentence's answers: (heads, questions) bool."""
        right = [np.zeros((given.shape[1], len(s.questions)), bool) for s in self.sentences]
        sentence, question, query, target = self._plain.T
        answers = found[sentence, :, query] == target[:, None]  # (questions, heads)
        for b, own in enumerate(right):
            mine = sentence == b
            own[:, question[mine]] = answers[mine].T
        for b, at, asked in self._choosing:
            choices = given[b, :, asked.query][:, list(asked.choices)]  # (heads, choices)
            picked = np.asarray(asked.choices)[choices.argmax(-1)]  # (heads,)
            right[b][:, at] = np.isin(picked, asked.right) & (choices.max(-1) > 0)
        return right

    def _mass_sums(self, given: Array) -> dict[str, Array]:
        """Mass on other words, on linked ones, and times distance: each (batch, heads)."""
        at = np.arange(given.shape[-1])
        far = np.abs(at[:, None] - at[None, :]).astype(np.float32)  # (units, units)
        return {
            "words": given.sum((-1, -2)),
            "distance": np.einsum("bhij,ij->bh", given, far),
            "linked": np.einsum("bhij,bij->bh", given, self._linked.astype(np.float32)),
        }

    def _tree_counts(self, given: Array) -> Array:
        """Gold edges in the tree of each head and, last, of the layer's mean: (batch, heads + 1)."""
        batch, heads, units, _ = given.shape
        if not self._edges.any():
            return np.zeros((batch, heads + 1), np.int64)  # (batch, heads + 1)
        graphs = np.empty((batch, heads + 1, units, units), np.float32)  # (batch, heads + 1, units, units)
        np.add(given, np.swapaxes(given, -1, -2), out=graphs[:, :heads])
        graphs[:, heads] = graphs[:, :heads].mean(1)
        there = np.repeat(self._kept, heads + 1, 0)  # (graphs, units)
        parents = maximum_spanning_trees(graphs.reshape(-1, units, units), there)  # (graphs, units)
        edges = np.repeat(self._edges, heads + 1, 0)  # (graphs, units, units)
        return edges_found(parents, edges).reshape(batch, heads + 1)  # (batch, heads + 1)


def count_sentence(model: Model, sentence: AlignedSentence) -> CensusTally:
    """What the heads of a model do in one sentence; keys that stand for several tokens, after the others, are no words."""
    census, n = Census([sentence], tally_shape(model)), len(sentence.tokens)
    model.run(sentence.tokens, lambda one: census.count_layer(one.layer, one.all_weights()[None, ..., :n]), "")
    return census.tallies()[0]


def tally_shape(model: Model) -> tuple[int, int]:
    """Layers and heads of a model, as they are counted."""
    return model.info.n_layers or 1, model.info.n_heads or 1
