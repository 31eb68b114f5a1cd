"""Read numbers from files: headers of safetensors files, tables and arrays of numbers, embeddings of tokens."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.errors import AttnctlError, about_value, in_one_line
from attnctl.formats.validation import array_header, check_unpickled, read_npy, read_npz, telling_unsound, with_bfloat16
from attnctl.layer import RowsOnDemand
from attnctl.runtime.arrays import Bools, Floats
from attnctl.runtime.files import check_regular, decode_text, open_regular, read_bytes
from attnctl.text import counted
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from attnctl.text import Document


# bytes of one number, for each type that attnctl reads
TYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "BOOL": 1}
TYPES |= {f"{sign}{8 * size}": size for sign in "IU" for size in (1, 2, 4, 8)}


def safetensors_header(path: str | Path) -> Document:
    """Return the header of a file: dtype, shape and data_offsets of each tensor by its name, and "__metadata__".

    Raises AttnctlError if it is damaged, or claims tensors that are not in the file.
    """
    size = check_regular(path)
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, limits.HEADER_BYTES):
            raise AttnctlError(f"{path} is not a sound .safetensors file: its header is longer than the file")
        data = file.read(length)
    try:
        header = json.loads(data)
        if not isinstance(header, dict) or len(header) > limits.TENSORS:
            raise ValueError("its header names no tensors, or too many")
        for name, entry in header.items():
            if name != "__metadata__":
                _check_tensor(name, entry, size - 8 - length)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise AttnctlError(f"{path} is not a sound .safetensors file: {in_one_line(error)}") from error
    return header


def _check_tensor(name: str, entry: Document, room: int) -> None:
    """Raise ValueError if a tensor's shape and place do not fit each other or the file."""
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    whole = all(isinstance(side, int) and not isinstance(side, bool) and side >= 0 for side in (*shape, start, end))
    if not whole or len(shape) > limits.ARRAY_AXES or not start <= end <= room:
        raise ValueError(f"{name[:60]} has shape {str(shape)[:60]}, which its file cannot hold")
    size = TYPES.get(entry["dtype"])
    if size is not None and math.prod(shape) * size != end - start:
        raise ValueError(f"{name[:60]} has shape {str(shape)[:60]}, and {end - start:,} bytes")


def readable_tensors(path: str | Path) -> Document:
    """Return the header of a file's tensors: dtype, shape and data_offsets by name.

    Raises AttnctlError for a type that attnctl does not read, or for more tensors than fit into memory.
    """
    header = {name: entry for name, entry in safetensors_header(path).items() if name != "__metadata__"}
    for name, entry in header.items():
        if entry["dtype"] not in TYPES:
            kind = str(entry["dtype"])[:20]
            raise AttnctlError(f"{path}: {name[:60]} holds {kind}, which attnctl does not read: convert it to F32")
    limits.check_memory(3.0 * check_regular(path), f"reading {path}", "give a smaller file")
    return header


@dataclass(frozen=True)
class GivenRows:
    """Embeddings from a file, a row for each token. A call with tokens returns the rows."""

    path: str
    rows: Floats  # (n, d_model)

    @property
    def d_model(self) -> int:
        """Return the length of a row."""
        return int(self.rows.shape[1])

    def __call__(self, tokens: Sequence[Token]) -> Floats:
        """Return the rows for these tokens: (n, d_model). Raises AttnctlError if the numbers of rows and tokens differ."""
        if len(tokens) != len(self.rows):
            rows, n_tokens = counted(len(self.rows), "row"), counted(len(tokens), "token")
            raise AttnctlError(f"{self.path} has {rows}, but the text has {n_tokens}: one row a token")
        return self.rows


def given_rows(path: str) -> GivenRows:
    """Read a file of embeddings. Raises AttnctlError if it is not a matrix of finite numbers."""
    with about_value(path):
        array = read_array(path, ("embedding", "embeddings", "X")).array
        if array.ndim != 2 or 0 in array.shape:
            raise AttnctlError(f"{path} has shape {array.shape}: embeddings are (tokens, d_model), one row a token")
    return GivenRows(path, array)


def finite_numbers(array: npt.NDArray[np.generic], name: str) -> Floats:
    """Return an array as float32. Raises AttnctlError if it holds no numbers, or one that is NaN or infinite."""
    check_numbers(array.dtype, name)
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(result).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(result))[0])
        number = array[index]
        reason = "which is beyond float32" if np.isfinite(number) else "and every number must be finite"
        raise AttnctlError(f"{name} holds {number:g} at {list(index)}, {reason}")
    return result


