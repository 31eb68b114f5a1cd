"""`attnctl.view`: the page of a text or trace, or of two side by side."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from attnctl.checks.argument_types import check_options, check_types
from attnctl.checks.model_options import OPTION_TYPES, ModelOptions, with_model_options
from attnctl.errors import UsageError, option_name
from attnctl.models import DEFAULT, Selection, changes_of_arguments, selected_places, source_of_argument
from attnctl.render import Page, page_of_sources
from attnctl.runtime.files import write_whole
from attnctl.trace import Trace
from attnctl.watched import EffectRequest

if TYPE_CHECKING:
    from attnctl.models import ModelArgument


@with_model_options
def view(
    text: str | Trace,
    other: Trace | None = None,
    model: ModelArgument = DEFAULT,
    *,
    layer: Selection = None,
    head: Selection = None,
    query: int | str | None = None,
    measure: str | None = None,
    words: bool = False,
    drop: str | list[str] | tuple[str, ...] | None = None,
    renormalise: bool = False,
    log: bool = False,
    effects: bool = False,
    against: str | None = None,
    output: str | os.PathLike[str] | None = None,
    **options: Unpack[ModelOptions],
) -> Page:
    """Return the page of a text or trace, or of two traces side by side: HTML, which a notebook displays.

    With `output`, the page is also written to this file.

    The page begins with `query` selected, and with `words`, `drop`, `renormalise` and `log`. With `effects`, the tokens are
    shaded by their effect on the prediction of `target` (an option), compared with `against`.

    >>> from attnctl import view
    >>> view("Alice will eat pizza", model="random")[:15]
    '<!doctype html>'
    """
    check_types("view", Trace | None, other=other)
    check_types("view", int | str | None, query=query)
    check_types("view", bool, log=log, effects=effects)
    check_types("view", str | None, against=against)
    check_types("view", str | os.PathLike | None, output=output)
    check_options("view", options, OPTION_TYPES)
    changes = changes_of_arguments("view", measure, words, renormalise, drop)
    layers, heads = selected_places("view", layer, head)
    if against is not None and not effects:
        raise UsageError(f"needs {option_name('effects')}", option="against")
    ask = EffectRequest(target=options.pop("target", None), against=against, every_edge=True) if effects else None
    sides = [source_of_argument("view", text, model, options)] + (
        [] if other is None else [source_of_argument("view", other, DEFAULT, {})]
    )
    named = None if query is None else str(query)
    html = Page(page_of_sources(sides, changes, layers, heads, query=named, log=log, effects=ask))
    if output is not None:
        write_whole(os.fspath(output), html.encode())
    return html
