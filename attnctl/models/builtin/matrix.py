"""Numbers from elsewhere: Q, K and V from a file, or the bare weights of a user's own model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError, about_value, option_name
from attnctl.formats.arrays import axes_of_weights, finite_numbers, map_weights
from attnctl.formats.attention_files import read_attention
from attnctl.formats.validation import check_unpickled, read_npz
from attnctl.formats.weight_tables import WeightTable, is_weight_table, read_weight_table
from attnctl.layer import LayerAttention, LayerTrace
from attnctl.layer.computed import ComputedLayer
from attnctl.models.builtin.bare_weights import (
    CAUSAL_NOTE,
    as_causal,
    axes_notes,
    hides_cells,
    lacks_weight,
    looks_causal,
    with_masks,
    with_masks_of_rows,
)
from attnctl.models.builtin.stack import Settings, chosen_settings, stack_info
from attnctl.runtime.arrays import Floats, device_for_length, place_array
from attnctl.runtime.files import read_bytes
from attnctl.source.model import TextModel
from attnctl.text import counted
from attnctl.text.tokens import Token, Tokenize, named_tokens, open_tokenizer, with_places
from attnctl.trace import Trace
from attnctl.trace.consistency import CELLS, check_head_count, weights_notes
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import Note
from attnctl.trace.run import Run, StopForward
from attnctl.trace.subject import Subject

if TYPE_CHECKING:
    from attnctl.attention import Array


@dataclass(frozen=True)
class GivenQKV(TextModel):
    """Queries, keys and values from a file: the steps begin with the scores.

    There may be fewer queries than keys, or more: attention to another text, or the last tokens of a text, as with a cache.
    """

    info: ModelInfo
    settings: Settings
    queries: Floats  # (heads, n_q, d_k)
    keys: Floats  # (kv_heads, n_k, d_k)
    values: Floats  # (kv_heads, n_k, d_v)
    path: str
    split: Tokenize
    key_names: tuple[str, ...] | None = None  # of keys that are another text
    notes: tuple[Note, ...] = ()

    @property
    def n_q(self) -> int:
        """Return the number of queries."""
        return int(self.queries.shape[1])

    @property
    def n_k(self) -> int:
        """Return the number of keys."""
        return int(self.keys.shape[1])

    @property
    def first(self) -> int:
        """Return the position of the first query among the keys."""
        return self.n_k - self.n_q if self.settings.offset is None else self.settings.offset

    @property
    def own_text(self) -> str:
        """Return the text of rows without words: the indices of the queries, or of all keys if the queries are some."""
        return " ".join(map(str, range(self.n_k if self._among_keys else self.n_q)))

    @property
    def _among_keys(self) -> bool:
        """Return whether the queries stand among the keys, so that causality or a window means something."""
        moves = self.settings.causal or self.settings.window is not None
        return moves and self.key_names is None and 0 <= self.first <= self.n_k - self.n_q

    def with_key_names(self, names: Sequence[str]) -> GivenQKV:
        """Return the model with the tokens of another text as its keys. Raises UsageError for another number of them."""
        if len(names) != self.n_k:
            why = f"{self.path} has {counted(self.n_k, 'key')}, and these are {counted(len(names), 'name')}"
            raise UsageError(why, option="key_tokens", value=" ".join(names))
        return replace(self, key_names=tuple(names))

    def tokenize(self, text: str) -> tuple[Token, ...]:
        """Return the tokens of the queries; of a text with a token for each key, those at the places of the queries."""
        tokens = tuple(self.split(text))
        whole = self.n_q != self.n_k and len(tokens) == self.n_k and self._among_keys
        return tokens[self.first : self.first + self.n_q] if whole else tokens

    def listed_tokens(self, text: str, names: Sequence[str]) -> tuple[Token, ...]:
        """Return tokens of these names, with their places in the text."""
        return with_places(named_tokens(names), text, names)

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return the tokens of the keys: names of another text, the whole text, or numbers; None: the queries' own."""
        if self.key_names is not None:
            return tuple(named_tokens(self.key_names))
        if self.n_q == self.n_k:
            return None
        whole = tuple(self.split(text))
        same = len(whole) == self.n_k and self._among_keys
        return whole if same else tuple(Token(str(index)) for index in range(self.n_k))

    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """Run one layer: one call of attention. Raises AttnctlError if the text has another number of tokens."""
        if len(tokens) != self.n_q:
            row_count, token_count = counted(self.n_q, "row"), counted(len(tokens), "token")
            raise AttnctlError(f"{self.path} has {row_count}, but the text has {token_count}: one row a token")
        device = device_for_length(self.settings.device, max(self.n_q, self.n_k))
        q, k, v = (place_array(part, device) for part in (self.queries, self.keys, self.values))
        with suppress(StopForward):
            visit(ComputedLayer.of_call(0, self.settings.call_of_layer(0, q, k, v)))
        return Run(Subject(text, tuple(tokens), self.info, self.tokens_of_keys(tokens, text), notes=self.notes))


