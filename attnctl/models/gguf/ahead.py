"""Dequantise the rows that multiply next while other rows multiply, where a forward has one of several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import torch

from attnctl.attention import Array
from attnctl.models.gguf.tensors import may_share_rows


@dataclass
class _Begun:
    """Rows that are being dequantised: of which matrix, from which row on, and where to."""

    matrix: object
    begin: int
    rows: Array
    done: Future[None]


class _OfThread(threading.local):
    begun: _Begun | None = None


_thread = _OfThread()  # each forward has its own


def begin_rows(matrix: object, begin: int, rows: Array, fill: Callable[[Array], None]) -> None:
    """Begin to fill `rows` with those of a matrix from `begin` on."""

    def fill_rows() -> None:
        with torch.inference_mode(rows.is_inference()):  # each thread has a mode of its own
            fill(rows)

    _thread.begun = _Begun(matrix, begin, rows, _worker().submit(fill_rows))


def take_rows(matrix: object, begin: int) -> Array | None:
    """Wait for the rows and return them; None if other rows were begun, or none. Raises what `fill` raised."""
    begun, _thread.begun = _thread.begun, None
    if begun is None or begun.matrix is not matrix or begun.begin != begin:
        return None
    begun.done.result()
    return begun.rows


def is_worthwhile() -> bool:
    """Return whether a processor may be idle while this thread multiplies."""
    return torch.get_num_threads() == 1 and may_share_rows()


@cache
def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "dequantise ahead")
