"""Files of numbers that are no attention weights, or no numbers: nothing is said of them that they do not hold."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
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


WEIGHTS = np.array([[0.25, 0.75, 0], [0.125, 0.5, 0.375], [1e-7, 0.5, 0.5]])
NAMED = ("layer", "the", "cat")


@pytest.mark.parametrize("name", ["w.txt", "w.dat", "w.csv"])
@pytest.mark.parametrize(
    "settings", [{}, {"delimiter": ","}, {"delimiter": "\t", "fmt": "%.7f"}, {"header": "a title\nof it"}]
)
def test_what_savetxt_writes_by_its_defaults(name: str, settings: Any, run: Run) -> None:
    """ "w.txt is a file of text", "w.csv holds no numbers", and the tokens of the name "w.dat", without a word."""
    np.savetxt(name, WEIGHTS, **settings)
    page = run("heatmap", name)
    assert page.code == 0 and not page.err
    assert [[float(cell) for cell in line.split("\t")[4:]] for line in page.out.splitlines()[1:]] == WEIGHTS.tolist()


@pytest.mark.parametrize("delimiter", [" ", ","])
def test_the_header_of_savetxt_names_the_columns(delimiter: str, run: Run) -> None:
    np.savetxt("w.txt", WEIGHTS, delimiter=delimiter, header=delimiter.join(NAMED))
    assert run("heatmap", "w.txt").out.splitlines()[0].split("\t")[4:] == ["0:layer", "1:the", "2:cat"]


def test_a_row_that_is_longer_than_what_is_read_to_know_a_file(run: Run) -> None:
    wide = np.random.default_rng(0).dirichlet(np.ones(400), 2)
    np.savetxt("w.txt", wide)
    rows = run("heatmap", "w.txt", "--key-tokens", " ".join(map(str, range(400)))).out.splitlines()
    assert len(rows) == 3 and len(rows[1].split("\t")) == 404


@pytest.mark.parametrize(
    "text", ["101 2023 102\n101 7592 102\n", "0.5 of 1.5\n2.5 of 3.5\n", "1.5 2.5", "3.14\n2.71\n", ""]
)
def test_text_and_ids_are_no_matrix(text: str, refused: Refused) -> None:
    Path("a.txt").write_text(text)
    assert "a.txt is a file of text: read it with --file a.txt" in refused("heatmap", "a.txt", code=2)


@pytest.mark.parametrize("name", ["links.txt", "links.align", "out.pharaoh"])
@pytest.mark.parametrize("text", ["0-0 1-2 2-1\n", "0-0\n0-1 1p0\n", "das Haus ||| 0-0 1-1\n"])
def test_links_of_words_have_no_weights(name: str, text: str, refused: Refused) -> None:
    """The name of the file was read as a text, without a word."""
    Path(name).write_text(text)
    assert f"{name} holds links of words (0-0 1-2), which have no weights" in refused("heatmap", name, code=2)
