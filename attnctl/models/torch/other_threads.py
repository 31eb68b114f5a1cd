"""Notice attention in threads that a running model starts: a `TorchFunctionMode` sees the functions of its own thread alone.

A profile function of threading is called in each new thread, with each function of C. It looks at names only. Threads that
are older than the context, as those of a pool that was used before, have none.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from attnctl.models.torch.unseen_operators import ATTENDS

TORCH = str(Path(torch.__file__).parent)


@contextmanager
def watch_new_threads(note: Callable[[str, str], None]) -> Iterator[None]:
    """Call `note` with a function's name and its place in the code, if a thread that begins now attends by it.

    A profiler of the user's own stays in its place, and nothing is noticed then.
    """
    if threading.getprofile() is not None:
        yield
        return
    is_open = True

    def see(frame: FrameType, event: str, function: Any) -> None:
        if not is_open:
            sys.setprofile(None)
        elif event == "c_call" and ATTENDS.search(name := str(getattr(function, "__name__", ""))):
            note(name.lstrip("_"), _place(frame))

    threading.setprofile(see)
    try:
        yield
    finally:
        is_open = False
        if threading.getprofile() is see:
            threading.setprofile(None)


def _place(frame: FrameType) -> str:
    """Return the function outside torch that called, with its file and line."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(TORCH):
        caller = caller.f_back
    code = (caller or frame).f_code
    return f"{code.co_qualname} ({Path(code.co_filename).name}:{(caller or frame).f_lineno})"
