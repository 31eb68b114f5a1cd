"""Define the options of a model, with types and ranges, and turn the typed options into keywords of `open_model`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypedDict

from attnctl.checks import limits
from attnctl.checks.argument_types import Types, naming_options
from attnctl.errors import UsageError, option_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

USUAL_THETA = 10000.0  # base of the rotary angles, as in the paper
OptionValues = dict[str, Any]  # options by name; None: not set


# the options that checkpoints take, most of them alone; checkpoints take no others
CHECKPOINT_OPTIONS = frozenset(
    {"attention", "target", "generate", "dtype", "bos", "truncate", "image", "device"}
    | {"text_pair", "source_language", "target_language", "tokenizer"}
)


class ModelOptions(TypedDict, total=False):
    """The options of a model, by their names on the command line; None means the default of the model."""

    # words, chars, a tokenizer.json; for a transformers model its tokenizer
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
    offset: int | None
    scale: float | None
    temperature: float | None
    positions: str | None
    rope_theta: float | None
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


# the ranges of numbers
RANGES = {
    "d_model": limits.SIZE,
    "d_k": limits.SIZE,
    "n_heads": limits.HEADS,
    "n_kv_heads": limits.HEADS,
    "n_layers": limits.LAYERS,
    "seed": limits.SEED,
    "window": limits.WINDOW,
    "offset": limits.OFFSET,
    "scale": limits.SCALE,
    "temperature": limits.TEMPERATURE,
    "rope_theta": limits.ROPE_THETA,
    "dropout": limits.DROPOUT,
    "generate": limits.GENERATE,
}


# the type of each option in Python: text if no other type is listed here
OPTION_TYPES: dict[str, Types] = {
    **dict.fromkeys(ModelOptions.__annotations__, str),
    **dict.fromkeys(
        ("d_model", "d_k", "n_heads", "n_kv_heads", "n_layers", "seed", "window", "offset", "generate"), int
    ),
    **dict.fromkeys(("scale", "temperature", "rope_theta", "dropout"), float),
    **dict.fromkeys(("output_projection", "causal", "bos", "truncate"), bool),
    **dict.fromkeys(("embeddings", "qkv"), str | os.PathLike),
    "tokenizer": object,
}
with_model_options = naming_options(ModelOptions)


def model_arguments(options: OptionValues) -> OptionValues:
    """Return options of the command line as keywords of `open_model`, without options that are None.

    Raises UsageError for options that exclude each other.
    """
    arguments = dict(options)
    if arguments.pop("chat", None) is not None:
        raise UsageError("is read by explain, heatmap, heads, view, ablate, batch and sources", option="chat")
    scale = limits.scale_factor(arguments.pop("scale", None))
    if arguments.get("model") is not None:
        arguments["name"] = arguments["model"]
    arguments.pop("model", None)
    arguments["truncate"] = arguments.get("truncate") or None
    return {name: value for name, value in (arguments | {"scale": scale}).items() if value is not None}


def options_of_opener(chosen: OptionValues, opener: str, model: str) -> OptionValues:
    """Return the options that a function of this name takes, without those that ask for what the `model` is anyway.

    Raises UsageError for an option that such a model cannot have.
    """
    is_checkpoint, is_function = opener == "open_checkpoint", opener == "open_function"
    needless = set[str]()
    if not is_checkpoint and chosen.get("bos") is False:  # others begin with no token of their own
        needless.add("bos")
    if not (is_checkpoint or is_function) and chosen.get("dtype") in ("auto", "float32"):  # built-in models compute so
        needless.add("dtype")
    taken = {"name"}
    if is_checkpoint:
        taken |= CHECKPOINT_OPTIONS
    elif not is_function:
        taken |= chosen.keys() - CHECKPOINT_OPTIONS | {"device", "tokenizer"}
    kept = {option: value for option, value in chosen.items() if option not in needless}
    for option in kept:
        if option not in taken:
            why = f"cannot be combined with {option_name('model', model)}{instead_of(option)}"
            raise UsageError(why, option=option)
    return kept


def instead_of(option: str) -> str:
    """Return what to use instead of a refused `target`, as the end of a sentence; "" for any other option."""
    return ": ablate, contributions and view (effects) watch a word" if option == "target" else ""
