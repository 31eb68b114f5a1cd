"""Bare weights: what an array says beside its numbers: hidden cells, rows without numbers, causality, its axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.layer import RowsOnDemand
from attnctl.runtime.arrays import Bools, Floats
from attnctl.text import counted
from attnctl.trace import Trace
from attnctl.trace.consistency import weights_notes
from attnctl.trace.notes import Note, notes_of_kind

SCORES_NOTE = Note(
    "Cells of -inf, or of the lowest number of their type, hide keys, so the numbers are scores: the softmax of each row "
    "gives the weights.",
    "no-weights",
)
ZEROS_NOTE = Note(
    "Each later key has exactly 0. If the numbers are scores of a causal model, these hide nothing: a softmax gives 0 a "
    "share of the row. GroupQueryAttention of ONNX Runtime writes such scores; with -inf there the keys are hidden."
)
CAUSAL_NOTE = Note("No query has weight on a later key in any head: the weights are read as those of a causal model.")


def with_masks(trace: Trace, path: str) -> Trace:
    """Return a trace of an array in the file `path` with the masks that the array implies, and notes about them.

    -inf hides a key, and a row of NaN or of zeros sees none: in all these cells the weight becomes 0. Weights of a text on
    itself that are 0 on every later key are a causal model's. Raises AttnctlError if the heads of a layer hide
    different keys.
    """
    arrays = [layer.all_weights() for layer in trace.layers]  # (heads, n_q, n_k) each
    missing = np.stack([np.isnan(array[..., 0]) for array in arrays])  # (layers, heads, n_q)
    hidden = [np.isneginf(array) for array in arrays]  # (heads, n_q, n_k) each
    if any(cells.any() for cells in hidden):
        masks = [~_same_in_heads(cells, layer, path) for layer, cells in enumerate(hidden)]
        return _masked(trace, arrays, masks, missing, (SCORES_NOTE,))
    bare = _masked(trace, arrays, [np.ones(array.shape[-2:], bool) for array in arrays], missing, ())
    arrays = [layer.all_weights() for layer in bare.layers]
    causal = bare.key_tokens is None and all(looks_causal(array, range(array.shape[1])) for array in arrays)
    if notes_of_kind(bare.notes, "no-weights"):
        return bare.about(notes=(*bare.notes, *(ZEROS_NOTE,) * causal))
    seen = causal_mask(arrays[0].shape[-1]) if causal else np.ones(arrays[0].shape[-2:], bool)  # (n_q, n_k)
    empty = np.stack([~array.any((0, 2)) for array in arrays])  # (layers, n_q)
    masks = [seen & ~rows[:, None] if rows.any() else seen for rows in empty]
    if bare.key_tokens is None:  # a token that neither looks nor is looked at is padding
        unseen = (rows & ~array.any((0, 1)) for rows, array in zip(empty, arrays, strict=True))
        masks = [mask & ~keys if keys.any() else mask for mask, keys in zip(masks, unseen, strict=True)]
    notes = (*(CAUSAL_NOTE,) * causal, *_empty_notes(empty & ~missing.all(1)))
    return _masked(as_causal(bare) if causal else bare, arrays, masks, missing, notes)


def hides_cells(sampled: Trace) -> bool:
    """Return whether a trace of some rows holds -inf or NaN in any head."""
    return not all(np.isfinite(layer.all_weights()).all() for layer in sampled.layers)  # (heads, rows, n_k) each


def lacks_weight(sampled: Trace) -> bool:
    """Return whether a trace of some rows has a row without weight in any head."""
    return not all(layer.all_weights().any((0, 2)).all() for layer in sampled.layers)  # (heads, rows, n_k) each


def with_masks_of_rows(trace: Trace, rows: Sequence[int], sampled: Trace) -> Trace:
    """Return a trace of rows on demand with the mask that some rows imply: `sampled` holds `rows` of each head.

    They hide no cells but those of a causal model. Any -inf or NaN elsewhere becomes 0.
    """
    notes = tuple(weights_notes(sampled))
    layers = [replace(layer, weights=_plain_rows(layer.stored)) for layer in trace.layers]
    trace = replace(trace.about(notes=notes), layers=tuple(layers))
    one_text = trace.key_tokens is None
    if not (one_text and all(looks_causal(layer.all_weights(), rows) for layer in sampled.layers)):
        return trace
    if notes_of_kind(notes, "no-weights"):
        return trace.about(notes=(*notes, ZEROS_NOTE))
    mask = causal_mask(layers[0].stored.shape[-1])
    layers = [replace(layer, mask=mask) for layer in layers]
    return replace(as_causal(trace.about(notes=(*notes, CAUSAL_NOTE))), layers=tuple(layers))


def _masked(
    trace: Trace, arrays: Sequence[Floats], masks: Sequence[Bools], missing: Bools, notes: Sequence[Note]
) -> Trace:
    """Return a trace with these arrays, one a layer, 0 where a mask hides a cell and in rows of NaN.

    `missing` (layers, heads, n_q) says which rows are NaN. Notes about the numbers are added to `notes`, unless these say
    that they are scores.
    """
    layers = []
    for layer, array, mask, rows in zip(trace.layers, arrays, masks, missing, strict=True):
        mask = mask & ~rows.all(0)[:, None] if rows.any() else mask  # (n_q, n_k)
        if rows.any() or not mask.all():
            array = np.where(mask & ~rows[..., None], array, np.float32(0))  # (heads, n_q, n_k)
        layers.append(replace(layer, weights=array, mask=None if mask.all() else mask))
    notes = (*notes, *nan_notes(int(missing.any((0, 1)).sum())))
    trace = replace(trace.about(notes=notes), layers=tuple(layers))
    return trace if SCORES_NOTE in notes else trace.about(notes=(*weights_notes(trace), *notes))


def as_causal(trace: Trace) -> Trace:
    """Return the trace as one of a causal model."""
    return trace.about(model=replace(trace.model, causal=True))


def _same_in_heads(cells: Bools, layer: int, path: str) -> Bools:
    """Return the cells (heads, n_q, n_k) of the first head. Raises AttnctlError if another head has others."""
    first: Bools = cells[0]
    others = (cells != first).any((1, 2))  # (heads,)
    if others.any():
        raise AttnctlError(
            f"{path} holds scores, and head {int(others.argmax())} of layer {layer} hides other keys than head 0: write "
            "the softmax of each row, or one head alone"
        )
    return first


def _plain_rows(stored: RowsOnDemand) -> Array:
    """Return rows on demand with 0 for -inf and NaN."""
    read = stored.read
    return replace(stored, read=lambda head, first, last: np.nan_to_num(read(head, first, last), neginf=0.0))


def looks_causal(weights: Array, rows: Sequence[int]) -> bool:
    """Return whether the rows `rows` of weights (heads, rows, n_k) are exactly 0 on each later key, and not everywhere.

    A text of one token says nothing.
    """
    later = np.arange(weights.shape[-1]) > np.asarray(rows)[:, None]  # (rows, n_k)
    return bool(later.any()) and not weights[:, later].any() and bool(weights.any())


def causal_mask(n: int) -> Bools:
    """Return the mask of a causal model (n, n): a view of 2 n - 1 numbers."""
    edge = np.arange(2 * n - 1) < n  # (2 n - 1,)
    mask: Bools = np.lib.stride_tricks.sliding_window_view(edge, n)[::-1]  # (n, n)
    return mask


# --- in words --------------------------------------------------------------------------------------------------------


def nan_notes(rows: int) -> tuple[Note, ...]:
    """Return a note about a number of rows of NaN; () for none."""
    if not rows:
        return ()
    shown = "they are" if rows > 1 else "it is"
    return (
        Note(
            f"{counted(rows, 'row')} of NaN, the softmax of a row that sees no key: {shown} shown as seeing nothing.",
            "unseen",
        ),
    )


def _empty_notes(empty: Bools) -> tuple[Note, ...]:
    """Return a note about the rows, true in `empty` (layers, n_q), that have no weight in any head; () for none."""
    rows = int(empty.any(0).sum())
    return (
        (Note(f"{counted(rows, 'row')} without weight in any head: nothing is seen there.", "unseen"),) if rows else ()
    )


def axes_notes(shape: tuple[int, ...]) -> tuple[Note, ...]:
    """Return a note about how the axes of an array were read, if they can also be those of a batch; else ()."""
    if len(shape) == 4 and shape[0] > 1:
        reading = "(layers, heads, queries, keys). Of a batch (batch, heads, n, n), give one text: array[0]"
    elif len(shape) == 3 and shape[0] > 1:
        reading = "(heads, queries, keys). Of a batch of averaged weights (batch, n, n), give one text: array[0]"
    else:
        return ()
    return (Note(f"The array {shape} is read as {reading}.", "axes"),)