COUNTED = 1 << 26  # numbers of a file whose rows without weight are counted


def open_qkv(*, qkv: str, tokenizer: str | None = None, seed: int = 0, **how: Any) -> GivenQKV:
    """Return Q, K and V of an .npz or .safetensors file as a model; each is (n, d), (heads, n, d) or (1, heads, n, d).

    Raises AttnctlError if one is missing or the shapes do not fit, UsageError for options that need weights.
    """
    for option in (
        "d_model",
        "d_k",
        "n_heads",
        "n_kv_heads",
        "n_layers",
        "output_projection",
        "embeddings",
        "rope_theta",
        "positions",
    ):
        if how.pop(option, None) is not None:
            why = f"cannot be combined with {option_name('qkv')}: Q, K and V come from the file"
            raise UsageError(why, option=option)
    with about_value(qkv):
        q, k, v, notes = _read_qkv(qkv)
    settings = chosen_settings(how | {"seed": seed})
    if settings.offset is not None and not settings.causal and settings.window is None:
        raise UsageError(
            f"has no effect without {option_name('causal', True)} or {option_name('window')}", option="offset"
        )
    sizes = {"n_heads": q.shape[0], "n_kv_heads": k.shape[0], "d_k": q.shape[2], "d_v": v.shape[2]}
    info = stack_info(Path(qkv).stem, "matrix", ({},), settings, **sizes)
    model = GivenQKV(info, settings, q, k, v, qkv, open_tokenizer(tokenizer))
    return replace(model, notes=(*notes, *_corner_notes(model)))


# the names of queries, keys and values in files of other programs, in small letters
QKV_NAMES = {
    "Q": ("q", "query", "queries", "query_states"),
    "K": ("k", "key", "keys", "key_states"),
    "V": ("v", "value", "values", "value_states"),
}


def _read_qkv(path: str) -> tuple[Floats, Floats, Floats, tuple[Note, ...]]:
    """Return Q (heads, n_q, d_k), K and V of a file, and a note about how their axes were read."""
    data = read_bytes(path)
    check_unpickled(data, path, named=True)
    if data[8:9] == b"{":  # a safetensors file, whatever it is called: its header's length, then JSON
        from attnctl.models.builtin.weights import read_safetensors

        arrays, _ = read_safetensors(path)
    else:
        arrays = read_npz(data, path)
    stored = {}
    for name, others in QKV_NAMES.items():
        own = [name] if name in arrays else [given for given in arrays if given.lower() in others]
        if len(own) != 1:
            has = f"has no {name}" if not own else f"has more than one {name} ({', '.join(own)})"
            raise AttnctlError(f"{path} {has}: it holds {', '.join(arrays) or 'nothing'}")
        stored[name] = finite_numbers(arrays[own[0]], f"{path}: {own[0]}")
    parts = [_without_batch(part, f"{path}: {name}") for name, part in stored.items()]
    shapes = {name: part.shape for name, part in stored.items()}
    if problem := _misfit(*parts):
        swapped = [part.swapaxes(0, 1) for part in parts]
        if parts[0].shape[0] == 1 or _misfit(*swapped):
            (one, other), why = problem
            raise AttnctlError(f"{path}: {one} {shapes[one]} and {other} {shapes[other]} {why}")
        note = Note(
            f"Q {shapes['Q']} is read as {'(1, n, heads, d)' if stored['Q'].ndim == 4 else '(n, heads, d)'}.", "axes"
        )
        return (*map(np.ascontiguousarray, swapped), (note,))  # type: ignore[return-value]
    q, k, v = parts
    if stored["Q"].ndim == 2 or q.shape[0] == 1 or q.shape[1] == 1:
        return q, k, v, ()
    ours, theirs = (
        ("(1, heads, n, d)", "(1, n, heads, d)") if stored["Q"].ndim == 4 else ("(heads, n, d)", "(n, heads, d)")
    )
    reading = f"Q {shapes['Q']} is read as {ours}; JAX and flax write {theirs}: numpy.swapaxes(Q, -3, -2)"
    return q, k, v, (Note(f"{reading}.", "axes"),)


