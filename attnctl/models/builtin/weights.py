"""Read weights files, `.safetensors` or `.npz`, without unpickling anything; check them, and open them as a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson

from attnctl.attention import Array
from attnctl.checks import limits
from attnctl.checks.limits import decimal_number, whole_number
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name, options_as_flags
from attnctl.formats.arrays import finite_numbers, given_rows, readable_tensors
from attnctl.formats.validation import read_npz
from attnctl.models.builtin.framework_weights import converted, layouts
from attnctl.models.builtin.opened import OpenedStack
from attnctl.models.builtin.stack import PROJECTIONS, Settings, Stack, chosen_settings, stack_info
from attnctl.models.builtin.vocabulary import SHAPES, ids_of_words, letter_pieces, vocabulary_tokenizer
from attnctl.readings.questions.headline import measured_roles
from attnctl.runtime.arrays import Floats
from attnctl.runtime.files import open_regular, read_bytes
from attnctl.text import counted
from attnctl.text.tokens import Token, open_tokenizer
from attnctl.version import __version__

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues
    from attnctl.text import Document

Number = TypeVar("Number", int, float)

# tensors with their axes; axes of one name have the same length
LAYER_TENSORS = {
    "W_Q": ("heads", "d_model", "d_k"),
    "W_K": ("kv_heads", "d_model", "d_k"),
    "W_V": ("kv_heads", "d_model", "d_v"),
    "b_Q": ("heads", "d_k"),
    "b_K": ("kv_heads", "d_k"),
    "b_V": ("kv_heads", "d_v"),
    "W_O": ("heads · d_v", "d_out"),
    "b_O": ("d_out",),
}
MODEL_TENSORS = {
    "embedding": ("words", "d_model"),
    "pieces": ("pieces", "d_model"),
    "positions": ("positions", "d_model"),
    "unembedding": ("d_model", "words predicted"),
}
TABLES = ("embedding", "pieces", "unembedding")  # one row, or column, for each word: a text needs a few of thousands


@dataclass(frozen=True)
class WeightFile:
    """The content of a weights file: tensors by name, metadata as strings."""

    path: str
    tensors: dict[str, Floats]
    metadata: dict[str, str]

    def metadata_number(self, name: str, read: Callable[[str], Number]) -> Number | None:
        """Return metadata `name`, converted by `read`; None if it is missing. Raises AttnctlError if it is not a number."""
        if name not in self.metadata:
            return None
        try:
            return read(self.metadata[name])
        except ValueError as error:
            raise AttnctlError(f"{self.path}: metadata {name} is {self.metadata[name][:40]!r}, not a number") from error

    def metadata_switch(self, name: str) -> bool:
        """Return whether metadata `name` is true; False if it is missing. Raises AttnctlError for anything else."""
        value = self.metadata.get(name, "").strip().lower()
        if value not in ("true", "1", "yes", "false", "0", "no", ""):
            raise AttnctlError(f"{self.path}: metadata {name} is {self.metadata[name][:40]!r}, not true or false")
        return value in ("true", "1", "yes")

    @cached_property
    def vocabulary(self) -> list[str]:
        """Return the words of metadata `tokens`, [] if it is missing. Raises AttnctlError for anything but words."""
        if "tokens" not in self.metadata:
            return []
        try:
            tokens = orjson.loads(self.metadata["tokens"])
        except ValueError:
            tokens = None
        if not isinstance(tokens, list) or not set(map(type, tokens)) <= {str}:
            raise AttnctlError(f"{self.path}: metadata tokens is not a JSON list of strings")
        return tokens

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """Return word → its place in the vocabulary; the first one, if it is there twice."""
        return ids_of_words(self.vocabulary)

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        return Path(self.path).stat().st_size

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Return tensor → its shape."""
        return {name: list(tensor.shape) for name, tensor in self.tensors.items()}


