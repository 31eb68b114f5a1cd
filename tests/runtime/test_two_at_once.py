"""Two items at once in two threads: results in order, errors in their place, an early end, torch's threads shared."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from attnctl.errors import current_flags, options_as_flags
from attnctl.runtime.two_at_once import BEGUN, two_at_once, works_with_another

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4
    limit = time.monotonic() + 2  # a thread that an interrupt caught before its first step ends by itself
    while threads := [thread for thread in threading.enumerate() if "two at once" in thread.name]:
        assert time.monotonic() < limit, threads
    torch.set_num_threads(before)


def test_results_in_order_with_half_of_the_threads_each_and_few_begun() -> None:
    together, taken, given = threading.Barrier(2, timeout=10), 0, 0

    def work(number: int) -> tuple[int, int, bool, bool]:
        if number < 4:
            together.wait()  # one thread alone would wait for ever
        time.sleep(0.001 * (number % 3))
        is_main = threading.current_thread() is threading.main_thread()
        return number, torch.get_num_threads(), is_main, works_with_another()

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(20):
            taken += 1
            assert taken - given <= BEGUN
            yield number

    for result in two_at_once(work, items()):
        assert result == (given, 2, False, True)
        given += 1
    assert given == 20
    assert not works_with_another()


def test_one_thread_works_on_one_item_after_another() -> None:
    torch.set_num_threads(1)
    here = two_at_once(lambda number: (number, threading.current_thread() is threading.main_thread()), range(3))
    assert list(here) == [(0, True), (1, True), (2, True)]
    torch.set_num_threads(4)


@pytest.mark.parametrize("of_items", [False, True])
def test_an_error_comes_after_the_results_before_it(of_items: bool) -> None:
    done = list[int]()
    wrong = ValueError("the third")

    def work(number: int) -> int:
        if number == 3 and not of_items:
            raise wrong
        done.append(number)
        return number

    def items() -> Iterator[int]:
        yield from range(3)
        if of_items:
            raise wrong
        yield from range(3, 100)

    results = list[int]()
    with pytest.raises(ValueError, match="the third") as caught:
        results += two_at_once(work, items())
    assert caught.value is wrong
    results.clear()
    done.clear()
    with pytest.raises(ValueError, match="the third"):
        for result in two_at_once(work, items()):
            results.append(result)  # noqa: PERF402, the results before the error
    assert results == [0, 1, 2] and max(done) <= 3 + BEGUN


def test_an_interrupt_ends_the_work_at_the_next_module() -> None:
    module, ended = torch.nn.Linear(2, 2), list[int]()

    def work(number: int) -> int:
        if number == 1:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        limit = time.monotonic() + 20
        try:
            while number and time.monotonic() < limit:
                module(torch.ones(2))
        except InterruptedError:
            ended.append(number)
            raise
        return number

    with pytest.raises(KeyboardInterrupt):
        list(two_at_once(work, range(10)))
    assert sorted(ended) in ([1], [1, 2])
    module(torch.ones(2))  # the calling thread goes on


def test_messages_name_options_as_in_the_calling_thread() -> None:
    with options_as_flags({"head": "--head"}):
        assert list(two_at_once(lambda _: current_flags(), range(2))) == [{"head": "--head"}] * 2


def test_a_second_interrupt_leaves_no_hook_and_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it comes while the loop waits for the threads to end."""
    hooks = torch.nn.modules.module._global_forward_pre_hooks

    def interrupted(pool: ThreadPoolExecutor, **_: object) -> None:
        monkeypatch.undo()
        pool.shutdown()
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", interrupted)
    results = two_at_once(str, range(10))
    assert next(results) == "0" and len(hooks) == 1
    with pytest.raises(KeyboardInterrupt):
        results.close()
    assert not hooks and torch.get_num_threads() == 4
