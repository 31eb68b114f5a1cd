"""Find the attention among the arrays of a file, as other programs save it: by its name, its layers, or its row sums."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.checks.tolerances import OWN_ROW
from attnctl.errors import AttnctlError
from attnctl.formats.arrays import axis_names, read_array, safetensors_header, weights_or_scores
from attnctl.formats.soft_alignments import begins_as_soft_alignment, read_soft_alignment
from attnctl.formats.validation import WEIGHTS_KEYS, check_unpickled, read_npz, telling_unsound, with_bfloat16
from attnctl.runtime.files import decode_text, open_regular, parse_json
from attnctl.text import counted, for_pasting, shortened

if TYPE_CHECKING:
    from attnctl.runtime.arrays import Bools, Floats

FORMS = (
    "attention is read from .npy, .npz, .safetensors, .json, .csv and .parquet: an array (n, n), (heads, n, n) or "
    "(layers, heads, n, n), named weights or attention among others; one array a layer, layer_0, layer_1, …; or a table "
    "of layer, head, query, key, weight (attnctl docs my-checkpoint)"
)
MOST_CANDIDATES = 20  # of a file of tensors that may be attention; a model has more
MOST_LETTERS = 100  # of a name in a message
SAMPLE_BYTES = 1 << 20  # of an array, whose rows are summed
MOST_NAMED = 6  # names in a message
MOST_OBJECTS = 1000  # of a document, in which numbers are searched for a message
_ATTENTION = re.compile(r"att(e)?n(tion)?s?|weights?|probs|softmax|qk", re.I)


@dataclass(frozen=True)
class GivenAttention:
    """The attention of a file: an array as `axes_of_weights` reads it, the names of its axes, how it was found."""

    array: Floats  # (…, n_q, n_k)
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    note: str = ""  # which arrays are the layers
    padding: str = ""  # which tokens are left out as padding


@dataclass(frozen=True)
class Candidate:
    """One array of a file, or the arrays of equal shape whose names differ in one number, in its order."""

    names: tuple[str, ...]
    shape: tuple[int, ...]  # of each array

    @property
    def title(self) -> str:
        """Return the name, or the one form of the names with the numbers that it counts."""
        if len(self.names) == 1:
            return shortened(self.names[0], MOST_LETTERS)
        first, last = (re.split(r"(\d+)", name) for name in (self.names[0], self.names[-1]))
        differing = [place for place, pair in enumerate(zip(first, last, strict=False)) if len(set(pair)) > 1]
        if len(first) != len(last) or len(differing) != 1:
            return f"{shortened(self.names[0], MOST_LETTERS)} … {shortened(self.names[-1], MOST_LETTERS)}"
        place = differing[0]
        form = "".join([*first[:place], "#", *first[place + 1 :]])
        return f"{shortened(form, MOST_LETTERS)} from {first[place]} to {last[place]}"


def read_attention(path: str, data: bytes) -> GivenAttention:
    """Return the attention in the bytes of a file, and the names of tokens beside it.

    Raises AttnctlError if it is damaged, or if it is not clear which array is the attention.
    """
    check_unpickled(data, path)
    if data[:2] == b"PK":
        return attention_among(read_npz(data, path), path)
    if is_safetensors(data):
        return attention_among(_arrays_of_safetensors(data, path), path)
    if data.lstrip()[:1] in (b"[", b"{"):
        document = parse_json(data, path)
        arrays = document if isinstance(document, dict) else {WEIGHTS_KEYS[0]: document}
        return attention_among(_arrays_of_json(arrays, path), path)
    if begins_as_soft_alignment(data):
        weights, names = read_soft_alignment(decode_text(data, path), path)
        return GivenAttention(weights, names, ())
    named = read_array(path, (), data, weights_or_scores)
    return GivenAttention(named.array, named.rows, named.columns)


# a list of lists of numbers, alone or as the value of a name
_LISTS = re.compile(rb"(\[\s*){2,}(-?[0-9]|null\b)")
_NAMED_LISTS = re.compile(
    rb'"(?:%s)"\s*:\s*(?:\[\s*){2,}(?:-?[0-9]|null\b)' % b"|".join(n.encode() for n in WEIGHTS_KEYS)
)
_ANY_LISTS = re.compile(rb'"[^"\\]*"\s*:\s*(?:\[\s*){2,}(?:-?[0-9]|null\b)')


def begins_as_lists(data: bytes, is_json: bool) -> bool:
    """Return whether bytes are JSON of bare weights: nested lists of numbers, or an object that holds them by name.

    In a file that is called .json the name may be any; a document with a schema is attnctl's own.
    """
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] == b"[":
        return _LISTS.match(start) is not None
    lines = start.rstrip().split(b"\n", 1)
    if start[:1] != b"{" or b'"schema"' in start[:4096] or (len(lines) > 1 and lines[0].rstrip().endswith(b"}")):
        return False
    return (_ANY_LISTS if is_json else _NAMED_LISTS).search(start) is not None


def is_safetensors(data: bytes) -> bool:
    """Return whether bytes are a safetensors file: the length of its header, then JSON."""
    return data[8:9] == b"{" and 2 <= int.from_bytes(data[:8], "little") <= limits.HEADER_BYTES


def holds_attention(path: str) -> bool:
    """Return whether a safetensors file holds attention, and no model: by the names of its tensors, or by row sums."""
    try:
        header = {name: entry for name, entry in safetensors_header(path).items() if name != "__metadata__"}
    except AttnctlError:  # damaged: the reader of a model says so
        return False
    shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
    if any(name in WEIGHTS_KEYS and len(shapes[name]) > 1 for name in shapes):
        return True
    candidates = _candidates(shapes)
    if not 1 <= len(candidates) <= MOST_CANDIDATES:
        return False
    with open_regular(path) as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        for candidate in candidates:
            entry = header[candidate.names[0]]
            if (dtype := _DTYPES.get(entry["dtype"])) is None:
                continue
            row = candidate.shape[-1] * np.dtype(dtype).itemsize  # bytes
            file.seek(begin + entry["data_offsets"][0])
            data = file.read(min(math.prod(candidate.shape[:-1]), 1 + SAMPLE_BYTES // row) * row)
            if rows_sum_to_one(with_bfloat16(np.frombuffer(data, dtype).reshape(-1, candidate.shape[-1]))):
                return True
    return False


def attention_among(arrays: Mapping[str, Array], path: str) -> GivenAttention:
    """Return the attention among arrays by name: weights, attention, …; the only one; or the one whose rows sum to 1.

    Arrays of equal shape whose names differ in one number are the layers. Their names may be arr_0, arr_1, … only if
    rows sum to 1. `tokens` and `key_tokens` name the axes; tokens that an `attention_mask` calls padding are left out.
    Raises AttnctlError, with the names, if several are possible, and if the mask leaves no token.
    """
    arrays = dict(arrays)
    mask = arrays.get("attention_mask")
    if mask is not None and mask.dtype.kind in "biu" and mask.ndim and mask.size == mask.shape[-1]:
        del arrays["attention_mask"]
        if not mask.any():
            raise AttnctlError(f"{path}: its attention_mask calls every token padding")
        return _without_padding(attention_among(arrays, path), mask.reshape(-1) != 0)
    rows, columns = (axis_names(arrays, name, path) for name in ("tokens", "key_tokens"))
    named = [name for name in WEIGHTS_KEYS if name in arrays]
    if len(named) > 1:
        raise AttnctlError(f"{path} holds {', '.join(named)}: name one array {WEIGHTS_KEYS[0]}")
    if named or len(arrays) == 1:
        name = named[0] if named else next(iter(arrays))
        return GivenAttention(weights_or_scores(arrays[name], f"{path}: {name}"), rows, columns)
    candidate = _chosen(_candidates({name: array.shape for name, array in arrays.items()}), arrays, path)
    layers = [
        _of_layer(weights_or_scores(arrays[name], f"{path}: {name}"), f"{path}: {name}") for name in candidate.names
    ]
    if len(layers) == 1:
        return GivenAttention(layers[0], rows, columns, f"Of the arrays in {path}, {candidate.title} is the attention.")
    note = f"{len(layers)} arrays are read as the layers, in the order of their number: {candidate.title}."
    return GivenAttention(np.stack(layers), rows, columns, note)


def _without_padding(given: GivenAttention, kept: Bools) -> GivenAttention:
    """Return the attention of a text on itself without its padding, where `kept` (n,) is False and no other token looks."""
    n = len(kept)
    if given.array.shape[-2:] != (n, n) or kept.all() or given.array[..., kept, :][..., ~kept].any():
        return given
    rows, columns = (
        tuple(name for name, is_kept in zip(names, kept, strict=True) if is_kept) if len(names) == n else names
        for names in (given.rows, given.columns)
    )
    padding = counted(n - int(kept.sum()), "token")
    note = f"Left out: {padding} of {n} that its attention_mask calls padding."
    return replace(given, array=given.array[..., kept, :][..., kept], rows=rows, columns=columns, padding=note)


def rows_sum_to_one(array: npt.NDArray[np.generic]) -> bool:
    """Return whether an array (…, n_k) holds shares of attention: from 0 to 1, each row with sum 1; some may be empty."""
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size or np.isinf(array).any():
        return False  # -inf hides: these are scores
    numbers = np.nan_to_num(array.astype(np.float32), nan=0.0)
    sums = numbers.sum(-1)  # (…)
    shares = np.abs(sums - 1) <= OWN_ROW
    return bool((numbers >= 0).all() and shares.any() and (shares | (sums == 0)).all())


def _candidates(shapes: Mapping[str, tuple[int, ...]]) -> list[Candidate]:
    """Return the arrays that may be attention, those together that may be its layers, in the order of the file."""
    forms: dict[tuple[str, tuple[int, ...]], dict[tuple[int, ...], str]] = {}
    for name, shape in shapes.items():
        if len(shape) > 1 and 0 not in shape:
            parts = re.split(r"(\d{1,9})", name)
            numbers = tuple(map(int, parts[1::2]))
            forms.setdefault(("#".join(parts[::2]), shape), {})[numbers] = name
    for (form, shape), members in forms.items():  # Keras and torch leave out a first number: attention, attention_1
        for match in re.finditer("_#", form):
            first = forms.get((form[: match.start()] + form[match.end() :], shape), {})
            place = form[: match.start()].count("#")
            for numbers in list(first):
                if (counted := (*numbers[:place], 0, *numbers[place:])) not in members:
                    members[counted] = first.pop(numbers)
    candidates = []
    for (_, shape), members in forms.items():
        for group in _groups(members):
            candidates.append(Candidate(tuple(group), shape))
    return candidates


def _groups(members: Mapping[tuple[int, ...], str]) -> list[list[str]]:
    """Return names by number, `members`, in groups that differ in the first number that varies, each in its order."""
    varying = [place for place, numbers in enumerate(zip(*members, strict=True)) if len(set(numbers)) > 1]
    if not varying:
        return [[name] for name in members.values()]
    first, groups = varying[0], dict[tuple[int, ...], list[str]]()
    for numbers in sorted(members, key=lambda numbers: numbers[first]):
        groups.setdefault(numbers[:first] + numbers[first + 1 :], []).append(members[numbers])
    return list(groups.values())


def _chosen(candidates: list[Candidate], arrays: Mapping[str, Array], path: str) -> Candidate:
    """Return the attention among candidates. Raises AttnctlError, with their names, if it is not clear which it is."""
    numbered = [c for c in candidates if len(c.names) > 1 and re.fullmatch(r"arr_\d+", c.names[0])]
    if len(candidates) == 1 and not numbered:
        return candidates[0]
    left = [c for c in candidates if rows_sum_to_one(arrays[c.names[0]]) and rows_sum_to_one(arrays[c.names[-1]])]
    if not left:
        left = [c for c in candidates if _ATTENTION.search(c.names[0]) and c not in numbered]
    for preferred in (lambda c: _ATTENTION.search(c.names[0]), lambda c: len(c.shape) > 2, lambda c: len(c.names) > 1):
        if len(left) > 1 and any(map(preferred, left)):
            left = list(filter(preferred, left))
    if len(left) == 1:
        return left[0]
    shown = [f"{c.title} {c.shape}" for c in (left or candidates)[:MOST_NAMED]] or list(arrays)[:MOST_NAMED]
    more = ", …" if len(left or candidates) > MOST_NAMED else ""
    if not left:
        raise AttnctlError(f"{path} holds {', '.join(shown)}{more}, and no rows with sum 1: {FORMS}")
    raise AttnctlError(
        f"{path} holds {', '.join(shown)}{more}: name one array {WEIGHTS_KEYS[0]}, or leave out the others"
    )


def _of_layer(array: Floats, name: str) -> Floats:
    """Return the weights of one layer as (heads, n_q, n_k), without axes of one text. Raises AttnctlError for a batch."""
    while array.ndim > 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim > 3:
        raise AttnctlError(f"{name} has shape {array.shape}, a batch of {array.shape[0]} texts: choose one, array[0]")
    return array[None] if array.ndim == 2 else array


def _arrays_of_json(document: Mapping[str, Any], path: str) -> dict[str, Array]:
    """Return the nested lists of a JSON object as arrays, NaN for null. Raises AttnctlError for ragged lists."""
    arrays: dict[str, Array] = {}
    for name, value in document.items():
        if name in ("tokens", "key_tokens") and isinstance(value, list):
            arrays[name] = np.array([str(token) for token in value])
        elif isinstance(value, list) and value and isinstance(value[0], list):
            try:
                arrays[name] = np.array(value, np.float64)
            except (ValueError, TypeError) as error:
                ragged = "inhomogeneous" in str(error)
                problem = "lists of different lengths: give one text" if ragged else "things that are not numbers"
                if name in WEIGHTS_KEYS:
                    raise AttnctlError(f"{path}: {name} holds {problem}") from error
    if not arrays.keys() - {"tokens", "key_tokens"}:
        raise AttnctlError(f"{path} holds no lists of numbers by name{_deeper_lists(document, path) or f': {FORMS}'}")
    return arrays


def _deeper_lists(document: Mapping[str, Any], path: str) -> str:
    """Return the end of a sentence that says where lists of numbers are deeper in a document, and how to take them out."""
    for place, parent in islice(_objects_in(document), MOST_OBJECTS):
        weights = next((name for name, value in parent.items() if _depth_of_numbers(value) > 1), None)
        if weights is None:
            continue
        names = [name for name, value in parent.items() if _is_list_of_words(value)]
        taken = zip((WEIGHTS_KEYS[0], "tokens", "key_tokens"), (weights, *names), strict=False)
        program = f"{{{', '.join(f'{key}: {_place_of(name, place)}' for key, name in taken)}}}"
        deeper = f"its {_place_of(weights, place)} does"
        return f", but {deeper}: jq {shlex.quote(program)} {for_pasting(path)} | attnctl heatmap -"
    return ""


def _objects_in(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects in JSON with their places as jq writes them, the outermost first; of a list its first item."""
    waiting: deque[tuple[str, object]] = deque([("", document)])
    while waiting:
        place, value = waiting.popleft()
        if isinstance(value, dict):
            yield place, value
            waiting.extend((_place_of(name, place), part) for name, part in value.items())
        elif isinstance(value, list) and value:
            waiting.append((f"{place}[0]", value[0]))


