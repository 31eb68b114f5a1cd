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

EACH = 6  # damages of a file that are tried here


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return read_back.made_files()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.end()


@pytest.mark.grid
@pytest.mark.parametrize("name", read_back.READERS)
def test_the_file_as_it_was_made_is_read(
    name: str, files: dict[str, bytes], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a command refuses anyway shows nothing when its file is damaged."""
    if name not in files:
        pytest.skip("pyarrow is not installed")
    for other, data in files.items():
        if other == name or {other, other.partition("/")[0]} & {
            part for one in read_back.READERS[name] for part in one
        }:
            Path(other).parent.mkdir(parents=True, exist_ok=True)
            Path(other).write_bytes(data)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(Path.cwd() / ("" if name == "attnctl/config.toml" else "none")))
    for arguments in read_back.READERS[name]:
        done = run(*arguments)
        assert done.code == 0, (arguments, done.err)


@pytest.mark.grid
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


def test_a_pool_of_another_name_and_a_link_beyond_any_weight(
    files: dict[str, bytes], refused: Refused, run: Run
) -> None:
    """The page had a KeyError of ours, and NumPy warned of the overflow."""
    grid, links = (json.loads(files[name]) for name in ("grid.json", "links.json"))
    links["heads"][0]["links"][0][0][1] = 1e308
    Path("grid.json").write_text(json.dumps(grid | {"pool": True}))
    Path("links.json").write_text(json.dumps(links))
    assert "pool is 'True', not a text" in refused("view", "grid.json", "--no-open", "-o", "p.html")
    assert "not finite" in refused("explain", "links.json", "--query", "3")