def check_numbers(dtype: np.dtype[Any], name: str) -> None:
    """Raise AttnctlError if an array of this type holds no numbers, or numbers of one byte whose type its file lacks."""
    if dtype == np.dtype("V1"):
        raise AttnctlError(
            f"{name} holds one byte a number (V1), without its type: float8_e4m3fn or float8_e5m2? The file does not say: "
            'convert it as the one it is, numpy.save(FILE, array.view(ml_dtypes.float8_e4m3fn).astype("float32")'
        )
    if dtype.kind not in "fiub":
        raise AttnctlError(f"{name} holds {dtype}, not numbers")


def weights_or_scores(array: npt.NDArray[np.generic], name: str) -> Floats:
    """Return an array (…, n_k) as float32, with -inf where a score hides a key; a row may be NaN as a whole.

    Raises AttnctlError if it holds no numbers, another NaN, or a number beyond float32.
    """
    if array.dtype.kind != "f":
        return finite_numbers(array, name)
    hidden = _hides_key(array)
    missing = np.isnan(array).all(-1, keepdims=True)  # (…, 1)
    sound = finite_numbers(np.where(hidden | missing, array.dtype.type(0), array), name)
    sound[np.broadcast_to(missing, sound.shape)] = np.nan
    sound[hidden] = -np.inf
    return sound


def _hides_key(scores: Array) -> Bools:
    """Return where scores of floats are -inf, the lowest number of a type of floats, or the -1e9 of Keras."""
    lowest = np.finfo(np.float16).min  # a score added to it is off by rounding alone
    if scores.dtype == np.float16:
        return np.asarray(scores <= lowest + 32, bool)
    return np.asarray((scores <= -1e30) | (scores == lowest) | (scores == -1e9), bool)


def axes_of_weights(shape: tuple[int, ...], path: str) -> tuple[int, int, int, int]:
    """Return (layers, heads, n_q, n_k) of an array of weights. Raises AttnctlError that names the axes for another shape.

    Stacked weights of transformers also have an axis for the texts of a batch: for one text, that axis is dropped.
    """
    if len(shape) == 5 and shape[1] == 1:
        shape = (shape[0], *shape[2:])
    if len(shape) == 5 and 0 not in shape:
        names = f"(layers, batch, heads, n, n) = {shape} holds a batch of {shape[1]} texts: choose one, array[:, 0]"
        raise AttnctlError(f"{path}: {names}")
    if not 2 <= len(shape) <= 4 or 0 in shape:
        raise AttnctlError(
            f"{path} has shape {shape}: weights are (n, n), (heads, n, n), (layers, heads, n, n) or (layers, 1, heads, n, n)"
        )
    layers, heads, n_q, n_k = (1,) * (4 - len(shape)) + shape
    return layers, heads, n_q, n_k


def map_weights(path: str) -> tuple[tuple[int, ...], list[RowsOnDemand]]:
    """Return the shape of a .npy file and its weights, one item for each layer, without reading them.

    Rows are those of `weights_or_scores`. Raises AttnctlError if they are not a grid of numbers in C order; reading rows
    raises it for numbers that are not sound.
    """
    with telling_unsound(path, ".npy"), open(path, "rb") as file:  # noqa: PTH123
        shape, in_columns, dtype = array_header(file)
        start, size = file.tell(), file.seek(0, 2)
    layers, heads, n_q, n_k = axes_of_weights(shape, path)
    if dtype != np.dtype("V2"):  # bfloat16
        check_numbers(dtype, path)
    if in_columns:
        raise AttnctlError(f"{path} is stored column by column: write it again with numpy.ascontiguousarray")
    grid = n_q * n_k * dtype.itemsize  # bytes
    if size - start < layers * heads * grid:
        raise AttnctlError(
            f"{path} is not a sound .npy file: it ends before its {'×'.join(map(str, shape))} numbers do"
        )

    def read(head: int, first: int, last: int) -> Floats:
        """Return rows of a head, counted over all layers."""
        block = np.memmap(path, dtype, "r", start + head * grid + first * n_k * dtype.itemsize, (last - first, n_k))
        return weights_or_scores(with_bfloat16(np.array(block)), f"{path}, rows {first} to {last - 1}")  # (rows, n_k)

    parts = (tuple(range(layer * heads, (layer + 1) * heads)) for layer in range(layers))
    return shape, [RowsOnDemand(read, part, n_q, n_k) for part in parts]


class NamedArray(NamedTuple):
    """An array of a file, and the names of its rows and columns; empty if the file has no names."""

    array: Floats
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