def _place_of(name: str, place: str) -> str:
    """Return the place of the value that an object in `place` has under a name, as jq writes it."""
    return f"{place}.{name}" if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"{place or '.'}[{json.dumps(name)}]"


def _depth_of_numbers(value: object) -> int:
    """Return how many lists are around the first number of nested lists; 0 if there is no number."""
    depth = 0
    while isinstance(value, list) and value:
        value, depth = value[0], depth + 1
    return depth if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _is_list_of_words(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2"}  # types of floats in safetensors


def _arrays_of_safetensors(data: bytes, path: str) -> dict[str, Array]:
    """Return the tensors of floats in a safetensors file, and `tokens` and `key_tokens` of its metadata."""
    with telling_unsound(path, ".safetensors"):
        from safetensors import deserialize

        arrays: dict[str, Array] = {
            name: with_bfloat16(np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"]))
            for name, entry in deserialize(data)  # type: ignore[no-untyped-call]
            if entry["dtype"] in _DTYPES
        }
        length = int.from_bytes(data[:8], "little")
        metadata = parse_json(data[8 : 8 + length], path).get("__metadata__") or {}
        for name in ("tokens", "key_tokens"):
            if name in metadata:
                arrays[name] = np.array([str(token) for token in parse_json(metadata[name], path)])
    return arrays
