"""Compute attention between the parts of a text: `attnctl.spans`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from attnctl.checks.argument_types import check_types
from attnctl.checks.model_options import ModelOptions, with_model_options
from attnctl.models import DEFAULT, Selection, changes_of_arguments, selected_places, source_of_argument
from attnctl.readings.heatmap import GridReading, OverviewReading
from attnctl.readings.spans import parts_of
from attnctl.source import prepare
from attnctl.trace import Trace

if TYPE_CHECKING:
    from attnctl.models import ModelArgument
    from attnctl.readings.overview import Overview


@with_model_options
def spans(
    text: str | Trace,
    kind: str = "paragraphs",
    model: ModelArgument = DEFAULT,
    *,
    layer: Selection = None,
    head: Selection = None,
    measure: str | None = None,
    words: bool = False,
    drop: str | list[str] | tuple[str, ...] | None = None,
    renormalise: bool = False,
    **options: Unpack[ModelOptions],
) -> Overview:
    r"""Return the attention between the parts of a text, as `grid.weights[layer, head]` (parts, parts); rows sum to 1.

    `kind` is words, sentences, paragraphs, lines, headings, documents, or a file of name,start,end.

    >>> from attnctl import spans
    >>> spans("One line.\nAnother line.", "lines", model="random").grid.weights[0, 0].shape
    (2, 2)
    """
    check_types("spans", str, kind=kind)
    changes = changes_of_arguments("spans", measure, words, renormalise, drop)
    source = source_of_argument("spans", text, model, options)
    prepared = prepare(source, changes, *selected_places("spans", layer, head))
    rows = parts_of(kind, prepared.source.text, prepared.source.tokens)
    columns = parts_of(kind, prepared.source.text, prepared.key_tokens)
    return prepared.read(OverviewReading(GridReading(rows, columns, "mass")))
