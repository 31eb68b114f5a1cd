"""A trace: one text through one model, every intermediate kept; saved and read as JSON and NPZ."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnctl.arrays import Bools, Floats
from attnctl.errors import AttnctlError
from attnctl.files import read_bytes, write_whole
from attnctl.formats import validation
from attnctl.text import spoken
from attnctl.tokens import Token

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "attnctl.trace/1"

# the arrays of one head, in the order of the mathematics: JSON key → what the first axis after the heads counts
HEAD_ARRAYS = (
    "queries_before_rope",
    "keys_before_rope",
    "queries",
    "keys",
    "values",
    "scores",
    "bias",
    "scaled_scores",
    "weights",
    "dropped_weights",
    "context",
)
LAYER_ARRAYS = ("input", "rope_angles", "mask", "output", "residual")


@dataclass(frozen=True, slots=True)
class Prediction:
    """A word the model expects at a position, and how probable it finds it (0 to 1)."""

    position: int
    text: str
    id: int
    probability: float


@dataclass(frozen=True)
class ModelInfo:
    """What the numbers come from. None: not known to this source (a bare matrix has no d_model)."""

    name: str
    kind: str  # demo, random, dot, weights, checkpoint, matrix
    d_model: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    n_layers: int | None = None
    causal: bool | None = None
    scale: float | None = None
    soft_cap: float | None = None
    window: int | None = None
    temperature: float | None = None
    dropout: float | None = None
    positions: str | None = None  # learned, sinusoidal
    rope_theta: float | None = None
    rope_pairs: str | None = None  # half, interleaved
    seed: int | None = None
    dtype: str = "float32"
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer's attention. `heads` and `rows` say which heads and queries the arrays hold; None is absent.

    Keys and values stand once per query head, as that head reads them, also where heads share them.
    """

    layer: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    weights: Floats | None = None  # (heads, rows, n_k)
    rows: tuple[int, ...] | None = None  # None: every query
    input: Floats | None = None  # (n, d_model), the embeddings for layer 0, the residual stream after it
    queries_before_rope: Floats | None = None  # (heads, rows, d_k)
    keys_before_rope: Floats | None = None  # (heads, n_k, d_k)
    rope_angles: Floats | None = None  # (n, d_k / 2), radians
    queries: Floats | None = None  # (heads, rows, d_k)
    keys: Floats | None = None  # (heads, n_k, d_k)
    values: Floats | None = None  # (heads, n_k, d_v)
    scores: Floats | None = None  # (heads, rows, n_k)
    bias: Floats | None = None  # (heads, rows, n_k)
    scaled_scores: Floats | None = None  # (heads, rows, n_k)
    mask: Bools | None = None  # (rows, n_k)
    dropped_weights: Floats | None = None  # (heads, rows, n_k), after dropout
    context: Floats | None = None  # (heads, rows, d_v)
    output: Floats | None = None  # (n, d_model)
    residual: Floats | None = None  # (n, d_model), input + output
    parameters: Mapping[str, Floats] = field(default_factory=dict)  # W_Q (heads, d_model, d_k), …, W_O

    def position_of(self, head: int) -> int:
        """Where `head` stands in this layer's arrays. Raises AttnctlError where it was not kept."""
        if head not in self.heads:
            raise AttnctlError(f"head {head} of layer {self.layer} is not in this trace: it holds {spoken(self.heads)}")
        return self.heads.index(head)

    def row_of(self, query: int) -> int:
        """Where query token `query` stands in the arrays' rows. Raises AttnctlError where it was not kept."""
        if self.rows is None:
            return query
        if query not in self.rows:
            raise AttnctlError(f"query {query} is not in this trace: it holds {spoken(self.rows)}")
        return self.rows.index(query)