def _without_batch(part: Floats, name: str) -> Floats:
    """Return (n, d), (heads, n, d) or (1, heads, n, d) as (heads, n, d). Raises AttnctlError for other shapes."""
    shape = part.shape
    if len(shape) == 4 and shape[0] > 1:
        raise AttnctlError(f"{name} has shape {shape}, a batch of {shape[0]} texts: choose one, array[0]")
    if not 2 <= len(shape) <= 4 or 0 in shape:
        raise AttnctlError(f"{name} has shape {shape}: it is (n, d), (heads, n, d) or (1, heads, n, d)")
    return part[None] if part.ndim == 2 else part.reshape(shape[-3:])


def _misfit(q: Floats, k: Floats, v: Floats) -> tuple[tuple[str, str], str] | None:
    """Return which two of queries, keys and values (heads, n, d) do not fit each other, and why; None if all do."""
    if q.shape[2] != k.shape[2]:
        return ("Q", "K"), f"do not fit each other: their last axes, d_k, are {q.shape[2]} and {k.shape[2]}"
    if k.shape[:2] != v.shape[:2]:
        return ("K", "V"), "do not fit each other: they have the same heads, and a row for each key"
    if q.shape[0] % k.shape[0]:
        return ("Q", "K"), f"do not fit: {q.shape[0]} query heads cannot share {k.shape[0]} key heads evenly"
    return None


def _corner_notes(model: GivenQKV) -> tuple[Note, ...]:
    """Return a note about where the queries stand among other numbers of keys, if that decides what they see."""
    settings, n_q, n_k = model.settings, model.n_q, model.n_k
    if n_q == n_k or not (settings.causal or settings.window is not None):
        return ()
    if settings.offset is not None:
        stand = f"the {n_q} queries stand at {model.first} to {model.first + n_q - 1}"
        return (Note(f"Of {n_k} keys, {f'the query stands at {model.first}' if n_q == 1 else stand}.", "axes"),)
    last = "the query" if n_q == 1 else f"the last of the {n_q} queries"
    corner = f"{last} stands at the last of the {n_k} keys, as with a cache"
    other = f"{option_name('offset', 0)} begins both at 0, as torch, JAX and Keras do"
    return (Note(f"{corner[0].upper()}{corner[1:]}; {other}.", "axes"),)


def trace_of_matrix(
    path: str,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    data: bytes | None = None,
) -> Trace:
    """Return a Trace of the bare weights in a file: an array, an archive of arrays, JSON, or a table.

    `rows` and `columns` name the tokens, in place of the names in the file; `data` are the bytes of the file if they
    have been read already. Raises AttnctlError if it holds no grid of weights or the names do not fit.
    """
    data = read_bytes(path) if data is None else data
    if is_weight_table(data):
        return _trace_of_table(read_weight_table(data, path), path, rows, columns)
    given = read_attention(path, data)
    shape, array = given.array.shape, given.array
    array = array.reshape(axes_of_weights(shape, path))  # (layers, heads, n_q, n_k)
    own_rows, own_columns = given.rows, given.columns
    if own_rows == own_columns or (not own_rows and array.shape[-2] == array.shape[-1]):
        own_rows, own_columns = own_columns, ()  # one list for both axes
    axes = own_rows if rows is None else rows, own_columns if columns is None else columns
    trace = with_masks(_trace_of_grids(path, list(array), *axes), path)
    axes_told = (Note(given.note, "axes"),) if given.note else axes_notes(shape)
    axes_told += (Note(given.padding, "axes"),) if given.padding else ()
    return trace.about(notes=(*axes_told, *trace.notes))


