"""Record a forward block by block; resume it from the middle with changes, or run one block again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from attnctl.attention import Array, Call
from attnctl.checks.tolerances import KERNEL, RESUMED, tolerance
from attnctl.errors import AttnctlError
from attnctl.layer import LayerAttention
from attnctl.layer.interventions import Intervention, zeroed_values
from attnctl.models.exchange import NOT_AGAIN
from attnctl.models.huggingface.attention_call import changed_context
from attnctl.models.huggingface.attention_interface import LOOKING_ON, Visit, WatchOptions, watch_attention
from attnctl.models.huggingface.attention_sites import Site, blocks_of
from attnctl.models.huggingface.family_traits import Traits
from attnctl.models.huggingface.intervention import Applied, apply_interventions
from attnctl.models.huggingface.optional_fields import output_value
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.runtime.shared_changes import shared_change

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Keywords, Output


ROWS_AT_ONCE = 4096  # tokens in all rows of a batch, when a block is run again


@dataclass
class PartCall:
    """One call of a module: the kept rows of its input and of its output."""

    module: Module
    rows_in: Array
    rows_out: Array


@dataclass
class BlockCall:
    """One call of a block: its arguments and its output; (1, n, d_model) is the first of both.

    `layers` attended in it. `parts` are the calls of modules in it, the block itself last; the first `before` of them ended
    before its attention.
    """

    block: Module
    args: tuple[object, ...]
    keywords: Keywords
    output: Output = None
    layers: list[int] = field(default_factory=list)
    parts: list[PartCall] = field(default_factory=list)
    before: int = 0

    def rows(self) -> Array | None:
        """Return the hidden states that the block read, (batch, n, …); None if it does not turn them into as many rows."""
        rows, output = self._named.get(self._place), first_of(self.output)
        if rows is None or not isinstance(output, torch.Tensor) or output.ndim < 3:
            return None
        return rows.detach() if rows.ndim == output.ndim and rows.shape[:2] == output.shape[:2] else None

    def run_again(self, rows: Array) -> Array:
        """Return the output of the block for other hidden states, with its other arguments as they were."""
        # a cache holds what the layer has read already
        named = {name: None if "Cache" in type(value).__name__ else value for name, value in self._named.items()}
        read = named[self._place]
        named = {name: rows if value is read else value for name, value in named.items()}  # queries, keys and values
        keywords = {name: value for name, value in named.items() if isinstance(name, str)}
        return first_of(self.block(*(named[index] for index in range(len(self.args))), **keywords))

    @property
    def _named(self) -> dict[int | str, Any]:
        """Return the arguments by place or name."""
        named: dict[int | str, Any] = dict(enumerate(self.args))
        return named | dict(self.keywords.items())

    @property
    def _place(self) -> int | str:
        """Return the place or the name of the argument that holds the hidden states; "" without one."""
        named = self._named.items()
        return next(
            (name for name, value in named if isinstance(value, torch.Tensor) and value.is_floating_point()), ""
        )


# id of a network, thread → the first calls of blocks in its forward, whose output is recorded, and the rows of the batch
_skipped: dict[tuple[int, int], tuple[Iterator[BlockCall], int]] = {}


class BlockRecorder:
    """A recorded forward of a network over one text, with every call of its blocks.

    A block is a module of the network's outermost lists of layers that contains attention; with `every_list`, lists without
    attention count too. `base` is the intervention of every forward, `kind` the attention that is watched. After `run`,
    `result` is the network's output; `gated`: a learned gate is between the heads and their output projection; `resumes`: a
    forward from the middle gives the same result.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        kind: str = "self",
        base: Intervention | None = None,
        *,
        every_list: bool = False,
    ) -> None:
        self.network, self.kind, self.base = network, kind, base or Intervention()
        self.blocks = blocks_of(network, every_list)
        self.calls: list[BlockCall] = []
        self.outside: list[PartCall] = []  # calls of modules outside blocks, if parts are kept
        self.first_calls: dict[int, int] = {}  # layer → the first call of a block in which it attends
        self.inputs: dict[str, object] = {}
        self.result: Output = None
        self.gated = self.resumes = False

    @contextmanager
    def recording_blocks(self) -> Iterator[None]:
        """Record the calls of the blocks in one forward within this context."""

        def begin_block(block: Module, args: tuple[object, ...], keywords: Keywords) -> None:
            self.calls.append(BlockCall(block, args, keywords))

        def end_block(block: Module, _: object, output: Output) -> None:
            next(call for call in reversed(self.calls) if call.block is block and call.output is None).output = output

        with ExitStack() as stack:
            for block in self.blocks:
                stack.callback(block.register_forward_pre_hook(begin_block, with_kwargs=True).remove)
                stack.callback(block.register_forward_hook(end_block).remove)
            yield

    @contextmanager
    def recording(
        self,
        visit: Visit = lambda *_: None,
        options: WatchOptions = LOOKING_ON,
        keep_rows: Callable[[object], Array | None] | None = None,
    ) -> Iterator[None]:
        """Record one forward within this context; pass each call of attention of this kind to `visit`.

        `keep_rows` returns the rows to keep of a module's input or output, or None. With it, the calls of all modules are
        kept too: as parts of their block, or outside.
        """

        def see_call(site: Site, call: Call) -> Array | None:
            if self.calls and self.calls[-1].output is None:
                self.calls[-1].layers.append(site.layer)
                self.calls[-1].before = len(self.calls[-1].parts)
            self.first_calls.setdefault(site.layer, max(0, len(self.calls) - 1))
            return visit(site, call)

        with ExitStack() as stack:
            stack.enter_context(self.recording_blocks())
            if keep_rows is not None:
                ids_in_blocks = {id(part) for block in self.blocks for part in block.modules()}
                for part in self.network.modules():
                    keep = partial(self._keep_part, keep_rows, id(part) in ids_in_blocks)
                    stack.callback(part.register_forward_hook(keep, with_kwargs=True).remove)
            stack.enter_context(watch_attention(self.network, see_call, lambda site: site.kind == self.kind, options))
            yield

    def _keep_part(
        self,
        keep_rows: Callable[[object], Array | None],
        in_block: bool,
        module: Module,
        args: tuple[object, ...],
        keywords: Keywords,
        output: Output,
    ) -> None:
        """Keep a call of a module that has one stream as input and one as output."""
        input_rows, output_rows = (
            keep_rows(args[0] if args else keywords.get("hidden_states")),
            keep_rows(first_of(output)),
        )
        if input_rows is not None and output_rows is not None:
            parts = self.calls[-1].parts if in_block and self.calls else self.outside
            parts.append(PartCall(module, input_rows, output_rows))

    def run(self, inputs: dict[str, object], visit: Visit = lambda *_: None) -> None:
        """Run the network over `inputs`, a batch of one, under the base; pass each call of attention to `visit`."""
        self.inputs, traits = inputs, Traits(self.network, self.kind)
        with (
            apply_interventions(self.network, [self.base], self.kind),
            self.recording(visit, WatchOptions(after=traits.see_context)),
            traits.watch(),
        ):
            self.result = self.network(**inputs)
        self.gated = bool(traits.gates)
        # layers that share a block are distinguished by counting calls
        blocks = {id(call.block) for call in self.calls}
        self.resumes = 0 < len(blocks) == len(self.calls) and self._resumes_exactly()

    # --- from the middle ----------------------------------------------------------------------------------------------

    def _resumes_exactly(self) -> bool:
        """Return whether a batch of two, resumed at the last block and in the middle, gives the first forward's result."""
        expected, rows = logits_of(self.result), [self.base, self.base]
        limit = RESUMED * float(expected.abs().max())
        try:
            outputs = [logits_of(self._run_from(start, rows)) for start in (len(self.calls) - 1, len(self.calls) // 2)]
        except NOT_AGAIN:
            return False
        return all(
            logits.shape[1:] == expected.shape[1:] and bool((logits - expected).abs().max() <= limit)
            for logits in outputs
        )

    def resume_from_change(self, interventions: Sequence[Intervention]) -> Output:
        """Return the network's output, one row per intervention, computed from the first block that any of them changes."""
        first = min(intervention.first_layer() for intervention in interventions)
        start = min((call for layer, call in self.first_calls.items() if layer >= first), default=0)
        return self._run_from(start if self.resumes else 0, interventions)

    def _run_from(self, start: int, interventions: Sequence[Intervention]) -> Output:
        rows = len(interventions)
        widened = expanded_rows if self.kind == "vision" else _input_of_rows  # captions are the same for every row
        with self._skipping_blocks(start, rows), apply_interventions(self.network, interventions, self.kind):
            return self.network(**{name: widened(value, rows) for name, value in self.inputs.items()})

    @contextmanager
    def _skipping_blocks(self, count: int, rows: int) -> Iterator[None]:
        """Let the first `count` calls of blocks in this thread return their recorded output, within this context."""
        if not count:
            yield
            return
        key = id(self.network), get_ident()
        _skipped[key] = iter(self.calls[:count]), rows
        try:
            with shared_change(("skipped blocks", id(self.network)), self._wrap_blocks):
                yield
        finally:
            del _skipped[key]

    def _wrap_blocks(self, stack: ExitStack) -> None:
        """Let the blocks return what is recorded for the thread that calls them, or else run."""

        def recorded_or_run(run: Callable[..., Output], /, *args: object, **kwargs: object) -> Output:
            recorded, rows = _skipped.get((id(self.network), get_ident()), (None, 0))
            call = None if recorded is None else next(recorded, None)
            return run(*args, **kwargs) if call is None else expanded_rows(call.output, rows)

        for block in self.blocks:
            if (forward := block.__dict__.get("forward")) is None:
                stack.callback(delattr, block, "forward")
            else:
                stack.callback(setattr, block, "forward", forward)
            block.forward = partial(recorded_or_run, block.forward)

    # --- one block again ----------------------------------------------------------------------------------------------

    def block_of_layer(self, layer: int) -> BlockCall:
        """Return the call of the block in which a layer attends. Raises AttnctlError if another layer attends in it."""
        calls = [call for call in self.calls if layer in call.layers]
        if len(calls) != 1 or len(calls[0].layers) != 1:
            raise self._refused("one block does not hold one attention")
        return calls[0]

    def output_of_layer(self, layer: LayerAttention) -> Floats:
        """Return the output of the block of a layer: (n_q, d_model)."""
        output = first_of(self.block_of_layer(layer.layer).output)
        if output is None or output.ndim != 3 or output.shape[:2] != (1, layer.n_q):
            raise self._refused("its blocks put out no row for each token")
        return as_numpy(output[0])  # type: ignore[no-any-return]

    def check_layer(self, layer: LayerAttention) -> None:
        """Raise AttnctlError if the block of a layer, run again with two rows and nothing zeroed, gives another output."""
        recorded = torch.as_tensor(self.output_of_layer(layer))  # (n_q, d_model)
        limit = tolerance(KERNEL, next(self.network.parameters()).dtype) * float(recorded.abs().max())
        for output in self._run_again(layer, [None, None]):
            if output.shape != recorded.shape or not bool((output - recorded).abs().max() <= limit):
                raise self._refused("a block, run again alone, gives another output")

    def outputs_with_zeroed_values(self, layer: LayerAttention) -> Iterator[Floats]:
        """Yield the output of a layer's block with the value of a key zeroed in every head: (keys, n_q, d_model) each."""
        keys_at_once = max(1, ROWS_AT_ONCE // max(layer.n_q, layer.n_k))
        for first in range(0, layer.n_k, keys_at_once):
            yield as_numpy(self._run_again(layer, range(first, min(first + keys_at_once, layer.n_k))))

    def _run_again(self, layer: LayerAttention, keys: Sequence[int | None]) -> Array:
        """Return the block's output with the value of each of `keys` zeroed (None: nothing zeroed): (keys, n_q, d_model)."""
        call, n_calls = self.block_of_layer(layer.layer), 0

        def zero_values(site: Site, attention_call: Call) -> Array:
            nonlocal n_calls
            n_calls += 1
            if attention_call.n_k != layer.n_k:
                raise self._refused("it has keys that are not tokens of the text")
            zeroed = zeroed_values(attention_call.values, keys)  # (keys, kv_heads, n_k, d_v)
            context = changed_context(replace(attention_call, values=zeroed))  # (keys, heads, n_q, d_v)
            return Applied([self.base]).change_context(replace(site, layer=layer.layer), context)

        options = WatchOptions(replaces=True)
        try:
            with watch_attention(self.network, zero_values, lambda site: site.kind == self.kind, options):
                args, keywords = expanded_rows((call.args, call.keywords), len(keys))
                output = first_of(call.block(*args, **keywords))
        except NOT_AGAIN as error:
            raise self._refused("a block cannot be run again alone") from error
        if n_calls != 1:
            raise self._refused("one block does not hold one attention")
        return output.float()

    def _refused(self, why: str) -> AttnctlError:
        return AttnctlError(f"{type(self.network).__name__} is not built of blocks that can be run again: {why}")


def _input_of_rows(value: Any, rows: int) -> Any:
    """Return an input of one text for `rows` rows; an input without an axis for texts (a picture's patches) is repeated.

    Pictures and their masks are repeated too: Idefics 3 joins the axes of texts and tiles.
    """
    packed = isinstance(value, torch.Tensor) and value.ndim and (value.shape[0] != 1 or value.ndim > 2)
    return value.repeat(rows, *[1] * (value.ndim - 1)) if packed else expanded_rows(value, rows)


def expanded_rows(value: Any, rows: int) -> Any:
    """Return the value with every batch of one expanded to `rows`, within tuples and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return value.expand(rows, *value.shape[1:]) if value.ndim and value.shape[0] == 1 else value
    if isinstance(value, tuple):
        expanded = [expanded_rows(part, rows) for part in value]
        return type(value)(*expanded) if hasattr(value, "_fields") else tuple(expanded)
    if hasattr(value, "to_tuple") and isinstance(value, dict):  # a model's output
        return type(value)(**{name: expanded_rows(part, rows) for name, part in value.items()})
    if isinstance(value, dict):
        return {name: expanded_rows(part, rows) for name, part in value.items()}
    return value


def first_of(output: Output) -> Array:
    """Return a module's output, or its first item if it is a tuple or list."""
    return output[0] if isinstance(output, tuple | list) else output


def logits_of(output: Output) -> Array:
    """Return a network's logits (batch, positions, vocabulary), or its final states (batch, n, d_model) if it has none."""
    logits = output_value(output, "logits", "logits_per_image", "prediction_logits", "last_hidden_state")
    return (output[0] if logits is None else logits).float()
