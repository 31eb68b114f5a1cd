"""The changes of weights in a batch: every format holds the same keys, which numpy makes from the unchanged weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.models.builtin import stack
from attnctl.text.tokens import Token
from attnctl.trace import run as runs
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


def test_texts_of_one_length_share_passes_where_a_command_changes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty --drop counted as a change: each text was read in a chunk of 16, and prepared twice."""
    sizes: list[int] = []
    alone = stack.run_together

    def counted(model: stack.Stack, texts: Sequence[Sequence[Token]], *more: Any) -> list[runs.Run]:
        sizes.append(len(texts))
        return alone(model, texts, *more)

    monkeypatch.setattr(stack, "run_together", counted)
    Path("in.txt").write_text(f"{TEXT}\nAlice sleeps\n" * 200)
    assert run("batch", "in.txt", "--jobs", "1", "--steps", "weights", "-o", tmp_path / "out").code == 0
    assert sorted(sizes) == [72, 72, 128, 128]  # chunks of 256 lines, two lengths in each
