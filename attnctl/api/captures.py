"""What a capture recorded: the calls of attention of a model as tensors, and how they become a Trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl.api.generation import Beginning, joined_forwards
from attnctl.attention import Array
from attnctl.checks.argument_types import check_types
from attnctl.errors import UsageError
from attnctl.layer import LayerTrace
from attnctl.layer.computed import share_of_sink
from attnctl.runtime.arrays import as_numpy
from attnctl.text import number_list
from attnctl.text.tokens import Token, named_tokens
from attnctl.trace import Trace
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import SCALED_NOTE, SINK_NOTE, Note
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.models.torch.tensors import ExtraKeys, Unnamed
    from attnctl.runtime.arrays import Bools


# how a call was read → its words in a report
WAYS = {
    "interface": "through transformers' attention interface",
    "output": "put out by the model",
    "kernel": "recomputed from what torch's fused kernel was given",
    "flex": "recomputed from what flex_attention was given",
    "softmax": "the model's own softmax",
    "shares": "the model's own shares, whose rows sum to 1",
}
STEPS = ("queries", "keys", "values", "scores", "scaled_scores", "mask", "context")
NOTE = "Recorded from a model in the user's own code; the caller named the tokens."


@dataclass(frozen=True)
class Captured:
    """One call of attention as a model made it: torch tensors, batch first.

    `kind` is self, or for encoder-decoders encoder, decoder or cross; beside a text it is vision for pictures, audio
    for sound. `step` counts the forward calls (in generation one for each new token). An unknown field is None: a model
    outside transformers' attention interface gives only weights.
    """

    name: str
    kind: str
    layer: int
    heads: tuple[int, ...]
    step: int
    weights: Array  # (batch, heads, n_q, n_k)
    queries: Array | None = None  # (batch, heads, n_q, d_k), after RoPE
    keys: Array | None = None  # (batch, heads, n_k, d_k), as each head reads them
    values: Array | None = None  # (batch, heads, n_k, d_v)
    scores: Array | None = None  # (batch, heads, n_q, n_k)
    scaled_scores: Array | None = None  # (batch, heads, n_q, n_k)
    mask: Array | None = None  # (n_q, n_k) or (batch, n_q, n_k); None where every query sees every key
    context: Array | None = None  # (batch, heads, n_q, d_v)
    recurrence: int = 0  # how often the module has attended before in this forward, if a model repeats its layers
    model: str = ""  # the architecture
    rows: tuple[int, ...] | None = None  # the stored queries of the forward; None: all
    n_heads: int = 0  # of the layer
    n_queries: int = 0  # of the forward
    has_sink: bool = False  # a learned sink takes a part of each row, or what `is_scaled` says
    is_scaled: bool = False  # the model multiplies the weights after the softmax: rows sum to less than 1
    extra: ExtraKeys | None = None  # keys that are no tokens: learned ones, or one of zeros
    unnamed: Unnamed | None = None  # why queries or keys are not the tokens in order
    way: str = "interface"  # how it was read: see WAYS
    error: float | None = None  # largest difference between the context of these weights and that of torch's kernel

    def __repr__(self) -> str:
        steps = ", ".join(name for name in STEPS if getattr(self, name) is not None)
        where = f"{'' if self.kind == 'self' else f'{self.kind} '}layer {self.layer}, heads {number_list(self.heads)}"
        return f"Captured {where}, forward {self.step}: weights {tuple(self.weights.shape)}" + (
            f", {steps}" if steps else ""
        )

    def trace(
        self,
        tokens: Sequence[str] | None = None,
        *,
        key_tokens: Sequence[str] | None = None,
        attention_mask: Array | None = None,
        key_attention_mask: Array | None = None,
        item: int = 0,
        grid: tuple[int, int] | None = None,
        picture: str | os.PathLike[str] | Image | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> Trace:
        """Return this call as a Trace of one text of its batch: see `Captures.trace`."""
        masks = {"attention_mask": attention_mask, "key_attention_mask": key_attention_mask}
        place = PictureOptions(grid, picture, transform)
        return Captures([self])._traced(tokens, key_tokens, masks, item, self.step, None, place)


class Captures(list[Captured]):
    """The list of calls that a capture recorded, with `trace()` to show them.

    After the context, `unseen` says which of the requested attention cannot be shown; it is empty if all can be shown.
    """

    unseen = ""

    def __init__(self, calls: Iterable[Captured] = ()) -> None:
        super().__init__(calls)
        self.beginnings: list[Beginning] = []  # what each forward of the model began with

    @property
    def report(self) -> str:
        """Return how many calls were recorded, how each was read, and how far they are from torch's kernel at most."""
        ways = {way: [call for call in self if call.way == way] for way in WAYS}
        parts = []
        for way, calls in ways.items():
            errors = [call.error for call in calls if call.error is not None]
            gap = f" (largest difference from it {max(errors):.1e})" if errors else ""
            parts += [f"{len(calls)} {WAYS[way]}{gap}"] if calls else []
        return f"{len(self)} calls of attention: {', '.join(parts)}" if self else "no call of attention was recorded"

    def __repr__(self) -> str:
        if not self:
            return "Captures: nothing yet"
        layers = number_list(sorted({call.layer for call in self}))
        more = f"; {self.unseen}" if self.unseen else ""
        return f"Captures of {self[0].model or 'a model'}: {len(self)} calls, layers {layers}{more}"

    def trace(
        self,
        tokens: Sequence[str] | None = None,
        *,
        key_tokens: Sequence[str] | None = None,
        attention_mask: Array | None = None,
        key_attention_mask: Array | None = None,
        item: int = 0,
        step: int | None = None,
        kind: str | None = None,
        grid: tuple[int, int] | None = None,
        picture: str | os.PathLike[str] | Image | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> Trace:
        """Return one text of the batch as a Trace, with `.figure()`, `.save()`, and its page in a notebook.

        The forwards of `generate` are joined: a row for each token that was read, the prompt's and each new one's, as in one
        forward of the whole text. The last new token was not read, and has no row.

        `tokens` names every position (of cross attention the queries, `key_tokens` the keys); without names, tokens are
        numbered. An `attention_mask` (batch, n), 0 for padding, leaves the padding out; `key_attention_mask` does so for the
        keys of cross attention. Positions after the mask's are no padding.

        `item` is the index of the text in the batch, `step` the index of one forward (of `generate`: 0 is the prompt);
        `kind` is required if several kinds of attention were recorded. Raises UsageError if no such call was recorded, the
        names do not fit, or the texts of a batch changed places between the forwards of `generate` (beams).

        Of a model that reads a picture, the keys are patches: a `grid` of (rows, columns), row by row, behind CLS and
        registers. With the `picture`, a file or an image of Pillow, each patch has its box in it, and the grid follows from
        the number of keys; with the `transform` that made the model's input of it, also after a crop. Then
        `trace.figure(picture=picture)` draws the weights over it.
        """
        masks = {"attention_mask": attention_mask, "key_attention_mask": key_attention_mask}
        return self._traced(tokens, key_tokens, masks, item, step, kind, PictureOptions(grid, picture, transform))

    def _traced(
        self,
        tokens: Sequence[str] | None,
        key_tokens: Sequence[str] | None,
        masks: Mapping[str, Array | None],
        item: int,
        step: int | None,
        kind: str | None,
        place: PictureOptions,
    ) -> Trace:
        attention_mask, key_attention_mask = masks["attention_mask"], masks["key_attention_mask"]
        check_types("trace", int, item=item)
        check_types("trace", int | None, step=step)
        check_types("trace", str | None, kind=kind)
        calls, step_notes, joined = self._calls(step, kind, item)
        first = calls[0]
        batch, _, n_q, n_k = first.weights.shape
        if not -batch <= item < batch:
            raise UsageError(f"no text {item} in this batch: it has {batch}")
        for call in calls:
            if call.weights.shape[-2:] != (n_q, n_k):
                raise UsageError(
                    f"layer {call.layer} has {call.weights.shape[-2]} queries and {call.weights.shape[-1]} keys, layer "
                    f"{first.layer} {n_q} and {n_k}, and a trace has the same tokens in all layers: give one call"
                )
        from attnctl.models.torch.tensors import unnamed_sentences

        unnamed = unnamed_sentences((call.name, call.unnamed) for call in calls)
        if tokens is not None and any(call.unnamed is not None and call.unnamed.queries for call in calls):
            raise UsageError(f"{unnamed[0]} Leave out tokens", option="tokens")
        cross = first.kind == "cross"
        query_rows = first.rows if first.rows is not None else tuple(range(n_q))
        start = 0 if cross else max(n_k - first.n_queries, 0)  # tokens read in earlier forwards
        rows = tuple(start + row for row in query_rows)
        queries = tokens if not joined else _names_that_were_read(tokens, first.n_queries)
        forwards = "".join(step_notes)
        name, names = ("key_tokens", key_tokens) if cross else ("tokens", queries)
        extra = first.extra if cross and key_tokens is None else None
        if extra is not None:  # of the queries' own tokens, or numbered
            count = n_k - extra.count
            between = _tokens_for("tokens", queries if extra.beside_queries else None, count, forwards)
            names = extra.names([token.text for token in between])
        if not place.is_empty:
            keys = place.tokens(n_k, name, names)
        else:
            keys = _tokens_for(name, names, n_k, "" if cross else forwards)
        named = _tokens_for("tokens", queries, first.n_queries, forwards) if cross else keys
        columns = keys if cross else None
        whole = rows == tuple(range(len(named)))
        layers = tuple(_layer_of_call(call, item, None if whole else rows) for call in calls)
        real = _real_positions("attention_mask", attention_mask, item, len(named))
        real_keys = real
        if cross:
            real_keys = _real_positions("key_attention_mask", key_attention_mask, item, n_k)
        elif key_attention_mask is not None:
            raise UsageError("key_attention_mask is for cross attention, whose keys are another text's")
        if not (real.all() and real_keys.all()):
            layers = tuple(_without_padding(layer, real, real_keys) for layer in layers)
            named = tuple(named_tokens([token.text for token, keeps in zip(named, real, strict=True) if keeps]))
            if columns is not None:
                columns = tuple(token for token, keeps in zip(columns, real_keys, strict=True) if keeps)
        info = ModelInfo(
            first.model or "model",
            "checkpoint",
            n_heads=max(call.n_heads for call in calls),
            n_layers=max(call.layer for call in calls) + 1,
            dtype=str(first.weights.dtype).removeprefix("torch."),
        )
        text = place.name or " ".join(token.text for token in named)
        below = {SCALED_NOTE if call.is_scaled else SINK_NOTE: None for call in calls if call.has_sink}
        notes = (NOTE, *below, *(Note(sentence, "input") for sentence in unnamed), *step_notes)
        notes += _nan_notes(calls, item)
        notes += (f"{self.unseen[0].upper()}{self.unseen[1:]}.",) if self.unseen else ()
        return Trace(Subject(text, named, info, columns, notes=notes), layers)

    def _calls(self, step: int | None, kind: str | None, item: int) -> tuple[list[Captured], tuple[Note, ...], bool]:
        """Return one call for each layer, notes about the forwards, and whether these are joined; None joins what can be."""
        first = _calls_of_step(self, step or 0, kind, self.unseen)
        last = max(call.step for call in self if call.kind == first[0].kind)
        if step is not None or not last or not -len(first[0].weights) <= item < len(first[0].weights):
            return first, (), False
        forwards = [_calls_of_step(self, number, first[0].kind, self.unseen) for number in range(last + 1)]
        joined = joined_forwards(forwards, self.beginnings, item)
        if joined is None:
            note = f"This is the first of {last + 1} forwards, each of which begins anew; step={last} is the last."
            return first, (Note(note, "input"),), False
        return *joined, True


@dataclass(frozen=True)
class PictureOptions:
    """What a caller tells of the picture that a model read."""

    grid: tuple[int, int] | None = None
    picture: str | os.PathLike[str] | Image | None = None
    transform: Callable[[Any], Any] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is told."""
        return self.grid is None and self.picture is None and self.transform is None

    @property
    def name(self) -> str:
        """Return the name of the picture's file, "" without one."""
        return os.fspath(self.picture) if isinstance(self.picture, (str, os.PathLike)) else ""

    def tokens(self, n: int, argument: str, names: object) -> tuple[Token, ...]:
        """Return n tokens, the patches with their places in the picture.

        Raises TypeError for something else than a grid or a picture, UsageError if n is no such grid.
        """
        from attnctl.formats.photographs import photograph_of
        from attnctl.models.torch.picture_tokens import (
            grid_of_tokens,
            lines_of_transform,
            patches_in,
            picture_values,
            tokens_of_grid,
        )

        if names is not None:
            raise UsageError("the patches of a picture have names of their own", option=argument)
        if self.transform is not None and self.picture is None:
            raise UsageError("needs the picture that it was given", option="transform")
        photograph = None if self.picture is None else photograph_of("trace", self.picture)
        grid = self.grid
        if grid is None:
            side = (1, 1)
            if self.transform is not None and photograph is not None:
                height, width = picture_values(self.transform(photograph)).shape
                side = height, width
            grid = grid_of_tokens(n, side)
        elif not isinstance(grid, (tuple, list)) or [type(side) for side in grid] != [int, int]:
            raise TypeError(f"trace(): grid is (rows, columns), not {grid!r}")
        if grid is None:
            raise UsageError(f"has {n} keys that are no grid of patches: say which (grid)", option="picture")
        if min(grid) < 1 or grid[0] * grid[1] > n:
            raise UsageError(f"there are {n} keys", option="grid", value=tuple(grid))
        if photograph is None:
            return tokens_of_grid(n, (grid[0], grid[1]))
        lines = (None, None) if self.transform is None else lines_of_transform(self.transform, photograph)
        return tokens_of_grid(n, (grid[0], grid[1]), patches_in(photograph, (grid[0], grid[1]), lines))


def _calls_of_step(calls: Sequence[Captured], step: int, kind: str | None, unseen: str) -> list[Captured]:
    """Return one call for each layer, of one forward and kind. Raises UsageError if there is none, or several."""
    kinds = sorted({call.kind for call in calls})
    if not calls:
        raise UsageError("nothing was captured: run the model within the context")
    if kind is None and len(kinds) > 1:
        raise UsageError(f"several kinds of attention were captured: kind is one of {', '.join(kinds)}")
    if kind is not None and kind not in kinds:
        raise UsageError(f"no {kind} attention was captured: {unseen or 'there is ' + ', '.join(kinds)}")
    of_step = [call for call in calls if call.step == step and call.kind == (kind or kinds[0])]
    if not of_step:
        raise UsageError(f"no forward {step} was captured: there are {max(call.step for call in calls) + 1}")
    by_layer: dict[int, Captured] = {}
    for call in of_step:
        if call.layer in by_layer:
            raise UsageError(
                f"layer {call.layer} attended several times in one forward, and a trace holds one: give one call"
            )
        by_layer[call.layer] = call
    return [by_layer[layer] for layer in sorted(by_layer)]


def _names_that_were_read(tokens: Sequence[str] | None, count: int) -> Sequence[str] | None:
    """Return names without that of the last new token, which no forward read; others unchanged.

    Raises UsageError, with the reason, for another number of names than `count`.
    """
    if isinstance(tokens, str) or not isinstance(tokens, Sequence) or len(tokens) == count:
        return tokens
    if len(tokens) == count + 1:
        return tokens[:-1]
    raise UsageError(
        f"tokens has {len(tokens)} names for {count} positions: the prompt and each new token, of which the last may be "
        "left out (step=0 is the prompt alone)"
    )


def _tokens_for(name: str, names: Sequence[str] | None, count: int, about_forward: str = "") -> tuple[Token, ...]:
    """Return tokens with these names, or numbered tokens without names.

    Raises TypeError for anything but names, UsageError, with a sentence `about_forward`, if their number is not `count`.
    """
    if names is None:
        return tuple(named_tokens([str(index) for index in range(count)]))
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(item, str) for item in names):
        raise TypeError(f"trace(): {name} is a list of str, a name for each token, not {type(names).__name__}")
    if len(names) != count:
        what = f": {about_forward.rstrip('.')}" if about_forward else ""
        raise UsageError(f"{name} has {len(names)} names for {count} positions{what}")
    return tuple(named_tokens(names))


