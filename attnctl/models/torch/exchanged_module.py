"""A torch module with its arguments: run it and read its masks, run it or a layer again with other tokens."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from attnctl.attention import Array
from attnctl.checks.argument_types import uncompiled
from attnctl.checks.tolerances import LEAK, tolerance
from attnctl.errors import AttnctlError, UsageError
from attnctl.models.exchange import Attended, Block, other_rows
from attnctl.models.huggingface.attention_interface import check_inference
from attnctl.models.huggingface.block_recorder import BlockCall
from attnctl.models.torch.fused import HIDDEN
from attnctl.models.torch.own_errors import own_error
from attnctl.models.torch.text_inputs import documents_of, real_tokens, text_entry
from attnctl.models.torch.watching import AnyCall, Watched, watch_module
from attnctl.runtime.arrays import Bools
from attnctl.trace.model_info import ModelInfo

if TYPE_CHECKING:
    from torch.nn import Module

    from attnctl.models.torch.sites import Place


class ExchangedModule:
    """A module with the arguments of its forward, whose tokens can be exchanged.

    `shape` (batch, n) is that of its text, None if no argument holds tokens. It runs once, to see where it attends. `own` is
    the name of the user's function that made it, on the command line. Raises UsageError for arguments that it does not
    take, AttnctlError if it is in training mode.
    """

    kind, kernel, trusted = "self", "its own code", True

    def __init__(
        self,
        module: Module,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        name: str = "",
        *,
        segments: Any = None,
        own: str = "",
    ) -> None:
        check_inference(module)
        self.module, self.own = uncompiled(module), own
        self.name = name or type(self.module).__name__
        self.notes: list[str] = []
        first = next(self.module.parameters(), None)
        self.dtype = torch.float32 if first is None else first.dtype
        self.device = torch.device("cpu") if first is None else first.device
        self.limit = tolerance(LEAK, self.dtype)
        self.positional, self.entries = self._named(args, keywords)
        self._look()
        self.text = text_entry(self.entries, self.sizes)
        self.shape: tuple[int, int] | None = None
        if self.text is not None:
            batch, n = self.text.rows(self.entries[self.text.name]).shape[:2]
            self.shape = int(batch), int(n)
        self.segment_ids = None if segments is None else self._checked_segments(segments)

    # --- its arguments ---

    def _named(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
        """Return the names of the arguments by place, and all arguments by name. Raises UsageError if they do not fit."""
        signature = inspect.signature(self.module.forward)
        given = dict(keywords)
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
        first = next(iter(signature.parameters), None)
        if "input_ids" in given and "input_ids" not in signature.parameters and not takes_any and first and not args:
            given = {first: given.pop("input_ids"), **given}
        try:
            signature.bind(*args, **given)
        except TypeError as error:
            raise UsageError(f"{self.name} cannot be called with these arguments: {error}") from None
        names = list(signature.parameters)
        positional = [names[place] if place < len(names) else f"argument {place}" for place in range(len(args))]
        entries = dict(zip(positional, args, strict=True)) | given
        return positional, {name: self._as_tensor(name, value) for name, value in entries.items()}

    def _as_tensor(self, name: str, value: Any) -> Any:
        """Return lists and arrays of numbers as tensors on the module's device; other values unchanged."""
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        if not isinstance(value, (list, np.ndarray)):
            return value
        try:
            tensor = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{name} does not hold numbers in rows of equal length") from error
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)

    def _checked_segments(self, segments: Any) -> Array:
        """Return the number of each token's document, (batch, n). Raises UsageError for another shape."""
        numbers = torch.as_tensor(np.asarray(segments.cpu() if isinstance(segments, torch.Tensor) else segments)).long()
        if self.shape is None:
            raise UsageError(f"no argument of {self.name} holds tokens, so segments cannot number their documents")
        if (
            numbers.shape[-1:] != self.shape[1:]
            or numbers.ndim > 2
            or numbers.shape[:-1] not in ((), (1,), self.shape[:1])
        ):
            raise UsageError(
                f"segments has shape {tuple(numbers.shape)}, and the text {self.shape}: a number for each token"
            )
        return numbers.expand(self.shape)

    @property
    def ids(self) -> Array | None:
        """Return the ids of the text's tokens, (batch, n); None if it has none."""
        if self.text is None:
            return None
        value = self.entries[self.text.name]
        return None if value.is_floating_point() else self.text.rows(value)

    def segments(self) -> tuple[Array, Array]:
        """Return the number of each token's document, and whether the token is real, not padding: (batch, n) each."""
        assert self.shape is not None
        real, is_marked = real_tokens(self.entries, self.shape)
        numbers = documents_of(self.entries, self.shape, self.segment_ids)
        if self.segment_ids is not None:
            real = real & (self.segment_ids >= 0)
        ids, table = self.ids, self.embedding
        if not is_marked and self.segment_ids is None and ids is not None and table is not None:
            real = real & (ids.cpu() != table.padding_idx) if table.padding_idx is not None else real
        return torch.zeros(self.shape, dtype=torch.long) if numbers is None else numbers, real

    @property
    def has_segments(self) -> bool:
        """Return whether something numbers the documents of the text."""
        return self.shape is not None and documents_of(self.entries, self.shape, self.segment_ids) is not None

    # --- other tokens ---

    @property
    def text_entries(self) -> tuple[str, ...]:
        """Return the name of the argument that holds the tokens."""
        return () if self.text is None else (self.text.name,)

    @cached_property
    def _others(self) -> Array:
        """Return other tokens or vectors in place of the text's, (batch, n, …). Raises AttnctlError if there are none."""
        assert self.text is not None
        rows = self.text.rows(self.entries[self.text.name])
        if rows.is_floating_point():
            return other_rows(rows)
        _, real = self.segments()
        free = torch.unique(rows[real.to(rows.device)]).cpu()
        if self.embedding is not None:
            padding = set(rows[~real.to(rows.device)].tolist()) | {self.embedding.padding_idx}
            free = torch.tensor([token for token in range(self.embedding.num_embeddings) if token not in padding])
        if len(free) < 2:
            raise AttnctlError(
                f"{self.name} has no other tokens to put in place of the text's: give a text with more words"
            )
        picked = torch.randint(len(free), rows.shape, generator=torch.Generator().manual_seed(0))
        picked = torch.where(free[picked] == rows.cpu(), (picked + 1) % len(free), picked)
        return free[picked].to(rows)

    def exchanged(self, entry: str, chosen: Bools) -> Array:
        """Return the argument that holds the tokens with others in some places (batch, n)."""
        assert self.text is not None
        rows = self.text.rows(self.entries[entry])
        where = torch.as_tensor(chosen, device=rows.device).reshape(*rows.shape[:2], *[1] * (rows.ndim - 2))
        return self.text.restored(torch.where(where, self._others, rows))

    def free(self, entry: str, real: Bools) -> Bools:
        """Return which tokens (batch, n) may be exchanged: padding only if an argument marks it, not the token itself."""
        assert self.shape is not None
        return np.ones_like(real) if real_tokens(self.entries, self.shape)[1] else real

    # --- run ---

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run modules without gradients, and without torch's fast path, within this context."""
        with torch.no_grad(), _FunctionByFunction():
            yield

    def outputs(self, **other: Array) -> Any:
        """Run the module, with other tensors in place of some arguments, and return its output."""
        values = self.entries | other
        args = [values.pop(name) for name in self.positional]
        with self.running():
            return self._called(lambda: self.module(*args, **values))

    def _called(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except AttnctlError:
            raise
        except Exception as error:
            if self.own:
                raise own_error(self.own, error) from error
            raise

    def output_rows(self, output: Any) -> Array | None:
        """Return the first output with a row for each token, (batch, n, …); None without one."""
        for value in _tensors_of(output):
            if self.text is None or self.shape is None or value.ndim < (2 if self.text.is_alone else 3):
                continue
            rows = self.text.rows(value)
            if tuple(rows.shape[:2]) == self.shape:
                return rows
        return None

    def output_texts(self, output: Any) -> Array | None:
        """Return the first output with a row for each text of the batch, (batch, 1, …); None without one."""
        batch = 1 if self.shape is None else self.shape[0]
        return next((value.unsqueeze(1) for value in _tensors_of(output) if value.ndim and len(value) == batch), None)

    def output_kind(self, _: Any, rows: Array) -> str:
        """Return what rows of an output (batch, n, …) are: logits if they are as wide as the vocabulary."""
        is_wide = self.embedding is not None and rows.shape[-1] == self.embedding.num_embeddings
        return "logits" if is_wide else "hidden states"

    # --- watch ---

    def _look(self) -> None:
        """Run the module once: note where it attends, and the embedding of its tokens. Notes say what cannot be read."""
        looker, tables = _Looker(), list[tuple[torch.nn.Embedding, Array]]()
        with ExitStack() as stack:
            for part in self.module.modules():
                if isinstance(part, torch.nn.Embedding):
                    hook = part.register_forward_pre_hook(lambda table, args: tables.append((table, args[0])))
                    stack.callback(hook.remove)
            self.watched = self._watch(looker)
        self.places, self.calls = looker.places, looker.calls
        self.attends = bool(self.places)
        self.problems = self.watched.problems()
        self.notes += [f"{line[0].upper()}{line[1:]}." for line in self.problems] if self.attends else []
        counts = Counter((batch, n_q) for place, batch, n_q, n_k in self.calls if place.kind == "self" and n_q == n_k)
        self.sizes = dict(counts.most_common())
        ids = [value for value in self.entries.values() if isinstance(value, torch.Tensor)]
        same = (table for table, given in tables if any(_is_same(given, value) for value in ids))
        self.embedding: torch.nn.Embedding | None = next(same, None)
        layers = {place.layer for place in self.places if place.kind == "self"}
        self.info = ModelInfo(
            self.name, "module", source=self.own or None, n_layers=max(layers, default=-1) + 1 or None,
            n_heads=looker.heads or None, dtype=str(self.dtype).removeprefix("torch."),
        )  # fmt: skip

    def nothing_seen(self) -> str:
        """Return a sentence that says what was looked for, if no attention was seen."""
        return self.watched.nothing_seen()

    def _watch(self, visitor: Any, **other: Array) -> Watched:
        with watch_module(self.module, visitor) as watched:
            self.outputs(**other)
        return watched

    def watch(self, see: Callable[[Attended], None]) -> bool:
        """Run the module, and pass each attention to `see`. Return whether there is any."""
        return self._watch(_Reader(see)).count > 0

    def record(self, **other: Array) -> tuple[Any, list[Block]]:
        """Run the module, and return its output and its layers, which can be run again.

        A layer is the outermost module around one self-attention that turns a row for each token into as many rows.
        """
        around = self._modules_around()
        calls: dict[str, list[BlockCall]] = {name: [] for names in around.values() for name in names}
        with ExitStack() as stack:
            for name, made in calls.items():
                part = self.module.get_submodule(name)

                def begin(part: Module, args: Any, keywords: Any, made: list[BlockCall] = made) -> None:
                    made.append(BlockCall(part, args, keywords))

                def end(_: Module, __: Any, output: Any, made: list[BlockCall] = made) -> None:
                    made[-1].output = output

                stack.callback(part.register_forward_pre_hook(begin, with_kwargs=True).remove)
                stack.callback(part.register_forward_hook(end).remove)
            output = self.outputs(**other)
        sizes = {place.layer: (batch, n_q) for place, batch, n_q, _ in self.calls if place.kind == "self"}
        blocks = []
        for layer, names in around.items():
            made_blocks = (_block_of(layer, calls[name], sizes[layer]) for name in names)
            blocks += [block for block in made_blocks if block is not None][:1]
        return output, blocks

    def _modules_around(self) -> dict[int, list[str]]:
        """Return layer → the modules that hold its self-attention and no other one, the outermost first."""
        sites = Counter(place.name for place in self.places if place.kind == "self")
        around: dict[int, list[str]] = {}
        for place in self.places:
            if place.kind == "self" and sites[place.name] == 1 and place.name:
                parts = place.name.split(".")
                names = [".".join(parts[: end + 1]) for end in range(len(parts))]
                around[place.layer] = [name for name in names if sum(_is_within(other, name) for other in sites) == 1]
        return around


class _FunctionByFunction(TorchFunctionMode):
    """Let modules run function by function: an active mode turns off torch's fast path of encoder layers."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


@dataclass(eq=False)
class _Looker:
    """Note the attentions of a forward, in order: place, texts, queries, keys."""

    places: dict[Place, None] = field(default_factory=dict)
    calls: list[tuple[Place, int, int, int]] = field(default_factory=list)
    heads: int = 0

    def see(self, place: Place, call: AnyCall) -> None:
        if place.continues or place.step:
            return
        place = _judged_place(place, call)
        n_heads, n_q, n_k = call.shape
        if place.recurrence == 0:
            self.places[place] = None
            self.heads = max(self.heads, n_heads)
        texts = math.prod(atom.size for atom in call.groups[0])
        self.calls.append((place, texts, place.chunk[1] if place.chunk else n_q, n_k))


@dataclass(eq=False)
class _Reader:
    """Hand each attention of a forward to a function, those in chunks of queries once they are whole."""

    take: Callable[[Attended], None]
    parts: list[Attended] = field(default_factory=list)

    def see(self, place: Place, call: AnyCall) -> None:
        attended = Attended(_judged_place(place, call), weights := call.steps().weights, visible_keys(call, weights))
        if place.chunk is not None:
            self.parts = [*self.parts, attended] if place.continues else [attended]
            if sum((place.chunk[0], call.shape[1])) < place.chunk[1]:
                return
            attended = Attended(
                self.parts[0].place,
                torch.cat([part.weights for part in self.parts], 2),
                torch.cat([part.visible for part in self.parts], 2),
            )
        self.take(attended)


def _judged_place(place: Place, call: AnyCall) -> Place:
    """Return a place as cross attention, which is not judged, if its queries or keys are not the tokens in order."""
    return place if call.unnamed is None else replace(place, kind="cross")


def visible_keys(call: AnyCall, weights: Array) -> Array:
    """Return which keys each query sees, (batch, heads, n_q, n_k): those with a weight, or a score that hides nothing."""
    visible = weights > 0
    scores = call.masked_scores()
    return visible if scores is None else visible | (scores > HIDDEN).expand(visible.shape)


def _block_of(layer: int, calls: Sequence[BlockCall], size: tuple[int, int]) -> Block | None:
    """Return the call of a module as a block that can be run again; None if it does not turn rows into as many rows."""
    if len(calls) != 1 or calls[0].output is None or (rows := calls[0].rows()) is None:
        return None
    call, output = calls[0], _first_of(calls[0].output).detach()
    if tuple(rows.shape[:2]) == size:
        return Block("self", layer, True, rows, output, call.run_again)
    if tuple(rows.shape[:2]) == size[::-1]:
        return Block(
            "self", layer, True, rows.transpose(0, 1), output.transpose(0, 1),
            lambda hidden: call.run_again(hidden.transpose(0, 1)).transpose(0, 1),
        )  # fmt: skip
    return None


def _first_of(output: Any) -> Array:
    return output[0] if isinstance(output, tuple | list) else output


def _is_within(name: str, outer: str) -> bool:
    return name == outer or name.startswith(f"{outer}.")


def _is_same(given: Any, value: Array) -> bool:
    if not isinstance(given, torch.Tensor) or given.numel() != value.numel() or value.is_floating_point():
        return False
    return given is value or bool((given.reshape(-1) == value.reshape(-1)).all())


def _tensors_of(output: Any) -> Iterator[Array]:
    """Yield the tensors of an output: logits first, then the others in order."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output.detach()
        return
    if isinstance(output, Mapping):
        named = dict(output)
    elif isinstance(output, (tuple, list)):
        named = dict(enumerate(output))
    else:
        named = dict(vars(output)) if hasattr(output, "__dict__") else {}
    for name in sorted(named, key=lambda name: name not in ("logits", "last_hidden_state")):
        yield from _tensors_of(named[name]) if not isinstance(named[name], torch.nn.Module) else ()
