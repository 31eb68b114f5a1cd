"""Check that the attention that is shown is true: recompute the weights by other means, and report the findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnctl.attention import Array, default_scale
from attnctl.checks.tolerances import STORED, tolerance
from attnctl.errors import UsageError
from attnctl.layer import LayerTrace
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.loading import file_report
from attnctl.runtime.arrays import Floats
from attnctl.source import Model, OverviewSource, Prepared, record_trace
from attnctl.text import counted, number_list
from attnctl.trace import CheckFinding, Trace
from attnctl.trace.consistency import findings_of_trace, row_sums

# the resolution of each number type
RESOLVES = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def findings_of(prepared: Prepared) -> list[CheckFinding]:
    """Return the results of the checks that recompute the weights of a text, a trace or a matrix by other means.

    Raises UsageError for an overview.
    """
    if isinstance(prepared.source, OverviewSource):
        name = prepared.source.name
        why = f"{name} holds an overview, from which nothing can be recomputed: give the text"
        raise UsageError(f"a check needs every weight: {why}")
    if prepared.model is None:
        return list(findings_of_trace(prepared.trace(predictions=False)))
    return list(check_attention(prepared.model, prepared.source.input_text, prepared.layers, prepared.heads))


def check_attention(
    model: Model, text: str, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
) -> tuple[CheckFinding, ...]:
    """Recompute the attention over `text` by the model's own eager path and by torch's fused kernel.

    Raises AttnctlError in the same cases as `record_trace`.
    """
    trace = record_trace(model, text, layers=layers, heads=heads, predictions=False)
    limit = tolerance(STORED, trace.model.dtype)
    return (
        *_against_model(model, text, trace, limit),
        _against_fused(trace, limit),
        _row_sums(trace, limit),
        _nan_finding(trace),
        _dropout_finding(model, trace),
        _shape_finding(trace),
        *_file_finding(model, trace.model.quantised),
        *_known_of_file(model),
    )


def _known_of_file(model: Model) -> tuple[CheckFinding, ...]:
    """Return what is known of the file: no check of this run."""
    facts = model.file_facts if isinstance(model, Checkpoint) else {}
    return tuple(CheckFinding(title, None, fact) for title, fact in facts.items())


EAGER = "weights against the model's own eager path, max |Δ|"
MULTIPLIED = "weights against those its code multiplies values with, max |Δ|"
CONTEXT = "layer context against what is shown, max |Δ| / max |context|"


def _against_model(model: Model, text: str, trace: Trace, limit: float) -> tuple[CheckFinding, CheckFinding]:
    """Compare the weights with the model's own, and the weights and values with the context that the model computes."""
    if trace.model.nature.has_own_code:
        errors = {layer.layer: _error_of_product(layer) for layer in trace.layers if layer.context is not None}
        known = {number: error for number, error in errors.items() if error is not None}
        of_context = _finding_of_layers(CONTEXT, trace, known, 10 * limit, "its values are not seen")
        return CheckFinding(EAGER, None, "a module of your own has no other path"), of_context
    if not isinstance(model, Checkpoint):
        why = "a built-in model has no other path"
        return CheckFinding(EAGER, None, why), CheckFinding(CONTEXT, None, why)
    shapes = {part.layer: part.weights.shape[-2:] for part in trace.layers if part.weights is not None}
    weights, contexts = model.own_attention(trace.tokens, text, shapes)
    if model.puts_out_weights:
        why = "the product of weights and values in its code was not found: only the sums of its rows were checked"
        weights_finding = _own_weights_finding(MULTIPLIED, trace, weights, limit, why)
    else:
        why = "its eager path puts out no weights"
        weights_finding = _own_weights_finding(EAGER, trace, weights, _limit_of_weights(trace, limit), why)
    from attnctl.models.huggingface.family_traits import indexed_layers

    findings = weights_finding, _context_finding(trace, contexts, limit)
    return (
        findings
        if not indexed_layers(model.network)
        else (_allow_for_indexer(trace, findings[0]), _allow_for_indexer(trace, findings[1]))
    )


