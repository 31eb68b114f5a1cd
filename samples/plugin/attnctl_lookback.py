"""Add a command and a measure to attnctl, from another package.

`attnctl lookback` shows whether each head looks at the context of a generated text, or at the generated tokens.
`--measure relative` compares weights with the largest weight of the key.

Chuang et al. 2024, "Lookback Lens: Detecting and Mitigating Contextual Hallucinations in Large Language Models Using Only
Attention Maps", arXiv:2407.07071.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from typer import Context

from attnctl.checks.document_fields import Count, Index, Part, Share, about
from attnctl.cli import (
    FileOption,
    JsonOption,
    PromptOptions,
    TextArgument,
    command,
    open_source,
    put_bytes,
    say_notes,
    show_forms,
)
from attnctl.errors import UsageError
from attnctl.formats import JsonDocument, ResultModel, ResultTokens, write_json
from attnctl.layer import LayerAttention
from attnctl.measures import Measure
from attnctl.render import Grid, Line
from attnctl.source import prepare
from attnctl.trace import Run

TOKENS = 32  # generated without --generate


class HeadLookback(Part):
    """The lookback ratio of one head."""

    layer: Index
    head: Index
    ratio: Annotated[Share, about("Mean over the steps that wrote a token; 1: the head looks only at the context.")]


class Lookback(JsonDocument, kw_only=True, tag="attnctl-lookback/1"):
    """Attention of each head on the context, compared with its attention on the new tokens."""

    model: ResultModel
    tokens: ResultTokens
    new: Annotated[Count, about("How many of the tokens are generated: the last ones.")]
    heads: tuple[HeadLookback, ...]
    notes: tuple[str, ...] = ()


class LookbackReading:
    """The lookback ratio of the heads of each layer that passes; every `new` token but the last one wrote the next token."""

    predicts = False

    def __init__(self, n: int, new: int) -> None:
        self.context, self.new, self.heads = n - new, new, list[HeadLookback]()

    def take(self, layer: LayerAttention) -> None:
        """Compare the mean weight of a context token with the mean weight of a new token, up to the query."""
        weights = layer.rows_of(range(self.context, self.context + self.new - 1))  # (heads, steps, keys)
        context = weights[..., : self.context].mean(-1)  # (heads, steps)
        new = weights[..., self.context :].sum(-1) / np.arange(1, self.new)  # (heads, steps)
        ratios = (context / np.maximum(context + new, np.finfo(np.float32).tiny)).mean(-1)  # (heads,)
        self.heads += [HeadLookback(layer.layer, *pair) for pair in zip(layer.heads, ratios.tolist(), strict=True)]

    def value(self, run: Run) -> Lookback:
        """Return the ratios of all layers."""
        heads = tuple(self.heads)
        about = run.subject
        return Lookback(model=about.model, tokens=about.tokens, new=self.new, heads=heads, notes=about.notes)


@command(example='attnctl lookback "The cat sat on the mat because" --model smollm2 --generate 20')
def lookback_command(
    context: Context,
    text: TextArgument = None,
    *,
    file: FileOption = None,
    json: JsonOption = False,
    model: PromptOptions,
) -> None:
    """Show whether each head looks at the context, or at the new tokens, while a checkpoint continues a text.

    The lookback ratio is A / (A + B): A is the mean weight on a token of the context, B on a token generated so far.
    Heads with a low ratio look at the generated words (Chuang et al. 2024, arXiv:2407.07071).
    """
    if model.model is None:
        raise UsageError("lookback needs a checkpoint that continues texts: name it with --model")
    limit = model.generate or TOKENS
    source = open_source(context, text, file, replace(model, generate=limit))
    new = sum(token.start is None for token in source.tokens[-limit:])  # a new token has no place in the text
    if not 1 < new < len(source.tokens):
        raise UsageError(f"the model wrote {new} new tokens after the text; lookback compares two at least")
    lookback = prepare(source).read(LookbackReading(len(source.tokens), new))
    say_notes(lookback.notes)
    if json:
        put_bytes(write_json(lookback, "lookback") + b"\n")
        return
    layers, heads = ({getattr(head, name): None for head in lookback.heads} for name in ("layer", "head"))
    ratios = np.array([head.ratio for head in lookback.heads]).reshape(len(layers), len(heads))
    title = (
        f"{lookback.model.name}: lookback ratio of each head, {len(source.tokens) - new} tokens of context, {new} new"
    )
    grid = Grid(ratios, [f"layer {layer}" for layer in layers], [*map(str, heads)], heat=True, max_rows=len(layers))
    show_forms([Line(title, "accent"), grid])


def relative_weights(layer: LayerAttention) -> LayerAttention:
    """Return the layer with each weight divided by the largest of its key, as a share of its row."""
    keys = [[(key, key + 1)] for key in range(layer.n_k)]
    largest = layer.pooled([[(0, layer.n_q)]], keys, "max")[:, 0]  # (heads, n_k)
    return layer.reweighted(1 / np.maximum(largest, np.finfo(np.float32).tiny))


RELATIVE = Measure(
    name="relative",
    title="Relative weights",
    note="Each weight is divided by the largest weight of its key: what every token looks at (a sink) becomes pale.",
    unit="share of weight ÷ largest of its key",
    formula="weight ÷ largest of its column ÷ Σ",
    sentence="How close a weight is to the largest weight of its key, as a share of its row.",
    needs="values",
    function=relative_weights,
)
