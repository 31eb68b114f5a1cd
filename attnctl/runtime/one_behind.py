"""Work on one item in a second thread, while the calling thread makes the next item."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Generic, TypeVar

import numpy as np

Item = TypeVar("Item")


class OneBehind(Generic[Item]):
    """A context with a second thread, which does `work` on one item while the calling thread makes the next item.

    The thread begins with the first item; from then on each thread has half of torch's threads. At most one item more is in
    memory than without it. Leaving the context by an exception, as by Ctrl-C, ends the work at its next `check`.
    """

    def __init__(self, work: Callable[[Item], None]) -> None:
        self._work, self._stop = work, Event()
        self._running: Future[None] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 1  # of torch, before the second thread began

    @property
    def helps(self) -> bool:
        """Return whether torch has a thread for the work."""
        import torch

        return self._pool is not None or torch.get_num_threads() > 1

    def take(self, item: Item) -> None:
        """Wait for the item before, and begin to work on this one. Raises what the work on the item before has raised."""
        self.wait()
        if self._pool is None:
            self._pool = self._begin()
        self._running = self._pool.submit(self._do, item)

    def wait(self) -> None:
        """Wait until the last item is finished. Raises what the work on it has raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def check(self) -> None:
        """End the work, from within it, if the calling thread has left the context."""
        if self._stop.is_set():
            raise InterruptedError

    def _begin(self) -> ThreadPoolExecutor:
        """Share torch's threads, whose number each thread sets for itself; a new thread begins with the last one set."""
        import torch

        self._threads = torch.get_num_threads()  # the first question in a thread also sets its number
        torch.set_num_threads(max(1, self._threads - self._threads // 2))
        return ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(max(1, self._threads // 2),))

    def _do(self, item: Item) -> None:
        import torch

        with torch.inference_mode(), np.errstate(all="ignore"):  # each thread has modes of its own
            self._work(item)

    def __enter__(self) -> OneBehind[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            import torch

            self._stop.set()
            try:
                self._pool.shutdown()
            finally:
                torch.set_num_threads(self._threads)
