"""One text through a network again and again, each time from the block where something changed: what is below is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from attnctl.attention import Array, Call
from attnctl.interventions import Intervention
from attnctl.models.huggingface.attention_interface import watch_attention
from attnctl.models.huggingface.attention_sites import Site
from attnctl.models.huggingface.batches.packed_linear import PackedLinear, packed_products, packing_mode
from attnctl.models.huggingface.effects.intervention import apply_interventions

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Output

CLOSE = 1e-4  # how near a resumed forward must come to the whole one, of the largest logit


@dataclass
class Replay:
    """A network's forward over one text, what each block put out kept: `resume` goes on from any of them, many rows at once.

    A block is a module of the network's outermost lists of layers that holds an attention. `inputs` is a batch of one.
    """

    network: PreTrainedModel
    inputs: dict[str, object]
    kind: str = "self"
    base: Intervention = field(default_factory=Intervention)
    blocks: list[Module] = field(default_factory=list)
    # (block, what it put out), in order of their calls
    outputs: list[tuple[Module, Output]] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)  # layer → the first block call in which it attends
    sound: bool = True  # whether a forward from the middle comes to the same
    kernels: PackedLinear | None = None
    result: Output = None  # what the network put out, nothing changed but `base`

    @classmethod
    def of_forward(
        cls,
        network: PreTrainedModel,
        inputs: dict[str, object],
        kind: str = "self",
        base: Intervention | None = None,
        visit: Callable[[Site, Call], Array | None] = lambda *_: None,
    ) -> Replay:
        """Run the text once under `base`, `visit` shown each call of attention of this kind; then try the replay itself."""
        replay = cls(network, inputs, kind, Intervention() if base is None else base, blocks_of(network))
        replay.kernels = packing_mode(network)
        replay._record_forward(visit)
        replay._try_resuming()
        return replay

    def _record_forward(self, visit: Callable[[Site, Call], Array | None]) -> None:
        started = 0

        def start_block(*_: object) -> None:
            nonlocal started
            started += 1

        def see_block_call(site: Site, call: Call) -> Array | None:
            self.starts.setdefault(site.layer, max(0, started - 1))
            return visit(site, call)

        with ExitStack() as stack:
            for block in self.blocks:
                stack.callback(block.register_forward_pre_hook(start_block).remove)
                keep = block.register_forward_hook(lambda block, _, output: self.outputs.append((block, output)))
                stack.callback(keep.remove)
            stack.enter_context(apply_interventions(self.network, [self.base], self.kind))
            stack.enter_context(watch_attention(self.network, see_block_call, lambda site: site.kind == self.kind))
            stack.enter_context(packed_products(self.kernels))
            self.result = self.network(**self.inputs)

    def _try_resuming(self) -> None:
        """Find out whether this network may be resumed: two rows from the last block must equal the first forward."""
        called = [id(block) for block, _ in self.outputs]
        if not called or len(set(called)) < len(called):  # layers that share a module are told apart by counting calls
            self.sound = False
            return
        whole = logits_of(self.result)
        rows = [self.base, self.base]
        try:
            again = logits_of(self._run_from(len(self.outputs) - 1, rows))
            middle = logits_of(self._run_from(len(self.outputs) // 2, rows))
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):  # also of keys that others share
            self.sound = False
            return
        near = CLOSE * float(whole.abs().max())
        self.sound = all(
            other.shape[1:] == whole.shape[1:] and bool((other - whole).abs().max() <= near)
            for other in (again, middle)
        )

    def resume_from_change(self, interventions: Sequence[Intervention]) -> Output:
        """The network's output, a row for each intervention, from the first block where any of them changes something."""
        first = min(one.first_layer() for one in interventions)
        at = self.starts.get(first)
        if at is None:
            at = min((start for layer, start in self.starts.items() if layer >= first), default=0)
        return self._run_from(at if self.sound else 0, interventions)

    def _run_from(self, at: int, interventions: Sequence[Intervention]) -> Output:
        rows = len(interventions)
        with (
            self._skipping_blocks(at, rows),
            apply_interventions(self.network, interventions, self.kind),
            packed_products(self.kernels),
        ):
            return self.network(**{name: expanded_rows(value, rows) for name, value in self.inputs.items()})

    @contextmanager
    def _skipping_blocks(self, count: int, rows: int) -> Iterator[None]:
        """Within this, the first `count` calls of blocks answer what they put out before."""
        made = 0
        replaced: list[tuple[Module, Callable[..., Output] | None]] = []

        def skipped_forward(run: Callable[..., Output]) -> Callable[..., Output]:
            def answer_kept(*args: object, **kwargs: object) -> Output:
                nonlocal made
                made += 1
                return expanded_rows(self.outputs[made - 1][1], rows) if made <= count else run(*args, **kwargs)

            return answer_kept

        try:
            for block in self.blocks if count else ():
                replaced.append((block, block.__dict__.get("forward")))
                block.forward = skipped_forward(block.forward)
            yield
        finally:
            for block, own in replaced:
                if own is None:
                    del block.forward
                else:
                    block.forward = own


def blocks_of(network: PreTrainedModel) -> list[Module]:
    """The modules of the network's outermost lists of layers that hold an attention."""
    from torch.nn import ModuleList

    lists = [(name, module) for name, module in network.named_modules() if isinstance(module, ModuleList)]
    outermost: list[str] = []
    found = []
    for name, several in lists:
        if any(name.startswith(other + ".") for other in outermost):
            continue
        kinds = {type(module).__name__.lower() for block in several for module in block.modules()}
        if any("attention" in kind for kind in kinds):
            outermost.append(name)
            found += list(several)
    return found


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


def logits_of(output: Output) -> Array:
    """A network's logits, (batch, positions, vocabulary), or where it has none its final states (batch, n, d_model)."""
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if (found := getattr(output, name, None)) is not None:
            return found.float()
    return output[0].float()
