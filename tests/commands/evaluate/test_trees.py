"""Maximum spanning trees: as heavy as the heaviest of all trees, for any weights."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from attnctl.commands.evaluate.counting import edges_found, maximum_spanning_trees, right_branching


def heaviest(weights: np.ndarray, words: list[int]) -> float:
    """By trying every tree (Prüfer 1918)."""
    n = len(words)
    if n == 1:
        return 0.0
    best = -np.inf
    for code in itertools.product(range(n), repeat=max(n - 2, 0)):
        degree = [1 + code.count(v) for v in range(n)]
        total, left = 0.0, list(degree)
        for v in code:
            leaf = next(u for u in range(n) if left[u] == 1)
            total += weights[words[leaf], words[v]] + weights[words[v], words[leaf]]
            left[leaf] -= 1
            left[v] -= 1
        a, b = (u for u in range(n) if left[u] == 1)
        best = max(best, total + weights[words[a], words[b]] + weights[words[b], words[a]])
    return best


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.booleans(), min_size=1, max_size=6))
def test_no_tree_is_heavier(seed: int, there: list[bool]) -> None:
    words = [at for at, kept in enumerate(there) if kept]
    weights = np.random.default_rng(seed).random((3, len(there), len(there)))
    parents = maximum_spanning_trees(weights + weights.swapaxes(-1, -2), np.tile(there, (3, 1)))
    assert (parents[:, [at for at, kept in enumerate(there) if not kept]] == -1).all()
    for own, found in zip(weights, parents, strict=True):
        edges = [(at, int(parent)) for at, parent in enumerate(found) if parent >= 0]
        assert len(edges) == max(len(words) - 1, 0)
        if words:
            assert np.isclose(sum(own[a, b] + own[b, a] for a, b in edges), heaviest(own, words))


def test_trees_of_different_sizes_share_an_array() -> None:
    there = np.array([[True, True, True, True], [True, True, False, False]])
    weights = np.zeros((2, 4, 4))
    weights[0, 0, 3] = weights[0, 3, 1] = weights[0, 1, 2] = 1.0
    weights[1, 0, 1] = 0.5
    parents = maximum_spanning_trees(weights + weights.swapaxes(-1, -2), there)
    assert parents.tolist() == [[-1, 3, 1, 0], [-1, 0, -1, -1]]
    edges = np.zeros((2, 4, 4), bool)
    for a, b in ((0, 3), (1, 2)):
        edges[0, a, b] = edges[0, b, a] = True
    assert edges_found(parents, edges).tolist() == [2, 0]


def test_right_branching_joins_neighbours_over_what_is_not_there() -> None:
    assert right_branching(np.array([False, True, False, True, True])).tolist() == [-1, -1, -1, 1, 3]
