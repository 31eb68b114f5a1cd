"""Which tokens are exchanged: against the matrix product of the masks of all layers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from attnctl.commands.mask.intervals import band, interval_mask, same
from attnctl.commands.mask.sets import EXCHANGES, WHOLE, exchanged_sets, exchanged_sets_of_chain, reached_by
from attnctl.runtime.arrays import Bools

LAYERS = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 9)).flatmap(
    lambda shape: of_numpy.arrays(bool, (*shape, shape[-1]))  # (layers, batch, n, n)
)


@given(LAYERS, st.data())
def test_what_layers_carry_is_their_product(layers: Bools, data: st.DataObject) -> None:
    _, batch, n, _ = layers.shape
    chain = [[interval_mask(mask) for mask in layer] for layer in layers]
    reach = np.broadcast_to(np.eye(n, dtype=bool), (batch, n, n))
    for layer in layers:
        reach = (layer.astype(int) @ reach.astype(int)) > 0
    tokens = data.draw(of_numpy.arrays(bool, (batch, n)))
    np.testing.assert_array_equal(reached_by(tokens, chain), (reach & tokens[:, None]).any(-1))
    hidden = {(~reach[:, query]).tobytes() for query in range(n) if not reach[:, query].all()}
    sets = [tokens.tobytes() for tokens in exchanged_sets_of_chain(chain)]
    visible = {query for query in range(n) if all(layer[:, query].all() for layer in layers)}  # nobody hides from these
    assert len(set(sets)) == len(sets) <= WHOLE and set(sets) <= hidden
    if not visible and len(hidden) <= WHOLE:
        assert set(sets) == hidden


@given(of_numpy.arrays(bool, st.integers(1, 12).map(lambda n: (n, n))))
def test_each_hidden_set_of_a_short_text_is_exchanged_once(matrix: Bools) -> None:
    sets = [tokens.tobytes() for tokens in exchanged_sets([interval_mask(matrix)])]
    assert len(sets) == len(set(sets)) and set(sets) == {(~row).tobytes() for row in matrix if not row.all()}


def test_sets_of_a_long_text_hold_the_begins_of_its_segments() -> None:
    n = 85  # TOKENS // n sets
    shape, segments = (n, n), np.arange(n) // 20
    sets = [tokens[0] for tokens in exchanged_sets([band(shape, np.inf, 0) & same(segments)])]
    assert len(sets) <= EXCHANGES
    for begin in (20, 40, 60, 80):  # from there on, a query sees itself alone
        assert any(np.array_equal(tokens, np.arange(n) != begin) for tokens in sets)
