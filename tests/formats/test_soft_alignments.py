"""Marian's soft alignments: lines that marian-decoder 1.12 wrote with --alignment soft, of a tiny random model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnctl.errors import AttnctlError
from attnctl.formats.soft_alignments import begins_as_soft_alignment, read_soft_alignment
from tests.conftest import Run

ROWS = "1.00167e-05,8.54875e-05,0.00122659,0.00119096,0.000667985,0.996819 0.000269935,0.00196703,0.00101304,0.991647,4.06077e-08,0.00510265"
CUT_OFF, ENDED = f", . ||| {ROWS}", f"klein ||| {ROWS}"
N_BEST = f"0 ||| , klein ||| {ROWS} ||| F0= -9.1 ||| -1.5"


@pytest.mark.parametrize(
    ("line", "names"), [(CUT_OFF, (",", ".")), (ENDED, ("klein", "</s>")), (N_BEST, (",", "klein")), (ROWS, ())]
)
def test_weights_and_words_of_the_target(line: str, names: tuple[str, ...], tmp_path: Path, run: Run) -> None:
    assert begins_as_soft_alignment(line.encode())
    weights, rows = read_soft_alignment(line + "\n", "soft.txt")
    assert rows == names and weights.shape == (2, 6)
    assert np.array_equal(
        weights[1], np.float32([0.000269935, 0.00196703, 0.00101304, 0.991647, 4.06077e-08, 0.00510265])
    )
    (tmp_path / "soft.txt").write_text(line + "\n")
    key_names = "the house is small . </s>"
    drawn = run("heatmap", str(tmp_path / "soft.txt"), "--key-tokens", key_names, "-o", str(tmp_path / "a.csv"))
    assert drawn.code == 0, drawn.err
    cells = (tmp_path / "a.csv").read_text().splitlines()
    assert len(cells) == 13 and "0.996819" in cells[6] and "</s>" in cells[6]


def test_a_table_and_a_text_are_no_soft_alignment() -> None:
    for line in ("0.5,0.5\n0.25,0.75", "1,234 people", "a ||| b", "0.5,0.6 0.5,0.5", "0.5, 0.5", ""):
        assert not begins_as_soft_alignment(line.encode())


def test_several_alignments_and_ragged_ones_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AttnctlError, match=r"holds 2 alignments, one a line; choose one: sed -n 1p soft.txt \|"):
        read_soft_alignment(f"{CUT_OFF}\n{ENDED}\n", "soft.txt")
    with pytest.raises(AttnctlError, match="its groups have 2 weights and other numbers"):
        read_soft_alignment("0.5,0.5 1,0,0\n", "soft.txt")