def _layer_of_call(call: Captured, item: int, rows: tuple[int, ...] | None) -> LayerTrace:
    """Return one text of a call as a layer of a trace."""
    arrays: dict[str, Array] = {
        name: as_numpy(value[item].float())
        for name in STEPS
        if name != "mask" and (value := getattr(call, name)) is not None
    }
    mask: Bools | None = None  # where every query sees every key
    if call.mask is not None:
        visible = (call.mask if call.mask.ndim == 2 else call.mask[item]).cpu().numpy().astype(bool)  # (1 or n_q, n_k)
        mask = None if visible.all() else np.broadcast_to(visible, call.weights.shape[-2:])  # (n_q, n_k)
    weights = as_numpy(call.weights[item].float())  # (heads, n_q, n_k)
    missing = np.isnan(weights).all(-1)  # (heads, n_q)
    if missing.any():
        arrays = {name: array for name, array in arrays.items() if name == "context" or np.isfinite(array).all()}
        weights = np.where(missing[..., None], np.float32(0), weights)
        if "context" in arrays:
            arrays["context"] = np.where(missing[..., None], np.float32(0), arrays["context"])
        seen = np.ones(weights.shape[-2:], bool) if mask is None else mask  # (n_q, n_k)
        mask = seen & ~missing.all(0)[:, None]
    if call.has_sink:
        arrays["sink_weights"] = share_of_sink(weights)
    return LayerTrace(call.layer, call.heads, call.heads, weights=weights, rows=rows, mask=mask, **arrays)