def _allow_for_indexer(trace: Trace, finding: CheckFinding) -> CheckFinding:
    """Return the finding for a model whose indexer picks keys: rounding in half precision may change the keys it picks."""
    if finding.holds is False and trace.model.dtype in ("bfloat16", "float16"):
        why = (
            f"{finding.result}: where scores nearly tie, an indexer picks other keys by rounding ({trace.model.dtype})"
        )
        return CheckFinding(finding.sentence, None, why)
    return finding


def _limit_of_weights(trace: Trace, limit: float) -> float:
    """Return how far weights may differ: half the rounding error of the largest score."""
    largest = max(
        (float(np.abs(part.scaled_scores).max(initial=0)) for part in trace.layers if part.scaled_scores is not None),
        default=0.0,
    )
    return max(limit, RESOLVES.get(trace.model.dtype, 0.0) * largest / 2)


def _own_weights_finding(
    title: str, trace: Trace, own_weights: Mapping[int, Floats], limit: float, why: str
) -> CheckFinding:
    """Compare the weights of each layer with `own_weights`, (heads, n_q, n_k); `why` says why a layer may have none."""
    errors: dict[int, float] = {}
    for layer in trace.layers:
        if layer.weights is None or layer.layer not in own_weights:
            continue
        if max(layer.heads) >= len(own_weights[layer.layer]):
            return CheckFinding(
                title,
                False,
                f"layer {layer.layer}: {counted(len(layer.heads), 'head')} for {len(own_weights[layer.layer])}",
            )
        ours, theirs = layer.weights, own_weights[layer.layer][list(layer.heads)]  # (heads, n_q, n_k)
        if ours.shape != theirs.shape:
            return CheckFinding(title, False, f"layer {layer.layer}: {ours.shape} for {theirs.shape}")
        if has_sinks(trace):  # some eager paths return the weights divided by their sum without the sink
            ours, theirs = _rescaled_rows(ours), _rescaled_rows(theirs)
        errors[layer.layer] = _worst_of_rows(layer, ours, theirs)
    return _finding_of_layers(title, trace, errors, limit, why)


def _context_finding(trace: Trace, contexts: Mapping[int, Floats], limit: float) -> CheckFinding:
    """Compare weights × values with the model's context of each layer, (heads, n_q, d_v)."""
    errors: dict[int, float] = {}
    for layer in trace.layers:
        if layer.weights is not None and layer.values is not None and layer.layer in contexts:
            theirs = contexts[layer.layer][list(layer.heads)]  # (heads, n_q, d_v)
            largest = max(float(np.abs(theirs).max(initial=0)), 1e-9)
            errors[layer.layer] = _worst_of_rows(layer, layer.weights @ layer.values, theirs) / largest
    why = "its code makes the context by itself, of the weights above and values that are not shown"
    return _finding_of_layers(CONTEXT, trace, errors, 10 * limit, why)


def _worst_of_rows(layer: LayerTrace, ours: Floats, theirs: Floats) -> float:
    """Return the largest difference of two arrays (heads, n_q, …) in rows that see a key (eager invents the others)."""
    seeing = slice(None) if layer.mask is None else layer.mask.any(axis=-1)  # (n_q,)
    return float(np.abs(ours - theirs)[:, seeing].max(initial=0))


def _finding_of_layers(title: str, trace: Trace, errors: Mapping[int, float], limit: float, why: str) -> CheckFinding:
    """Return the finding with the worst error of the checked layers; it does not hold if some could not be checked."""
    worst = float(np.max([0.0, *errors.values()]))  # NaN is the worst of all
    missing = [layer.layer for layer in trace.layers if layer.layer not in errors]
    error = f"{worst:.1e}" if worst else "0, bit for bit"
    if not missing or not worst <= limit:
        return CheckFinding(title, worst <= limit, error)
    if not errors:
        return CheckFinding(title, None, why)
    return CheckFinding(title, None, f"{error}, but not for layers {number_list(missing)}: {why}")


