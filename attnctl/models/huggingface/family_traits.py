"""Observe what families of models do besides the softmax of scores: gates, sinks, indexers, shared keys."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_interface import architecture_name, in_this_thread
from attnctl.models.huggingface.attention_sites import (
    Site,
    attention_modules,
    blocks_of,
    is_differential,
    sites_of_modules,
    unseen_sentence,
)
from attnctl.models.huggingface.blockwise_modules import random_blocks_note
from attnctl.models.huggingface.output_projections import is_changed_between, output_projections, projection_matrix
from attnctl.runtime.arrays import Floats, as_numpy
from attnctl.text import number_list
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import SINK_NOTE

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


SAME = 1e-2  # largest difference of an unchanged context, relative to its largest number: dtypes may differ
_NO_MIXER = re.compile(r"Norm|MLP|MoE|Moe|Expert|FeedForward|Dropout|Embedding|Router|Identity", re.IGNORECASE)


class Traits:
    """What the runs of a network show besides their calls of one kind of attention: sizes, sinks, gates, and so on.

    `watch` a run, and pass it each call (`see_call`) and each context that a module continues with (`see_context`).
    `described_model` and `reader_notes` then report what was observed. `gates` holds how far learned gates are open, ‖gated
    context‖ / ‖context‖, by layer: (batch, heads, n_q). A context is gated if its projection reads it multiplied by numbers
    of 0 or more, unless a norm read the context first. If texts are `padded`, the masks hide padding too, so they do not
    show whether queries look ahead.
    """

    def __init__(self, network: PreTrainedModel, kind: str, *, padded: bool = False) -> None:
        self._network, self._kind, self._padded = network, kind, padded
        self._projections = {
            key: projection for key, projection in output_projections(network).items() if projection[0].kind == kind
        }
        self.gates: dict[int, Array] = {}
        self._contexts: dict[int, Array] = {}  # module → (batch, n_q, heads, d_v), until it is read
        self._returned: set[int] = set()  # ids of modules whose W_O was returned: it must read the context unchanged
        self.final_norm: bool | None = None  # a norm follows the last block, before the head; None: no block ran
        self.causal: bool | None = None
        self._sizes: dict[int, tuple[int, int, int, int]] = {}  # layer → heads, key/value heads, d_k, d_v
        self._scales: set[float] = set()
        self._sinks = False
        self._lambdas: list[float] = []  # of the layers of differential attention
        self._shared: dict[int, int] = {}  # layer → the layer whose keys and values it reads
        self._keys: dict[int, weakref.ref[Array]] = {}

    @cached_property
    def _without_attention(self) -> dict[str, list[int]]:
        """Return `layers_without_attention` of the network, computed once: it walks through every module."""
        return layers_without_attention(self._network)

    @cached_property
    def _random_blocks(self) -> str:
        return random_blocks_note(self._network)

    @cached_property
    def _indexed(self) -> set[int]:
        return indexed_layers(self._network)

    # --- as the network runs ------------------------------------------------------------------------------------------

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch a run of the network within this context.

        Raises AttnctlError if `see_call` returned a matrix that does not read the context unchanged.
        """
        with ExitStack() as stack:
            for key, (site, projection) in self._projections.items():
                module = self._network.get_submodule(site.name)
                readers = [part for part in module.modules() if "norm" in type(part).__name__.lower()]
                for part in {projection, *readers}:
                    stack.callback(
                        part.register_forward_pre_hook(in_this_thread(partial(self._see_reader, key))).remove
                    )
                if any(part is projection for part in module.modules()):
                    stack.callback(module.register_forward_hook(in_this_thread(partial(self._end_module, key))).remove)
            self._watch_norms(stack)
            yield

    def _watch_norms(self, stack: ExitStack) -> None:
        """Watch whether a norm outside the lists of layers and the head is called after the last block."""
        layers = {id(part) for module_list in _module_lists(self._network) for part in module_list.modules()}

        def end_block(*_: object) -> None:
            self.final_norm = False

        def begin_norm(*_: object) -> None:
            self.final_norm = None if self.final_norm is None else True

        for block in blocks_of(self._network):
            stack.callback(block.register_forward_hook(in_this_thread(end_block)).remove)
        for name, part in self._network.base_model.named_modules():
            if id(part) not in layers and "norm" in type(part).__name__.lower() and "predictions" not in name:
                stack.callback(part.register_forward_pre_hook(in_this_thread(begin_norm)).remove)

    def see_context(self, site: Site, context: Array) -> None:
        """Keep the context (batch, n_q, heads, d_v) that a module continues with, until it is read."""
        if site.module in self._projections:
            self._contexts[site.module] = context

    def _see_reader(self, key: int, part: Module, args: tuple[Array, ...]) -> None:
        """Note how a projection or a norm that begins reads the context of module `key`."""
        site, projection = self._projections[key]
        context = self._contexts.get(key)
        if context is None or not args or args[0].numel() != context.numel():
            return
        read = args[0].reshape(context.shape)  # (batch, n_q, heads, d_v)
        is_unchanged = read.data_ptr() == context.data_ptr() or bool(
            (read - context).abs().nan_to_num(0.0).max() <= SAME * context.abs().nan_to_num(0.0).max()
        )
        if part is not projection and not is_unchanged:
            return
        del self._contexts[key]
        if key in self._returned and not (is_unchanged and part is projection):
            raise self._no_matrix(site)
        if part is projection and not is_unchanged and (share := gate_ratio(context, read)) is not None:
            self.gates[site.layer] = share.transpose(1, 2)  # (batch, heads, n_q)

    def _end_module(self, key: int, *_: object) -> None:
        """Raise AttnctlError if a module ends and the projection of the returned matrix has not read its context."""
        if key in self._returned and key in self._contexts:
            raise self._no_matrix(self._projections[key][0])

    def _no_matrix(self, site: Site) -> AttnctlError:
        return AttnctlError(
            f"layer {site.layer} of {architecture_name(self._network)} does more to its heads' outputs than a projection: "
            "the norms of its values after that are not known"
        )

    def see_call(self, site: Site, call: Call) -> Callable[[], Floats | None]:
        """Note the sizes and settings of a call; return a function that gives W_O (heads · d_v, d_out) or None.

        Raises AttnctlError for a layer that attends a second time in one forward.
        """
        if site.layer in self._sizes:
            raise AttnctlError(
                f"{type(self._network).__name__} attends several times in what it calls layer {site.layer}, and a trace "
                "holds one attention a layer: attnctl.capture keeps them all"
            )
        if self.causal is None and not self._padded:
            self.causal = hides_future(call)
        sizes = call.queries.shape[-3], call.keys.shape[-3], call.queries.shape[-1], call.values.shape[-1]
        self._sizes[site.layer] = sizes
        self._scales.add(call.effective_scale)
        self._sinks |= call.sinks is not None
        factor = differential_lambda(self._network.get_submodule(site.name))
        self._lambdas += [] if factor is None else [factor]
        owner = next((layer for layer, keys in self._keys.items() if keys() is call.keys), None)
        if owner is None:
            self._keys[site.layer] = weakref.ref(call.keys)
        else:
            self._shared[site.layer] = owner
        return partial(self._output_matrix, site, sizes)

    def _output_matrix(self, site: Site, sizes: tuple[int, int, int, int]) -> Floats | None:
        """Return W_O of a module that has just attended; the run then checks that it reads the context unchanged."""
        heads, _, d_k, d_v = sizes
        if site.module not in self._projections or is_changed_between(
            self._network.get_submodule(site.name), heads * d_k
        ):
            return None
        matrix = projection_matrix(self._projections[site.module][1], heads * d_v)
        self._returned |= set() if matrix is None else {site.module}
        return matrix

    # --- what a run showed -------------------------------------------------------------------------------------------------

    def described_model(self, info: ModelInfo, whole: bool) -> ModelInfo:
        """Return the model's description with what the calls showed; what differs from layer to layer is left out.

        Only a `whole` run shows whether a norm follows the last layer.
        """
        info = replace(info, final_norm=self.final_norm if whole else None)
        if not self._sizes:
            return replace(info, scale=None)
        columns = [set(column) for column in zip(*self._sizes.values(), strict=True)]
        heads, kv_heads, d_k, d_v = (column.pop() if len(column) == 1 else None for column in columns)
        return replace(
            info,
            n_heads=heads or info.n_heads,
            n_kv_heads=kv_heads,
            d_k=d_k,
            d_v=d_v,
            scale=next(iter(self._scales)) if len(self._scales) == 1 else None,
            causal=info.causal if self.causal is None else self.causal,
        )

    def gates_of_text(self, item: int, n: int) -> dict[int, Floats]:
        """Return layer → how far the gates were open for the first n tokens of one text of the batch: (heads, n)."""
        return {layer: as_numpy(share[item, :, :n]) for layer, share in self.gates.items()}

    def reader_notes(self, silent: dict[Site, str], gates: Mapping[int, Floats]) -> tuple[str, ...]:
        """Return the notes for a reader: `silent` modules attended in code of their own, `gates` are the text's gates."""
        sentence = unseen_sentence(silent)
        notes = [f"{sentence[0].upper()}{sentence[1:]}."] if sentence else []
        if self._kind in ("self", "encoder") and self._random_blocks:
            notes.append(self._random_blocks)
        if self._sinks:
            notes.append(SINK_NOTE)
        if self._kind == "self":
            for name, layers in self._without_attention.items():
                holds = "it holds" if len(layers) == 1 else "they hold"
                notes.append(f"{_layers(layers)} no softmax attention: {holds} {name} in its place.")
        if self._lambdas:
            low, high = f"{min(self._lambdas):.2f}", f"{max(self._lambdas):.2f}"
            notes.append(
                "Differential attention (Ye et al. 2024): heads are pairs, h and h + heads / 2, and what counts is the "
                f"weights of the first - λ × those of the second, λ {low if low == high else f'{low} to {high} by layer'}."
            )
        if self._sizes.keys() & self._indexed:
            notes.append("An indexer picks the keys that each query may see: the others are masked.")
        if self._shared:
            pairs = [f"layer {layer} reads those of layer {owner}" for layer, owner in self._shared.items()]
            listed = "; ".join(pairs if len(pairs) <= 4 else [*pairs[:3], "…", pairs[-1]])
            its = "its" if len(self._shared) == 1 else "their"
            notes.append(f"{_layers(list(self._shared))} no keys and values of {its} own: {listed}.")
        if gates:
            means = [100 * float(share) for layer in gates.values() for share in layer.mean(-1)]
            low, high = f"{min(means):.0f}", f"{max(means):.0f}"
            through = f"{low} % of it through" if low == high else f"{low} to {high} % of it through, by head"
            notes.append(f"A learned gate after the context lets {through}.")
        return tuple(notes)