def _nan_notes(calls: Sequence[Captured], item: int) -> tuple[Note, ...]:
    """Return a note about the rows of one text of a batch that are NaN in the model; () without any."""
    layers = [call.layer for call in calls if bool(call.weights[item].isnan().any())]
    if not layers:
        return ()
    where = f"layer{'s' * (len(layers) > 1)} {number_list(layers)}"
    sentence = f"The model itself gave NaN in rows of {where}: they are shown as rows that see nothing."
    return (Note(sentence, "unseen"),)


def _real_positions(name: str, mask: Array | None, item: int, n: int) -> Bools:
    """Return which of n positions of a text of the batch are no padding → (n,).

    Raises TypeError for a mask that is no array (batch, positions), UsageError for one that has more than n positions, or
    marks none of them.
    """
    real = np.ones(n, bool)
    if mask is None:
        return real
    marks = np.asarray(mask.cpu() if isinstance(mask, torch.Tensor) else mask)
    if marks.ndim != 2 or marks.dtype.kind not in "biuf":
        raise TypeError(f"trace(): {name} is an array (batch, positions), not of shape {marks.shape}")
    if not -len(marks) <= item < len(marks) or marks.shape[1] > n:
        raise UsageError(f"{name} has shape {marks.shape}: this is text {item}, of {n} positions")
    real[: marks.shape[1]] = marks[item] != 0
    if not real.any():
        raise UsageError(f"{name} says that all {n} positions of text {item} are padding")
    return real


def _without_padding(layer: LayerTrace, queries: Bools, keys: Bools) -> LayerTrace:
    """Return a layer with some queries (n,) and some keys (n_k,) of its text alone."""
    rows = range(len(queries)) if layer.rows is None else layer.rows
    kept = {"rows": [place for place, row in enumerate(rows) if queries[row]], "keys": np.flatnonzero(keys).tolist()}
    arrays = {}
    for array, value in layer.field_arrays():
        first = 1 if array.level == "head" else 0  # axes of the heads
        for axis, name in enumerate(array.axes, first):
            value = value.take(kept[name], axis) if name in kept else value
        arrays[array.name] = value
    mask = arrays.get("mask")
    arrays |= {} if mask is None or not mask.all() else {"mask": None}
    numbers = np.cumsum(queries) - 1  # (n,), the number of each query among those that are kept
    numbered = None if layer.rows is None else tuple(int(numbers[row]) for row in rows if queries[row])
    return replace(layer, rows=numbered, **arrays)
