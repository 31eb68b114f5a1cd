"""`attnctl softmax`: what the softmax makes of a few scores, and why."""

from __future__ import annotations

import numpy as np

from attnctl import limits
from attnctl.cli.arguments import check_mode
from attnctl.cli.output import put_bytes, show_renderable
from attnctl.errors import AttnctlError, UsageError
from attnctl.files import decode_text, read_bytes
from attnctl.inputs import token_names
from attnctl.readings.questions.softmax import SoftmaxSteps, factor_of, scores_of
from attnctl.render.terminal.console import Shown
from attnctl.render.told.softmax import softmax_forms


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
    if not scores:
        raise UsageError('there are no scores: give some, such as 8.1 1.2 3.0 6.5, or "-" for standard input')
    if list(scores) == ["-"]:
        numbers = scores_of(decode_text(read_bytes("-", limits.SETTINGS_BYTES), "standard input"), AttnctlError)
    else:
        numbers = scores_of(" ".join(scores))
    if scale not in (None, "auto"):
        check_mode("softmax", "a number for --scale")
    names = None if tokens is None else tuple(token_names(tokens))
    worked = SoftmaxSteps(np.asarray(numbers), names, factor_of(scale, d_k), temperature)
    if json:
        from attnctl.formats.documents.readings_json import softmax_to_json

        put_bytes(softmax_to_json(worked) + b"\n")
    else:
        show_renderable(Shown(softmax_forms(worked, precision)))
