"""The last step of a generation with a cache: one query, and keys of all tokens. The query's own key is the last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Run


@pytest.mark.parametrize(("options", "own"), [(["--causal"], True), (["--causal", "--offset", "4"], True), ([], False)])
def test_the_query_of_a_cached_step_knows_its_own_key(options: list[str], own: bool, run: Run, tmp_path: Path) -> None:
    """The last key gets most, the first the second most: with a mask the last is the query itself, without it another text."""
    keys = np.zeros((1, 5, 2), np.float32)
    keys[0, :, 0] = [2, 0, 0, 0, 3]
    np.savez(tmp_path / "qkv.npz", queries=np.ones((1, 1, 2), np.float32), keys=keys, values=keys)
    screen = run("explain", "--qkv", tmp_path / "qkv.npz", *options).out
    assert f"looks at “{0 if own else 4}”" in screen
    every = run("explain", "--qkv", tmp_path / "qkv.npz", *options, "--steps", "summary").out
    assert ("to itself" in every) == own and "the 1 queries" not in screen + every
