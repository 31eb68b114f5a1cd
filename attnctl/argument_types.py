"""The arguments of public functions, checked before any work: a TypeError names the function, the argument and its value.

What is wrong with a value is found where the command line's options are checked, too, and said of `--rope-pairs`; to who
called a function it is said of `rope_pairs`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from attnctl.errors import AttnctlError, UsageError

if TYPE_CHECKING:
    from typing import TypeGuard

    from transformers import PreTrainedModel

Function = TypeVar("Function", bound=Callable[..., object])


def with_named_options(options: Mapping[str, object], function: Function) -> Function:
    """The function, each of `options` (name → annotation) in its signature instead of `**options`: for help().

    Its errors name arguments.
    """
    own = inspect.signature(function)
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=getattr(one, "__forward_arg__", one)
        )
        for name, one in options.items()
        if name not in own.parameters
    ]
    function.__signature__ = own.replace(parameters=[*kept, *more])  # type: ignore[attr-defined]
    return naming_arguments(function)


# an option of the command line → the argument that does the same, where it is called otherwise
SAID_OTHERWISE = {"model": "name", "rope": "rope_theta", "spans": "kind"}


def naming_arguments(function: Function) -> Function:
    """The function, its errors in the words of Python: `layers`, where the command line has `--layers`."""
    names = frozenset(inspect.signature(function).parameters)

    @functools.wraps(function)
    def of_values(*arguments: object, **options: object) -> object:
        with _options_as_arguments(names):
            return function(*arguments, **options)

    @functools.wraps(function)
    def of_iterators(*arguments: object, **options: object) -> Iterator[object]:
        with _options_as_arguments(names):
            yield from cast(Iterator[object], function(*arguments, **options))

    return cast(Function, of_iterators if inspect.isgeneratorfunction(function) else of_values)


@contextmanager
def _options_as_arguments(names: frozenset[str]) -> Iterator[None]:
    try:
        yield
    except AttnctlError as error:
        error.args = (
            re.sub(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)", lambda found: _argument_of(found, names), str(error)),
        )
        raise


def _argument_of(option: re.Match[str], names: frozenset[str]) -> str:
    """The argument that an option is; the option as it stands where there is none."""
    name = option[1].replace("-", "_")
    return next((one for one in (name, f"{name}s", SAID_OTHERWISE.get(name)) if one in names), option[0])


def check_type(function: str, name: str, value: object, *types: type) -> None:
    """Raise TypeError, naming the argument, where its value is neither None nor of one of these types."""
    if value is not None:
        require_type(function, name, value, *types)


def require_type(function: str, name: str, value: object, *types: type) -> None:
    """Raise TypeError, naming the argument, where its value is not of one of these types."""
    if isinstance(value, bool):
        fits = bool in types or object in types
    else:  # numbers of NumPy are numbers too
        fits = (
            isinstance(value, types)
            or (int in types and _is_whole_number(value))
            or (float in types and isinstance(value, Real))
        )
    if not fits:
        _refuse(
            function, name, value, " or ".join({"PathLike": "path"}.get(one.__name__, one.__name__) for one in types)
        )


def plain_number(value: object) -> Any:
    """A number of NumPy as one of Python; anything else as it is."""
    if isinstance(value, bool | float | str) and type(value) in (bool, float, str):
        return value
    if _is_whole_number(value):
        return operator.index(value)  # type: ignore[arg-type]
    return float(value) if isinstance(value, Real) else value


def check_tensors(function: str, name: str, values: Mapping[str, object]) -> None:
    """Raise TypeError, naming the entry, where a mapping of what a model is called with holds anything but tensors."""
    for key, value in values.items():
        require_type(function, f"a name of {name}", key, str)
        if not hasattr(value, "ndim"):
            _refuse(function, f"{name}[{key!r}]", value, "a tensor")


def checked_selection(function: str, name: str, value: object) -> tuple[int, ...] | None:
    """Layers, heads or rows, one or several, as whole numbers of Python; None means all.

    Raises TypeError, naming the argument, where they are not whole numbers; UsageError where there are none.
    """
    if value is None:
        return None
    if _is_whole_number(value) and not isinstance(value, bool):
        return (operator.index(value),)  # type: ignore[arg-type]
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, range)):
        _refuse(function, name, value, "int or list")
    if not value:
        raise UsageError(f"{function}(): {name} is empty: None takes all of them")
    for one in value:
        require_type(function, name, one, int)
    return tuple(operator.index(one) for one in value)


def checked_pairs(function: str, name: str, value: object) -> tuple[tuple[int, int], ...]:
    """Pairs of whole numbers as (query, key). Raises TypeError, naming the argument, where they are none."""
    require_type(function, name, value, Sequence)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        _refuse(function, name, value, "a list of (query, key)")
    found = []
    for pair in value:
        fits = isinstance(pair, Sequence) and len(pair) == 2 and all(_is_whole_number(end) for end in pair)
        if not fits:
            _refuse(function, name, value, "a list of (query, key)")
        found.append((operator.index(pair[0]), operator.index(pair[1])))
    return tuple(found)


def check_network(function: str, model: object) -> None:
    """Raise TypeError where `model` is no model of transformers."""
    if not is_network(model):
        _refuse(function, "model", model, "a transformers model")


def is_network(model: object) -> TypeGuard[PreTrainedModel]:
    """Whether `model` is a transformers model; transformers is not imported to find out."""
    return all(hasattr(model, name) for name in ("config", "named_modules", "get_input_embeddings", "forward"))


def _is_whole_number(value: object) -> bool:
    """Whether a value is a whole number of Python or NumPy."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _refuse(function: str, name: str, value: object, wanted: str) -> NoReturn:
    shown = " ".join(repr(value)[:80].split())
    raise TypeError(f"{function}(): {name} is {wanted}, not {type(value).__name__}: {shown}")
