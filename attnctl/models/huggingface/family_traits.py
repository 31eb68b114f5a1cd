"""What families of models do beside the softmax of scores, seen as they do it: λ, gates, indexers, other layers."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_interface import architecture_name, contexts_instead
from attnctl.models.huggingface.attention_sites import (
    Site,
    attention_modules,
    blocks_of,
    sites_of_modules,
    unseen_sentence,
)
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.key_slots import KeySlots
from attnctl.text import number_list
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.run import SINK_NOTE

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


# --- what reads the context ------------------------------------------------------------------------------------------

OUTPUT_NAMES = ("o_proj", "o_proj.linear", "out_proj", "output.dense", "out_lin", "dense", "c_proj", "wo", "Wo", "o")
SAME = 1e-2  # how near to the context, of its largest number, is what reads it as it is: dtypes may differ


def output_projections(network: PreTrainedModel, own: bool = False) -> dict[int, tuple[Site, Module]]:
    """Of each module that attends: id → its site, and what its heads side by side go through, by its name.

    It is a part of the module, or else of what holds that (`own`: never). Differential attention's two calls have none.
    """
    sites, found = sites_of_modules(network), {}
    for name, module in attention_modules(network).items():
        holders = [module] if own or "." not in name else [module, network.get_submodule(name.rpartition(".")[0])]
        named = [dict(holder.named_modules(remove_duplicate=False)) for holder in holders]
        parts = [inside[one] for inside in named for one in OUTPUT_NAMES if one in inside]
        if parts and not hasattr(module, "lambda_init"):
            projection = min(parts, key=lambda part: getattr(part, "weight", None) is None)  # one may wrap another
            found[id(module)] = sites[id(module)][0], projection
    return found


class ContextReaders:
    """How each output projection of a network reads its layer's context as it runs: as it is, or behind a learned gate.

    `gates` holds how far gates are open, ‖gated context‖ / ‖context‖, by layer: (batch, heads, n_q). What is the context
    times numbers of 0 or more is gated, unless a norm read the context first. `modules` are the ids of those watched.
    """

    def __init__(self, network: PreTrainedModel, kind: str) -> None:
        self._name = architecture_name(network)
        self._projections = {key: one for key, one in output_projections(network).items() if one[0].kind == kind}
        self._attending = {id(part): part for part in network.modules() if id(part) in self._projections}
        self.modules = frozenset(self._projections)
        self.gates: dict[int, Array] = {}
        self._given: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}  # what each running module was called with
        self.contexts: dict[int, Array] = {}  # (batch, n_q, heads, d_v) that each module goes on with, until it is read
        self._trying = False
        self._as_is: dict[int, bool] = {}  # of the modules whose W_O was asked for: whether it reads the context so

    def output_matrix(self, site: Site, call: Call) -> Floats | None:
        """W_O (heads · d_v, d_out) of the module that makes this call, before it goes on.

        None where it has none, and where more follows the context, as is found by trying another context.
        """
        projection: Any = self._projections.get(site.module, (None, None))[1]
        weight = getattr(projection, "weight", None)
        if weight is None or weight.ndim != 2 or not weight.is_floating_point():
            return None
        matrix = weight if type(projection).__name__ == "Conv1D" else weight.T  # GPT-2's lies the other way
        batch, heads, n_q = call.queries.shape[:-1]
        if matrix.shape[0] != heads * call.values.shape[-1]:
            return None
        if site.module not in self._as_is:
            self._try_context(site.module, call.values.new_ones(batch, n_q, heads, call.values.shape[-1]).cumsum(1))
        if not self._as_is[site.module]:
            return None
        if weight.is_meta:  # accelerate keeps it elsewhere until the projection runs
            with import_extra("accelerate.utils").align_module_device(projection, execution_device="cpu"):
                weight = projection.weight.detach().clone()
            matrix = weight if type(projection).__name__ == "Conv1D" else weight.T
        as_read: Floats = as_numpy(matrix.detach())
        return as_read

    def _try_context(self, key: int, context: Array) -> None:
        """Find out whether a module that is running, run once more, hands its projection this context as it is."""
        module, projection = self._attending[key], self._projections[key][1]
        self._as_is[key] = all(
            part is not projection for part in module.modules()
        )  # of what holds it: seen as it is read
        args, given = self._given[key]
        if self._as_is[key] or any(hasattr(one, "get_seq_length") for one in (*args, *given.values())):
            return  # a cache it would fill twice
        self._trying, self.contexts[key] = True, context
        contexts_instead[threading.get_ident(), key] = context
        try:
            module.forward(*args, **given)
        finally:
            del contexts_instead[threading.get_ident(), key]
            self.contexts.pop(key, None)
            self._trying = False

    @contextmanager
    def watch_readers(self) -> Iterator[None]:
        """Within this, a network runs. Raises AttnctlError where a matrix was told, and is not what reads the context."""

        def begin_module(module: Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
            self._given[id(module)] = args, given

        def end_module(module: Module, *_: object) -> None:
            self._given.pop(id(module), None)

        with ExitStack() as stack:
            for key, (_, projection) in self._projections.items():
                module = self._attending[key]
                stack.callback(module.register_forward_pre_hook(begin_module, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(end_module, always_call=True).remove)
                for part in {projection, *module.modules()}:
                    if part is projection or "norm" in type(part).__name__.lower():
                        stack.callback(part.register_forward_pre_hook(partial(self._read, key)).remove)
            yield

    def _read(self, key: int, part: Module, args: tuple[Array, ...]) -> None:
        """A projection or a norm begins: note what it reads of the context of module `key`."""
        site, projection = self._projections[key]
        context = self.contexts.get(key)
        if context is None or not args or args[0].numel() != context.numel():
            return
        given = args[0].reshape(context.shape)  # (batch, n_q, heads, d_v)
        same = given.data_ptr() == context.data_ptr() or bool(
            (given - context).abs().nan_to_num(0.0).max() <= SAME * context.abs().nan_to_num(0.0).max()
        )
        if part is not projection and not same:
            return
        del self.contexts[key]
        as_is = same and part is projection
        if self._trying:
            self._as_is[key] = as_is
        elif self._as_is.get(key) and not as_is:
            raise AttnctlError(f"layer {site.layer} of {self._name} does more to its heads' outputs than a projection")
        elif part is projection and not same and (share := passed(context, given)) is not None:
            self.gates[site.layer] = share.transpose(1, 2)  # (batch, heads, n_q)


@torch.no_grad()
def passed(context: Array, gated: Array) -> Array | None:
    """‖gated‖ / ‖context‖ of arrays (…, heads, d_v) → (…, heads); None where the one is no gated other."""
    context, gated = context.float().nan_to_num(0.0), gated.float().nan_to_num(0.0)
    tiny = 1e-5 * context.abs().max().clamp(min=1e-20)
    if bool((context * gated < -tiny * gated.abs().max().clamp(min=tiny)).any()):
        return None
    return gated.norm(dim=-1) / context.norm(dim=-1).clamp(min=1e-20)  # (…, heads)


# --- indexers ---------------------------------------------------------------------------------------------------------


class TopK(TorchFunctionMode):
    """Within this, what each top-k was taken of is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_of: list[Array] = []

    def __torch_function__(
        self, func: Callable[..., Array], types: object, args: tuple[Array, ...] = (), kwargs: Any = None
    ) -> Array:
        if getattr(func, "__name__", "") == "topk" and args:
            self.taken_of.append(args[0])
        return func(*args, **(kwargs or {}))


