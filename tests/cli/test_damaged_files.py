"""Files that attnctl reads back itself, damaged: one line, no traceback, and nothing that was sound is lost.

A part of what `python -m tests.tools.read_back` does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Refused, Run
from tests.tools import read_back
from tests.tools.fuzz import Worker

EACH = 9  # damages of a file that are tried here


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return read_back.made_files()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.end()


@pytest.mark.parametrize(
    ("name", "at"), [(name, at) for name, readers in read_back.READERS.items() for at in range(len(readers))]
)
def test_the_file_as_it_was_made_is_read(
    name: str, at: int, files: dict[str, bytes], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command refuses anyway shows nothing when its file is damaged."""
    if name not in files:
        pytest.skip("pyarrow is not installed")
    for other, data in files.items():
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path if name == "attnctl/config.toml" else tmp_path / "none"))
    done = run(*read_back.READERS[name][at])
    assert done.code == 0, done.err


@pytest.mark.parametrize("name", read_back.READERS)
def test_a_damaged_file_is_read_or_refused_in_a_line(name: str, files: dict[str, bytes], worker: Worker) -> None:
    if name not in files:
        pytest.skip("pyarrow is not installed")
    rng = random.Random(name)
    cases = list(read_back.cases_of(name, files, rng, flips=6, most=8))  # fields are most of them, as there
    for case in rng.sample(cases, min(EACH, len(cases))):
        assert worker.play(case) is None, (case["damage"], case["arguments"])


def test_every_file_that_is_read_back_is_made(files: dict[str, bytes]) -> None:
    assert set(read_back.READERS) <= {*files, "in.parquet"}


def test_a_pool_of_another_name_and_a_link_beyond_any_weight(tmp_path: Path, refused: Refused, run: Run) -> None:
    """The page had a KeyError of ours, and NumPy warned of the overflow."""
    (tmp_path / "long.txt").write_text("one two three " * 200)
    small = ["--file", tmp_path / "long.txt", "--model", "random", "--layers", "1", "--heads", "1", "--d-model", "8"]
    grid, links = tmp_path / "grid.json", tmp_path / "links.json"
    assert run("heatmap", *small, "-o", grid).code == 0 == run("explain", *small, "--top", "1", "-o", links).code
    grid.write_text(json.dumps(json.loads(grid.read_text()) | {"pool": True}))
    assert "pool is 'True', not a text" in refused("view", grid, "--no-open", "-o", tmp_path / "p.html")
    document = json.loads(links.read_text())
    document["heads"][0]["links"][0][0][1] = 1e308
    links.write_text(json.dumps(document))
    assert "not finite" in refused("explain", links, "--query", "3")
