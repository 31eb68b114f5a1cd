"""A mask as intervals against the same mask as a matrix of NumPy, and its memory for a long text."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from attnctl.commands.mask.expected import Expectations, Text
from attnctl.commands.mask.intervals import IntervalMask, band, interval_mask, outer, same
from attnctl.commands.mask.sentence import mask_sentence
from attnctl.models.exchange import Reach
from attnctl.runtime.arrays import Bools

SIZES = st.tuples(st.integers(1, 12), st.integers(1, 12))
MASKS = SIZES.flatmap(lambda shape: of_numpy.arrays(bool, shape))
PAIRS = SIZES.flatmap(lambda shape: st.tuples(of_numpy.arrays(bool, shape), of_numpy.arrays(bool, shape)))


def flags(size: int) -> st.SearchStrategy[Bools]:
    return of_numpy.arrays(bool, size)


@given(PAIRS)
def test_algebra(pair: tuple[Bools, Bools]) -> None:
    a, b = pair
    mine, other = interval_mask(a), interval_mask(b)
    for made, matrix in ((mine, a), (mine & other, a & b), (mine | other, a | b), (~mine, ~a), (mine - other, a & ~b)):
        np.testing.assert_array_equal(np.asarray(made), matrix)
        assert made.key == interval_mask(matrix).key and made.pairs == matrix.sum() and made.is_full == matrix.all()
    assert (mine.key == other.key) == np.array_equal(a, b)


@given(MASKS, st.data())
def test_questions_about_rows_and_keys(matrix: Bools, data: st.DataObject) -> None:
    mask, (n_q, n_k) = interval_mask(matrix), matrix.shape
    queries, keys = data.draw(flags(n_q)), data.draw(flags(n_k))
    np.testing.assert_array_equal(mask.keys_of_queries(), matrix.sum(1))
    np.testing.assert_array_equal(mask.queries_of_keys(), matrix.sum(0))
    np.testing.assert_array_equal(mask.sees(keys), (matrix & keys).any(1))
    np.testing.assert_array_equal(mask.seen_by(queries), matrix[queries].any(0))
    np.testing.assert_array_equal([mask.row(query) for query in range(n_q)], matrix)
    row_keys = mask.row_keys()
    for one in range(n_q):
        assert [row_keys[one] == other for other in row_keys] == [np.array_equal(matrix[one], row) for row in matrix]
    if queries.any() and keys.any():
        np.testing.assert_array_equal(np.asarray(mask.cut(queries, keys)), matrix[queries][:, keys])
    rows, columns = (
        [0, *sorted(data.draw(st.sets(st.integers(1, n - 1)) if n > 1 else st.just(set()))), n] for n in (n_q, n_k)
    )
    for bins, lo, hi in zip(mask.pooled(rows, columns), rows, rows[1:], strict=False):
        shares = [matrix[lo:hi, first:last].mean() for first, last in zip(columns, columns[1:], strict=False)]
        np.testing.assert_allclose(bins, shares, rtol=1e-6)


@given(st.integers(1, 12), st.data())
def test_masks_of_tokens(n: int, data: st.DataObject) -> None:
    gap = np.arange(n)[:, None] - np.arange(n)
    back, ahead = data.draw(st.integers(-3, 13)), data.draw(st.integers(-3, 13))
    np.testing.assert_array_equal(np.asarray(band((n, n), back, ahead)), (gap <= back) & (gap >= -ahead))
    np.testing.assert_array_equal(np.asarray(band((n, n), np.inf, 0)), gap >= 0)
    numbers, seeing = data.draw(of_numpy.arrays(int, n, elements=st.integers(-1, 3))), data.draw(flags(n))
    equal = numbers[:, None] == numbers
    np.testing.assert_array_equal(np.asarray(same(numbers)), equal)
    np.testing.assert_array_equal(np.asarray(same(numbers, seeing)), equal & seeing[:, None])
    np.testing.assert_array_equal(np.asarray(outer(seeing, numbers > 0)), seeing[:, None] & (numbers > 0))
    first, last = sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    np.testing.assert_array_equal(
        np.asarray(same(numbers).square(first, last)), equal[first : last + 1, first : last + 1]
    )


LONG = 50_000  # tokens, whose matrix has 2.5 GB
SEGMENTS = np.arange(LONG) // 20_000


@pytest.mark.parametrize(
    ("causal", "reach", "text", "sentence"),
    [
        (True, Reach(), {}, "causal"),
        (True, Reach(4096), {}, "causal, window 4096"),
        (False, Reach(65), {}, "window of 64 tokens to each side"),
        (True, Reach(), {"segments": SEGMENTS[None]}, "3 segments apart (0–19999, 20000–39999, 40000–49999), causal in each"),
        (True, Reach(), {"prefix": (np.arange(LONG) < 256)[None]}, "causal, prefix of 256 tokens both ways"),
        (True, Reach(), {"real": (np.arange(LONG) > 99)[None]}, "causal, padding 0–99 hidden"),
    ],
)  # fmt: skip
def test_mask_of_a_long_text_takes_little_memory(
    causal: bool, reach: Reach, text: dict[str, Bools], sentence: str
) -> None:
    known = Text(**{"real": np.ones((1, LONG), bool)} | text)
    tracemalloc.start()
    expected = Expectations(causal, lambda *_: reach, None, {"self": known}).of_layer("self", 0, LONG, LONG)
    assert expected is not None
    mask: IntervalMask = expected.may[0] & outer(known.real[0], known.real[0])
    assert mask_sentence(mask, ~known.real[0]) == sentence
    mask.pooled([0, 20_000, LONG], [0, 10_000, LONG])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
