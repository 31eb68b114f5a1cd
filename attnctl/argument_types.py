"""The arguments of public functions, checked before any work: selections, parsed, and the options of models, by type.

A TypeError names the function, the argument and its value.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar, cast

from attnctl import limits
from attnctl.errors import UsageError, option_name

if TYPE_CHECKING:
    from typing import TypeGuard

    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Function = TypeVar("Function", bound=Callable[..., object])


# what stands in an annotation → the types that fit it; a name that is not here fits every value
_FITTING: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "tuple": (tuple, list),
    "list": (list,),
    "Iterable": (Iterable,),
    "Mapping": (Mapping,),
    "Path": (os.PathLike,),
    "os.PathLike": (os.PathLike,),
    "PathLike": (os.PathLike,),
    "None": (),
}


def checked(function: Function, options: Mapping[str, object] | None = None) -> Function:
    """The function, its arguments held against their annotations: a TypeError names the one of another type.

    Each of `options` (name → annotation) stands in the signature instead of `**options`: for help() and for editors.
    """
    own = inspect.signature(function)
    kept = [p for p in own.parameters.values() if options is None or p.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=getattr(one, "__forward_arg__", one)
        )
        for name, one in (options or {}).items()
        if name not in own.parameters
    ]
    signature = own.replace(parameters=[*kept, *more])
    fitting, names = _fitting_types(signature), list(signature.parameters)
    called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    def check(arguments: Sequence[object], given: Mapping[str, object]) -> None:
        if options is not None and (strange := given.keys() - names):
            raise TypeError(f"{called}() got an unexpected keyword argument {min(strange)!r}")
        for name, value in (*zip(names, arguments, strict=False), *given.items()):
            if name in fitting:
                require_type(called, name, value, *fitting[name])

    @functools.wraps(function)
    def of_values(*arguments: object, **given: object) -> object:
        check(arguments, given)
        return function(*arguments, **given)

    @functools.wraps(function)
    def of_iterators(*arguments: object, **given: object) -> Iterator[object]:
        check(arguments, given)
        yield from cast(Iterator[object], function(*arguments, **given))

    wrapped: Any = of_iterators if inspect.isgeneratorfunction(function) else of_values
    wrapped.__signature__ = signature
    return cast(Function, wrapped)


def _fitting_types(signature: inspect.Signature) -> dict[str, tuple[type, ...]]:
    """Parameter → the types that fit it, None among them where it may be None; without those that any value fits."""
    found = {}
    for name, parameter in signature.parameters.items():
        annotation = str(parameter.annotation)
        while "[" in annotation:  # what a container holds is not looked at
            annotation = re.sub(r"\[[^\[\]]*\]", "", annotation)
        parts = [part.strip() for part in annotation.split("|")]
        if all(part in _FITTING for part in parts):
            found[name] = tuple(dict.fromkeys(kind for part in parts for kind in _FITTING[part]))
            if "None" in parts:
                found[name] += (type(None),)
    return found


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
        named = ({"PathLike": "path"}.get(one.__name__, one.__name__) for one in types if one is not type(None))
        _refuse(function, name, value, " or ".join(named))


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


OptionValues = dict[str, Any]  # options by their names, as a command or a call was given them; None: not given


# what only checkpoints can be asked for; they take no others
CHECKPOINT_OPTIONS = frozenset(
    {"attention", "target", "generate", "dtype", "bos", "truncate", "image", "device"}
    | {"text_pair", "source_language", "target_language"}
)


class ModelOptions(TypedDict, total=False):
    """Each as the option of the command line of that name; None, or left out, is as the model has it."""

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


def with_model_options(function: Function) -> Function:
    """Name each of ModelOptions in the signature of a function that takes `**options`: for help() and for editors."""
    return checked(function, ModelOptions.__annotations__)


def model_arguments(options: OptionValues) -> OptionValues:
    """Options by the names of the command line, as keywords of `open_model`; None is not given.

    Raises UsageError for options that exclude each other.
    """
    given = dict(options)
    if given.pop("chat", None) is not None:
        raise UsageError("is read by explain, heatmap, heads, view, ablate, batch and sources", option="chat")
    scale = scale_of(given.pop("scale", None), given.pop("no_scale", False))
    if given.pop("rope", False) and given.get("rope_theta") is None:
        given["rope_theta"] = 10000.0
    if given.get("model") is not None:
        given["name"] = given["model"]
    given.pop("model", None)
    given["truncate"] = given.get("truncate") or None
    return {name: value for name, value in (given | {"scale": scale}).items() if value is not None}


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
        said = "it is auto, none, a number such as 0.125, or a fraction such as 1/8 or 1/√64"
        raise UsageError(said, option="scale", value=scale) from None


def _factor_number(text: str) -> float:
    """`0.125`, `1/8` or `1/√64` as a number. Raises ValueError or ZeroDivisionError for anything else."""
    above, slash, below = text.partition("/")
    factor = limits.decimal_number(above)
    if slash:
        divisor = limits.decimal_number(below.removeprefix("√"))
        factor /= math.sqrt(divisor) if below.startswith("√") else divisor
    return factor


def instead_of(option: str) -> str:
    """Return what to use instead of a refused option: of `target`, if it was given for a word to be watched."""
    return ": ablate, view (effects) and explain (contributions) watch a word" if option == "target" else ""
