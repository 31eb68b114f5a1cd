"""What Python's functions are given: arguments of another type are refused by name, and the options of models.

A TypeError names the function, the argument and its value.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import UnionType
from typing import TYPE_CHECKING, Any, ForwardRef, NoReturn, TypedDict, TypeVar, get_args

from attnctl import limits
from attnctl.errors import UsageError, option_name

if TYPE_CHECKING:
    from typing import TypeGuard

    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Function = TypeVar("Function", bound=Callable[..., object])
Types = type | UnionType  # `int`, or `int | str | None`


def check_types(function: str, types: Types, /, **values: object) -> None:
    """Raise TypeError, naming the function and the argument, for a value of another type."""
    for name, value in values.items():
        require_type(function, name, value, *(get_args(types) or (types,)))


def check_options(function: str, options: Mapping[str, object], types: Mapping[str, Types]) -> None:
    """Raise TypeError for an option without an entry in `types`, or of another type; None is any option's absence."""
    for name, value in options.items():
        if name not in types:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        if value is not None:
            check_types(function, types[name], **{name: value})


def naming_options(options: type) -> Callable[[Function], Function]:
    """Return a decorator that names each of `options`, a TypedDict, in a signature: for help() and for editors."""

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
    """Raise TypeError, naming the argument, unless its value is of one of these types; numbers of NumPy are numbers."""
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
    """Return a number of NumPy as a number of Python, and anything else as it is."""
    if isinstance(value, bool | float | str) and type(value) in (bool, float, str):
        return value
    if _is_whole_number(value):
        return operator.index(value)  # type: ignore[arg-type]
    return float(value) if isinstance(value, Real) else value


def check_tensors(function: str, name: str, values: Mapping[str, object]) -> None:
    """Raise TypeError, naming the entry, unless a mapping holds tensors by their names: what a model is called with."""
    for key, value in values.items():
        require_type(function, f"a name of {name}", key, str)
        if not hasattr(value, "ndim"):
            _refuse(function, f"{name}[{key!r}]", value, "a tensor")


def checked_selection(function: str, name: str, value: object) -> tuple[int, ...] | None:
    """Return layers, heads or rows, one or several, as whole numbers of Python; None means all of them.

    Raises TypeError, naming the argument, for anything but whole numbers, and UsageError for an empty list.
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
    """Return pairs of whole numbers as (query, key). Raises TypeError, naming the argument, for anything else."""
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


def is_network(model: object) -> TypeGuard[PreTrainedModel]:
    """Return whether `model` is a transformers model, without an import of transformers."""
    return all(hasattr(model, name) for name in ("config", "named_modules", "get_input_embeddings", "forward"))


def _is_whole_number(value: object) -> bool:
    """Return whether a value is a whole number of Python or NumPy."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


def _refuse(function: str, name: str, value: object, expected: str) -> NoReturn:
    repr_text = " ".join(repr(value)[:80].split())
    raise TypeError(f"{function}(): {name} is {expected}, not {type(value).__name__}: {repr_text}")


OptionValues = dict[str, Any]  # options by their names; None: the user named none


# the options that only checkpoints take; they take no others
CHECKPOINT_OPTIONS = frozenset(
    {"attention", "target", "generate", "dtype", "bos", "truncate", "image", "device"}
    | {"text_pair", "source_language", "target_language"}
)


class ModelOptions(TypedDict, total=False):
    """The options of a model, by their names on the command line; None is the model's own."""

    # words, chars, a tokenizer.json; beside a transformers model its tokenizer
    tokenizer: str | PreTrainedTokenizerBase | None
    embeddings: str | os.PathLike[str] | None
    qkv: str | os.PathLike[str] | None
    d_model: int | None
    d_k: int | None
    n_heads: int | None
    n_kv_heads: int | None
    n_layers: int | None
    output_projection: bool | None
    predict: str | None
    off: str | None
    seed: int | None
    causal: bool | None
    window: int | None
    scale: float | None
    temperature: float | None
    positions: str | None
    rope_theta: float | None
    rope_pairs: str | None
    dropout: float | None
    attention: str | None
    target: str | None
    generate: int | None
    bos: bool | None
    truncate: bool | None
    image: str | None
    text_pair: str | None
    source_language: str | None
    target_language: str | None
    dtype: str | None
    device: str | None


# of those that are numbers
RANGES = {
    "d_model": limits.SIZE,
    "d_k": limits.SIZE,
    "n_heads": limits.HEADS,
    "n_kv_heads": limits.HEADS,
    "n_layers": limits.LAYERS,
    "seed": limits.SEED,
    "window": limits.WINDOW,
    "scale": limits.SCALE,
    "temperature": limits.TEMPERATURE,
    "rope_theta": limits.ROPE_THETA,
    "dropout": limits.DROPOUT,
    "generate": limits.GENERATE,
}


# what an option of a model is for Python: a text, if nothing else stands here
OPTION_TYPES: dict[str, Types] = {
    **dict.fromkeys(ModelOptions.__annotations__, str),
    **dict.fromkeys(("d_model", "d_k", "n_heads", "n_kv_heads", "n_layers", "seed", "window", "generate"), int),
    **dict.fromkeys(("scale", "temperature", "rope_theta", "dropout"), float),
    **dict.fromkeys(("output_projection", "causal", "bos", "truncate"), bool),
    **dict.fromkeys(("embeddings", "qkv"), str | os.PathLike),
    "tokenizer": object,
}
with_model_options = naming_options(ModelOptions)


def model_arguments(options: OptionValues) -> OptionValues:
    """Return options of the command line as keywords of `open_model`, without those that are None.

    Raises UsageError for options that exclude each other.
    """
    arguments = dict(options)
    if arguments.pop("chat", None) is not None:
        raise UsageError("is read by explain, heatmap, heads, view, ablate, batch and sources", option="chat")
    scale = scale_of(arguments.pop("scale", None), arguments.pop("no_scale", False))
    if arguments.pop("rope", False) and arguments.get("rope_theta") is None:
        arguments["rope_theta"] = 10000.0
    if arguments.get("model") is not None:
        arguments["name"] = arguments["model"]
    arguments.pop("model", None)
    arguments["truncate"] = arguments.get("truncate") or None
    return {name: value for name, value in (arguments | {"scale": scale}).items() if value is not None}


def scale_of(scale: str | float | None, no_scale: bool) -> float | None:
    """Return the options `scale` and `no_scale` as a factor; None means 1/√d_k, or what the model says."""
    if no_scale:
        if scale not in (None, "none"):
            raise UsageError(f"cannot be combined with {option_name('scale', scale)}", option="no_scale")
        return 1.0
    if scale is None or scale == "auto":
        return None
    if scale == "none":
        return 1.0
    try:
        return _factor_number(str(scale))
    except (ValueError, ZeroDivisionError):
        expected = "it is auto, none, a number such as 0.125, or a fraction such as 1/8 or 1/√64"
        raise UsageError(expected, option="scale", value=scale) from None


def _factor_number(text: str) -> float:
    """Return `0.125`, `1/8` or `1/√64` as a number. Raises ValueError or ZeroDivisionError for anything else."""
    above, slash, below = text.partition("/")
    factor = limits.decimal_number(above)
    if slash:
        divisor = limits.decimal_number(below.removeprefix("√"))
        factor /= math.sqrt(divisor) if below.startswith("√") else divisor
    return factor


def instead_of(option: str) -> str:
    """Return what to use instead of a refused `target`, as the end of a sentence; "" for any other option."""
    return ": ablate, view (effects) and explain (contributions) watch a word" if option == "target" else ""
