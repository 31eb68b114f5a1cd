"""A forward as its blocks made it: what went into and came out of each block and its modules, at the watched positions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from attnctl import attention
from attnctl.attention import Array, Call
from attnctl.interventions import Intervention
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.effects.intervention import apply_interventions
from attnctl.models.huggingface.effects.replay import blocks_of

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output

NEAR = 2e-5  # how close what was put together must come to what the model made, of the largest number


class RefusedError(Exception):
    """Why an architecture cannot be taken apart."""


@dataclass
class SeenCall:
    """One call of a module: what went in and came out at the watched positions, (rows, d) each, in float64."""

    module: Module
    given: Array
    made: Array


@dataclass
class SeenBlock:
    """One block's way: its input and output at the watched positions, its children's calls, and its attention."""

    given: Array | None = None  # (rows, d_model)
    made: Array | None = None  # (rows, d_model)
    children: list[SeenCall] = field(default_factory=list)
    linear: list[SeenCall] = field(default_factory=list)  # projections called after the attention
    layer: int = -1
    context: Array | None = None  # weights · values: (heads, rows, d_v)
    weights: Array | None = None  # (heads, rows, n_k), where kept
    values: Array | None = None  # (heads, n_k, d_v), where kept


class RecordedForward:
    """A forward, recorded at the watched positions: `rows` of them, the first `tail` positions from the end of the stream.

    `query` is the first one's place among the queries. With `keep_weights` each block keeps its weights and values.
    """

    def __init__(
        self, network: PreTrainedModel, tail: int, query: int, rows: int = 1, *, keep_weights: bool = True
    ) -> None:
        self.network, self.keep_weights = network, keep_weights
        self.tail, self.rows, self.queries = tail, slice(-tail, rows - tail or None), range(query, query + rows)
        self.blocks: list[SeenBlock] = []
        self.modules = blocks_of(network)
        self.outside: list[SeenCall] = []  # norms after the blocks
        self.head: SeenCall | None = None
        self.logits: Array | None = None

    def record(self, inputs: dict[str, object], base: Intervention) -> None:
        """Run the text, and keep what every part made of it."""
        head = self.network.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None or not isinstance(getattr(head, "weight", None), torch.Tensor):
            raise RefusedError("it has no unembedding matrix")
        inner = {id(module) for block in self.modules for module in block.modules()}
        with ExitStack() as stack:
            for block in self.modules:
                self._watch_block(block, stack)
            for module in self.network.modules():
                if id(module) not in inner and "norm" in type(module).__name__.lower():
                    self._keep_calls(module, lambda: self.outside, stack)

            def keep_head(module: Module, args: tuple[Array, ...], output: Output) -> None:
                self.head = SeenCall(module, args[0][0, self.rows].double(), output[0, self.rows].double())

            stack.callback(head.register_forward_hook(keep_head).remove)
            stack.enter_context(apply_interventions(self.network, [base], "self"))
            stack.enter_context(watch_attention(self.network, self._attended, lambda site: site.kind == "self"))
            self.logits = self.network(**inputs).logits[0, self.rows].double()  # (rows, vocabulary)

    def _watch_block(self, block: Module, stack: ExitStack) -> None:
        def keep_block_input(_: object, args: tuple[Array, ...], kwargs: dict[str, Array]) -> None:
            given = args[0] if args else kwargs.get("hidden_states")
            self.blocks.append(SeenBlock(given=self._row(given)))

        def keep_block_output(_: object, __: object, output: Output) -> None:
            self.blocks[-1].made = self._row(first_of(output))

        stack.callback(block.register_forward_pre_hook(keep_block_input, with_kwargs=True).remove)
        stack.callback(block.register_forward_hook(keep_block_output).remove)
        for child in block.modules():
            if child is block:
                continue
            direct = any(child is one for one in block.children())
            flat = hasattr(child, "weight") and child.weight is not None and child.weight.ndim == 2
            if direct:
                self._keep_calls(child, lambda: self.blocks[-1].children, stack)
            if flat:
                self._keep_calls(child, lambda: self.blocks[-1].linear, stack)

    def _keep_calls(self, module: Module, where: Callable[[], list[SeenCall]], stack: ExitStack) -> None:
        """Append each call of a module to the list that `where` then answers."""

        def keep(module: Module, args: tuple[Array, ...], kwargs: dict[str, Array], output: Output) -> None:
            given = self._row(args[0] if args else kwargs.get("hidden_states"))
            made = self._row(first_of(output))
            if given is not None and made is not None:
                where().append(SeenCall(module, given, made))

        stack.callback(module.register_forward_hook(keep, with_kwargs=True).remove)

    def _row(self, value: Array) -> Array | None:
        """The watched positions of (1, n, d) or (n, d); None for anything else."""
        if not isinstance(value, torch.Tensor) or value.ndim not in (2, 3):
            return None
        rows = value[0] if value.ndim == 3 else value
        return rows[self.rows].double() if rows.shape[0] >= self.tail else None

    def _attended(self, site: Site, call: Call) -> None:
        block = self.blocks[-1] if self.blocks else None
        if block is None or block.context is not None:
            raise RefusedError("it attends outside its blocks, or twice in one")
        steps = attention.run_call(attention.select_call(call, None, list(self.queries)))
        block.layer, block.context = site.layer, steps.context[0].double()  # (heads, rows, d_v)
        if self.keep_weights:
            block.weights = steps.weights[0].double()  # (heads, rows, n_k)
            block.values = attention.share_heads(call.values, block.weights.shape[0])[0].double()  # (heads, n_k, d_v)
        block.linear.clear()  # what was called before it are its own projections


def first_of(output: Output) -> Array:
    """What a module puts out, or the first of several things."""
    return output[0] if isinstance(output, tuple | list) else output


def is_near(one: Array, other: Array) -> bool:
    """Whether two arrays of one shape agree to NEAR of the largest number."""
    if one.shape != other.shape:
        return False
    return float((one - other).abs().max()) <= NEAR * max(float(other.abs().max()), 1e-6)
