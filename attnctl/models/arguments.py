"""What a user asks of a model, in the words of the command line, as the arguments of `open_model`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attnctl import limits
from attnctl.errors import UsageError


def model_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of the command line, as keywords of `open_model`; None is not given.

    Raises UsageError for options that exclude each other.
    """
    given = dict(options)
    if given.pop("chat", None) is not None:
        raise UsageError("--chat is read by explain, heatmap, heads, view, batch and sources")
    scale = scale_of(given.pop("scale", None), given.pop("no_scale", False))
    if given.pop("rope", False) and given.get("rope_theta") is None:
        given["rope_theta"] = 10000.0
    if given.get("model") is not None:
        given["name"] = given["model"]
    given.pop("model", None)
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
