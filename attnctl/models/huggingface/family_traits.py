"""What families of models do beside the softmax of scores, seen as they do it: λ, gates, indexers, other layers."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import TorchFunctionMode

from attnctl.arrays import Floats, as_numpy
from attnctl.attention import Array, Call
from attnctl.models.huggingface.attention_interface import leave_where_done
from attnctl.models.huggingface.attention_session import Site, attention_modules, names_of_modules
from attnctl.models.huggingface.key_slots import KeySlots
from attnctl.text import number_list

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


class _TopK(TorchFunctionMode):
    """Keeps what each top-k was taken of."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_of: list[Array] = []

    def __torch_function__(
        self,
        func: Callable[..., Array],
        types: object,
        args: tuple[Array, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> Array:
        if getattr(func, "__name__", "") == "topk" and args:
            self.taken_of.append(args[0])
        return func(*args, **(kwargs or {}))


class IndexerScores:
    """The scores by which indexers pick the keys that queries may see (DeepSeek-V3.2), as a network runs.

    An indexer is a module whose class says so; its scores are what it takes the highest of. `scores` holds them by layer:
    (batch, n_q, n_k), hidden keys far below 0. Of an indexer that scores blocks of a query's keys (Qwen 4), `blocks` holds
    how many keys make one, and each key has the score of its block, or 0 after the last whole one.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        names = names_of_modules(network)
        self._indexers = [part for part in network.modules() if type(part).__name__.endswith("Indexer")]
        self._layers = {id(part): names[id(part)].site_of_occurrence(0).layer for part in self._indexers}
        self.scores: dict[int, Array] = {}
        self.blocks: dict[int, int] = {}
        self._not_shown: set[int] = set()
        self._modes: dict[int, _TopK] = {}

    @contextmanager
    def watch_indexers(self) -> Iterator[None]:
        """Within this, the scores are seen."""
        with ExitStack() as stack:
            for part in self._indexers:
                stack.callback(part.register_forward_pre_hook(self._begins).remove)
                stack.callback(part.register_forward_hook(self._leave_indexer, always_call=True).remove)
            yield

    def _begins(self, part: Module, _: object) -> None:
        self._modes[id(part)] = _TopK()
        self._modes[id(part)].__enter__()  # type: ignore[no-untyped-call]

    def _leave_indexer(self, part: Module, args: tuple[object, ...], __: object) -> None:
        mode = self._modes.pop(id(part), None)
        if mode is None:
            return
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        layer, size = self._layers[id(part)], getattr(part, "compress_ratio", None)
        if isinstance(size, int) and all(scores.ndim == 1 for scores in mode.taken_of):
            mask = next((one for one in args if isinstance(one, torch.Tensor) and one.ndim == 4), None)
            found = None if mask is None else scores_of_blocks(mask, mode.taken_of, size)
            if found is not None:
                self.scores[layer], self.blocks[layer] = found, size
        elif mode.taken_of:
            self.scores[layer] = mode.taken_of[-1]

    def scores_of_layer(self, layer: int, n_q: int, n_k: int, slots: KeySlots | None = None) -> Array | None:
        """The scores of a layer (n_q, n_k), 0 where a query may not look; None where there is none for each key.

        Of compressed slots, with a column for every key and slot of the text.
        """
        found = self._scores_of_keys(layer, n_q, n_k, slots)
        if found is None and layer in self.scores:
            self._not_shown.add(layer)
        return found

    def _scores_of_keys(self, layer: int, n_q: int, n_k: int, slots: KeySlots | None) -> Array | None:
        scores = self.scores.get(layer)
        if scores is None or scores.ndim < 2 or scores.shape[-2] != n_q or not scores.numel():
            return None
        found = scores.reshape(-1, n_q, scores.shape[-1])[0].float()  # (n_q, keys)
        found = torch.where(found > torch.finfo(torch.float32).min / 2, found, torch.zeros_like(found))
        if slots is not None and slots.every_span:
            return slots.widened_index(layer, found)
        return found if found.shape[-1] == n_k else None

    def score_notes(self) -> tuple[str, ...]:
        """What a reader of the scores must know of blocks, and of scores that are not shown, in sentences."""
        sizes = sorted(set(self.blocks.values()))
        apart = "Its scores are of blocks of keys, for groups of heads apart: what it picks is shown, and they are not."
        return (*((apart,) * bool(self._not_shown)), *map(_sentence_of_blocks, sizes))


def _sentence_of_blocks(size: int) -> str:
    return (
        f"It scores blocks of {size} keys: each key has its block's score, and those after the last whole block, which "
        "are always seen, have none (0)."
    )


def scores_of_blocks(mask: Array, taken_of: Sequence[Array], size: int) -> Array | None:
    """Scores (batch, n_q, n_k) of keys from those of blocks of `size` of the keys that a query may see.

    `mask` (batch, 1, n_q, n_k) says which these are; `taken_of` holds, query by query, the scores of the whole blocks
    (blocks,) of each that has any. None where their numbers do not fit.
    """
    shown = (mask if mask.dtype == torch.bool else mask == 0)[:, 0]  # (batch, n_q, n_k)
    counts = shown.sum(-1) // size  # (batch, n_q)
    places = counts.nonzero().tolist()
    if [int(counts[item, query]) for item, query in places] != [len(scores) for scores in taken_of]:
        return None
    found = torch.zeros(shown.shape, device=shown.device)  # (batch, n_q, n_k)
    for (item, query), scores in zip(places, taken_of, strict=True):
        keys = shown[item, query].nonzero().flatten()[: size * len(scores)]  # (size · blocks,)
        found[item, query, keys] = scores.float().repeat_interleave(size)
    return found


_NO_MIXER = re.compile(r"Norm|MLP|MoE|Moe|Expert|FeedForward|Dropout|Embedding|Router|Identity", re.IGNORECASE)


class FamilyTraits:
    """What one run of a network tells beside its calls of attention of one kind."""

    def __init__(self, network: PreTrainedModel, kind: str) -> None:
        self._network, self._kind = network, kind
        self.gates, self._indexers = OutputGates(network, kind), IndexerScores(network)
        self.lambdas: dict[int, float] = {}  # by layer, of differential attention
        self.indexed: list[int] = []  # layers whose keys an indexer picked
        self.shared: dict[int, int] = {}  # layer → the layer whose keys and values it reads
        self.slots: KeySlots | None = None  # compressed keys of the text, beside those of its tokens
        self._keys: dict[int, weakref.ref[Array]] = {}

    @contextmanager
    def watch_traits(self) -> Iterator[None]:
        """Within this, the network runs."""
        with self.gates.watch_gates(leave_where_done), self._indexers.watch_indexers():
            yield

    def traits_of_call(self, site: Site, call: Call, slots: KeySlots | None = None) -> dict[str, object]:
        """What is known of a layer as it attends, by the fields of `Forward`; `slots` are its text's compressed keys."""
        self.slots = slots
        factor = differential_lambda(self._network.get_submodule(site.name))
        if factor is not None:
            self.lambdas[site.layer] = factor
        if site.layer in self._indexers.scores:
            self.indexed.append(site.layer)
        owner = next((layer for layer, keys in self._keys.items() if keys() is call.keys), None)
        if owner is None:
            self._keys[site.layer] = weakref.ref(call.keys)
        else:
            self.shared[site.layer] = owner
        return {
            "difference": factor,
            "index_scores": self._indexers.scores_of_layer(site.layer, call.n_q, call.n_k, slots),
            "output_matrix": cache(lambda: matrix_after_context(self._network, site.name, call)),
        }

    def trait_notes(self) -> tuple[str, ...]:
        """What a reader must know of them, in sentences."""
        notes = []
        if self._kind == "self":
            for name, layers in layers_without_attention(self._network).items():
                notes.append(f"{_layers(layers)} no softmax attention: {_it(layers)} {name} in its place.")
        if self.lambdas:
            values = list(self.lambdas.values())
            span = f"{values[0]:.2f}" if len(values) == 1 else f"{min(values):.2f} to {max(values):.2f} by layer"
            notes.append(
                "Differential attention (Ye et al. 2024): heads are pairs, h and h + heads / 2, and what counts is the "
                f"weights of the first - λ × those of the second, λ {span}."
            )
        if self.indexed:
            notes.append("An indexer picks the keys that each query may see: the others are masked.")
            notes += self._indexers.score_notes()
        if self.slots is not None and self.slots.every_span:
            notes.append(self.slots.slots_sentence())
        if self.shared:
            whose = [f"layer {layer} reads those of layer {owner}" for layer, owner in self.shared.items()]
            said = "; ".join(whose if len(whose) <= 4 else [*whose[:3], "…", whose[-1]])
            notes.append(f"{_layers(list(self.shared))} no keys and values of {_its(self.shared)} own: {said}.")
        if self.gates.open:
            notes.append(f"A learned gate after the context lets {self._span()}.")
        return tuple(notes)

    def _span(self) -> str:
        """How much the gates let through, by head, as a span of percentages."""
        means = [float(share) for layer in self.gates.open.values() for share in layer.mean(-1)]
        low, high = f"{100 * min(means):.0f}", f"{100 * max(means):.0f}"
        return f"{low} % of it through" if low == high else f"{low} to {high} % of it through, by head"


def _layers(layers: Sequence[int]) -> str:
    return f"Layer {layers[0]} has" if len(layers) == 1 else f"Layers {number_list(layers)} have"


def _it(layers: Sequence[int]) -> str:
    return "it holds" if len(layers) == 1 else "they hold"


def _its(layers: Collection[int]) -> str:
    return "its" if len(layers) == 1 else "their"


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
    for stack in network.modules():
        if not isinstance(stack, torch.nn.ModuleList):
            continue
        attends = [any(id(part) in attending for part in layer.modules()) for layer in stack]
        if any(attends):
            for number in (number for number, does in enumerate(attends) if not does):
                found.setdefault(_mixer(stack[number]), []).append(number)
    return found


def _mixer(layer: Module) -> str:
    """The class of what a layer has in the place of attention."""
    names = [type(part).__name__ for part in layer.children()]
    return next((name for name in names if not _NO_MIXER.search(name)), type(layer).__name__)


# --- the output projection -------------------------------------------------------------------------------------------

OUTPUT_NAMES = ("o_proj", "o_proj.linear", "out_proj", "output.dense", "out_lin", "dense", "c_proj", "wo", "Wo", "o")


def matrix_after_context(network: PreTrainedModel, name: str, call: Call) -> Floats | None:
    """W_O (heads · d_v, d_out) of the module `name`, which made this call; None where more than it follows the context."""
    module, width = network.get_submodule(name), call.queries.shape[-3] * call.values.shape[-1]
    if re.search(r"sigmoid|softplus|norm\(|lambda|rotary", _after_attention(cast(Hashable, type(module)))):
        return None
    parts = [module] + ([network.get_submodule(name.rpartition(".")[0])] if "." in name else [])
    for part in parts:
        for own in OUTPUT_NAMES:
            inner = dict(part.named_modules()).get(own)
            weight = getattr(inner, "weight", None)
            if weight is not None and weight.ndim == 2 and weight.is_floating_point():
                matrix = weight if type(inner).__name__ == "Conv1D" else weight.T  # GPT-2's lies the other way
                if matrix.shape[0] == width:
                    return as_numpy(matrix.detach())  # type: ignore[no-any-return]
    return None


# --- gates after the context ---------------------------------------------------------------------------------------


def has_output_gate(module: Module) -> bool:
    """Whether a module's code multiplies the context by a learned gate before its output projection."""
    after = _after_attention(cast(Hashable, type(module)))
    return bool(re.search(r"sigmoid|softplus", after)) and not re.search(r"_norm\(|lambda", after)


def gated_projections(network: PreTrainedModel) -> dict[int, tuple[Site, Module]]:
    """Of each module whose context a learned gate multiplies: id → its site, and the output projection behind the gate."""
    names, found = names_of_modules(network), {}
    for module in attention_modules(network).values():
        parts = dict(module.named_modules())
        projection = next((parts[own] for own in OUTPUT_NAMES if own in parts), None)
        if projection is not None and has_output_gate(module):
            found[id(module)] = names[id(module)].site_of_occurrence(0), projection
    return found


@cache
def _after_attention(kind: Hashable) -> str:
    """The code of a class's forward that follows its call of the interface; empty where it is not to be had."""
    try:
        code = inspect.getsource(kind.forward)  # type: ignore[attr-defined]
    except (OSError, TypeError, AttributeError):
        return ""
    return code.rpartition("attention_interface(")[2] if "attention_interface(" in code else ""


class OutputGates:
    """How far the gates of a network's attention are open, ‖gated context‖ / ‖context‖, as it runs.

    `open` holds them by layer: (heads, n_q), of the first text of a batch. `modules` are the ids of the modules that have
    gates. What reaches the output projection is held against the context that the module was handed: where the one is not
    the other times numbers of 0 or more, nothing is kept.
    """

    def __init__(self, network: PreTrainedModel, kind: str) -> None:
        names = names_of_modules(network)
        modules = [part for part in attention_modules(network).values() if has_output_gate(part)]
        self._layers = {
            id(part): names[id(part)].site_of_occurrence(0).layer for part in modules if names[id(part)].kind == kind
        }
        self._modules = [part for part in modules if id(part) in self._layers]
        self.modules = frozenset(self._layers)
        self.open: dict[int, Array] = {}
        self._context: dict[int, Array] = {}
        self._projected: dict[int, Array] = {}

    def see_context(self, module: int, context: Array) -> None:
        """The context (batch, n_q, heads, d_v) that a module goes on with."""
        if module in self.modules:
            self._context[module] = context

    @contextmanager
    def watch_gates(self, leave: Callable[[Module], None]) -> Iterator[None]:
        """Within this, the gates are seen; `leave` is called as each module of them ends."""
        with ExitStack() as stack:
            for module in self._modules:
                for part in module.children():
                    stack.callback(part.register_forward_pre_hook(self._reads(id(module))).remove)
                stack.callback(module.register_forward_hook(self._leaves_module(leave)).remove)
            yield

    def _reads(self, module: int) -> Callable[..., None]:
        def reads(_: object, args: tuple[Array, ...]) -> None:
            context = self._context.get(module)
            if context is not None and args and getattr(args[0], "numel", int)() == context.numel():
                self._projected[module] = args[0]  # the last of them is the output projection's

        return reads

    def _leaves_module(self, leave: Callable[[Module], None]) -> Callable[..., None]:
        def ends(module: Module, _: object, __: object) -> None:
            context, gated = self._context.pop(id(module), None), self._projected.pop(id(module), None)
            if context is not None and gated is not None:
                share = passed(context[0], gated.reshape(context.shape)[0])  # (n_q, heads), or None
                if share is not None:
                    self.open[self._layers[id(module)]] = share.T  # (heads, n_q)
            leave(module)

        return ends


@torch.no_grad()
def passed(context: Array, gated: Array) -> Array | None:
    """‖gated‖ / ‖context‖ of two arrays (n_q, heads, d_v) → (n_q, heads); None where the one is no gated other."""
    context, gated = context.float(), gated.float()
    tiny = 1e-5 * context.abs().max().clamp(min=1e-20)
    if bool((context * gated < -tiny * gated.abs().max().clamp(min=tiny)).any()):
        return None
    return gated.norm(dim=-1) / context.norm(dim=-1).clamp(min=1e-20)  # (n_q, heads)
