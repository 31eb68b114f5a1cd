"""Choose the tokens to exchange: for a query those that it should not see, in one layer or through all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

import numpy as np

from attnctl.commands.mask.intervals import IntervalMask, different
from attnctl.runtime.arrays import Bools, Ints

WHOLE = 8  # sets of tokens that are exchanged in the model as a whole
# sets of tokens that are exchanged in a layer: at most, at least, and how many tokens all of them read together
EXCHANGES, FEWEST, TOKENS = 48, 12, 4096
# the same in a layer whose mask was read, which tells every pair of tokens
FEWEST_READ, TOKENS_READ = 8, 400
BORDERS = (256, 128, 64, 32, 16)  # numbers of tokens that kernels read together, as blocks


def sets_for(n: int, was_read: bool = False) -> int:
    """Return how many sets of tokens are exchanged in a layer over n tokens."""
    fewest, tokens = (FEWEST_READ, TOKENS_READ) if was_read else (FEWEST, TOKENS)
    return max(fewest, min(EXCHANGES, tokens // n))


def exchanged_sets(may: Sequence[IntervalMask], was_read: bool = False, turn: int = 0) -> Iterator[Bools]:
    """Yield sets of tokens to exchange, (batch, n) each: for a query those that it should not see.

    Each `turn` chooses other queries of a long text.
    """
    for query in chosen_queries(may, sets_for(may[0].shape[0], was_read), turn):
        yield ~np.stack([mask.row(query) for mask in may])


def chosen_queries(masks: Sequence[IntervalMask], count: int, turn: int = 0) -> list[int]:
    """Return at most `count` queries from which a mask hides something, and of those with the same rows only the first."""
    shown = np.stack([mask.keys_of_queries() for mask in masks])  # (masks, n)
    alike: dict[tuple[bytes, ...], int] = {}
    for query, rows in enumerate(zip(*(mask.row_keys() for mask in masks), strict=True)):
        if (shown[:, query] < masks[0].shape[1]).any():
            alike.setdefault(rows, query)
    queries = list(alike.values())
    if len(queries) <= count:
        return queries
    return spread_queries(queries, lambda query: shown[:, query], count, border_queries(masks[0], queries), turn)


def border_queries(mask: IntervalMask, queries: Sequence[int]) -> list[int]:
    """Return the queries that see up to, or from, a border of a kernel's blocks: borders of all sizes first."""
    chosen, starts = np.asarray(queries), np.searchsorted(mask.query, queries)
    first_keys = np.append(mask.first, 0)[starts]  # (queries,)
    sides = []
    for places in (chosen + 1, first_keys):
        of_sizes = [chosen[(places > 0) & (places % size == 0)] for size in BORDERS]
        sides.append([*of_sizes[0][-1:].tolist(), *(query for some in of_sizes for query in some[:1].tolist())])
    pairs = zip_longest(*map(dict.fromkeys, sides))
    return list(dict.fromkeys(query for pair in pairs for query in pair if query is not None))


def spread_queries(
    queries: list[int],
    shown: Callable[[int], Ints],
    count: int,
    borders: Sequence[int] = (),
    turn: int = 0,
) -> list[int]:
    """Return at most `count` of some queries: where a segment or a picture begins, at `borders`, and others in between.

    `shown` returns how many tokens a query sees, which changes by more than one token where a segment begins. These are up
    to a third of the queries, and the borders up to half. Each `turn` takes others in between.
    """
    if len(queries) <= count:
        return queries
    edges = [query for query in queries if query and np.abs(shown(query) - shown(query - 1)).max() > 1][: count // 3]
    fixed = dict.fromkeys([*edges, *borders[: count // 2]])
    free = [query for query in queries if query not in fixed]
    spread = np.linspace(0, len(free) - 1, count - len(fixed)).astype(int)
    return sorted({*fixed, *(free[(index + turn) % len(free)] for index in spread)})


# what each layer to the output may let through, for each row of the batch
Chain = Sequence[Sequence[IntervalMask]]


def exchanged_sets_of_chain(chain: Chain) -> Iterator[Bools]:
    """Yield sets of tokens to exchange, (batch, n) each: for a query those that should not reach it through any layers."""
    sets: dict[bytes, int] = {}
    masks = different(mask for layer in chain for mask in layer)
    for query in chosen_queries(masks, EXCHANGES):
        seen = reaching(query, chain)
        if not seen.all():
            sets.setdefault(seen.tobytes(), query)
    queries = list(sets.values())
    borders = border_queries(masks[0], queries) if len(queries) > WHOLE else ()
    for query in spread_queries(queries, lambda query: reaching(query, chain).sum(1), WHOLE, borders):
        yield ~reaching(query, chain)


def reaching(query: int, chain: Chain) -> Bools:
    """Return the tokens that may reach the output of a query through the layers of a chain: (batch, n)."""
    tokens = np.zeros((len(chain[0]), chain[0][0].shape[0]), np.bool_)
    tokens[:, query] = True
    for layer in reversed(chain):
        tokens = np.stack([mask.seen_by(queries) for mask, queries in zip(layer, tokens, strict=True)])
    return tokens


def reached_by(tokens: Bools, chain: Chain) -> Bools:
    """Return the outputs that some tokens may reach through the layers of a chain: (batch, n) each."""
    for layer in chain:
        tokens = np.stack([mask.sees(keys) for mask, keys in zip(layer, tokens, strict=True)])
    return tokens


def nearest(hidden: Bools, query: int) -> int:
    """Return the token among the `hidden` ones (n,) that is nearest to a query."""
    keys = np.flatnonzero(hidden)
    return int(keys[np.abs(keys - query).argmin()])
