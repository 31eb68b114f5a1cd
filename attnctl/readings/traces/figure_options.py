"""The options of `Trace.figure`: their types, checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from attnctl.argument_types import Function, checked_selection, plain_number, require_type, with_named_options


class FigureOptions(TypedDict, total=False):
    """Each as the option of `attnctl heatmap` of that name; None, or left out, is as it comes."""

    layer: int | Sequence[int] | None
    head: int | Sequence[int] | None
    drop: str | tuple[str, ...] | list[str] | None
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


def with_figure_options(function: Function) -> Function:
    """Name each of FigureOptions in the signature of a function that takes `**options`."""
    return with_named_options(FigureOptions.__annotations__, function)


def given_figure_options(options: Mapping[str, object]) -> dict[str, Any]:
    """The options that are not None, `layer` and `head` as indices. Raises TypeError for what a list of them holds."""
    given = {name: plain_number(value) for name, value in options.items() if value is not None}
    for name in {"layer", "head"} & given.keys():
        given[name] = checked_selection("figure", name, given[name])
    for one in given.get("drop", ()):
        require_type("figure", "a key to drop", one, str)
    if "size" in given:
        if len(given["size"]) != 2:
            raise TypeError(f"figure(): size is (width, height) in inches, not {given['size']!r}")
        for side in given["size"]:
            require_type("figure", "size", side, int, float)
    return given