def read_weights(path: str | Path) -> WeightFile:
    """Return the content of a weights file. Raises AttnctlError if it is missing, damaged, or has NaN or infinity."""
    path = str(path)
    with open_regular(path) as file:
        start = file.read(2)
    if start == b"PK":
        arrays = read_npz(read_bytes(path), path)
        metadata = {
            name: json.dumps(array.tolist()) if array.ndim else str(array)
            for name, array in arrays.items()
            if array.dtype.kind in "US" or (array.ndim == 0 and not _tensor_name(name))
        }
        tensors = {name: array for name, array in arrays.items() if name not in metadata}
    elif Path(path).suffix.lower() == ".npz":
        raise AttnctlError(f"{path} is not a sound .npz file (nothing is ever unpickled)")
    else:
        tensors, metadata = read_safetensors(path, TABLES)
    checked = {}
    for name, tensor in tensors.items():
        on_disk = name in TABLES and isinstance(tensor, np.memmap)  # its rows are checked when they are read
        checked[name] = tensor if on_disk else finite_numbers(tensor, f"{path}: {name}")
    return WeightFile(path, checked, metadata)


@cache
def _bundled_weights(path: str) -> WeightFile:
    """Return the content of a weights file that comes with attnctl, read once: it does not change."""
    return read_weights(path)


def table_rows(table: Array, rows: Array, name: str) -> Floats:
    """Return rows of a table as float32 → (len(rows), width). Raises AttnctlError if one has NaN or infinity."""
    return finite_numbers(np.asarray(table)[rows], name)  # (rows, width)


def read_safetensors(path: str, mapped: Sequence[str] = ()) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return tensors and metadata of a .safetensors file; `mapped` tensors stay on disk if possible, read row by row.

    Raises AttnctlError if it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    header = readable_tensors(path)
    types = {name: entry["dtype"] for name, entry in header.items()}
    try:
        with safe_open(path, framework="np") as file:
            metadata, names = dict(file.metadata() or {}), list(file.keys())
            if {"BF16", "F8_E4M3", "F8_E5M2"} & set(types.values()):
                with safe_open(path, framework="pt") as wide:  # NumPy lacks these types
                    return {name: wide.get_tensor(name).float().numpy() for name in names}, metadata
            tables = [name for name in mapped if types.get(name) in _MAPPED]
            tensors = {name: file.get_tensor(name) for name in names if name not in tables}
    except SafetensorError as error:
        raise AttnctlError(f"{path} is not a sound .safetensors file: {in_one_line(error)}") from error
    except (TypeError, MemoryError) as error:
        raise AttnctlError(f"{path} cannot be read: {error}") from error
    begin = Path(path).stat().st_size - max(
        (header_entry["data_offsets"][1] for header_entry in header.values()), default=0
    )
    for name in tables:
        shape, offset, dtype = header[name]["shape"], begin + header[name]["data_offsets"][0], _MAPPED[types[name]]
        tensors[name] = (
            np.memmap(path, dtype, "r", offset, tuple(shape)) if 0 not in shape else np.zeros(shape, np.float32)
        )
    return tensors, metadata


_MAPPED: dict[str, Any] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


def _tensor_name(name: str) -> bool:
    return re.sub(r"^layers\.\d+\.", "", name) in LAYER_TENSORS or name in MODEL_TENSORS