@dataclass(frozen=True, eq=False)
class Trace:
    """All of one text through one model: tokens, embeddings, and each layer's queries to context."""

    text: str
    tokens: tuple[Token, ...]
    model: ModelInfo
    layers: tuple[LayerTrace, ...]
    embeddings: Floats | None = None  # (n, d_model)
    key_tokens: tuple[Token, ...] | None = None  # where the keys are another text's tokens (cross attention)
    predictions: tuple[Prediction, ...] = ()
    measure: str | None = None  # what stands in place of the weights: value-norm, rollout
    notes: tuple[str, ...] = ()  # what a reader must know about these numbers, in sentences

    @property
    def keys_of(self) -> tuple[Token, ...]:
        """The tokens of the key axis: the same tokens, but for cross attention."""
        return self.tokens if self.key_tokens is None else self.key_tokens

    def layer(self, index: int) -> LayerTrace:
        """The trace of layer `index`. Raises AttnctlError where it was not kept."""
        for layer in self.layers:
            if layer.layer == index:
                return layer
        kept = spoken(layer.layer for layer in self.layers)
        raise AttnctlError(f"layer {index} is not in this trace: it holds {kept}")

    def to_json(self) -> str:
        """This trace as one line of JSON (schema `attnctl.trace/1`)."""
        return to_json(self).decode()

    def save(self, path: str | Path) -> None:
        """Write to `path`: .json or .npz. Whole or not at all."""
        save(self, path)

    def figure(self, **options: Any) -> Figure:
        """A matplotlib Figure of the weights; options as of `attnctl.render.figure.heatmap.drawn`."""
        from attnctl.render.figure.heatmap import heatmap

        figure: Figure = heatmap(self, **options)
        return figure

    def _repr_html_(self) -> str:
        """The page of this trace, as a notebook shows it."""
        from attnctl.render.page.document import frame

        return frame(self)


# --- JSON --------------------------------------------------------------------------------------------------------