FUSED = "context against torch's fused kernel, max |Δ| / max |context|"


def _against_fused(trace: Trace, limit: float) -> CheckFinding:
    if trace.model.nature.has_own_code:
        return _own_code_against_fused(trace, limit)
    worst, temperature = 0.0, trace.model.temperature or 1.0
    for layer in trace.layers:
        if layer.queries is None or layer.keys is None or layer.values is None or layer.context is None:
            return CheckFinding(FUSED, None, "the source gives no queries, keys and values")
        if trace.model.caps_scores or has_sinks(trace):
            return _against_product(trace, limit, "no fused kernel knows soft caps and sinks")
        if layer.dropped_weights is not None:
            return _against_product(trace, limit, "the fused kernel drops other weights")
        bias = None if layer.bias is None else layer.bias / temperature
        scale = _scale_of_scores(trace, layer) / temperature
        worst = worse_error(worst, _error_of_kernel(layer, layer.queries, layer.keys, scale, bias))
    return CheckFinding(FUSED, worst <= 10 * limit, f"{worst:.1e}")


def _own_code_against_fused(trace: Trace, limit: float) -> CheckFinding:
    """Compare each layer's context with the kernel's: by queries and keys, or by the scores of the module's code."""
    worst, is_by_scores = 0.0, False
    for layer in trace.layers:
        if layer.values is None or layer.context is None:
            return CheckFinding(FUSED, None, "the module gives no values")
        if has_sinks(trace):
            return _against_product(trace, limit, "the fused kernel knows no sinks")
        error = np.inf
        if layer.queries is not None and layer.keys is not None:
            error = _error_of_kernel(layer, layer.queries, layer.keys, _scale_of_scores(trace, layer))
        if not error <= 10 * limit:  # a bias, a cap, a norm: the kernel reads the module's scores, and zeros
            if layer.scaled_scores is None:
                return _against_product(trace, limit, "attnctl does not see what the module's code does to its scores")
            n_heads, n_q, n_k = layer.scaled_scores.shape
            zeros = np.zeros((n_heads, max(n_q, n_k), layer.values.shape[-1]), np.float32)
            error = _error_of_kernel(layer, zeros[:, :n_q], zeros[:, :n_k], 1.0, layer.scaled_scores)
            is_by_scores = True
        worst = worse_error(worst, error)
    why = ": by its scores, which are more than queries × keys × a scale" if is_by_scores else ""
    return CheckFinding(FUSED, worst <= 10 * limit, f"{worst:.1e}{why}")


def _error_of_kernel(
    layer: LayerTrace, queries: Floats, keys: Floats, scale: float, bias: Floats | None = None
) -> float:
    """Return how far the context lies from the kernel's, in shares of the largest; `bias` is added to scaled scores."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    assert layer.values is not None and layer.context is not None
    added = torch.zeros(queries.shape[0], queries.shape[1], keys.shape[1])  # (heads, n_q, n_k)
    if bias is not None:
        added += torch.tensor(np.asarray(bias, dtype=np.float32))
    if layer.mask is not None:
        added.masked_fill_(~torch.tensor(layer.mask), -torch.inf)
    q, k, v = (torch.tensor(part, dtype=torch.float32)[None] for part in (queries, keys, layer.values))
    kernel = scaled_dot_product_attention(q, k, v, attn_mask=added[None], scale=scale)[0].numpy()
    largest = max(np.abs(layer.context).max(initial=0), 1e-9)
    return float(np.abs(layer.context - kernel).max(initial=0) / largest)


def _against_product(trace: Trace, limit: float, why: str) -> CheckFinding:
    """Compare each layer's context with weights × values in double precision; `why` says why no fused kernel is used."""
    worst = 0.0
    for layer in trace.layers:
        worst = worse_error(worst, _error_of_product(layer) or 0.0)
    title = "context against weights × values in float64, max |Δ| / max |context|"
    return CheckFinding(title, worst <= 10 * limit, f"{worst:.1e}: {why}")


