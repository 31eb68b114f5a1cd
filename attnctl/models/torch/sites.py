"""Name the places of attention in a running module: the module, the n-th attention in its forward, the forward's number."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from attnctl.errors import AttnctlError

if TYPE_CHECKING:
    from torch.nn import Module

    from attnctl.models.torch.tensors import Chunk


NESTED = "attends to a nested tensor, which holds texts of several lengths: pad them"


def is_closed(module: Module) -> bool:
    """Return whether a module takes no hooks: torch.jit.script made it, or froze it."""
    return isinstance(module, torch.jit._script.RecursiveScriptModule) and not isinstance(
        module, torch.jit._trace.TopLevelTracedModule
    )


@dataclass(frozen=True)
class Place:
    """One attention of a forward: the module, the kind (self or cross), the number of its layer within the kind."""

    name: str
    kind: str
    layer: int
    step: int
    recurrence: int = 0
    chunk: tuple[int, int] | None = (
        None  # of a call with a part of the queries: where it starts, and how many there are
    )
    continues: bool = False  # it goes on with the queries of the call before


@dataclass(eq=False)
class Sites:
    """Where a running module is: hooks keep its modules' names; attentions are numbered by their first calls."""

    model: Module
    without: frozenset[int] = frozenset()  # ids of modules that are watched in another way
    thread: int = field(default_factory=threading.get_ident)
    stack: list[tuple[str, int]] = field(default_factory=list)  # name and number of the run of each module that runs
    step: int = -1
    runs: Counter[str] = field(default_factory=Counter)  # module → its runs in this forward
    top: set[str] = field(default_factory=set)  # modules that ran by themselves in this forward
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)  # a run of a module → its attentions
    layers: dict[tuple[str, str, int], int] = field(default_factory=dict)  # kind, module, n-th attention → layer
    inside: int = 0  # how many modules run that are watched in another way
    other_threads: dict[str, None] = field(default_factory=dict)  # the outermost modules that ran in another thread
    threads: set[int] = field(default_factory=set)  # those threads
    is_watched_here: Callable[[], bool] = lambda: False  # whether a context of the thread that asks watches the model
    next_part: object = None  # what the last part of queries was a part of, and where the next one would start
    last_place: Place | None = None
    begun: Callable[[], None] = lambda: None  # called when a forward begins
    ended: Callable[[], None] = lambda: None  # called when a forward has ended

    @property
    def is_running(self) -> bool:
        """Return whether a module that is watched here runs now."""
        return bool(self.stack) and not self.inside

    @property
    def module(self) -> str:
        """Return the name of the innermost module that runs."""
        return self.stack[-1][0] if self.stack else ""

    def begin(self, name: str, module: Module) -> None:
        """Note that a module begins; a module that runs by itself again, or the root, begins a new forward."""
        if threading.get_ident() != self.thread:
            known = name in self.other_threads or any(
                name.startswith(f"{part}.") for part in self.other_threads if part
            )
            if not known and "" not in self.other_threads and not self.is_watched_here():
                self.other_threads[name] = None
            self.threads.add(threading.get_ident())
            return
        if not self.stack:
            if self.step < 0 or module is self.model or name in self.top:
                self.step += 1
                self.runs.clear()
                self.calls.clear()
                self.top.clear()
            self.top.add(name)
            self.begun()
        self.inside += id(module) in self.without
        self.stack.append((name, self.runs[name]))
        self.runs[name] += 1

    def end(self, module: Module) -> None:
        """Note that a module ends, whether it returned or raised."""
        if threading.get_ident() == self.thread and self.stack:
            self.inside -= id(module) in self.without
            self.stack.pop()
            if not self.stack:
                self.ended()

    def next_place(self, kind: str, chunk: Chunk | None, shape: tuple[int, int, int]) -> Place:
        """Return the place of the attention that runs now, and count it; a further chunk of its queries counts as the same.

        `shape` is the number of heads, queries and keys.
        """
        name, run = self.stack[-1]
        part = None if chunk is None or chunk.whole != shape[2] else (chunk.start, chunk.whole)
        whole = (name, run, chunk and chunk.source, shape[0], shape[2])
        continues = part is not None and (whole, part[0]) == self.next_part
        self.next_part = None if part is None else (whole, part[0] + shape[1])
        if continues and self.last_place is not None:
            return replace(self.last_place, chunk=part, continues=True)
        index = self.calls[name, run]
        self.calls[name, run] += 1
        key = kind, name, index
        if key not in self.layers:
            self.layers[key] = sum(known == kind for known, _, _ in self.layers)
        self.last_place = Place(name, kind, self.layers[key], max(self.step, 0), run, part)
        return self.last_place

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Keep the names of running modules within this context."""
        if is_closed(self.model):
            raise AttnctlError(
                f"{self.model.original_name} was put into TorchScript by torch.jit.script, and takes no hooks: capture the "
                "module that it was made of, or a module that holds it"
            )
        with ExitStack() as stack:
            for name, module in self.model.named_modules():
                if is_closed(module):
                    continue

                def begin(module: Module, inputs: Sequence[Any], name: str = name) -> None:
                    if isinstance(module, torch.nn.MultiheadAttention) and any(
                        isinstance(part, torch.Tensor) and part.is_nested for part in inputs
                    ):
                        # torch itself has only its fast path for it
                        raise AttnctlError(f"{name or 'the root'} {NESTED}")
                    self.begin(name, module)

                def end(module: Module, *_: Any) -> None:
                    self.end(module)

                stack.callback(module.register_forward_pre_hook(begin).remove)
                stack.callback(module.register_forward_hook(end, always_call=True).remove)
            yield

    def is_scripted(self) -> bool:
        """Return whether the model, or a module in it, is in TorchScript."""
        return any(isinstance(module, torch.jit.ScriptModule) for module in self.model.modules())
