"""Tell which argument of a module's forward holds the tokens, and which ones mark padding and documents.

The names are those that people use; `segments`, which the caller gives, says it in any case.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from attnctl.attention import Array
from attnctl.models.huggingface.token_batch import segment_begins

# arguments beside the tokens: masks, places, documents, what a loss or a cache needs
BESIDE = re.compile(
    r"mask|pad|^pos|position|type|label|target|doc|segment|seq_?(id|len)|length|cu_|cache|timestep|dropout|bias"
)
PADDING = re.compile("mask|pad")
HIDES = re.compile("pad")  # in booleans true is padding, as in torch; in other masks true is a token
DOCUMENTS = re.compile(r"^doc|^seq(uence)?_?id")  # segment_ids are often the two sentences of BERT
PLACES = re.compile(r"^pos|position")


class TextEntry(NamedTuple):
    """The argument that holds the tokens: `is_turned` (n, batch, …), `is_alone` (n, …), otherwise (batch, n, …)."""

    name: str
    is_turned: bool = False
    is_alone: bool = False

    def rows(self, value: Array) -> Array:
        """Return its tensor as (batch, n, …)."""
        value = value.unsqueeze(0) if self.is_alone else value
        return value.transpose(0, 1) if self.is_turned else value

    def restored(self, rows: Array) -> Array:
        """Return (batch, n, …) as the module takes it."""
        rows = rows.transpose(0, 1) if self.is_turned else rows
        return rows[0] if self.is_alone else rows


def text_entry(entries: Mapping[str, Any], sizes: Container[tuple[int, int]]) -> TextEntry | None:
    """Return the argument that holds the tokens, ids before vectors; None if there is none.

    `sizes` are (batch, n) of the module's attentions: an argument that has such a size comes first.
    """
    candidates = list(_candidates(entries))
    for entry in candidates:
        rows = entry.rows(entries[entry.name])
        if tuple(rows.shape[:2]) in sizes:
            return entry
    return next((entry for entry in candidates if not entry.is_turned), None)


def _candidates(entries: Mapping[str, Any]) -> Iterator[TextEntry]:
    tensors = {
        name: value
        for name, value in entries.items()
        if isinstance(value, torch.Tensor) and value.dtype != torch.bool and not BESIDE.search(name)
    }
    for is_ids in (True, False):
        for name, value in tensors.items():
            whole = 2 if is_ids else 3  # axes of a batch
            if value.is_floating_point() == is_ids or value.is_complex():
                continue
            if value.ndim == whole:
                yield from (TextEntry(name), TextEntry(name, is_turned=True))
            elif value.ndim == whole - 1:
                yield TextEntry(name, is_alone=True)


def real_tokens(entries: Mapping[str, Any], shape: tuple[int, int]) -> tuple[Array, bool]:
    """Return which tokens (batch, n) are real by the arguments that mark padding, and whether there is such an argument."""
    real, is_marked = torch.ones(shape, dtype=torch.bool), False
    for name, value in entries.items():
        if not PADDING.search(name) or not isinstance(value, torch.Tensor) or tuple(value.shape) != shape:
            continue
        value, is_marked = value.cpu(), True
        if value.dtype == torch.bool:
            real &= ~value if HIDES.search(name) else value
        elif value.is_floating_point() and bool((value < 0).any() | (value == 0).all()):
            real &= value > ADDED  # added to the scores
        else:
            real &= value != 0
    return real, is_marked


ADDED = -1e3


def documents_of(entries: Mapping[str, Any], shape: tuple[int, int], segments: Array | None) -> Array | None:
    """Return the number of each token's document (batch, n); None if nothing marks documents.

    It is told by `segments`, an argument named after documents, a mask of numbers, or places that restart.
    """
    if segments is not None:
        return segments
    integers = {
        name: value.cpu()
        for name, value in entries.items()
        if isinstance(value, torch.Tensor) and tuple(value.shape) == shape and not value.is_floating_point()
    }
    for name, value in integers.items():
        if DOCUMENTS.search(name) or (PADDING.search(name) and value.dtype != torch.bool and bool((value > 1).any())):
            return value.long()
    for name, value in integers.items():
        if PLACES.search(name) and bool((begins := segment_begins(value)).any()):
            numbers = torch.zeros(shape, dtype=torch.long)
            numbers[:, 1:] = begins.cumsum(1)
            return numbers
    return None
