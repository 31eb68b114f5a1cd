"""Describe the parameters of a network by what a GGUF file stores: other rows, joined, transposed, or moved by a number.

A weight gives the rows that are asked for, and dequantises no others where that is possible.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnctl.runtime.arrays import Floats

Rows = slice | npt.NDArray[np.int64]  # numbers of rows, or a part of them


class Source(Protocol):
    """A tensor of a file that a weight is made of: its name, and the type that it is stored in."""

    @property
    def name(self) -> str:
        """Return the tensor's name."""
        ...

    @property
    def kind(self) -> str:
        """Return the name of the type in ggml.h."""
        ...


class Weight(ABC):
    """A parameter of a network: a tensor of a file, or something made of tensors. Its rows go along its first axis."""

    shape: tuple[int, ...]

    @abstractmethod
    def rows(self, which: Rows) -> Floats:
        """Return rows in float32: (rows, …)."""

    def fill(self, out: Floats, which: Rows) -> None:
        """Write rows to `out`, whose numbers follow each other in memory: (rows, …)."""
        out[...] = self.rows(which)

    @property
    @abstractmethod
    def sources(self) -> tuple[Source, ...]:
        """Return the tensors of the file that this weight is made of."""

    def array(self) -> Floats:
        """Return the whole weight in float32."""
        return self.rows(slice(None))

    @property
    def gives_rows(self) -> bool:
        """Return whether a few rows cost no more than themselves; otherwise the whole weight is dequantised for them."""
        return True

    @property
    def size(self) -> int:
        """Return how many numbers the weight has."""
        return math.prod(self.shape)

    def _numbers(self, which: Rows) -> npt.NDArray[np.int64]:
        """Return the numbers of chosen rows."""
        return np.arange(self.shape[0], dtype=np.int64)[which]


@dataclass(frozen=True, eq=False)
class _Changed(Weight):
    """A weight that is made of another one."""

    source: Weight

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the tensors of the file that this weight is made of."""
        return self.source.sources

    @property
    def gives_rows(self) -> bool:
        """Return whether a few rows cost no more than themselves."""
        return self.source.gives_rows


@dataclass(frozen=True, eq=False)
class Reordered(_Changed):
    """A weight whose row i is row `order[i]` of its source; `order` may also leave rows out."""

    order: npt.NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape."""
        return (len(self.order), *self.source.shape[1:])

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32."""
        return self.source.rows(as_slice(self.order[which]))

    def fill(self, out: Floats, which: Rows) -> None:
        """Write rows to `out`."""
        self.source.fill(out, as_slice(self.order[which]))


def rotated_halves(source: Weight, heads: int) -> Reordered:
    """Return the rows of Q or K of llama and its heirs in transformers' order.

    llama.cpp's converter stores those of each head in turn from the first and the second half; transformers has the halves
    one after another.
    """
    within = np.arange(source.shape[0] // heads, dtype=np.int64).reshape(-1, 2).T.reshape(-1)  # (d_k,)
    begins = np.arange(heads, dtype=np.int64)[:, None] * len(within)
    return Reordered(source, (begins + within).reshape(-1))


def part_of(source: Weight, begin: int, end: int) -> Reordered:
    """Return the rows from `begin` to `end`, without `end`."""
    return Reordered(source, np.arange(begin, end, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Shifted(_Changed):
    """A weight plus a number: a norm that is stored plus one is shifted by -1."""

    by: float

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape."""
        return self.source.shape

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32."""
        return self.source.rows(which) + np.float32(self.by)


@dataclass(frozen=True, eq=False)
class Turned(_Changed):
    """A weight whose last two axes are exchanged: the matrices of GPT-2 (Conv1D) and of some experts."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape."""
        *outer, rows, columns = self.source.shape
        return (*outer, columns, rows)

    @property
    def gives_rows(self) -> bool:
        """Return whether a few rows cost no more than themselves: not if they are columns of a matrix."""
        return len(self.source.shape) > 2 and self.source.gives_rows

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32; those of a matrix are columns of its source, which is dequantised as a whole."""
        if len(self.source.shape) == 2:
            return self.source.array().T[which]
        return self.source.rows(which).swapaxes(-1, -2)


@dataclass(frozen=True, eq=False)
class Reshaped(_Changed):
    """A weight in another shape, with the same numbers in the same order."""

    shape: tuple[int, ...]

    @property
    def gives_rows(self) -> bool:
        """Return whether a few rows cost no more than themselves: not if the first axis is another."""
        return self.source.shape[:1] == self.shape[:1] and self.source.gives_rows

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32; the source is dequantised as a whole if its first axis is another."""
        if self.source.shape[:1] == self.shape[:1]:
            return self.source.rows(which).reshape(-1, *self.shape[1:])
        return self.source.array().reshape(self.shape)[which]


@dataclass(frozen=True, eq=False)
class _Several(Weight):
    """A weight that is made of several ones."""

    parts: tuple[Weight, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the tensors of the file that this weight is made of."""
        return tuple(source for part in self.parts for source in part.sources)

    @property
    def gives_rows(self) -> bool:
        """Return whether a few rows cost no more than themselves."""
        return all(part.gives_rows for part in self.parts)


@dataclass(frozen=True, eq=False)
class Joined(_Several):
    """Weights one after another along an axis: Q, K and V of one matrix, or (axis 1) gate and up of a stack of experts."""

    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape."""
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(shape)

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32."""
        if self.axis:
            return np.concatenate([part.rows(which) for part in self.parts], axis=self.axis)
        out = np.empty((len(self._numbers(which)), *self.shape[1:]), np.float32)
        self.fill(out, which)
        return out

    def fill(self, out: Floats, which: Rows) -> None:
        """Write rows to `out`."""
        if self.axis:
            super().fill(out, which)
            return
        numbers, begin = self._numbers(which), 0
        for part in self.parts:
            inside = (numbers >= begin) & (numbers < begin + part.shape[0])
            if inside.any():
                out[inside] = part.rows(as_slice(numbers[inside] - begin))
            begin += part.shape[0]


@dataclass(frozen=True, eq=False)
class Stacked(_Several):
    """Weights as the rows of a new first axis: experts that a file stores one by one."""

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape."""
        return (len(self.parts), *self.parts[0].shape)

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32."""
        return np.stack([self.parts[number].array() for number in self._numbers(which)])


@dataclass(frozen=True, eq=False)
class Interleaved(_Several):
    """Weights whose rows alternate along an axis: gate and up of gpt-oss."""

    axis: int = 0

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape."""
        shape = list(self.parts[0].shape)
        shape[self.axis] *= len(self.parts)
        return tuple(shape)

    @property
    def gives_rows(self) -> bool:
        """Return whether a few rows cost no more than themselves: not if they alternate."""
        return self.axis > 0 and super().gives_rows

    def rows(self, which: Rows) -> Floats:
        """Return rows in float32."""
        if not self.axis:
            return np.stack([part.array() for part in self.parts], 1).reshape(self.shape)[which]
        rows = np.stack([part.rows(which) for part in self.parts], self.axis + 1)
        return rows.reshape(-1, *self.shape[1:])


def as_slice(numbers: npt.NDArray[np.int64]) -> Rows:
    """Return numbers of rows as a slice if they follow each other: such rows are not copied."""
    if len(numbers) and numbers[-1] - numbers[0] == len(numbers) - 1 and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers
