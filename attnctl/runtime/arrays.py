"""Move arrays between libraries and devices: NumPy on the CPU for short texts, torch on a GPU or for long texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from attnctl.attention import Array
from attnctl.errors import AttnctlError, UsageError

Block = TypeVar("Block")
Result = TypeVar("Result")
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]  # of tokens or words
Bytes = npt.NDArray[np.uint8]  # of pictures: red, green, blue and alpha, 0 to 255

LONG = 2048  # tokens from which torch's threads repay its import
MEMORY = 256 << 20  # bytes for blocks of whole rows


def device_for_length(device: str, n: int) -> str | None:
    """Return the torch device for a text of n tokens; None for NumPy.

    `device` is auto, cpu, cuda, cuda:1 or mps. Raises AttnctlError if torch sees no such device.
    """
    if device == "cpu" or (device == "auto" and n < LONG):
        return None
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return torch_device(device)


def torch_device(device: str) -> str:
    """Return the name `device` if torch sees that device.

    Raises UsageError if it is not the name of a device, AttnctlError if torch does not see the device.
    """
    import torch

    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (index and not index.isdigit()):
        raise UsageError("it is auto, cpu, cuda, cuda:1 or mps", option="device", value=device)
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count <= int(index or 0):
            sees = f"{count} CUDA device{'s' * (count != 1)}" if count else "no CUDA device"
            raise AttnctlError(f"torch sees {sees} here (cpu always works)", option="device", value=device)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise AttnctlError("torch sees no Metal device here (cpu always works)", option="device", value=device)
    return device


@cache
def keep_freed_memory() -> None:
    """Let glibc keep the blocks of memory that are freed for the next ones: new pages take longer than a picture's lines.

    glibc returns blocks above a threshold to the system. To free a larger block raises the threshold to its size, at
    most 32 MiB, and twice as much may stay (mallopt(3), M_MMAP_THRESHOLD). Other C libraries have rules of their own.
    """
    np.empty(31 << 20, np.uint8)  # which nobody writes to, so that it takes no memory


@contextmanager
def one_thread(needed: bool = True) -> Iterator[None]:
    """Run each operation of torch in one thread within the context, if `needed`; afterwards restore the number of threads.

    Threads in a small operation wait for each other longer than they compute, and many times longer on a busy machine.
    """
    import torch

    before = torch.get_num_threads()
    if needed:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def blocks_at_once(work: Callable[[Block], Result], blocks: Iterable[Block], array: Array) -> Iterator[Result]:
    """Yield what `work` returns for each block, in order; two at once if `array` is torch's on the CPU."""
    on_cpu = not isinstance(array, np.ndarray) and str(getattr(array, "device", "")) == "cpu"
    return work_at_once(work, blocks, on_cpu)


def work_at_once(work: Callable[[Block], Result], items: Iterable[Block], at_once: bool) -> Iterator[Result]:
    """Yield what `work` returns for each item, in order: two items at once, or one after another."""
    if not at_once:
        return map(work, items)
    from attnctl.runtime.two_at_once import two_at_once

    return two_at_once(work, items)


def place_array(array: Array, target: Array | str | None) -> Array:
    """Return a NumPy array on a `target`: None for NumPy, the name of a torch device, or an array for its device."""
    if target is None or isinstance(target, np.ndarray):
        return array
    import torch

    return torch.as_tensor(np.ascontiguousarray(array), device=target if isinstance(target, str) else target.device)


def as_numpy(array: Array) -> Array:
    """Return an array of any library as NumPy on the CPU; low precision becomes float32."""
    if isinstance(array, np.ndarray):
        return array
    tensor = array.detach().cpu()
    return (tensor.float() if tensor.dtype.itemsize < 4 and tensor.dtype.is_floating_point else tensor).numpy()


def expected_table(table: object) -> Bools | None:
    """Return a user's table of 0 and 1, who may see whom, as booleans; None for anything else."""
    try:
        numbers = np.asarray(table, np.float32)
    except (TypeError, ValueError):
        return None
    is_table = numbers.ndim == 2 and numbers.size > 0 and bool(np.isin(numbers, (0, 1)).all())
    return numbers > 0 if is_table else None
