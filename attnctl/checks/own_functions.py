"""Tell names of the user's own functions, `package.module:function` and `file.py:function`, and which of them may be called.

Such a function runs the user's code. So only a name that was typed on the command line is called: none from a default, an
environment variable, a batch file or a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_typed: ContextVar[frozenset[str]] = ContextVar("typed", default=frozenset())


@contextmanager
def functions_were_typed(names: Iterable[str]) -> Iterator[None]:
    """Within this context, the functions of these names may be called, because the user typed them."""
    token = _typed.set(_typed.get().union(names))
    try:
        yield
    finally:
        _typed.reset(token)


def may_be_called(name: str) -> bool:
    """Return whether the user typed the name of this function in the command that runs."""
    return name in _typed.get()


def names_function(name: str) -> bool:
    """Return whether a model's name is that of a function: a file in .py or a dotted module, a colon, an identifier."""
    place, colon, function = name.rpartition(":")
    if not colon or not function.isidentifier() or name.startswith("ollama:"):
        return False
    return place.lower().endswith(".py") or ("." in place and all(part.isidentifier() for part in place.split(".")))
