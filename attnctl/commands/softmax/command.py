"""`attnctl softmax`: the softmax of a few scores, step by step."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option

from attnctl.checks import limits
from attnctl.cli import (
    MADE,
    MATHEMATICS,
    MODEL,
    SHOW,
    JsonOption,
    command,
    completing,
    decimal,
    put_bytes,
    refuse_unused,
    show_forms,
    whole,
)
from attnctl.errors import AttnctlError, UsageError


# a score may be negative: "-1.2" is not an option
@command(example="attnctl softmax 8.1 1.2 3.0 6.5 --d-k 64", parsing={"ignore_unknown_options": True})
def softmax_command(
    context: Context,
    scores: Annotated[
        list[str] | None,
        Argument(
            help='Scores, such as 8.1 1.2 3.0; -inf is a masked score. "-" reads standard input.', metavar="[TEXT]…"
        ),
    ] = None,
    *,
    scale: Annotated[
        str | None,
        Option(
            help="Factor on the scores: auto (1/√d_k, with --d-k), none, or a number: 0.125 or 1/8.",
            metavar="auto|none|X",
            autocompletion=completing("auto", "none"),
            rich_help_panel=MATHEMATICS,
        ),
    ] = None,
    d_k: Annotated[
        int | None,
        Option(
            help="Length of a query and a key: scores are divided by its square root.",
            metavar="N",
            parser=whole(limits.SIZE),
            rich_help_panel=MADE,
        ),
    ] = None,
    temperature: Annotated[
        float,
        Option(
            help="Divide by this before the softmax.",
            metavar="X",
            parser=decimal(limits.TEMPERATURE),
            rich_help_panel=MATHEMATICS,
        ),
    ] = 1.0,
    tokens: Annotated[
        str | None,
        Option(
            help="Names of the tokens: one for each score, as a JSON list or words.",
            metavar="TOKENS",
            rich_help_panel=MODEL,
        ),
    ] = None,
    precision: Annotated[
        int,
        Option(help="Decimals.", metavar="N", parser=whole(limits.PRECISION), rich_help_panel=SHOW),
    ] = 2,
    json: JsonOption = False,
) -> None:
    """Compute the softmax of a few scores step by step, with bars; then with other scales, and by plain division."""
    import numpy as np

    from attnctl.commands.softmax.compute import factor_of, scores_of, work_out_softmax
    from attnctl.inputs import token_names
    from attnctl.runtime.files import decode_text, read_bytes

    if json:
        refuse_unused(context, "precision", because="JSON holds every digit")
    if scale not in (None, "auto"):
        refuse_unused(context, "d_k", because="--scale is the factor")
    if not scores:
        raise UsageError('there are no scores: give some, such as 8.1 1.2 3.0 6.5, or "-" for standard input')
    if scores == ["-"]:
        numbers = scores_of(decode_text(read_bytes("-", limits.SETTINGS_BYTES), "standard input"), AttnctlError)
    else:
        numbers = scores_of(" ".join(scores))
    names = None if tokens is None else tuple(token_names(tokens))
    worked = work_out_softmax(np.asarray(numbers), names, factor_of(scale, d_k), temperature)
    if json:
        from attnctl.formats import write_json

        put_bytes(write_json(worked, "softmax") + b"\n")
    else:
        from attnctl.commands.softmax.show import softmax_forms

        show_forms(softmax_forms(worked, precision))
