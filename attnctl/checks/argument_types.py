"""Check the arguments of Python functions.

A TypeError names the function, the argument and its value.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import UnionType
from typing import TYPE_CHECKING, Any, ForwardRef, NoReturn, TypeVar, get_args

from attnctl.errors import UsageError

if TYPE_CHECKING:
    from typing import TypeGuard

    from transformers import PreTrainedModel


Function = TypeVar("Function", bound=Callable[..., object])
Types = type | UnionType  # `int`, or `int | str | None`


def check_types(function: str, types: Types, /, **values: object) -> None:
    """Raise TypeError, with the function and the argument, for a value of another type."""
    for name, value in values.items():
        require_type(function, name, value, *(get_args(types) or (types,)))


def check_options(function: str, options: Mapping[str, object], types: Mapping[str, Types]) -> None:
    """Raise TypeError for an option that is not in `types`, or a value of another type; None means not set."""
    for name, value in options.items():
        if name not in types:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if value is not None:
            check_types(function, types[name], **{name: value})


def naming_options(options: type) -> Callable[[Function], Function]:
    """Return a decorator that adds the `options`, a TypedDict, to a signature: for help() and for editors."""

    def name_options(function: Function) -> Function:
        signature = inspect.signature(function)
        parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=kind.__forward_arg__ if isinstance(kind, ForwardRef) else kind,
            )
            for name, kind in options.__annotations__.items()
            if name not in signature.parameters
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*parameters, *more])
        return function

    return name_options


def require_type(function: str, name: str, value: object, *types: type) -> None:
    """Raise TypeError, with the argument's name, unless its value has one of these types (also as a number of NumPy)."""
    if isinstance(value, bool):
        fits = bool in types or object in types
    else:
        fits = (
            isinstance(value, types)
            or (int in types and _is_whole_number(value))
            or (float in types and isinstance(value, Real))
        )
    if not fits:
        named = ({"PathLike": "path"}.get(kind.__name__, kind.__name__) for kind in types if kind is not type(None))
        _refuse(function, name, value, " or ".join(named))


def plain_number(value: object) -> Any:
    """Return a NumPy number as a Python number, and anything else unchanged."""
    if isinstance(value, bool | float | str) and type(value) in (bool, float, str):
        return value
    if _is_whole_number(value):
        return operator.index(value)  # type: ignore[arg-type]
    return float(value) if isinstance(value, Real) else value


def check_tensors(function: str, name: str, values: Mapping[str, object]) -> None:
    """Raise TypeError, with the entry, if a mapping holds anything but tensors by name: the inputs of a model."""
    for key, value in values.items():
        require_type(function, f"a name of {name}", key, str)
        if not hasattr(value, "ndim"):
            _refuse(function, f"{name}[{key!r}]", value, "a tensor")


def checked_selection(function: str, name: str, value: object) -> tuple[int, ...] | None:
    """Return layers, heads or rows, one or several, as Python integers; None means all.

    Raises TypeError, with the argument, for anything but whole numbers, and UsageError for an empty list.
    """
    if value is None:
        return None
    if _is_whole_number(value) and not isinstance(value, bool):
        return (operator.index(value),)  # type: ignore[arg-type]
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, range)):
        _refuse(function, name, value, "int or list")
    if not value:
        raise UsageError(f"{function}(): {name} is empty: None takes all of them")
    for index in value:
        require_type(function, name, index, int)
    return tuple(operator.index(index) for index in value)


def checked_pairs(function: str, name: str, value: object) -> tuple[tuple[int, int], ...]:
    """Return pairs of whole numbers as (query, key). Raises TypeError, with the argument, for anything else."""
    require_type(function, name, value, Sequence)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        _refuse(function, name, value, "a list of (query, key)")
    pairs = []
    for pair in value:
        fits = isinstance(pair, Sequence) and len(pair) == 2 and all(_is_whole_number(end) for end in pair)
        if not fits:
            _refuse(function, name, value, "a list of (query, key)")
        pairs.append((operator.index(pair[0]), operator.index(pair[1])))
    return tuple(pairs)


def check_network(function: str, model: object) -> None:
    """Raise TypeError unless `model` is a model of transformers."""
    if not is_network(model):
        _refuse(function, "model", model, "a transformers model")


def check_module(function: str, model: object) -> None:
    """Raise TypeError unless `model` is a module of torch."""
    if not all(hasattr(model, name) for name in ("named_modules", "register_forward_hook", "forward")):
        _refuse(function, "model", model, "a torch module")


def is_network(model: object) -> TypeGuard[PreTrainedModel]:
    """Return whether `model` is a transformers model, without importing transformers."""
    return all(hasattr(model, name) for name in ("config", "named_modules", "get_input_embeddings", "forward"))


def uncompiled(model: Any) -> Any:
    """Return the model within the result of torch.compile; any other model unchanged."""
    return getattr(model, "_orig_mod", model)


def _is_whole_number(value: object) -> bool:
    """Return whether a value is a whole number of Python or NumPy."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _refuse(function: str, name: str, value: object, expected: str) -> NoReturn:
    raise TypeError(f"{function}(): {name} is {expected}, not {named_value(value)}")


def named_value(value: object) -> str:
    """Return a value for an error in Python: its type and the beginning of its repr; of a module or a table its type."""
    text = repr(value)[:200].strip()
    return type(value).__name__ if "\n" in text else f"{type(value).__name__}: {text[:80]}"