class IndexerScores:
    """The scores by which indexers pick the keys that queries may see (DeepSeek-V3.2), as a network runs.

    An indexer is a module whose class says so; its scores are what it takes the highest of. `scores` holds them by layer:
    (batch, n_q, n_k), hidden keys far below 0.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        self._indexers = [part for part in network.modules() if type(part).__name__.endswith("Indexer")]
        sites = sites_of_modules(network) if self._indexers else {}
        self._layers = {id(part): sites[id(part)][0].layer for part in self._indexers}
        self.scores: dict[int, Array] = {}
        self.not_shown = False  # some are not of each query's keys

    @contextmanager
    def watch_indexers(self) -> Iterator[None]:
        """Within this, the scores are seen."""
        if not self._indexers:
            yield
            return
        with ExitStack() as stack:
            picks = stack.enter_context(TopK())

            def end_indexer(part: Module, *_: object) -> None:
                self.scores |= {self._layers[id(part)]: scores for scores in picks.taken_of}
                picks.taken_of.clear()

            for part in self._indexers:
                stack.callback(part.register_forward_pre_hook(lambda *_: picks.taken_of.clear()).remove)
                stack.callback(part.register_forward_hook(end_indexer).remove)
            yield

    def scores_of_layer(self, layer: int, n_q: int, n_k: int, slots: KeySlots | None = None) -> Array | None:
        """The scores of a layer (n_q, n_k), 0 where a query may not look; None where there is none for each key.

        Of compressed slots, with a column for every key and slot of the text.
        """
        scores, found = self.scores.get(layer), None
        if scores is not None and scores.ndim >= 2 and scores.shape[-2] == n_q and scores.numel():
            found = scores.reshape(-1, n_q, scores.shape[-1])[0].float()  # (n_q, keys)
            found = torch.where(found > torch.finfo(torch.float32).min / 2, found, torch.zeros_like(found))
            if slots is not None and slots.every_span:
                found = slots.widened_index(layer, found)
            elif found.shape[-1] != n_k:
                found = None
        self.not_shown |= found is None and scores is not None
        return found


# --- all that one run tells -------------------------------------------------------------------------------------------

_NO_MIXER = re.compile(r"Norm|MLP|MoE|Moe|Expert|FeedForward|Dropout|Embedding|Router|Identity", re.IGNORECASE)


class FamilyTraits:
    """What one run of a network tells beside its calls of attention of one kind, for `described_model` and `reader_notes`.

    Where texts are `padded` the masks hide padding too, and do not tell who looks ahead.
    """

    def __init__(self, network: PreTrainedModel, kind: str, *, padded: bool = False) -> None:
        self._network, self._kind, self._padded = network, kind, padded
        self.readers, self._indexers = ContextReaders(network, kind), IndexerScores(network)
        self.final_norm: bool | None = None  # a norm follows the last block, before the head; None: no block ran
        self.causal: bool | None = None
        self._sizes: dict[int, tuple[int, int, int, int]] = {}  # of each layer: heads, key/value heads, d_k, d_v
        self._scales: set[float] = set()
        self._sinks = False
        self._lambdas: dict[int, float] = {}  # by layer, of differential attention
        self._indexed: list[int] = []  # layers whose keys an indexer picked
        self._shared: dict[int, int] = {}  # layer → the layer whose keys and values it reads
        self._slots: KeySlots | None = None  # compressed keys of the text, beside those of its tokens
        self._keys: dict[int, weakref.ref[Array]] = {}

    @cached_property
    def _without_attention(self) -> dict[str, list[int]]:
        """Found once for all texts of a run: it goes through every module of the network."""
        return layers_without_attention(self._network)

    @contextmanager
    def watch_traits(self) -> Iterator[None]:
        """Within this, the network runs."""
        with self.readers.watch_readers(), self._indexers.watch_indexers(), self._watch_norms():
            yield

    @contextmanager
    def _watch_norms(self) -> Iterator[None]:
        """Within this, it is seen whether a norm, in no list of layers nor the head, is called after the last block."""
        layers = {id(part) for several in _module_lists(self._network) for part in several.modules()}

        def end_block(*_: object) -> None:
            self.final_norm = False

        def begin_norm(*_: object) -> None:
            self.final_norm = None if self.final_norm is None else True

        with ExitStack() as stack:
            for block in blocks_of(self._network):
                stack.callback(block.register_forward_hook(end_block).remove)
            for name, part in self._network.base_model.named_modules():
                if id(part) not in layers and "norm" in type(part).__name__.lower() and "predictions" not in name:
                    stack.callback(part.register_forward_pre_hook(begin_norm).remove)
            yield

    def traits_of_call(self, site: Site, call: Call, slots: KeySlots | None = None) -> dict[str, object]:
        """What is known of a layer as it attends, by the fields of `Forward`; `slots` are its text's compressed keys.

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
        self._sizes[site.layer], self._slots = sizes, slots
        self._scales.add(call.effective_scale)
        self._sinks |= call.sinks is not None
        factor = differential_lambda(self._network.get_submodule(site.name))
        if factor is not None:
            self._lambdas[site.layer] = factor
        if site.layer in self._indexers.scores:
            self._indexed.append(site.layer)
        owner = next((layer for layer, keys in self._keys.items() if keys() is call.keys), None)
        if owner is None:
            self._keys[site.layer] = weakref.ref(call.keys)
        else:
            self._shared[site.layer] = owner
        return {
            "output_matrix": partial(self.readers.output_matrix, site, call),
        }

    def described_model(self, info: ModelInfo, whole: bool) -> ModelInfo:
        """The model's description, with what the calls said; what differs from layer to layer is not given.

        Of a `whole` run it is known whether a norm follows the last layer.
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
        """Layer → how far the gates were open for the first n tokens of one text of the batch: (heads, n)."""
        return {layer: as_numpy(share[item, :, :n]) for layer, share in self.readers.gates.items()}

    def reader_notes(self, silent: dict[Site, str], gates: Mapping[int, Floats]) -> tuple[str, ...]:
        """What a reader must know of the run: `silent` attended in code of their own, `gates` are those of the text."""
        told = unseen_sentence(silent)
        notes = [f"{told[0].upper()}{told[1:]}."] if told else []
        if self._sinks:
            notes.append(SINK_NOTE)
        if self._kind == "self":
            for name, layers in self._without_attention.items():
                holds = "it holds" if len(layers) == 1 else "they hold"
                notes.append(f"{_layers(layers)} no softmax attention: {holds} {name} in its place.")
        if self._lambdas:
            values = list(self._lambdas.values())
            span = f"{values[0]:.2f}" if len(values) == 1 else f"{min(values):.2f} to {max(values):.2f} by layer"
            notes.append(
                "Differential attention (Ye et al. 2024): heads are pairs, h and h + heads / 2, and what counts is the "
                f"weights of the first - λ × those of the second, λ {span}."
            )
        if self._indexed:
            notes.append("An indexer picks the keys that each query may see: the others are masked.")
        if self._slots is not None and self._slots.every_span:
            notes.append(self._slots.slots_sentence())
        if self._shared:
            whose = [f"layer {layer} reads those of layer {owner}" for layer, owner in self._shared.items()]
            said = "; ".join(whose if len(whose) <= 4 else [*whose[:3], "…", whose[-1]])
            its = "its" if len(self._shared) == 1 else "their"
            notes.append(f"{_layers(list(self._shared))} no keys and values of {its} own: {said}.")
        if gates:
            means = [100 * float(share) for layer in gates.values() for share in layer.mean(-1)]
            low, high = f"{min(means):.0f}", f"{max(means):.0f}"
            through = f"{low} % of it through" if low == high else f"{low} to {high} % of it through, by head"
            notes.append(f"A learned gate after the context lets {through}.")
        return tuple(notes)


def _layers(layers: Sequence[int]) -> str:
    return f"Layer {layers[0]} has" if len(layers) == 1 else f"Layers {number_list(layers)} have"


def hides_future(call: Call) -> bool | None:
    """Whether no query of a call may look at a later key; None where its only query cannot tell."""
    n_q, n_k = call.queries.shape[-2], call.keys.shape[-2]
    if n_q == 1 or n_q != n_k:
        return None
    if call.causal or call.mask is None:
        return call.causal
    mask: Array = call.mask[0] if call.mask.ndim == 3 else call.mask  # (n_q, n_k)
    return not bool(mask.triu(1).any())


def differential_lambda(module: Any) -> float | None:
    """λ of a module of differential attention, exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ_init (Ye et al. 2024); None: none."""
    if not hasattr(module, "lambda_init") or not hasattr(module, "lambda_q1"):
        return None
    first = torch.exp((module.lambda_q1 * module.lambda_k1).sum(dtype=torch.float32))
    second = torch.exp((module.lambda_q2 * module.lambda_k2).sum(dtype=torch.float32))
    return float(first - second + module.lambda_init)


def layers_without_attention(network: PreTrainedModel) -> dict[str, list[int]]:
    """The layers that hold no attention among others that do: class of what they hold in its place → their numbers."""
    attending = {id(module) for module in attention_modules(network).values()}
    found: dict[str, list[int]] = {}
    for layers in _module_lists(network):
        attends = [any(id(part) in attending for part in layer.modules()) for layer in layers]
        if any(attends):
            for number in (number for number, does in enumerate(attends) if not does):
                names = [type(part).__name__ for part in layers[number].children()]
                mixers = (name for name in names if not _NO_MIXER.search(name))
                found.setdefault(next(mixers, type(layers[number]).__name__), []).append(number)
    return found


def _module_lists(network: PreTrainedModel) -> list[torch.nn.ModuleList]:
    return [part for part in network.modules() if isinstance(part, torch.nn.ModuleList)]
