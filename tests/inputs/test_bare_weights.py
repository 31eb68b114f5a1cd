"""Arrays of bare weights as other programs save them: scores, hidden cells, rows of NaN, a causal model's weights, batches.

The right values come from numpy on the same arrays.
"""

from __future__ import annotations

import csv
from io import StringIO
from typing import Any

import numpy as np
import pytest

from attnctl.models.builtin.matrix import trace_of_mapped_matrix, trace_of_matrix
from tests.conftest import Refused, Run

N = 6
TRIL = np.tril(np.ones((N, N), bool))
SCORES = np.random.default_rng(0).normal(size=(2, N, N)).astype(np.float32)
HIDDEN = "hide keys, so the numbers are scores"
CAUSAL = "read as those of a causal model"


def softmax(scores: Any) -> Any:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def heads_of(run: Run, path: str) -> list[dict[str, Any]]:
    table = run("heads", path, "--csv").out
    return list(csv.DictReader(StringIO(table)))


def hidden_with(number: float, dtype: str) -> Any:
    return np.where(TRIL, SCORES.astype(dtype), np.dtype(dtype).type(number)).astype(dtype)


LOWEST = [
    *((float(np.finfo(kind).min), kind) for kind in ("float16", "float32", "float64")),
    (float(np.finfo("float16").min), "float32"),  # a model in half precision, saved as float32
    (float(np.finfo("float32").min), "float64"),
    (-3.3895313892515355e38, "float32"),  # of bfloat16
    (-1e9, "float32"),  # of Keras
    (-np.inf, "float32"),
    (-np.inf, "float16"),
]


@pytest.mark.parametrize(("number", "dtype"), LOWEST)
@pytest.mark.filterwarnings("error")
def test_scores_with_hidden_cells_are_drawn_as_such(number: float, dtype: str, run: Run, refused: Refused) -> None:
    """The lowest number was an end of the colour scale; -inf was refused."""
    np.save("s.npy", hidden_with(number, dtype))
    drawn = run("heatmap", "s.npy")
    rows = list(csv.reader(StringIO(drawn.out), delimiter="\t"))[1:]
    cells = np.array([[float(cell) if cell else np.nan for cell in row[4:]] for row in rows]).reshape(2, N, N)
    assert (np.isnan(cells) == ~TRIL).all() and np.allclose(cells[:, TRIL], SCORES[:, TRIL], rtol=2e-3)
    assert HIDDEN in drawn.err and "e+" not in drawn.out
    assert "softmax of each row" in refused("heads", "s.npy") and "softmax" in refused("heatmap", "s.npy", "--words")
    assert trace_of_mapped_matrix("s.npy").notes == trace_of_matrix("s.npy").notes


def test_numbers_far_below_zero_stay_as_they_are(run: Run) -> None:
    np.save("s.npy", np.random.default_rng(1).normal(size=(4, 4)) * 1e5)
    found = run("heatmap", "s.npy")
    assert HIDDEN not in found.err and "are these scores?" in found.err and "\t\t" not in found.out


# what ONNX Runtime 1.32.0 puts out as output_qk of GroupQueryAttention with qk_output=1, four tokens, one head
GROUPED = np.array(
    [[0.998, 0, 0, 0], [-0.429, -1.992, 0, 0], [0.101, 0.294, -0.218, 0], [-0.5, -1.693, 1.402, 0.083]], np.float32
)
ZEROS = "a softmax gives 0 a share"


def test_scores_with_0_for_later_keys_are_named(run: Run) -> None:
    """They were drawn with a note that asks for scores alone, and their softmax gives the future up to 72 % of a row."""
    assert softmax(GROUPED)[1, 2:].sum() == pytest.approx(0.717, abs=1e-3)
    np.save("s.npy", GROUPED)
    np.savetxt("s.csv", GROUPED, delimiter=",")
    assert all(ZEROS in run("heatmap", name).err for name in ("s.npy", "s.csv"))
    assert trace_of_mapped_matrix("s.npy").notes == trace_of_matrix("s.npy").notes
    hidden = np.where(np.tri(4, dtype=bool), GROUPED, -np.inf)
    np.save("s.npy", hidden)
    assert ZEROS not in (noted := run("heatmap", "s.npy").err) and HIDDEN in noted
    np.save("s.npy", softmax(hidden))
    assert ZEROS not in (noted := run("heatmap", "s.npy").err) and CAUSAL in noted
    np.save("s.npy", GROUPED + 1)
    assert ZEROS not in (noted := run("heatmap", "s.npy").err) and "are these scores?" in noted


def test_heads_that_hide_other_keys_are_not_drawn(refused: Refused) -> None:
    scores = hidden_with(-np.inf, "float32")
    scores[1, 0, 3] = 0.5
    np.save("s.npy", scores)
    assert "head 1 of layer 0 hides other keys than head 0" in refused("heatmap", "s.npy")