START_BYTES = 4096  # of a file, by which it is known: a soft alignment begins with the weights of a whole source
COMMENT = b"# "  # numpy.savetxt writes it before its header
_BETWEEN_NUMBERS = re.compile(r"\s*[,;\t]\s*|\s+")

Numbers = Callable[["npt.NDArray[np.generic]", str], Floats]  # checks an array of a file, which it names in its errors


def read_array(
    path: str, names: tuple[str, ...] = (), data: bytes | None = None, numbers: Numbers = finite_numbers
) -> NamedArray:
    """Return the array of a .npy, .npz or .csv file (or of its bytes, already read), with the names in the file.

    `numbers` checks the array. An .npz file may hold several arrays if exactly one has a name in `names`; its arrays
    `tokens` and `key_tokens` name rows and columns. Raises AttnctlError if the file is damaged or ambiguous.
    """
    data = read_bytes(path) if data is None else data
    check_unpickled(data, path)
    if data[:2] == b"PK":
        arrays = read_npz(data, path)
        axes = [axis_names(arrays, name, path) for name in ("tokens", "key_tokens")]
        matches = [name for name in names if name in arrays] or list(arrays)
        if len(matches) != 1:
            raise AttnctlError(f"{path} holds {', '.join(matches) or 'nothing'}: name one array {' or '.join(names)}")
        return NamedArray(numbers(arrays[matches[0]], f"{path}: {matches[0]}"), *axes)
    if data[:6] == b"\x93NUMPY":
        return NamedArray(numbers(read_npy(data, path), path))
    if Path(path).suffix.lower() in (".npy", ".npz") and not is_table(data):  # a table may have this suffix
        raise AttnctlError(f"{path} is not a sound {Path(path).suffix} file (nothing is ever unpickled)")
    return read_csv(decode_text(data, path), path, numbers)


def axis_names(arrays: dict[str, Array], name: str, path: str) -> tuple[str, ...]:
    """Remove the array called `name` from `arrays` and return it as names. Raises AttnctlError if it is not a list."""
    axis = arrays.pop(name, np.empty(0))
    if axis.ndim != 1:
        raise AttnctlError(f"{path}: {name} has shape {axis.shape}: it is a list of names")
    return tuple(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in axis)


def begins_as_matrix(start: bytes) -> bool:
    """Return whether bytes begin with rows of decimal numbers and nothing else, as numpy.savetxt writes them.

    Whole numbers alone may be the ids of tokens, and a single short row may be a text.
    """
    lines = [line for line in start.splitlines() if line.strip() and not line.startswith(COMMENT)]
    rows = [_BETWEEN_NUMBERS.split(line.strip().decode("latin-1")) for line in lines]
    if not rows or len(rows[0]) < 2 or (len(rows) == 1 and len(start) < START_BYTES):
        return False
    cut = 0 if start.endswith(b"\n") else -1  # the last number may go on
    cells = [cell for row in rows for cell in row]
    equal = {len(row) for row in rows[: len(rows) + cut]} <= {len(rows[0])}
    return equal and any("." in cell for cell in cells) and all(_is_number(cell) for cell in cells[: cut or None])


def is_table(data: bytes) -> bool:
    """Return whether the lines of a file or pipe are the rows of a matrix of numbers, at least two by two.

    Numbers with decimal commas count: the reader refuses them by name.
    """
    if begins_as_matrix(data[:START_BYTES]):
        return True
    lines = [line for line in data.splitlines() if line.strip()]
    if len(lines) < 2:
        return False
    rows = (lines[-1].split(mark)[1:] for mark in (b"\t", b";", b","))  # the first cell may be a label
    return any(
        cells and all(_is_number(cell.decode("latin-1").replace(",", "."), float) for cell in cells) for cells in rows
    )


