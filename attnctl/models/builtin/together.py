"""Several texts of one length through a built-in model at once: each gets the numbers it has alone, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnctl.arrays import LONG
from attnctl.attention import Array, Attended
from attnctl.layer import LayerAttention, Run, StopForward
from attnctl.layer.computed import ComputedLayer, Forward
from attnctl.models.builtin.stack import Stack
from attnctl.tokens import Token


def can_run_together(model: object, n: int) -> bool:
    """Whether texts of n tokens may share a pass: short ones on the CPU, of whose weights none is dropped."""
    return (
        isinstance(model, Stack)
        and n < LONG
        and model.settings.device in ("auto", "cpu")
        and not model.settings.dropout
        and model.intervention is None
    )


def run_together(
    model: Stack, texts: Sequence[Sequence[Token]], visits: Sequence[Callable[[LayerAttention], None]]
) -> list[Run]:
    """What `Stack.run` gives for each text; all have the same number of tokens, and each visitor sees its own layers."""
    rows = [model.input_rows(tokens) for tokens in texts]  # (n, d_model) each
    runs = [model.begin_run(tokens, x) for tokens, x in zip(texts, rows, strict=True)]
    x: Array = np.stack(rows)  # (texts, n, d_model)
    over: set[int] = set()  # the texts of which nothing more is wanted
    for number, parameters in enumerate(model.layers):
        layer = model.layer_attention(number, x, parameters, parameters)
        for at, visit in enumerate(visits):
            try:
                if at not in over:
                    visit(_layer_of_text(layer, at))
            except StopForward:
                over.add(at)
        if len(over) == len(visits):
            return runs
        output, residual = layer.forward.output_and_residual
        x = output if residual is None else residual  # (texts, n, d_model)
    for at in set(range(len(runs))) - over:
        runs[at].predictions = model.predicted_words(texts[at], x[at])
    return runs


def _layer_of_text(layer: ComputedLayer, at: int) -> ComputedLayer:
    """One text's part of a layer over all texts (texts, heads, n, d)."""
    whole, steps = layer.forward, layer.forward.all_steps
    queries, keys, values = (part[at] for part in (whole.call.queries, whole.call.keys, whole.call.values))
    call = replace(whole.call, queries=queries, keys=keys, values=values)  # (heads, n, d) each
    own = Forward(
        call,
        input=None if whole.input is None else whole.input[at],
        queries_before_rope=None if whole.queries_before_rope is None else whole.queries_before_rope[at],
        keys_before_rope=None if whole.keys_before_rope is None else whole.keys_before_rope[at],
        rope_angles=whole.rope_angles,
        parameters=whole.parameters,
    )
    own.__dict__["all_steps"] = Attended(
        steps.scores[at], steps.scaled_scores[at], steps.mask, steps.weights[at], None, steps.context[at]
    )
    own.__dict__["output_and_residual"] = tuple(
        None if part is None else part[at] for part in whole.output_and_residual
    )
    return ComputedLayer(layer.layer, layer.heads, own)
