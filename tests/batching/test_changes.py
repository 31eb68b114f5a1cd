"""The changes of weights in a batch: every format holds the same keys, which numpy makes from the unchanged weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import attnctl
from tests.cli.conftest import _here as _here  # each test stands in an empty folder
from tests.conftest import Refused, Run

TEXT = "Alice will eat pizza"


@pytest.mark.parametrize("rescaled", [False, True])
def test_every_format_leaves_the_same_keys_out(rescaled: bool, run: Run, refused: Refused, tmp_path: Path) -> None:
    """JSON held all four keys, and the picture three of them."""
    out = tmp_path / "out"
    Path("in.txt").write_text(f"{TEXT}\n")
    changes = ["--drop", "first", *["--renormalise"] * rescaled]
    whole = attnctl.attend(TEXT, "random").layers[0].weights[:, :, 1:]
    right = whole / whole.sum(-1, keepdims=True) if rescaled else whole
    done = run("batch", "in.txt", "--model", "random", *changes, "-o", out, "--format", "json,npz,svg,parquet")
    assert done.code == 0
    document = json.loads((out / "traces.jsonl").read_text())
    assert [token["text"] for token in document["key_tokens"]] == ["will", "eat", "pizza"]
    np.testing.assert_allclose(document["layers"][0]["heads"][0]["weights"], right[0], atol=1e-6)
    (archive,) = out.glob("*.npz")
    np.testing.assert_allclose(np.load(archive)["layers.0.weights"], right, atol=1e-6)
    (picture,) = out.glob("*.svg")
    drawn = picture.read_text()
    assert "key “Alice” (0) left out" in drawn and ("rows rescaled" in drawn) == rescaled
    line = json.loads(run("batch", "in.txt", "--model", "random", *changes).out)
    assert line["layers"] == document["layers"]
    refusal = refused("batch", "in.txt", *changes, "-o", "other", "--format", "json,statistics", code=2)
    assert "--drop cannot be combined" in refusal or "--renormalise cannot be combined" in refusal
