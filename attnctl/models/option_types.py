"""The options of a model: their types, for `attend`, `batch` and `open_model`; and as the command line says them."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, TypedDict

from attnctl import limits
from attnctl.argument_types import Function, with_named_options
from attnctl.errors import UsageError

if TYPE_CHECKING:
    from typing import TypeAlias

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from attnctl.source import Model

    ModelArgument: TypeAlias = str | os.PathLike[str] | Model | PreTrainedModel  # what names, or is, a model

OptionValues = dict[str, Any]  # options by their names, as a command or a call was given them; None: not given


class ModelOptions(TypedDict, total=False):
    """Each as the option of the command line of that name; None, or left out, is as the model has it."""

    tokenizer: (
        str | PreTrainedTokenizerBase | None
    )  # words, chars, a tokenizer.json; beside a transformers model its tokenizer
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
    return with_named_options(ModelOptions.__annotations__, function)


def model_arguments(options: OptionValues) -> OptionValues:
    """Options by the names of the command line, as keywords of `open_model`; None is not given.

    Raises UsageError for options that exclude each other.
    """
    given = dict(options)
    if given.pop("chat", None) is not None:
        raise UsageError("--chat is read by explain, heatmap, heads, view, ablate, batch and sources")
    scale = scale_of(given.pop("scale", None), given.pop("no_scale", False))
    if given.pop("rope", False) and given.get("rope_theta") is None:
        given["rope_theta"] = 10000.0
    if given.get("model") is not None:
        given["name"] = given["model"]
    given.pop("model", None)
    given["truncate"] = given.get("truncate") or None
    return {name: value for name, value in (given | {"scale": scale}).items() if value is not None}


def scale_of(scale: str | float | None, no_scale: bool) -> float | None:
    """--scale and --no-scale as a factor; None means 1/√d_k, or what the model says."""
    if no_scale:
        if scale not in (None, "none"):
            raise UsageError(f"--no-scale and --scale {scale} exclude each other")
        return 1.0
    if scale is None or scale == "auto":
        return None
    if scale == "none":
        return 1.0
    try:
        return _factor_number(str(scale))
    except (ValueError, ZeroDivisionError):
        said = "it is auto, none, a number such as 0.125, or a fraction such as 1/8 or 1/√64"
        raise UsageError(f"--scale {limits.value_text(scale)!r}: {said}") from None


def _factor_number(text: str) -> float:
    """`0.125`, `1/8` or `1/√64` as a number. Raises ValueError or ZeroDivisionError for anything else."""
    above, slash, below = text.partition("/")
    factor = limits.decimal_number(above)
    if slash:
        divisor = limits.decimal_number(below.removeprefix("√"))
        factor /= math.sqrt(divisor) if below.startswith("√") else divisor
    return factor
