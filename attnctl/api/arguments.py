"""Turn the arguments of Python functions into sources, layers, heads and changes of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.checks.argument_types import check_types, checked_selection, require_type
from attnctl.checks.model_options import ModelOptions
from attnctl.models import opened_model
from attnctl.source import Changes, TextSource, TraceSource
from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.models import ModelArgument
    from attnctl.source import Source

Selection = int | Sequence[int] | None


def source_of_argument(function: str, text: str | Trace, model: ModelArgument, options: ModelOptions) -> Source:
    """Return the source of a text or a trace. Raises TypeError with the function's name for anything else."""
    if isinstance(text, Trace):
        return TraceSource(text)
    if text is None:
        raise TypeError(f"{function}(): text is a str or a Trace, not None")
    require_type(function, "text", text, str)
    return TextSource(opened_model(function, model, options), text)


def selected_places(
    function: str, layer: Selection, head: Selection
) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    """Return the named layers and heads; None for all. Raises TypeError with the function's name if they are not numbers."""
    return checked_selection(function, "layer", layer), checked_selection(function, "head", head)


def changes_of_arguments(
    function: str, measure: str | None, words: bool, renormalise: bool, drop: str | Sequence[str] | None
) -> Changes:
    """Return the changes of the weights. Raises TypeError with the function and the argument for another type."""
    check_types(function, str | None, measure=measure)
    check_types(function, bool, words=words, renormalise=renormalise)
    check_types(function, str | list | tuple | None, drop=drop)
    for key in drop or ():
        require_type(function, "each of drop", key, str)
    return Changes(measure, words, renormalise, drop)
