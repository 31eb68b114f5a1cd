"""`attnctl softmax`: what the softmax makes of a few scores, and why."""

from __future__ import annotations

import math

import numpy as np

from attnctl import limits
from attnctl.argument_types import scale_of
from attnctl.cli.arguments import check_mode
from attnctl.cli.output import put_json, show_renderable
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import decode_text, read_bytes
from attnctl.inputs import token_names
from attnctl.readings.questions.softmax import SoftmaxSteps
from attnctl.render.terminal.learning import SoftmaxTables


def softmax_command(
    *,
    scores: list[str] | None,
    scale: str | None,
    d_k: int | None,
    temperature: float,
    tokens: str | None,
    precision: int,
    json: bool,
) -> None:
    """Work out the softmax of a few scores: the arithmetic, the weights as bars, other scales, plain division."""
    check_mode("softmax", "JSON" if json else "the tables")
    numbers = numbers_of(scores)
    factor = factor_of(scale, d_k)
    names = score_names(tokens, len(numbers))
    worked = SoftmaxSteps(np.asarray(numbers), names, factor, temperature)
    top = max(abs(x) for x in numbers if math.isfinite(x))
    most = max(1.0, *map(abs, worked.scales_compared)) / min(1.0, temperature)
    if not math.isfinite(top * most * 2 * len(numbers)):  # sums and differences of all of them, too
        raise UsageError(f"scores up to {top:g} × {factor:g} / {temperature:g} are too large to work with")
    if json:
        put_json(worked.softmax_document())
        return
    show_renderable(SoftmaxTables(worked, precision))


def numbers_of(scores: list[str] | None) -> list[float]:
    """The scores as numbers, also where several stand in one word ("1 2", "[1,2]"); read from standard input for "-".

    Raises UsageError or AttnctlError naming what is none.
    """
    if not scores:
        raise UsageError('there are no scores: give some, such as 8.1 1.2 3.0 6.5, or "-" for standard input')
    parts = " ".join(scores).replace(",", " ").strip(" []").split()
    where: type[AttnctlError] = UsageError
    if list(scores) == ["-"]:
        parts, where = (
            decode_text(read_bytes("-", limits.SETTINGS_BYTES), "standard input").replace(",", " ").split(),
            AttnctlError,
        )
    if not parts:
        raise where("there are no scores: give some, such as 8.1 1.2 3.0 6.5")
    numbers = [_score_value(part, where) for part in parts]
    if len(numbers) > limits.SOFTMAX_SCORES:
        raise where(f"{len(numbers)} scores are more than can be shown: give at most {limits.SOFTMAX_SCORES}")
    if not any(math.isfinite(x) for x in numbers):
        raise where("every score is masked: give at least one number")
    return numbers


def _score_value(part: str, error: type[AttnctlError]) -> float:
    try:
        x = limits.decimal_number(part.replace("−", "-").replace("∞", "inf").strip())
    except ValueError:
        option = part.startswith("-") and part[1:2].isalpha() or part.startswith("--")
        what = "no such option" if option else "this is no number"
        raise error(
            f"{part[:40]!r}: {what}; scores are numbers such as 8.1 or -2 (see attnctl softmax --help)"
        ) from None
    if math.isnan(x) or x == math.inf:
        raise error(f"{part[:40]!r}: a score is a finite number, or -inf where it is masked")
    return x


def factor_of(scale: str | None, d_k: int | None) -> float:
    """What the scores are multiplied by: --scale, or 1/√d_k; 1 without either. Raises UsageError for no such number."""
    if scale not in (None, "auto"):
        check_mode("softmax", "a number for --scale")
    if scale == "auto" and d_k is None:
        raise UsageError("--scale auto is 1/√d_k: give --d-k, too")
    factor = scale_of(scale, False) if scale is not None else None
    if factor is None:
        factor = 1.0 if d_k is None else 1 / math.sqrt(d_k)
    if not math.isfinite(factor):
        raise UsageError(f"--scale {scale}: it is a finite number")
    return factor


def score_names(tokens: str | None, n: int) -> tuple[str, ...] | None:
    """Names for the scores: those of --tokens, if there are any. Raises UsageError where they do not fit."""
    if tokens is None:
        return None
    names = tuple(token_names(tokens))
    if len(names) != n:
        raise UsageError(f"--tokens has {len(names)} names for {n} scores: give one a score")
    return names