def to_json(trace: Trace) -> bytes:
    """One line of JSON, without the newline. Raises AttnctlError where a number is not finite."""
    import orjson

    try:
        return orjson.dumps(as_document(trace), option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError as error:
        raise AttnctlError(f"this trace cannot be written as JSON: {error}") from error


def opening(
    schema: str, text: str, tokens: tuple[Token, ...], model: ModelInfo, key_tokens: tuple[Token, ...] | None
) -> dict[str, Any]:
    """What every JSON document begins with."""
    document: dict[str, Any] = {
        "schema": schema,
        "text": text,
        "tokens": tokens_document(tokens),
        "model": model_document(model),
    }
    return document if key_tokens is None else document | {"key_tokens": tokens_document(key_tokens)}


def as_document(trace: Trace) -> dict[str, Any]:
    """The JSON document, arrays still arrays. What the source cannot give is absent."""
    document = opening(SCHEMA, trace.text, trace.tokens, trace.model, trace.key_tokens)
    if trace.embeddings is not None:
        document["embeddings"] = _plain(trace.embeddings, "embeddings")
    document["layers"] = [_layer_document(layer) for layer in trace.layers]
    if trace.predictions:
        document["predictions"] = [
            {"position": p.position, "text": p.text, "id": p.id, "probability": p.probability}
            for p in trace.predictions
        ]
    if trace.measure is not None:
        document["measure"] = trace.measure
    if trace.notes:
        document["notes"] = list(trace.notes)
    return document


def tokens_document(tokens: tuple[Token, ...]) -> list[dict[str, Any]]:
    """Tokens as they stand in JSON."""
    documents = []
    for index, token in enumerate(tokens):
        entry: dict[str, Any] = {"index": index, "text": token.text}
        if token.id is not None:
            entry["id"] = token.id
        if token.start is not None:
            entry["start"], entry["end"] = token.start, token.end
        entry["special"] = token.special
        if token.unknown:
            entry["unknown"] = True
        documents.append(entry)
    return documents


_INFO_FIELDS = tuple(f.name for f in dataclasses.fields(ModelInfo))


def model_document(info: ModelInfo) -> dict[str, Any]:
    """A model as it stands in JSON."""
    # the seed is always said: null is an answer ("none was used")
    return {name: value for name in _INFO_FIELDS if (value := getattr(info, name)) is not None or name == "seed"}


def _layer_document(layer: LayerTrace) -> dict[str, Any]:
    where = f"layer {layer.layer}"
    document: dict[str, Any] = {"layer": layer.layer}
    if layer.rows is not None:
        document["rows"] = list(layer.rows)
    for name in LAYER_ARRAYS[:3]:
        if (array := getattr(layer, name)) is not None:
            document[name] = _plain(array, f"{where}: {name}")
    arrays = [(name, _plain(a, f"{where}: {name}")) for name in HEAD_ARRAYS if (a := getattr(layer, name)) is not None]
    arrays += [(name, _plain(a, f"{where}: {name}")) for name, a in layer.parameters.items() if name not in SHARED]
    document["heads"] = [
        {"head": head, "kv_head": layer.kv_heads[at]} | {name: array[at] for name, array in arrays}
        for at, head in enumerate(layer.heads)
    ]
    for name in SHARED:
        if name in layer.parameters:
            document[name] = _plain(layer.parameters[name], f"{where}: {name}")
    for name in LAYER_ARRAYS[3:]:
        if (array := getattr(layer, name)) is not None:
            document[name] = _plain(array, f"{where}: {name}")
    return document


SHARED = ("W_O", "b_O")  # parameters that belong to the layer, not to a head
PER_HEAD = ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V")


def _plain(array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """As JSON needs it: contiguous, float32, and finite."""
    if array.dtype == np.bool_:
        return np.ascontiguousarray(array)
    array = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(array).all():
        raise AttnctlError(f"{where}: a number is not finite (NaN or infinity), so the trace is not written")
    return array


def from_json(data: bytes | str, source: str = "this trace") -> Trace:
    """Read one JSON trace. Raises AttnctlError where it is no trace, of another schema, or its shapes do not fit."""
    return from_document(parse_json(data, source), source)


def parse_json(data: bytes | str, source: str) -> Any:
    """JSON of any origin, lone surrogates made readable. Raises AttnctlError naming `source` and the position."""
    import orjson

    try:
        return orjson.loads(data.removeprefix(b"\xef\xbb\xbf") if isinstance(data, bytes) else data)
    except orjson.JSONDecodeError as error:
        if "surrogate" not in str(error):
            raise AttnctlError(f"{source} is not JSON: {error}") from error
    import json  # reads what orjson refuses; the halves become U+FFFD

    try:
        loaded = json.loads(data, parse_constant=_no_number)
        text = json.dumps(loaded, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AttnctlError(f"{source} is not JSON: {validation.reason(error)}") from error


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def from_document(document: Any, source: str = "this trace") -> Trace:
    """A trace from its parsed JSON document; errors as `from_json`."""
    if not isinstance(document, dict) or "schema" not in document:
        raise AttnctlError(f'{source} is not a trace: it has no "schema"')
    if document["schema"] != SCHEMA:
        raise AttnctlError(f"{source} has schema {str(document['schema'])[:60]!r}; this attnctl reads {SCHEMA!r}")
    try:
        tokens = _tokens_from(document["tokens"])
        key_tokens = _tokens_from(document["key_tokens"]) if "key_tokens" in document else None
        trace = Trace(
            text=str(document["text"]),
            tokens=tokens,
            model=validation.typed(ModelInfo, document["model"]),
            layers=tuple(_layer_from(layer) for layer in document["layers"]),
            embeddings=_floats(document["embeddings"]) if "embeddings" in document else None,
            key_tokens=key_tokens,
            predictions=tuple(validation.typed(Prediction, p) for p in document.get("predictions", ())),
            measure=document.get("measure"),
            notes=tuple(str(note) for note in document.get("notes", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise AttnctlError(f"{source} is a damaged trace: {what}") from error
    return validation.checked(trace, source)


def _tokens_from(entries: list[dict[str, Any]]) -> tuple[Token, ...]:
    return tuple(validation.typed(Token, entry) for entry in entries)


def _floats(values: Any) -> Floats:
    with np.errstate(over="ignore"):  # what overflows is refused below
        array = np.asarray(values, dtype=np.float32)
    if array.ndim == 0 or not np.isfinite(array).all():
        raise ValueError("a number is missing, or not finite (NaN or infinity)")
    return array


def _layer_from(entry: dict[str, Any]) -> LayerTrace:
    heads = entry["heads"]
    arrays: dict[str, Any] = {
        name: _floats([head[name] for head in heads]) for name in HEAD_ARRAYS if heads and name in heads[0]
    }
    for name in LAYER_ARRAYS:
        if name in entry:
            arrays[name] = np.asarray(entry[name], dtype=np.bool_) if name == "mask" else _floats(entry[name])
    parameters = {name: _floats([h[name] for h in heads]) for name in PER_HEAD if heads and name in heads[0]}
    parameters |= {name: _floats(entry[name]) for name in SHARED if name in entry}
    return LayerTrace(
        layer=int(entry["layer"]),
        heads=tuple(int(head["head"]) for head in heads),
        kv_heads=tuple(int(head.get("kv_head", head["head"])) for head in heads),
        rows=tuple(int(row) for row in entry["rows"]) if "rows" in entry else None,
        parameters=parameters,
        **arrays,
    )


# --- files -------------------------------------------------------------------------------------------------------


def save(trace: Trace, path: str | Path) -> None:
    """Write a trace to `path`, its form taken from the suffix: .json or .npz."""
    suffix = Path(path).suffix.lower()
    if suffix == ".json":
        write_whole(path, to_json(trace) + b"\n")
    elif suffix == ".npz":
        write_whole(path, lambda file: write_npz(trace, file))
    else:
        raise AttnctlError(f"a trace is saved as .json or .npz, not as {suffix or 'a name without suffix'}: {path}")


def to_npz(trace: Trace) -> bytes:
    """The bytes of an NPZ file: the same for the same trace."""
    file = io.BytesIO()
    write_npz(trace, file)
    return file.getvalue()


def write_npz(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as an NPZ file, the arrays straight from memory: np.savez copies each of them first."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in _npz_entries(trace):
            array = np.asarray(array, order="C")
            info = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            with archive.open(info, "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, np.lib.format.header_data_from_array_1_0(array))
                entry.write(array.reshape(-1).view(np.uint8).data)


def _npz_entries(trace: Trace) -> Iterator[tuple[str, Any]]:
    """NPZ names: `trace` (the JSON without arrays), `embeddings`, `layers.0.weights` (heads, n, n), …"""
    import orjson

    bare = dataclasses.replace(
        trace,
        embeddings=None,
        layers=tuple(LayerTrace(l.layer, l.heads, l.kv_heads, rows=l.rows) for l in trace.layers),  # noqa: E741
    )
    yield "trace", np.asarray(orjson.dumps(as_document(bare), option=orjson.OPT_SERIALIZE_NUMPY).decode())
    if trace.embeddings is not None:
        yield "embeddings", trace.embeddings
    for layer in trace.layers:
        for name in (*LAYER_ARRAYS, *HEAD_ARRAYS):
            if (array := getattr(layer, name)) is not None:
                yield f"layers.{layer.layer}.{name}", array
        for name, array in layer.parameters.items():
            yield f"layers.{layer.layer}.{name}", array


def load(path: str | Path) -> Trace:
    """Read a trace from a .json or .npz file, or JSON from "-". Raises AttnctlError where it is none."""
    data = read_bytes(path)
    source = "standard input" if str(path) == "-" else str(path)
    return from_npz(data, source) if data[:2] == b"PK" else from_json(data, source)


def from_npz(data: bytes, source: str = "this file") -> Trace:
    """Read a trace from the bytes of an NPZ file; nothing in it is ever unpickled."""
    arrays = validation.read_npz(data, source)
    if "trace" not in arrays:
        raise AttnctlError(f"{source} is not a trace: it has no entry 'trace'")
    bare = from_json(str(arrays.pop("trace")), source)
    layers = []
    for layer in bare.layers:
        prefix = f"layers.{layer.layer}."
        own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        try:
            known: dict[str, Any] = {
                name: np.asarray(own[name], np.bool_) if name == "mask" else _floats(own[name])
                for name in (*LAYER_ARRAYS, *HEAD_ARRAYS)
                if name in own
            }
            parameters = {name: _floats(own[name]) for name in (*PER_HEAD, *SHARED) if name in own}
        except (ValueError, TypeError) as error:
            raise AttnctlError(f"{source}: layer {layer.layer}: {error}") from error
        layers.append(dataclasses.replace(layer, parameters=parameters, **known))
    embeddings = _floats(arrays["embeddings"]) if "embeddings" in arrays else None
    return validation.checked(dataclasses.replace(bare, embeddings=embeddings, layers=tuple(layers)), source)
