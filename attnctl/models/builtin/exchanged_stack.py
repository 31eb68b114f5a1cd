"""A built-in model with a text: run it, look at its calls of attention, and run a layer with other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnctl.attention import Array, Call
from attnctl.models.exchange import Block
from attnctl.runtime.arrays import place_array

if TYPE_CHECKING:
    from attnctl.models.builtin.stack import Stack
    from attnctl.text.tokens import Token


def blocks_of_stack(stack: Stack, tokens: Sequence[Token]) -> Iterator[tuple[Call, Block]]:
    """Yield the call of attention of each layer over a text, and the layer as a block that can be run again."""
    x = place_array(stack.input_rows(tokens), "cpu")  # (n, d_model)
    for number, parameters in enumerate(stack.layers):
        run = partial(_run_layer, stack, number, {name: place_array(w, "cpu") for name, w in parameters.items()})
        call, output = run(x)
        yield call, Block("self", number, True, x[None], output[None], partial(_run_rows, run))
        del call  # the next layer needs the memory
        x = output


def _run_rows(run: Callable[[Array], tuple[Call, Array]], hidden: Array) -> Array:
    """Return the output (1, n, d_model) of a layer over other hidden states (1, n, d_model)."""
    return run(hidden[0])[1][None]


def _run_layer(stack: Stack, number: int, placed: dict[str, Array], x: Array) -> tuple[Call, Array]:
    """Return the call of a layer over its input (n, d_model), and its output (n, d_model)."""
    layer = stack.layer_attention(number, x, stack.layers[number], placed)
    return layer.forward.call, layer.forward.rows_after
