"""The arrays of a trace in one table: name, axes, step, place in JSON. Files, schema and checks are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["text", "layer", "head"]


@dataclass(frozen=True, slots=True)
class TraceArray:
    """One array of a trace.

    `level` is the object of the JSON document that it stands in; a head's arrays have the heads as a first axis in a
    LayerTrace and in NPZ. `axes` are what the others count: rows (the queries kept), keys, tokens, or sizes of vectors.
    `step` names the step that shows it.
    """

    name: str
    level: Level
    axes: tuple[str, ...]
    step: str
    meaning: str = ""
    parameter: bool = False  # one of the model's own, in `LayerTrace.parameters`
    boolean: bool = False


def _parameter_array(name: str, level: Level, *axes: str) -> TraceArray:
    return TraceArray(name, level, axes, "matrices", parameter=True)


# in the order of the JSON document, which is that of the mathematics
TRACE_ARRAYS = (
    TraceArray("embeddings", "text", ("tokens", "d_model"), "embeddings", "X: what the first layer reads"),
    TraceArray(
        "input", "layer", ("tokens", "d_model"), "input", "X of this layer, where it is not the embeddings"
    ),
    TraceArray(
        "rope_angles", "layer", ("tokens", "d_k / 2"), "rope", "Radians by which each pair of dimensions is turned"
    ),
    TraceArray(
        "mask", "layer", ("rows", "keys"), "mask", "True where a query may look; absent where nothing is masked",
        boolean=True,
    ),
    TraceArray(
        "index_scores", "layer", ("rows", "keys"), "mask",
        "Scores by which an indexer picks the keys that a query may see (DeepSeek-V3.2; of blocks at each key: Qwen 4), "
        "0 for those in the future",
    ),
    TraceArray(
        "differential_lambda", "layer", ("1",), "difference", "λ of differential attention (Ye et al. 2024)"
    ),
    TraceArray("queries_before_rope", "head", ("rows", "d_k"), "rope", "Q before the rotary positions"),
    TraceArray("keys_before_rope", "head", ("keys", "d_k"), "rope", "K before the rotary positions"),
    TraceArray("queries", "head", ("rows", "d_k"), "queries", "Q"),
    TraceArray("keys", "head", ("keys", "d_k"), "keys", "K"),
    TraceArray("values", "head", ("keys", "d_v"), "values", "V"),
    TraceArray("scores", "head", ("rows", "keys"), "scores", "Q Kᵀ"),
    TraceArray("bias", "head", ("rows", "keys"), "scaled", "Added to the scaled scores"),
    TraceArray(
        "scaled_scores", "head", ("rows", "keys"), "scaled",
        "Scores × scale, soft cap and bias, before mask and temperature",
    ),
    TraceArray(
        "weights", "head", ("rows", "keys"), "weights",
        "Softmax of the masked scaled scores / temperature, before dropout; rows sum to 1, less what a sink takes",
    ),
    TraceArray("sink_weights", "head", ("rows",), "weights", "What a learned sink takes of each row"),
    TraceArray(
        "signed_weights", "head", ("rows", "keys"), "difference",
        "Differential attention: weights of the first head of a pair - λ × those of the second",
    ),
    TraceArray("dropped_weights", "head", ("rows", "keys"), "dropout", "Weights after dropout"),
    TraceArray("context", "head", ("rows", "d_v"), "context", "Weights V"),
    TraceArray(
        "gate", "head", ("rows",), "gate", "How far a learned gate after the context is open: ‖gated context‖ / ‖context‖"
    ),
    _parameter_array("W_Q", "head", "d_model", "d_k"),
    _parameter_array("b_Q", "head", "d_k"),
    _parameter_array("W_K", "head", "d_model", "d_k"),
    _parameter_array("b_K", "head", "d_k"),
    _parameter_array("W_V", "head", "d_model", "d_v"),
    _parameter_array("b_V", "head", "d_v"),
    _parameter_array("W_O", "layer", "heads · d_v", "d_out"),
    _parameter_array("b_O", "layer", "d_out"),
    TraceArray("output", "layer", ("tokens", "d_out"), "output", "What attention adds"),
    TraceArray("residual", "layer", ("tokens", "d_model"), "residual", "Input + output"),
)  # fmt: skip

LAYER_TRACE_ARRAYS = tuple(array for array in TRACE_ARRAYS if array.level != "text")
FIELD_ARRAYS = tuple(array for array in LAYER_TRACE_ARRAYS if not array.parameter)
HEAD_FIELD_ARRAYS = tuple(array for array in FIELD_ARRAYS if array.level == "head")
