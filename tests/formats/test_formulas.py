"""Tables of text: what stands in a corpus, a prompt or a file's labels is no formula to a spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Run

FORMULAS = ("=cmd|' /C calc'!A0", "+1+1", "-x()", "@SUM(1)")


def check_cells(text: str, delimiter: str) -> None:
    cells = [cell for row in csv.reader(text.splitlines(), delimiter=delimiter) for cell in row]
    assert len(cells) > 4
    for cell in cells:
        if cell[:1] in ("=", "+", "-", "@") and len(cell) > 1:
            float(cell)  # a number may be negative


def test_tokens_of_a_matrix(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("f.npz", weights=np.eye(4), tokens=np.array(FORMULAS))
    for line in ("heatmap f.npz", "heads f.npz --csv", "compare f.npz f.npz", "explain f.npz --top 2"):
        result = run(*line.split())
        assert result.code == 0
        check_cells(result.out, "," if "--csv" in line else "\t")
