"""Work on two items at once, each in a thread with half of torch's threads, and give the results in their order.

Two small products at once take less time than one after the other with two threads each, which wait for one another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_working = set[int]()  # the threads that work at once with another one
BEGUN = 3  # items that are begun and not yet yielded: two in work, and one that is finished, or waits for a thread


def works_beside(thread: int) -> bool:
    """Return whether the calling thread and another one, by its identifier, work at once, each on an item of its own."""
    own = threading.get_ident()
    return own != thread and {own, thread} <= _working


def works_with_another() -> bool:
    """Return whether the calling thread is one of two that work at once, each on an item of its own."""
    return threading.get_ident() in _working


def two_at_once(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the result of each item, in order. Raises what `work` or `items` raise, after the results before it.

    With one thread of torch the calling thread works on one item after another. Whoever leaves the loop early, as by Ctrl-C,
    ends the work that is under way at its next module of a network.
    """
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook

    every = torch.get_num_threads()
    if every < 2:
        yield from map(work, items)
        return
    left, threads = threading.Event(), set[threading.Thread]()
    infers, has_gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def begin_thread() -> None:
        threads.add(threading.current_thread())
        _working.add(threading.get_ident())
        torch.set_num_threads(every // 2)  # of the calling thread

    def end_early(*_: object) -> None:
        if left.is_set() and threading.current_thread() in threads:
            raise InterruptedError

    def end_threads() -> None:
        left.set()
        pool.shutdown(cancel_futures=True)
        for thread in tuple(threads):  # one that an interrupt caught while it started is not known to the pool
            thread.join()
            _working.discard(thread.ident or 0)

    def do(item: Item) -> Result:
        end_early()
        with torch.inference_mode(infers), torch.set_grad_enabled(has_gradients):  # each thread has modes of its own
            return work(item)

    def begin_each() -> Iterator[Future[Result]]:
        try:
            for item in items:
                yield pool.submit(copy_context().run, do, item)
        except Exception as error:  # of the items: raised in their place
            failed = Future[Result]()
            failed.set_exception(error)
            yield failed

    with ExitStack() as stack:  # a second Ctrl-C while the threads end leaves nothing behind
        stack.callback(torch.set_num_threads, every)  # MKL has one number for all threads
        stack.callback(register_module_forward_pre_hook(end_early).remove)
        pool = ThreadPoolExecutor(2, "two at once", begin_thread)
        stack.callback(end_threads)
        begun: deque[Future[Result]] = deque()
        for future in begin_each():
            begun.append(future)
            while len(begun) == BEGUN or (begun and begun[0].done()):
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
