"""One forward recorded block by block, and replayed with changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.interventions import Intervention, zeroed_values
from attnctl.layer import LayerAttention
from attnctl.models.huggingface.attention_call import changed_context
from attnctl.models.huggingface.attention_interface import WatchOptions, watch_attention
from attnctl.models.huggingface.attention_sites import Site, blocks_of
from attnctl.models.huggingface.family_traits import ContextReaders
from attnctl.models.huggingface.intervention import Applied, apply_interventions
from attnctl.models.huggingface.packed_linear import packed_products, packing_of_network
from attnctl.tolerances import KERNEL, tolerance

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output


ROWS_AT_ONCE = 4096  # tokens of all rows of a batch together, where a block is run again
CLOSE = 1e-4  # how near a resumed forward must come to the whole one, of the largest logit


@dataclass
class BlockCall:
    """One call of a block: what it was called with and what it put out, (1, n, d_model) first among both."""

    block: Module
    args: tuple[Any, ...]
    given: dict[str, Any]
    output: Output = None


@contextmanager
def block_calls(network: PreTrainedModel) -> Iterator[list[BlockCall]]:
    """Within this, each call of a network's blocks is kept, in their order; a block begins before it is told of."""
    calls: list[BlockCall] = []

    def end_call(_: object, __: object, output: Output) -> None:
        calls[-1].output = output

    with ExitStack() as stack:
        for block in blocks_of(network):
            begin = block.register_forward_pre_hook(lambda *call: calls.append(BlockCall(*call)), with_kwargs=True)
            stack.callback(begin.remove)
            stack.callback(block.register_forward_hook(end_call).remove)
        yield calls


class Replay:
    """A network's forward over one text, what each block put out kept: `resume_from_change` goes on from any of them, many
    rows at once.

    A block is a module of the network's outermost lists of layers that holds an attention. `inputs` is a batch of one, run
    under `base`, each call of attention of this kind shown to `visit`. `result` is what the network put out; `gated`: a
    learned gate stands between heads and their output projection; `resumes`: from the middle it comes to the same.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        inputs: dict[str, object],
        kind: str = "self",
        base: Intervention | None = None,
        visit: Callable[[Site, Call], Array | None] = lambda *_: None,
    ) -> None:
        self.network, self.inputs, self.kind, self.base = network, inputs, kind, base or Intervention()
        self._kernels = packing_of_network(network)
        self._starts: dict[int, int] = {}  # layer → the first block call in which it attends

        def see_block_call(site: Site, call: Call) -> Array | None:
            self._starts.setdefault(site.layer, max(0, len(self._calls) - 1))
            return visit(site, call)

        with ExitStack() as stack:
            self._calls = stack.enter_context(block_calls(network))
            stack.enter_context(apply_interventions(network, [self.base], kind))
            readers = ContextReaders(network, kind)
            options = WatchOptions(after=readers)
            stack.enter_context(watch_attention(network, see_block_call, lambda site: site.kind == kind, options))
            stack.enter_context(readers.watch_readers())
            stack.enter_context(packed_products(self._kernels))
            self.result: Output = network(**inputs)
        self.gated = bool(readers.gates)
        blocks = {
            id(call.block) for call in self._calls
        }  # those of layers that share one are told apart by counting calls
        self.resumes = 0 < len(blocks) == len(self._calls) and self._resumes_to_the_same()

    def _resumes_to_the_same(self) -> bool:
        """Whether two rows, from the last block and from the middle, equal the first forward."""
        whole, rows = logits_of(self.result), [self.base, self.base]
        near = CLOSE * float(whole.abs().max())
        try:
            found = [logits_of(self._run_from(at, rows)) for at in (len(self._calls) - 1, len(self._calls) // 2)]
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):  # also of keys that others share
            return False
        return all(other.shape[1:] == whole.shape[1:] and bool((other - whole).abs().max() <= near) for other in found)

    def resume_from_change(self, interventions: Sequence[Intervention]) -> Output:
        """The network's output, a row for each intervention, from the first block where any of them changes something."""
        first = min(one.first_layer() for one in interventions)
        at = min((start for layer, start in self._starts.items() if layer >= first), default=0)
        return self._run_from(at if self.resumes else 0, interventions)

    def _run_from(self, at: int, interventions: Sequence[Intervention]) -> Output:
        rows = len(interventions)
        widened = expanded_rows if self.kind == "vision" else _input_of_rows  # captions are the same for every row
        with (
            self._skipping_blocks(at, rows),
            apply_interventions(self.network, interventions, self.kind),
            packed_products(self._kernels),
        ):
            return self.network(**{name: widened(value, rows) for name, value in self.inputs.items()})

    @contextmanager
    def _skipping_blocks(self, count: int, rows: int) -> Iterator[None]:
        """Within this, the first `count` calls of blocks answer what they put out before."""
        kept = iter(self._calls[:count])

        def answer_kept(run: Callable[..., Output], /, *args: object, **kwargs: object) -> Output:
            call = next(kept, None)
            return run(*args, **kwargs) if call is None else expanded_rows(call.output, rows)

        with ExitStack() as stack:
            for block in blocks_of(self.network) if count else ():
                if (own := block.__dict__.get("forward")) is None:
                    stack.callback(delattr, block, "forward")
                else:
                    stack.callback(setattr, block, "forward", own)
                block.forward = partial(answer_kept, block.forward)
            yield