def _error_of_product(layer: LayerTrace) -> float | None:
    """Return how far the context lies from weights × values in float64, in shares of the largest; None if one is unknown."""
    weights = layer.weights if layer.dropped_weights is None else layer.dropped_weights  # (heads, n_q, n_k)
    if weights is None or layer.values is None or layer.context is None:
        return None
    product = weights.astype(np.float64) @ layer.values  # (heads, n_q, d_v)
    largest = max(np.abs(product).max(initial=0), 1e-9)
    return float(np.abs(layer.context - product).max(initial=0) / largest)


def _rescaled_rows(weights: Array) -> Array:
    """Return the rows (..., n_k) divided by their sums."""
    return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-12)  # (..., n_k)


def _scale_of_scores(trace: Trace, layer: LayerTrace) -> float:
    """Return the factor from the largest score to its scaled score, in whatever way the model scales."""
    assert layer.queries is not None
    if layer.scores is None or layer.scaled_scores is None:
        return trace.model.scale or default_scale(layer.queries.shape[-1])
    scaled = layer.scaled_scores if layer.bias is None else layer.scaled_scores - layer.bias
    index = int(np.abs(layer.scores).argmax())
    largest = float(layer.scores.flat[index])
    if not largest:  # every score is 0
        return trace.model.scale or default_scale(layer.queries.shape[-1])
    return float(scaled.flat[index]) / largest


def has_sinks(trace: Trace) -> bool:
    """Return whether a layer has learned sinks (gpt-oss), which take weight and add nothing to the context."""
    return any(layer.sink_weights is not None for layer in trace.layers)


def worse_error(first: float, second: float) -> float:
    """Return the larger of two errors; NaN is the worst of all."""
    return float(np.maximum(first, second))


def _row_sums(trace: Trace, limit: float) -> CheckFinding:
    worst = 0.0
    for layer in trace.layers:
        if layer.weights is not None:
            worst = worse_error(worst, float(np.abs(row_sums(trace, layer) - 1).max(initial=0)))
    result = "below 1: a learned sink takes the rest" if has_sinks(trace) else f"{worst:.1e}"
    return CheckFinding("row sums, max |Σ - 1|", worst <= 10 * limit, result)


def _nan_finding(trace: Trace) -> CheckFinding:
    count = sum(int(np.isnan(part.weights).any(axis=-1).sum()) for part in trace.layers if part.weights is not None)
    return CheckFinding("rows with NaN", count == 0, str(count))


def _file_finding(model: Model, quantised: str | None) -> tuple[CheckFinding, ...]:
    """Return what the other checks cannot know, since they run the same network: what the files hold beside it."""
    if not isinstance(model, Checkpoint) or not (report := file_report(model.network)).n_tensors:
        return ()
    title = "tensors and settings of its files"
    unknown = list[str](report.notes)
    if quantised:
        unknown.append(f"stored as {quantised}: the other checks read the same weights.")
    if unknown:
        return (CheckFinding(title, None, " ".join(unknown)),)
    return (CheckFinding(title, True, f"{report.n_tensors:,} tensors, all used or known to change nothing"),)


def _dropout_finding(model: Model, trace: Trace) -> CheckFinding:
    title = "dropout"
    if trace.model.dropout:
        return CheckFinding(title, True, f"asked for: {trace.model.dropout:g}")
    training = isinstance(model, Checkpoint) and model.network.training
    return CheckFinding(title, not training, "on: the model is in training mode" if training else "off")


def _shape_finding(trace: Trace) -> CheckFinding:
    n_q, n_k = len(trace.tokens), len(trace.key_axis)
    wrong = [
        f"layer {layer.layer}: {layer.weights.shape}"
        for layer in trace.layers
        if layer.weights is not None and layer.weights.shape != (len(layer.heads), n_q, n_k)
    ]
    return CheckFinding("labels match shapes", not wrong, "; ".join(wrong) or f"{n_q} × {n_k}")
