"""Keep what is known of tensors as long as they live, and find them among arguments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef
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


def storage_of(tensor: Array) -> StorageWeakRef:
    """Return a mark of a tensor's memory, equal for its views. An address is none: the next tensor may get it."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class Chunk(NamedTuple):
    """A part of a tensor along one axis: the memory, the shape and the length of the whole, where the part starts."""

    storage: StorageWeakRef
    shape: tuple[int, ...]
    whole: int
    start: int
    length: int

    @property
    def source(self) -> tuple[StorageWeakRef, tuple[int, ...]]:
        """Return what parts of the same tensor share."""
        return self.storage, self.shape


@dataclass(frozen=True)
class ExtraKeys:
    """Keys that a model adds before and after those of its tokens, by name; whether these are the queries' own tokens."""

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    beside_queries: bool = False

    @property
    def count(self) -> int:
        """Return how many keys are added."""
        return len(self.before) + len(self.after)

    def names(self, tokens: Sequence[str]) -> list[str]:
        """Return the names of all keys, those of tokens in their midst."""
        return [*_numbered(self.before), *tokens, *_numbered(self.after)]


REORDERED = "were taken by an index (sorted, clustered, or a choice of tokens)"
MIXED = "are mixtures of all tokens, by a matrix"


class Unnamed(NamedTuple):
    """Why queries or keys are not the tokens of the text in order; "" if they are."""

    queries: str = ""
    keys: str = ""

    def sentence(self, names: Sequence[str]) -> str:
        """Return a sentence about the attention of modules."""
        first = [name or "the root" for name in names][:3]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        where = f"in {', '.join(first)}{more}"
        if self.queries == self.keys:
            return f"Queries and keys {where} {self.keys}: they have numbers, not the names of tokens."
        side, why = ("queries", self.queries) if self.queries else ("keys", self.keys)
        return f"The {side} {where} {why}: they have numbers, not the names of tokens."


def unnamed_sentences(places: Iterable[tuple[str, Unnamed | None]]) -> list[str]:
    """Return a sentence for each reason why queries or keys have no names, with the modules."""
    modules: dict[Unnamed, dict[str, None]] = {}
    for name, unnamed in places:
        if unnamed is not None:
            modules.setdefault(unnamed, {})[name] = None
    return [unnamed.sentence(list(names)) for unnamed, names in modules.items()]


def _numbered(names: Sequence[str]) -> list[str]:
    """Return names in brackets, those that come several times with their numbers."""
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [
        f"[{name} {count}]" if names.count(name) > 1 else f"[{name}]" for name, count in zip(names, counts, strict=True)
    ]


def tensors_in(args: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[Array]:
    """Yield the tensors among arguments, also those in lists."""
    for part in (*args, *keywords.values()):
        if isinstance(part, torch.Tensor):
            yield part
        elif isinstance(part, (tuple, list)):
            yield from (piece for piece in part if isinstance(piece, torch.Tensor))
