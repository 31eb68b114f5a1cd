"""Files of numbers that are no attention weights, or no numbers: nothing is said of them that they do not hold."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Refused, Run


@pytest.mark.parametrize(
    "numbers", [[[2, 3], [1, 1]], [[0.9, 0.8], [0.5, 0.5]], [[-1, 0], [0, -1]], [[2**62, 0], [0, 1]]]
)
def test_numbers_that_are_no_weights_are_no_shares(numbers: Any, run: Run, refused: Refused) -> None:
    """ "0 pays 300 % of its attention to 1", and a head with an entropy of -2.34 that looked like a sink."""
    np.save("x.npy", np.array(numbers, np.float64))
    page = run("explain", "x.npy")
    assert page.code == 0 and "are these scores?" in " ".join(page.out.split())
    assert "%" not in page.out and "where attention went" not in page.out and "shares out" not in page.out
    run("explain", "x.npy", "-o", "x.json")
    assert "%" not in run("explain", "x.json").out and "is for attention weights" in refused("heads", "x.json")


@pytest.mark.parametrize("numbers", [[[1, 0], [0.5, 0.5]], [[0.2, 0.3], [0.1, 0]], [[1.0001, 0], [0.5, 0.505]]])
def test_rows_that_sum_to_one_or_less_are_shares(numbers: Any, run: Run) -> None:
    np.save("x.npy", np.array(numbers, np.float64))
    assert "of its attention" in run("explain", "x.npy").out and run("heads", "x.npy").code == 0


def test_a_row_of_zeros_stands_out_in_nothing(run: Run) -> None:
    np.save("x.npy", np.zeros((3, 3)))
    out = run("explain", "x.npy", "--layer", "all").out
    assert "stands out" not in out and "0 may look at nothing" in out and "∅" not in out


def test_an_archive_that_says_a_thing_twice(refused: Refused) -> None:
    out = io.BytesIO()
    np.save(out, np.eye(2))
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("weights.npy", out.getvalue())
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("weights.npy", out.getvalue())
    assert "it holds an array twice" in refused("heatmap", "x.npz")


def test_a_matrix_of_a_hundred_thousand_heads(refused: Refused) -> None:
    """400 kB: every command that tells of heads took more than a minute."""
    np.save("x.npy", np.ones((100_000, 1, 1), np.float32))
    assert "100,000 heads in all: 20,000 are read at most" in refused("heads", "x.npy")


@pytest.mark.parametrize(("value", "causal"), [("True", True), (" yes", True), ("0", False), ("False", False)])
def test_metadata_that_says_yes_or_no(value: str, causal: bool, run: Run) -> None:
    tensors = {part: np.ones((1, 8, 4), np.float32) for part in ("W_Q", "W_K", "W_V")}
    save_file(tensors, "w.safetensors", {"causal": value})
    assert run("explain", "a b", "-m", "w.safetensors", "--json").json["model"]["causal"] is causal
