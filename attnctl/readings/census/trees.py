"""Trees over the words of a sentence, read off attention: maximum spanning trees of many heads at once."""

from __future__ import annotations

import numpy as np

from attnctl.attention import Array


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