def open_weights(
    *,
    path: str,
    bundled: str | None = None,
    seed: int = 0,
    embeddings: str | None = None,
    tokenizer: str | None = None,
    **how: Any,
) -> Stack:
    """Return a stack of the layers in a weights file; `how` are n_heads, n_kv_heads and Settings, over its metadata.

    `path` may be a folder with `weights.safetensors`; `bundled` names weights that come with attnctl. Raises
    AttnctlError if tensors are missing or do not fit.
    """
    _refuse_sizes(how, bundled or path)
    if Path(path).is_dir():
        path = str(Path(path) / "weights.safetensors")
    file = _bundled_weights(path) if bundled else read_weights(path)
    n_heads, n_kv_heads = how.pop("n_heads", None), how.pop("n_kv_heads", None)
    file, kept_notes = _in_own_layout(file, n_heads, n_kv_heads)
    if kept_notes is not None:  # its tensors have an axis of heads
        n_heads = n_kv_heads = None
    layers = _layers_of_file(file, bundled or path, n_heads, n_kv_heads)
    if bundled:  # its file is read once for all: who changes this stack changes no other
        layers = tuple({name: tensor.copy() for name, tensor in layer.items()} for layer in layers)
    settings = _settings_of_file(file, how, seed)
    d_model, d_k = layers[0]["W_Q"].shape[1:]
    if settings.rope_theta is not None and d_k % 2:
        raise AttnctlError(f"{path}: RoPE turns pairs of dimensions, but d_k is {d_k}")
    embed, vocabulary, notes = _embedding_of(file, d_model, seed, embeddings)
    tokenize = open_tokenizer(tokenizer)
    if vocabulary:
        tokenize = vocabulary_tokenizer(tokenize, file.word_ids, file.metadata.get("unknown", ""), path)
    # the matrix from rows to scores of words (d_model, vocabulary): its own tensor, the embedding, or None
    tied = file.metadata_switch("tied") and "embedding" in file.tensors
    unembedding: Array = file.tensors["embedding"].T if tied else file.tensors.get("unembedding")
    predicts = unembedding is not None and len(vocabulary) == unembedding.shape[1]
    residual = len(layers) > 1 or file.metadata_switch("residual") or predicts
    if residual:
        _check_residual(file, layers)
    own_name = Path(path).parent.name if Path(path).name == "weights.safetensors" else Path(path).stem
    name, kind = (bundled, "demo") if bundled else (own_name, "weights")
    fields = _fields_of_file(file, bundled) | {"seed": seed if isinstance(embed, partial) else None}
    return OpenedStack(
        info=stack_info(name, kind, layers, settings, **fields),
        settings=settings,
        layers=layers,
        embed=embed,
        tokenize=tokenize,
        residual=residual,
        positions=file.tensors.get("positions"),
        unembedding=unembedding if predicts else None,
        tied=predicts and "unembedding" not in file.tensors,
        letter_rows=len(file.tensors["pieces"]) if "pieces" in file.tensors else None,
        vocabulary=list(vocabulary),
        longest=file.metadata_number("longest", whole_number),
        notes=(*(kept_notes or ()), *notes, *_shape_notes(file)),
    )


def has_own_names(file: WeightFile) -> bool:
    """Return whether a file calls its projections W_Q, W_K and W_V, as no framework does."""
    return any(re.fullmatch(r"(layers\.\d+\.)?W_[QKV]", name) for name in file.tensors)


def _in_own_layout(
    file: WeightFile, n_heads: int | None, n_kv_heads: int | None
) -> tuple[WeightFile, tuple[str, ...] | None]:
    """Return a file with the projections of a framework as W_Q, …, and notes; None in their place for any other file."""
    if has_own_names(file):
        return file, None
    sizes = {"n_heads": n_heads, "n_kv_heads": n_kv_heads}
    for name, number in sizes.items():
        sizes[name] = file.metadata_number(name, whole_number) if number is None else number
    made = converted(file.tensors, file.path, **sizes)
    if made is None:
        return file, None
    metadata = {name: value for name, value in file.metadata.items() if name not in sizes}
    return replace(file, tensors=made[0], metadata=metadata), made[1]


def _refuse_sizes(how: OptionValues, name: str) -> None:
    """Remove the options of `random` from `how`. Raises UsageError for one that is set: a file has its own sizes."""
    for option in ("d_model", "d_k", "n_layers", "output_projection"):
        if how.pop(option, None) is not None:
            meant = f": did you mean {option_name('layer')}?" if option == "n_layers" else ""
            why = f"is for {option_name('model', 'random')}, and {name} has sizes of its own{meant}"
            raise UsageError(why, option=option)


def _layers_of_file(
    file: WeightFile, name: str, heads: int | None, kv_heads: int | None
) -> tuple[dict[str, Floats], ...]:
    """Return the tensors of each layer by head, with the requested number of heads (None: the number in the metadata).

    Raises UsageError if the file has another number of heads than requested.
    """
    n_heads = file.metadata_number("n_heads", whole_number) if heads is None else heads
    n_kv_heads = file.metadata_number("n_kv_heads", whole_number) if kv_heads is None else kv_heads
    stored_heads = next((w.shape[0] for key, w in file.tensors.items() if key.endswith("W_Q") and w.ndim == 3), None)
    if heads is not None and stored_heads is not None and heads != stored_heads:
        meant = f"did you mean {option_name('head', heads)}?"
        raise UsageError(f"{name} has {counted(stored_heads, 'head')}: {meant}", option="n_heads", value=heads)
    shared = n_heads if n_kv_heads is None else n_kv_heads
    return tuple(_fitted_shapes(file, layer, n_heads, shared) for layer in _layer_tensors(file))