@dataclass
class RecordedBlocks:
    """A network's blocks over one text, run again one by one, the value of a key zeroed in every head."""

    network: PreTrainedModel
    kind: str
    off: Intervention = field(default_factory=Intervention)  # heads that are off in all of it
    calls: list[BlockCall] = field(default_factory=list)
    layers: list[LayerAttention] = field(default_factory=list)
    call_of_layer: dict[int, int] = field(default_factory=dict)  # layer → number of the call in which it attends

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within this, the calls of blocks are kept."""
        with block_calls(self.network) as self.calls:
            yield

    def see_layer(self, layer: LayerAttention) -> None:
        """Note in which call a layer attends. Raises AttnctlError outside of all, or where another does so there."""
        at = len(self.calls) - 1
        if at < 0 or self.calls[at].output is not None or at in self.call_of_layer.values():
            raise self._refused("one block does not hold one attention")
        self.layers.append(layer)
        self.call_of_layer[layer.layer] = at

    def output_of_layer(self, layer: LayerAttention) -> Floats:
        """What the block of a layer put out: (n_q, d_model)."""
        made = first_of(self.calls[self.call_of_layer[layer.layer]].output)
        if made is None or made.ndim != 3 or made.shape[:2] != (1, layer.n_q):
            raise self._refused("its blocks put out no row for each token")
        return as_numpy(made[0])  # type: ignore[no-any-return]

    def check_layer(self, layer: LayerAttention) -> None:
        """Raise AttnctlError where the block of a layer, two rows at once and nothing zeroed, does not come to the same."""
        own = torch.as_tensor(self.output_of_layer(layer))  # (n_q, d_model)
        near = tolerance(KERNEL, next(self.network.parameters()).dtype) * float(own.abs().max())
        for made in self._run_again(layer, [None, None]):
            if made.shape != own.shape or not bool((made - own).abs().max() <= near):
                raise self._refused("run again by itself, a block does not come to the same")

    def outputs_with_zeroed_values(self, layer: LayerAttention) -> Iterator[Floats]:
        """What the block of a layer puts out where a key's value is zeroed in every head: (keys, n_q, d_model) at a time."""
        several = max(1, ROWS_AT_ONCE // max(layer.n_q, layer.n_k))
        for first in range(0, layer.n_k, several):
            yield as_numpy(self._run_again(layer, range(first, min(first + several, layer.n_k))))

    def _run_again(self, layer: LayerAttention, keys: Sequence[int | None]) -> Array:
        """The block's output with the value of each of `keys` (None: of none) zeroed → (keys, n_q, d_model)."""
        call, seen = self.calls[self.call_of_layer[layer.layer]], 0

        def zero_values(site: Site, asked: Call) -> Array:
            nonlocal seen
            seen += 1
            if asked.n_k != layer.n_k:
                raise self._refused("it has keys that are no tokens of the text")
            context = changed_context(
                replace(asked, values=zeroed_values(asked.values, keys))
            )  # (keys, heads, n_q, d_v)
            return Applied([self.off]).change_context(replace(site, layer=layer.layer), context)

        options = WatchOptions(replaces=True)
        try:
            with watch_attention(self.network, zero_values, lambda site: site.kind == self.kind, options):
                args, given = expanded_rows((call.args, call.given), len(keys))
                made = first_of(call.block(*args, **given))
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise self._refused("a block cannot be run again by itself") from error
        if seen != 1:
            raise self._refused("one block does not hold one attention")
        return made.float()

    def _refused(self, why: str) -> AttnctlError:
        return AttnctlError(f"{type(self.network).__name__} is not built of blocks that can be run again: {why}")


def _input_of_rows(value: Any, rows: int) -> Any:
    """An input of one text for `rows` of it; what has no axis for texts (the patches of a picture) is repeated.

    So are pictures and their masks, of which Idefics 3 joins the axes of texts and of tiles.
    """
    packed = isinstance(value, torch.Tensor) and value.ndim and (value.shape[0] != 1 or value.ndim > 2)
    return value.repeat(rows, *[1] * (value.ndim - 1)) if packed else expanded_rows(value, rows)


def expanded_rows(value: Any, rows: int) -> Any:
    """The value with every batch of one in it made a batch of `rows`; tuples and dictionaries are gone through."""
    if isinstance(value, torch.Tensor):
        return value.expand(rows, *value.shape[1:]) if value.ndim and value.shape[0] == 1 else value
    if isinstance(value, tuple):
        several = [expanded_rows(part, rows) for part in value]
        return type(value)(*several) if hasattr(value, "_fields") else tuple(several)
    if hasattr(value, "to_tuple") and isinstance(value, dict):  # a model's output
        return type(value)(**{name: expanded_rows(part, rows) for name, part in value.items()})
    if isinstance(value, dict):
        return {name: expanded_rows(part, rows) for name, part in value.items()}
    return value


def first_of(output: Output) -> Array:
    """What a module puts out, or the first of several things."""
    return output[0] if isinstance(output, tuple | list) else output


def logits_of(output: Output) -> Array:
    """A network's logits, (batch, positions, vocabulary), or where it has none its final states (batch, n, d_model)."""
    for name in ("logits", "logits_per_image", "prediction_logits", "last_hidden_state"):
        if (found := getattr(output, name, None)) is not None:
            return found.float()
    return output[0].float()