@pytest.mark.parametrize("shape", [(N, N), (2, N, N), (2, 2, N, N)])
@pytest.mark.filterwarnings("error")
def test_rows_of_nan_see_nothing(shape: tuple[int, ...], run: Run, refused: Refused) -> None:
    weights = np.broadcast_to(softmax(SCORES), (2, 2, N, N)).copy()[tuple([0] * (4 - len(shape)))]
    weights[..., 4:, :] = np.nan
    np.save("w.npy", weights)
    drawn = run("heatmap", "w.npy")
    assert "2 rows of NaN" in drawn.err and "Doubtful" not in drawn.err
    assert all(line.endswith("\t" * N) for line in drawn.out.splitlines() if line.split("\t")[2] in "45")
    entropy = -(weights[..., :4, :] * np.log(weights[..., :4, :])).sum(-1).mean(-1).ravel()
    heads = heads_of(run, "w.npy")
    assert [float(row["entropy"]) for row in heads] == pytest.approx(entropy.tolist(), abs=1e-4)
    assert "Means are over 4 of 6 queries" in run("heads", "w.npy").err
    weights[..., 0, 1] = np.nan
    np.save("w.npy", weights)
    assert "every number must be finite" in refused("heatmap", "w.npy")


def test_one_head_of_nan_leaves_the_others(run: Run) -> None:
    weights = softmax(SCORES)
    weights[0, 3] = np.nan
    np.save("w.npy", weights)
    found = run("heatmap", "w.npy")
    assert "1 row of NaN" in found.err and "Doubtful" not in found.err
    own = [float(row["self"]) for row in heads_of(run, "w.npy")]
    rest = [0, 1, 2, 4, 5]
    right = [np.diagonal(weights[0])[rest].mean(), np.diagonal(weights[1]).mean()]
    assert own == pytest.approx(right, abs=1e-4)


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv"])
def test_a_causal_models_weights_are_recognised(suffix: str, run: Run) -> None:
    """ "of max" counted keys that no query may see: 0.671 for 0.936."""
    weights = softmax(np.where(TRIL, SCORES, -np.inf))
    weights = weights[:1] if suffix == "csv" else weights
    path = f"w.{suffix}"
    if suffix == "csv":
        np.savetxt(path, weights[0], delimiter=",")
    elif suffix == "npz":
        np.savez(path, weights=weights)
    else:
        np.save(path, weights)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)
    share = (entropy[:, 1:] / np.log(np.arange(2, N + 1))).mean(-1)
    heads = heads_of(run, path)
    assert [float(row["entropy_share"]) for row in heads] == pytest.approx(share.tolist(), abs=1e-4)
    assert not any(row["next"] for row in heads) and CAUSAL in run("heads", path).err
    if suffix == "npy":
        mapped, whole = trace_of_mapped_matrix(path), trace_of_matrix(path)
        assert mapped.notes == whole.notes and mapped.model == whole.model
        np.testing.assert_array_equal(np.asarray(mapped.layers[0].mask), whole.layers[0].mask)


@pytest.mark.parametrize("kind", ["full", "one head looks ahead", "two texts", "one token", "numbers"])
def test_other_weights_are_not_causal(kind: str, run: Run) -> None:
    weights = softmax(np.where(TRIL, SCORES, -np.inf))
    names: list[str] = []
    if kind == "full":
        weights = softmax(SCORES)
    elif kind == "one head looks ahead":
        weights[1] = softmax(SCORES)[1]
    elif kind == "two texts":
        names = ["--tokens", "a b c d e f", "--key-tokens", "u v w x y z"]
    elif kind == "one token":
        weights = np.ones((1, 1, 1))
    else:
        weights = np.tril(np.full((N, N), 3.0))
    np.save("w.npy", weights)
    assert CAUSAL not in run("heatmap", "w.npy", *names).err


@pytest.mark.parametrize("number", [0.0, np.nan])
def test_padding_of_a_file_changes_no_mean(number: float, run: Run) -> None:
    """20 tokens of padding on the left: entropy 0.206 for 0.618, and `first` 0."""
    n, pads = 24, 20
    scores = np.random.default_rng(1).normal(size=(3, n, n)) * 2
    weights = softmax(np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)).astype(np.float32)
    padded = np.zeros((3, n + pads, n + pads), np.float32)
    padded[:, pads:, pads:] = weights
    padded[:, :pads] = number
    np.save("w.npy", weights)
    np.save("padded.npy", padded)
    plain, found = heads_of(run, "w.npy"), heads_of(run, "padded.npy")
    for head, other in zip(plain, found, strict=True):
        assert head["names"] == other["names"]
        numbers = [name for name, value in head.items() if name != "names" and value]
        assert [float(head[name]) for name in numbers] == pytest.approx(
            [float(other[name]) for name in numbers], rel=1e-3
        )
        assert {name for name, value in other.items() if value} == {name for name, value in head.items() if value}
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1).mean(-1)
    assert [float(row["entropy"]) for row in found] == pytest.approx(entropy.tolist(), abs=1e-3)
    assert [float(row["first"]) for row in found] == pytest.approx(weights[..., 0].mean(-1).tolist(), abs=1e-4)
    assert "Means are over 24 of 44 queries" in run("heads", "padded.npy").err
    assert "Means are over" not in run("heads", "w.npy").err


@pytest.mark.parametrize(
    ("shape", "note"),
    [
        ((2, 3, 4, 4), "(2, 3, 4, 4) is read as (layers, heads, queries, keys)"),
        ((3, 4, 4), "(3, 4, 4) is read as (heads, queries, keys)"),
        ((1, 3, 4, 4), ""),
        ((1, 4, 4), ""),
        ((4, 4), ""),
    ],
)
def test_the_axes_of_an_array_are_named(shape: tuple[int, ...], note: str, run: Run) -> None:
    np.save("w.npy", np.full(shape, 0.25, np.float32))
    found = run("heatmap", "w.npy").err
    assert note in found and ("is read as" in found) == bool(note)
