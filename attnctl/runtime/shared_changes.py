"""Change something of the whole process while anybody needs it, in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager

LOCK = threading.RLock()  # while it is held, no change begins and none is undone
_held: dict[Hashable, tuple[int, ExitStack]] = {}  # name → number of holders, and how to undo the change


@contextmanager
def shared_change(name: Hashable, hold: Callable[[ExitStack], object]) -> Iterator[None]:
    """Hold a shared change within this context: `hold` begins it for the first caller; the last caller undoes it.

    Raises what `hold` raises; what it has changed until then is undone.
    """
    with LOCK:
        count, stack = _held.get(name, (0, ExitStack()))
        if not count:
            with stack:  # undone at once if `hold` fails half-way
                hold(stack)
                stack = stack.pop_all()
        _held[name] = (count + 1, stack)
    try:
        yield
    finally:
        with LOCK:
            count, stack = _held.pop(name)
            if count > 1:
                _held[name] = (count - 1, stack)
            else:
                stack.close()


def is_held(name: Hashable) -> bool:
    """Return whether somebody holds the change of this name."""
    return name in _held