def _trace_of_table(table: WeightTable, path: str, rows: Sequence[str] | None, columns: Sequence[str] | None) -> Trace:
    """Return the weights of a table as a Trace; `rows` and `columns` are names in place of the table's own."""
    queries, keys, notes = list(table.queries), list(table.keys), []
    n_layers, n_heads = (
        1 + max(numbers) for numbers in zip(*((t.layer, max(t.heads)) for t in table.layers), strict=True)
    )
    trace = _trace_of_grids(path, [table.layers[0].weights], rows or (), columns or ())
    own_rows: tuple[int, ...] | None = None
    if table.one_text and rows is None and columns is None:
        whole = table.queries | table.keys  # number → text of every token
        tokens = tuple(named_tokens([whole[number] for number in sorted(whole)]))
        places = {number: place for place, number in enumerate(sorted(whole))}
        narrow = len(keys) < len(whole)
        key_tokens = tuple(tokens[places[number]] for number in keys) if narrow else None
        own_rows = tuple(places[number] for number in queries) if len(queries) < len(whole) else None
        text = " ".join(token.text for token in tokens) if table.named else ""
        trace = trace.about(text=text, tokens=tokens, key_tokens=key_tokens)
        if narrow:
            notes.append(Note(f"{counted(len(whole) - len(keys), 'key')} of the text left out", "left-out"))
    elif table.named:
        names = (
            list(axis.values()) if names is None else names
            for axis, names in ((table.queries, rows), (table.keys, columns))
        )
        trace = _trace_of_grids(path, [table.layers[0].weights], *names)
    if table.pool:
        notes.append(Note(f"Each cell of {path} holds several tokens ({table.pool}).", "axes"))
    layers = tuple(
        LayerTrace(t.layer, t.heads, t.heads, weights=t.weights, mask=None if t.seen.all() else t.seen, rows=own_rows)
        for t in table.layers
    )
    model = replace(trace.model, n_heads=n_heads, n_layers=n_layers)
    trace = replace(trace.about(model=model, notes=tuple(notes)), layers=layers)
    queried = range(trace.layers[0].n_q) if own_rows is None else own_rows
    if trace.key_tokens is None and all(looks_causal(t.weights, queried) for t in table.layers):
        trace = as_causal(trace).about(notes=(*notes, CAUSAL_NOTE))
    return trace.about(notes=(*weights_notes(trace), *trace.notes))


def trace_of_mapped_matrix(path: str, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> Trace:
    """Return what `trace_of_matrix` returns for a large .npy file, whose weights are read row by row when needed.

    Some rows of each head say whether the weights are a causal model's. A file that hides other cells is read whole, and
    one with rows without weight if it has COUNTED numbers at most.
    """
    shape, grids = map_weights(path)
    trace = _trace_of_grids(path, grids, rows or (), columns or ())
    sampled = _some_rows(trace)
    if hides_cells(sampled) or (lacks_weight(sampled) and math.prod(shape) <= COUNTED):
        limits.check_memory(16.0 * math.prod(shape), f"reading {path}", "give some layers or heads of it")
        return trace_of_matrix(path, rows, columns)
    trace = with_masks_of_rows(trace, sampled.layers[0].rows or (), sampled)
    return trace.about(notes=(*axes_notes(shape), *trace.notes))


def _some_rows(trace: Trace) -> Trace:
    """Return a trace of mapped weights with a few rows of each head: enough to see whether they are weights."""
    heads, n_q, n_k = trace.layers[0].stored.shape
    count = min(n_q, max(2, CELLS // (len(trace.layers) * heads * n_k)))
    rows = tuple(int(row) for row in np.linspace(0, n_q - 1, count).round())
    layers = (replace(layer, weights=layer.rows_of(rows), rows=rows) for layer in trace.layers)  # (heads, rows, n_k)
    return replace(trace, layers=tuple(layers))


def _trace_of_grids(path: str, grids: Sequence[Array], rows: Sequence[str], columns: Sequence[str]) -> Trace:
    """Return weights (heads, n_q, n_k), one for each layer, as a Trace; `rows` and `columns` are names, empty for none.

    The names of the rows are also those of the columns if they fit and the columns have no names.
    """
    n_heads, n_q, n_k = grids[0].shape
    check_head_count(n_heads * len(grids), path)
    if not columns and len(rows) == n_k != n_q:
        rows, columns = (), rows
    for names, size, noun, axis in ((rows, n_q, "token", "row"), (columns, n_k, "key token", "column")):
        if names and len(names) != size:
            raise AttnctlError(
                f"{counted(len(names), noun)} for a grid of {n_q} × {n_k} in {path}: give one a {axis}, as words or a JSON "
                "list"
            )
    heads = tuple(range(n_heads))
    tokens = named_tokens(rows) if rows else [Token(str(index)) for index in range(n_q)]
    keys = [Token(name) for name in columns] if columns else [Token(str(index)) for index in range(n_k)]
    subject = Subject(
        text=" ".join(rows),
        tokens=tuple(tokens),
        key_tokens=None if n_q == n_k and (not columns or tuple(columns) == tuple(rows)) else tuple(keys),
        model=ModelInfo(
            Path(path).stem if path not in ("-", "standard input") else "weights",
            "matrix",
            n_heads=n_heads,
            n_layers=len(grids),
        ),
    )
    return Trace(subject, tuple(LayerTrace(layer, heads, heads, weights=grid) for layer, grid in enumerate(grids)))
