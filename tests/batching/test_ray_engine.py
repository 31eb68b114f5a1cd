"""The same work through Ray: the same results in the same order, also where a worker dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attnctl.batching.engines import LOCAL, WINDOW, _import_ray, chunks_of_items, run_on_cluster
from attnctl.batching.items import Item, Pending, Result
from attnctl.batching.texts import TextStream
from attnctl.batching.work import Traces, Work
from attnctl.errors import AttnctlError, options_as_flags
from tests.batching.test_resume import check_whole, contents, sentences

ray = pytest.importorskip("ray", reason="attnctl[ray] is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

Run = Callable[..., Any]


def deadly(dies: Callable[[Item | None], bool]) -> Work:
    """Work whose worker kills itself where `dies` says so: of None as it opens its model, else of an item."""

    class Dying(Traces):
        def begin(self, item: Item) -> Result | Pending:
            if dies(item):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().begin(item)

    class Deadly(Work):
        def task(self, model: object = None) -> Dying:
            if dies(None):
                os.kill(os.getpid(), signal.SIGKILL)
            return Dying(self)

    return Deadly({"name": "demo"})


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    """A cluster of this machine, with room for two."""
    _import_ray().init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def test_the_folder_is_the_same_as_from_one_machine(two_workers: None, run: Run, tmp_path: Path) -> None:
    file = sentences(tmp_path / "in.txt", 400)
    args = (file, "--format", "json,npz")
    assert run("batch", *args, "-o", tmp_path / "here", "--jobs", "1").code == 3
    result = run("batch", *args, "-o", tmp_path / "there", "--ray", "local", "--jobs", "2")
    assert result.code == 3 and "399 done, 1 failed" in result.err
    assert check_whole(tmp_path / "there") == 400
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    again = run("batch", *args, "-o", tmp_path / "there", "--ray", "local")
    assert "0 done, 400 finished before" in again.err


def test_a_worker_that_is_killed_is_replaced(two_workers: None, tmp_path: Path) -> None:
    file, mark = sentences(tmp_path / "in.txt", 400), tmp_path / "died"

    def dies(item: Item | None) -> bool:
        if item is None or item.number != 192 or mark.exists():
            return False
        mark.touch()
        return True

    chunks = list(chunks_of_items(TextStream(str(file)), 32))
    found, expected = (
        [result for some in results for result in some]
        for results in (
            run_on_cluster(deadly(dies), iter(chunks), workers=2),
            LOCAL.results(Work({"name": "demo"}), iter(chunks), None, None),
        )
    )
    assert mark.exists()
    assert [(one.item, one.outputs, one.error) for one in found] == [
        (one.item, one.outputs, one.error) for one in expected
    ]


@pytest.mark.parametrize(("flags", "name"), [({}, "--max-tokens 2"), (None, "max_tokens=2")])
def test_a_worker_names_options_as_this_process(two_workers: None, flags: dict[str, str] | None, name: str) -> None:
    with options_as_flags(flags):
        [[result]] = run_on_cluster(Work({"name": "demo"}, max_tokens=2), iter([[Item(0, "", "a b c")]]), workers=1)
    assert result.error == f"3 tokens: more than {name}"


def test_what_the_cluster_does_not_have(two_workers: None, run: Run, tmp_path: Path) -> None:
    with pytest.raises(AttnctlError, match="has 0 GPUs, and a worker asks for 2"):
        list(run_on_cluster(Work({}), iter([[Item(0, "", "a b")]]), gpus=2))


def test_no_more_than_a_window_of_chunks_is_read_ahead(two_workers: None) -> None:
    read = 0

    def many() -> Iterator[list[Item]]:
        nonlocal read
        for number in range(100):
            read += 1
            yield [Item(number, f"line {number}", "a b")]

    found = run_on_cluster(Work({"name": "random"}), many(), workers=2)
    for number in range(20):
        (result,) = next(found)
        assert result.item.number == number and read <= number + 1 + 2 * WINDOW
    found.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("at_start", [True, False])
def test_a_worker_that_dies_is_not_started_for_ever(two_workers: None, at_start: bool) -> None:
    """As it opens its model, or of a chunk that kills every one."""
    with pytest.raises(AttnctlError, match="the Ray cluster gave up"):
        list(run_on_cluster(deadly(lambda item: (item is None) == at_start), iter([[Item(0, "", "a b")]]), workers=1))
