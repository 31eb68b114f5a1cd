"""A mask in words: each kind that a sentence names, made by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnctl.commands.mask.sentence import OTHER, mask_sentence

N = 12
GAP = np.arange(N)[:, None] - np.arange(N)
CAUSAL = GAP >= 0
PLACE = np.arange(N)


def block(first: int, last: int) -> np.ndarray:
    """Return where both tokens are from first to last."""
    inside = (first <= PLACE) & (last >= PLACE)
    return inside[:, None] & inside


PAD = PLACE > 8
SENTENCES = {
    "full": CAUSAL | ~CAUSAL,
    "causal": CAUSAL,
    "only the future": ~CAUSAL | (GAP == 0),
    "causal, window 4": CAUSAL & (GAP < 4),
    "window of 3 tokens to each side": abs(GAP) <= 3,
    "1 token back, 2 ahead": (GAP <= 1) & (GAP >= -2),
    "11 tokens back (all), 1 ahead": GAP >= -1,
    "causal, prefix of 5 tokens both ways": CAUSAL | block(0, 4),
    "causal, tokens 3–6 both ways": CAUSAL | block(3, 6),
    "causal, tokens 1–3, 5–6 both ways": CAUSAL | block(1, 3) | block(5, 6),
    "causal, window 3, tokens 2–7 both ways": (CAUSAL & (GAP < 3)) | block(2, 7),
    "causal, window 4, tokens 2–8 both ways": (CAUSAL | block(2, 8)) & (GAP < 4),
    "2 segments apart (0–4, 5–11), causal in each": CAUSAL & (block(0, 4) | block(5, 11)),
    "2 segments apart (0–4, 5–11), full in each": block(0, 4) | block(5, 11),
    "2 segments apart (0–4, 5–11), causal, window 6 in each": CAUSAL & (GAP < 6) & (block(0, 4) | block(5, 11)),
    "2 segments apart: 0–4 full; 5–11 causal": block(0, 4) | (CAUSAL & block(5, 11)),
    "3 segments apart: 0–4 causal; 5 alone; 6–11 causal, window 2": CAUSAL
    & (block(0, 4) | block(5, 5) | (block(6, 11) & (GAP < 2))),
    "2 segments apart: 0–4 causal; 5–11 other": (CAUSAL & block(0, 4)) | (block(5, 11) & ((GAP % 3) != 1)),
    "each token alone": GAP == 0,
    "causal, padding 9–11 hidden": CAUSAL & ~PAD,
    "full, padding 9–11 hidden": np.broadcast_to(~PAD, (N, N)),
    "causal, 1 pair hidden besides: see the picture": CAUSAL & ~((PLACE[:, None] == 9) & (PLACE == 4)),
    "window of 1 token to each side, tokens 0 everywhere": (abs(GAP) <= 1) | (PLACE == 0) | (PLACE == 0)[:, None],
    OTHER: (GAP % 3) != 1,
    "nothing: every key is hidden": np.zeros((N, N), bool),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_sentence(sentence: str) -> None:
    mask = SENTENCES[sentence]
    assert mask_sentence(mask, PAD if "padding" in sentence else None) == sentence


def test_padding_is_told_from_what_the_batch_says() -> None:
    assert mask_sentence(np.ones((N, N), bool), PAD) == "full, padding 9–11 visible"
    assert mask_sentence(CAUSAL | block(3, 6), None, "image tokens") == "causal, image tokens 3–6 both ways"


def test_one_token_tests_nothing() -> None:
    assert mask_sentence(np.ones((1, 1), bool)) == "one token: nothing to hide"
    padding = np.array([False, True, True])
    assert mask_sentence(np.broadcast_to(~padding, (3, 3)), padding) == "one token: nothing to hide, padding 1–2 hidden"


def test_cross_attention_is_no_square() -> None:
    whole = np.ones((3, 5), bool)
    assert mask_sentence(whole) == "full" and mask_sentence(whole[:, :1]) == "full"
    whole[:, 4] = False
    assert mask_sentence(whole) == "full, padding 4 hidden"
    whole[0, 1] = False
    assert mask_sentence(whole) == f"{OTHER}, padding 4 hidden"


@given(st.integers(1, 40), st.integers(1, 50), st.booleans())
def test_window_of_any_size(n: int, window: int, causal: bool) -> None:
    gap = np.arange(n)[:, None] - np.arange(n)
    mask = (gap < window) & ((gap >= 0) if causal else (gap > -window))
    sentence = mask_sentence(mask)
    if window == 1 and n > 1:
        assert sentence == "each token alone"
    elif window >= n:
        assert sentence == ("one token: nothing to hide" if n == 1 else "causal" if causal else "full")
    else:
        sides = f"window of {window - 1} token{'s' * (window > 2)} to each side"
        assert sentence == (f"causal, window {window}" if causal else sides)


@given(st.lists(st.booleans(), min_size=1, max_size=64))
def test_any_mask_has_a_sentence(cells: list[bool]) -> None:
    n = int(len(cells) ** 0.5)
    mask = np.array(cells[: n * n]).reshape(n, n)
    assert mask_sentence(mask) and mask_sentence(mask, mask[0])
