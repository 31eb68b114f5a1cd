"""transformers without what no forward pass needs: for processes that are attnctl's own, where nobody else misses it.

To import one architecture, transformers 5 imports torch's compiler and its distributed tensors, and SciPy and scikit-learn
where they are installed (for losses, and for sampling): more than half of the time that its import takes. Here the
compiler stands aside until that import is done (of it, transformers wants only marks on functions that it should leave
alone), and the rest is said not to be installed, as on a machine where it is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any, TypeVar

from attnctl.errors import AttnctlError

Result = TypeVar("Result")

alone = False  # whether this process is attnctl's own: set where the program, or a worker of its, begins

TESTED = {
    "transformers": ("5.23.",),
    "torch": ("2.13.",),
}  # with others: a plain import
ABSENT = ("is_torch_distributed_available", "is_scipy_available", "is_sklearn_available")

COMPILER = "torch._dynamo"
MARKS = ("disable", "allow_in_graph", "assume_constant_result")  # decorators that speak to the compiler alone
LATE = {"_trace_wrapped_higher_order_op": ("TransformGetItemToIndex",)}  # submodule → what is imported from it


def import_lightly(load: Callable[[], Result]) -> Result:
    """What `load`, which imports an architecture of transformers and builds it, answers; errors are its own.

    In a process that is not ours alone, with versions not in TESTED, or where transformers or the compiler are at work
    already, it is called and nothing else happens.
    """
    at_work = "transformers.modeling_utils" in sys.modules or COMPILER in sys.modules
    if not alone or at_work or not are_tested():
        return load()
    before = set(sys.modules)
    utils = (import_module("transformers.utils.import_utils"), import_module("transformers.utils"))
    real = [(module, name, getattr(module, name)) for module in utils for name in ABSENT if hasattr(module, name)]
    for module, name, _ in real:
        setattr(module, name, lambda: False)
    try:
        with _compiler_aside():
            return load()
    except AttnctlError:
        raise
    except Exception:  # a machine on which they want more of it than they should, or what fails either way
        for module, name, function in real:
            setattr(module, name, function)
        for name in set(sys.modules) - before:
            if name.startswith("transformers."):
                del sys.modules[name]
    return load()


def are_tested() -> bool:
    """Whether the installed versions are those that the tests hold this to."""
    return all(version(name).split("+")[0].startswith(tested) for name, tested in TESTED.items())


@contextmanager
def _compiler_aside() -> Iterator[None]:
    """Within this, importing torch's compiler brings a stand-in."""
    import torch

    stand_ins = {COMPILER: ModuleType(COMPILER)}
    stand_ins[COMPILER].__path__ = []
    for name in MARKS:
        setattr(stand_ins[COMPILER], name, _unchanged)
    for part, names in LATE.items():
        module = stand_ins[f"{COMPILER}.{part}"] = ModuleType(f"{COMPILER}.{part}")
        for name in names:
            setattr(module, name, _imported_later(module.__name__, name))
    sys.modules.update(stand_ins)
    torch._dynamo = stand_ins[COMPILER]
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]
        del torch._dynamo  # torch imports the real one where it is asked for


def _unchanged(function: Any = None, *_: object, **__: object) -> Any:
    """A decorator, with or without arguments, that leaves its function as it is."""
    return _unchanged if function is None else function


def _imported_later(module: str, name: str) -> Callable[..., Any]:
    """A class or function of a module that is imported when it is called."""
    return lambda *args, **kwargs: getattr(import_module(module), name)(*args, **kwargs)