def _layers(layers: Sequence[int]) -> str:
    return f"Layer {layers[0]} has" if len(layers) == 1 else f"Layers {number_list(layers)} have"


# --- single traits ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def gate_ratio(context: Array, gated: Array) -> Array | None:
    """Return ‖gated‖ / ‖context‖ of arrays (…, heads, d_v) as (…, heads); None if `gated` is not a gated `context`."""
    context, gated = context.float().nan_to_num(0.0), gated.float().nan_to_num(0.0)
    tiny = 1e-5 * context.abs().max().clamp(min=1e-20)
    if bool((context * gated < -tiny * gated.abs().max().clamp(min=tiny)).any()):
        return None
    return gated.norm(dim=-1) / context.norm(dim=-1).clamp(min=1e-20)  # (…, heads)


def hides_future(call: Call) -> bool | None:
    """Return whether no query of a call may look at a later key; None if this cannot be told (one query, or n_q ≠ n_k)."""
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    if n_q == 1 or n_q != n_k:
        return None
    if call.causal or call.mask is None:
        return call.causal
    mask: Array = call.mask[0] if call.mask.ndim == 3 else call.mask  # (n_q, n_k)
    return not bool(mask.triu(1).any())


def differential_lambda(module: Any) -> float | None:
    """Return λ of differential attention, exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ_init (Ye et al. 2024).

    Return None for a module with another attention.
    """
    if not is_differential(module):
        return None
    first = torch.exp((module.lambda_q1 * module.lambda_k1).sum(dtype=torch.float32))
    second = torch.exp((module.lambda_q2 * module.lambda_k2).sum(dtype=torch.float32))
    return float(first - second + module.lambda_init)