def _fields_of_file(file: WeightFile, bundled: str | None) -> Document:
    """Return facts about the file as fields of ModelInfo: learned positions, what its heads find, its digest.

    A file that is too large to read each time has no digest. Raises AttnctlError if the metadata about heads is damaged.
    """
    fields: Document = {"positions": "learned"} if "positions" in file.tensors else {}
    try:
        fields["finds"] = measured_roles(json.loads(file.metadata.get("figures", "{}")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise AttnctlError(f"{file.path}: metadata figures is damaged: {in_one_line(error)}") from error
    path = Path(file.path)
    if bundled:
        fields["source"] = f"bundled with attnctl {__version__}"
    elif path.stat().st_size <= limits.CARD_DIGEST_BYTES:
        fields["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return fields


BUNDLED = ("demo", "demo-causal")


def path_of(name: str) -> Path:
    """Return the path of the bundled weights `name`."""
    return Path(str(files("attnctl.models.builtin"))) / f"{name}.safetensors"


def trained_file(name: str) -> Path | None:
    """Return the file of a bundled model, of a training run, or of weights; None for anything else."""
    if name in BUNDLED:
        return path_of(name)
    path = Path(name) / "weights.safetensors" if Path(name).is_dir() else Path(name)
    return path if path.suffix == ".safetensors" and path.is_file() else None


def open_demo(**options: Any) -> Stack:
    """Open `demo`, a model of masked words: each word sees all others."""
    return open_weights(path=str(path_of("demo")), bundled="demo", **options)


def open_demo_causal(**options: Any) -> Stack:
    """Open `demo-causal`, a model of the next word: each word sees those before it."""
    return open_weights(path=str(path_of("demo-causal")), bundled="demo-causal", **options)


def steps_of(run: str) -> dict[int, Path]:
    """Return the weights stored during a training run: step → file. Raises AttnctlError if the folder has none."""
    paths = {
        int(match[1]): path
        for path in sorted(Path(run).glob("step-*.safetensors"))
        if (match := re.fullmatch(r"step-(\d+)\.safetensors", path.name))
    }
    if not paths:
        raise AttnctlError(f"{run} is not a training run: it holds no step-*.safetensors (see attnctl train)")
    return paths


def reports_of(run: str | Path) -> list[Document]:
    """Return the reports of a training run so far, without damaged or cut lines."""
    path = Path(run, "metrics.jsonl")
    reports = []
    for line in read_bytes(path).splitlines() if path.exists() else []:
        try:
            report = orjson.loads(line)  # orjson reads only what it can write again
            reports.append(report | {"step": int(report["step"])})
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
    return reports


def _settings_of_file(file: WeightFile, how: OptionValues, seed: int) -> Settings:
    """Return the settings: `how` over the file's metadata. Raises AttnctlError for wrong metadata."""
    file_options = _file_settings(file)
    try:
        Settings(**file_options)
    except UsageError as error:
        with options_as_flags(None):  # here they are names in the file
            raise AttnctlError(f"{file.path}: metadata {error}") from error
    return chosen_settings(how | {"seed": seed}, file_options)


def _file_settings(file: WeightFile) -> OptionValues:
    """Return what the metadata says about attention, as fields of Settings."""
    options: OptionValues = {}
    if "causal" in file.metadata:
        options["causal"] = file.metadata_switch("causal")
    scale = file.metadata.get("scale", "auto")
    if scale != "auto":
        options["scale"] = 1.0 if scale == "none" else file.metadata_number("scale", decimal_number)
    for name in ("rope_theta", "temperature"):
        if name in file.metadata:
            options[name] = file.metadata_number(name, decimal_number)
    for name in ("window", "first_window"):
        if name in file.metadata:
            options[name] = file.metadata_number(name, whole_number)
    for name in ("rope_pairs", "positions"):
        if name in file.metadata:
            options[name] = file.metadata[name]
    return options


def _layer_tensors(file: WeightFile) -> list[dict[str, Floats]]:
    """Return each layer's tensors by their short names. Raises AttnctlError if one is missing."""
    numbered: dict[int, dict[str, Floats]] = {}
    for name, tensor in file.tensors.items():
        match = re.fullmatch(r"(?:layers\.([0-9]{1,6})\.)?(\w+)", name)
        if match and match[2] in LAYER_TENSORS:
            numbered.setdefault(int(match[1] or 0), {})[match[2]] = tensor
    if not numbered:
        has = ", ".join(list(file.tensors)[:3]) or "nothing"
        raise AttnctlError(
            f"{file.path} has no W_Q, W_K, W_V: it holds {has}. For a Hugging Face checkpoint, give its folder; a weights "
            f"file has {layouts()}"
        )
    if sorted(numbered) != list(range(len(numbered))):
        raise AttnctlError(f"{file.path} has layers {sorted(numbered)}: they must count from 0 without a gap")
    for layer, tensors in numbered.items():
        for name in PROJECTIONS:
            if name not in tensors:
                raise AttnctlError(f"{file.path}: layer {layer} has no {name} (it has {', '.join(tensors)})")
    return [numbered[layer] for layer in sorted(numbered)]


def _fitted_shapes(
    file: WeightFile, tensors: dict[str, Floats], n_heads: int | None, n_kv_heads: int | None
) -> dict[str, Floats]:
    """Return a layer's tensors by head, as in LAYER_TENSORS. Raises AttnctlError if two do not fit each other."""
    fitted = dict(tensors)
    for name in PROJECTIONS:
        fitted[name] = _by_head(file.path, name, tensors[name], n_heads if name == "W_Q" else n_kv_heads)
        bias, heads = f"b_{name[-1]}", fitted[name].shape[0]
        if bias in tensors and tensors[bias].size % heads == 0:
            fitted[bias] = tensors[bias].reshape(heads, -1)  # (heads, d)
    arrays, lengths = (
        file.tensors | fitted,
        dict[str, tuple[int, str]](),
    )  # axis → its length, and the tensor that has it
    for name, axes in (LAYER_TENSORS | MODEL_TENSORS).items():
        if name not in arrays:
            continue
        tensor, shape = arrays[name], tensors.get(name, arrays[name]).shape
        if tensor.ndim != len(axes) or 0 in shape:
            raise AttnctlError(f"{file.path}: {name} has shape {shape}: it is ({', '.join(axes)})")
        for axis, size in zip(axes, tensor.shape, strict=True):
            length, first = lengths.setdefault(axis, (size, name))
            if size != length:
                why = f"{axis} is {length} in one, and {size} in the other"
                first_shape = (arrays | tensors)[first].shape
                raise AttnctlError(f"{file.path}: {first} {first_shape} and {name} {shape} do not fit: {why}")
        if name == "W_V":
            heads, kv_heads = lengths["heads"][0], lengths["kv_heads"][0]
            lengths["heads · d_v"] = heads * lengths["d_v"][0], name
            if heads % kv_heads:
                raise AttnctlError(f"{file.path}: {heads} query heads cannot share {kv_heads} key heads evenly")
    return fitted


def _by_head(path: str, name: str, w: Floats, heads: int | None) -> Floats:
    """Return a projection as (heads, d_model, d). Raises AttnctlError if it does not divide into `heads`."""
    if w.ndim == 3 and heads not in (None, w.shape[0]):
        raise AttnctlError(f"{path}: {name} has shape {w.shape}, {w.shape[0]} heads, but {heads} are asked for")
    if w.ndim == 2 and w.size:
        heads = 1 if heads is None else heads
        if heads < 1 or w.shape[1] % heads:
            raise AttnctlError(
                f"{path}: {name} {w.shape} does not divide into {heads} heads: "
                f"see {option_name('n_heads')}, {option_name('n_kv_heads')}"
            )
        return np.ascontiguousarray(w.reshape(w.shape[0], heads, -1).transpose(1, 0, 2))  # (heads, d_model, d)
    if w.ndim != 3 or not w.size:
        raise AttnctlError(f"{path}: {name} has shape {w.shape}: it is (heads, d_model, d_k) or (d_model, heads · d_k)")
    return w


def _check_residual(file: WeightFile, layers: Sequence[dict[str, Floats]]) -> None:
    d_model = layers[0]["W_Q"].shape[1]
    for number, layer in enumerate(layers):
        width = layer["W_O"].shape[1] if "W_O" in layer else layer["W_Q"].shape[0] * layer["W_V"].shape[2]
        if layer["W_Q"].shape[1] != d_model or width != d_model:
            raise AttnctlError(
                f"{file.path}: layer {number} takes rows of {layer['W_Q'].shape[1]} and gives rows of {width}; the "
                f"residual stream has {d_model}"
            )


def _embedding_of(
    file: WeightFile, d_model: int, seed: int, embeddings: str | None
) -> tuple[Callable[[Sequence[Token]], Floats], list[str], tuple[str, ...]]:
    """Return the function that turns tokens into rows, the vocabulary, and notes about them."""
    table = file.tensors.get("embedding")
    vocabulary = file.vocabulary
    if embeddings is not None:
        rows = given_rows(embeddings)
        if rows.d_model != d_model:
            w = file.tensors.get("W_Q", file.tensors.get("layers.0.W_Q"))
            kernel = w is not None and w.ndim == 3 and w.shape[0] == rows.d_model
            raise AttnctlError(
                f"{embeddings} has shape {rows.rows.shape}, but W_Q of {file.path} takes rows of {d_model}"
                f"{_KERNEL if kernel else ''}"
            )
        return rows, vocabulary, ()
    if table is None:
        note = f"{file.path} has no embedding: seeded random rows replace it, unless you give embeddings"
        from attnctl.models.builtin.random import random_rows

        return partial(random_rows, seed, d_model), vocabulary, (note,)
    if vocabulary and len(vocabulary) != len(table):
        raise AttnctlError(f"{file.path}: {len(vocabulary)} tokens in the metadata, but {len(table)} rows of embedding")
    pieces = file.tensors.get("pieces")
    read_by_letters = (file.metadata.get("unknown", ""), *SHAPES)  # a word's letters are added to these rows
    by_letters = {vocabulary.index(word) for word in read_by_letters if word in vocabulary}

    def embed_tokens(tokens: Sequence[Token]) -> Floats:
        ids = [token.id or 0 for token in tokens]
        worst = max(ids, default=0)
        if worst >= len(table):
            raise AttnctlError(f"token id {worst} has no row in {file.path}: its embedding has {len(table)}")
        rows = table_rows(table, ids, f"{file.path}: embedding")  # (n, d_model)
        for index, token in enumerate(tokens):
            if pieces is not None and ids[index] in by_letters:
                numbers = letter_pieces(token.text, len(pieces))  # the sum of their n rows, over √n
                rows[index] += table_rows(pieces, numbers, f"{file.path}: pieces").sum(axis=0) / np.float32(
                    np.sqrt(len(numbers))
                )
        return rows

    return embed_tokens, vocabulary, ()


_KERNEL = ": flax and Keras write (d_model, heads, d_k), which is read under its own name, query.kernel"


def _shape_notes(file: WeightFile) -> tuple[str, ...]:
    """Return a note about the axes of W_Q where they may be those of a kernel (d_model, heads, d_k), and nothing tells."""
    w = file.tensors.get("W_Q", file.tensors.get("layers.0.W_Q"))
    if w is None or w.ndim != 3 or w.shape[0] < w.shape[1] or "embedding" in file.tensors:
        return ()
    heads, d_model, d_k = w.shape
    reading = f"{counted(heads, 'head')} of width {d_k}, over rows of {d_model}"
    return (f"W_Q {w.shape} is read as (heads, d_model, d_k): {reading}{_KERNEL}.",)
