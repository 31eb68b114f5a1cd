"""Keep what is known of tensors as long as they live, and find them among arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from attnctl.attention import Array

Known = TypeVar("Known")


class ByTensor(Generic[Known]):
    """What is known of tensors, as long as they live; two tensors are never the same, whatever their numbers."""

    def __init__(self) -> None:
        self.known: Any = WeakTensorKeyDictionary()

    def get(self, tensor: Array, default: Known | None = None) -> Known | None:
        """Return what is known of a tensor, or the default."""
        value: Known | None = self.known.get(tensor, default)
        return value

    def forget(self, tensor: Array) -> None:
        """Forget what is known of a tensor."""
        self.known.pop(tensor, None)

    def __contains__(self, tensor: Array) -> bool:
        return tensor in self.known

    def __getitem__(self, tensor: Array) -> Known:
        value: Known = self.known[tensor]
        return value

    def __setitem__(self, tensor: Array, value: Known) -> None:
        self.known[tensor] = value


class Chunk(NamedTuple):
    """A part of a tensor along one axis: the address, the shape and the length of the whole, where the part starts."""

    address: int
    shape: tuple[int, ...]
    whole: int
    start: int
    length: int

    @property
    def source(self) -> tuple[int, tuple[int, ...]]:
        """Return what parts of the same tensor share."""
        return self.address, self.shape


def tensors_in(args: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[Array]:
    """Yield the tensors among arguments, also those in lists."""
    for part in (*args, *keywords.values()):
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (tuple, list)):
            yield from (piece for piece in part if isinstance(piece, torch.Tensor))