def indexed_layers(network: PreTrainedModel) -> set[int]:
    """Return the layers where an indexer, found by its class's name, picks the visible keys (DeepSeek-V3.2)."""
    indexers = [part for part in network.modules() if type(part).__name__.endswith("Indexer")]
    sites = sites_of_modules(network) if indexers else {}
    return {sites[id(part)][0].layer for part in indexers}


def layers_without_attention(network: PreTrainedModel) -> dict[str, list[int]]:
    """Return class → numbers of the layers that hold such a module and no attention, in lists of layers with attention."""
    attending = {id(module) for module in attention_modules(network).values()}
    layers_by_class: dict[str, list[int]] = {}
    for layers in _module_lists(network):
        attends = [any(id(part) in attending for part in layer.modules()) for layer in layers]
        if any(attends):
            for number in (number for number, layer_attends in enumerate(attends) if not layer_attends):
                names = [type(part).__name__ for part in layers[number].children()]
                mixers = (name for name in names if not _NO_MIXER.search(name))
                layers_by_class.setdefault(next(mixers, type(layers[number]).__name__), []).append(number)
    return layers_by_class


def _module_lists(network: PreTrainedModel) -> list[torch.nn.ModuleList]:
    return [part for part in network.modules() if isinstance(part, torch.nn.ModuleList)]
