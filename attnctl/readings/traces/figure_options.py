"""The options of `Trace.figure`: their types, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from attnctl.argument_types import (
    Function,
    check_type,
    checked_selection,
    plain_number,
    require_type,
    with_named_options,
)


class FigureOptions(TypedDict, total=False):
    """Each as the option of `attnctl heatmap` of that name; None, or left out, is as it comes."""

    layers: Sequence[int] | None
    heads: Sequence[int] | None
    drop: Sequence[str] | None
    renormalise: bool | None
    cmap: str | None
    size: tuple[float, float] | None
    dpi: float | None
    title: str | None
    values: bool | None
    log: bool | None
    font_size: float | None
    vmin: float | None
    vmax: float | None
    colour_bar: bool | None


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("renormalise", "values", "log", "colour_bar"), (bool,)),
    **dict.fromkeys(("dpi", "font_size", "vmin", "vmax"), (int, float)),
    **dict.fromkeys(("cmap", "title"), (str,)),
    "drop": (list, tuple, str),
    "size": (tuple, list),
}


def with_figure_options(function: Function) -> Function:
    """Name each of FigureOptions in the signature of a function that takes `**options`."""
    return with_named_options(FigureOptions.__annotations__, function)


def given_figure_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The options that are not None, layers and heads as indices.

    Raises TypeError, naming the argument, for one that is no option of a figure, or of another type than it has.
    """
    given = {name: plain_number(value) for name, value in options.items() if value is not None}
    for name, value in options.items():
        if name not in FigureOptions.__annotations__:
            raise TypeError(f"figure() got an unexpected keyword argument {name!r}")
        if name in ("layers", "heads"):
            given |= {} if value is None else {name: checked_selection("figure", name, value)}
        else:
            check_type("figure", name, value, *_TYPES[name])
    for one in given.get("drop", ()):
        require_type("figure", "a key to drop", one, str)
    size = options.get("size")
    if isinstance(size, tuple | list):
        if len(size) != 2:
            raise TypeError(f"figure(): size is (width, height) in inches, not {size!r}")
        for side in size:
            check_type("figure", "size", side, int, float)
    return given