def read_csv(text: str, path: str, numbers: Numbers = finite_numbers) -> NamedArray:
    """Read a matrix (rows, columns) written as text, with a comma, a semicolon, a tab or blanks between the numbers.

    `numbers` checks them. A first line without numbers names the columns, a first column without numbers the rows. If the
    cell in the corner is empty or missing, both are names even if they look like numbers: pandas and R number rows
    without names.
    """
    title, text = _comment_of(text)
    delimiters = [mark for mark in "\t;," if mark in text]
    try:
        tables = [list(csv.reader(StringIO(text, newline=""), delimiter=mark)) for mark in delimiters]
    except csv.Error as error:
        raise AttnctlError(f"{path} is not a sound table: {error}") from error
    by_blanks = [line.split() for line in text.splitlines()]
    split = max((*tables, by_blanks), key=_count_numbers)  # a token may be one of the other delimiters
    lines = [line for line in split if any(cell.strip() for cell in line)]
    if title and lines:
        named = (
            next(csv.reader([title], delimiter=delimiters[tables.index(split)])) if split in tables else title.split()
        )
        lines = [named, *lines] if len(named) == len(lines[0]) else lines
    header = _header_of(lines)
    if header:
        lines = lines[1:]
        if all(len(line) == len(header) + 1 for line in lines):
            header = ["", *header]  # R writes no cell in the corner
    labels: tuple[str, ...] = ()
    empty_corner = bool(header) and (not header[0].strip() or _names_its_rows(header, lines))
    if lines and (empty_corner or not any(_is_number(line[0]) or _has_comma(line[0]) for line in lines)):
        labels = tuple(_name_in(line[0]) for line in lines)
        header, lines = header[1:], [line[1:] for line in lines]
    rows = []
    for number, line in enumerate(lines):
        try:
            cells = [cell.strip() for cell in line]  # pandas writes nothing for NaN
            rows.append([limits.decimal_number(cell) for cell in cells] if any(cells) else [math.nan] * len(cells))
        except ValueError:
            wrong = next(cell for cell in line if not _is_number(cell))
            if _has_comma(wrong):
                raise AttnctlError(f"{path} has decimal commas ({wrong.strip()[:40]}): write them as points") from None
            hint = "" if number or header else " (a line of names begins with an empty cell)"
            raise AttnctlError(
                f"{path}: row {number} of numbers holds {wrong[:40]!r}, which is not a number{hint}"
            ) from None
        if len(rows[-1]) != len(rows[0]):
            raise AttnctlError(f"{path}: row {number} has {len(rows[-1])} numbers, the first has {len(rows[0])}")
    if not rows or not rows[0]:
        raise AttnctlError(f"{path} holds no numbers")
    columns = tuple(map(_name_in, header))
    if columns and len(columns) != len(rows[0]):
        raise AttnctlError(
            f"{path}: the first line names {counted(len(columns), 'column')}, but a row has {len(rows[0])} numbers"
        )
    return NamedArray(numbers(np.asarray(rows), path), labels, columns)


def _comment_of(text: str) -> tuple[str, str]:
    """Return the last of the lines that numpy.savetxt marks with # before the numbers, "" without one, and the rest."""
    title = ""
    while text.startswith(COMMENT.decode()):
        first, _, text = text.partition("\n")
        title = first.removeprefix(COMMENT.decode()).strip()
    return title, text


def _header_of(lines: Sequence[list[str]]) -> list[str]:
    """Return the first line if it holds names: no number, or an empty corner above a first column of names; else nothing."""
    if len(lines) < 2:
        return []
    first, lines_below = lines[0], lines[1:]
    numbers = [_is_number(cell) or _has_comma(cell) for cell in first]
    if not any(numbers):
        return first
    # numbers in the first line are names if a name is among them or they count up: otherwise a row of numbers may be lost
    counts = all(cell.strip().isdecimal() for cell in first[1:]) or not all(numbers[1:])
    corner = not first[0].strip() and any(line[0].strip() for line in lines_below) and counts
    short = all(len(line) == len(first) + 1 and not _is_number(line[0]) for line in lines_below)
    return first if corner or short or _names_its_rows(first, lines_below) else []


def _names_its_rows(first: Sequence[str], lines_below: Sequence[Sequence[str]]) -> bool:
    """Return whether a first line begins with a name for rows that count from 0, as a pivot of pandas: query,0,1."""
    counted_rows = [line[0].strip() for line in lines_below] == [str(number) for number in range(len(lines_below))]
    return bool(first[0].strip()) and not _is_number(first[0]) and counted_rows and len(lines_below) > 1


def _name_in(cell: str) -> str:
    """Return a name without the blanks around it; keep a name that consists of blanks, such as a line break."""
    return cell.strip() or cell


def _count_numbers(table: Sequence[Sequence[str]]) -> int:
    """Return how many numbers the last line that is not empty has; decimal commas count too."""
    last = next((line for line in reversed(table) if any(cell.strip() for cell in line)), ())
    return sum(_is_number(cell) or _has_comma(cell) for cell in last)


def _has_comma(cell: str) -> bool:
    return "," in cell and _is_number(cell.replace(",", ".", 1))


def _is_number(cell: str, read: Callable[[str], object] = limits.decimal_number) -> bool:
    try:
        read(cell.strip())
    except ValueError:
        return False
    return True
