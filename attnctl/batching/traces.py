"""`attnctl.batch`: the traces of many texts, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from attnctl.checks import limits
from attnctl.checks.argument_types import check_types, checked_selection, require_type
from attnctl.checks.model_options import ModelOptions, with_model_options
from attnctl.errors import AttnctlError, current_flags
from attnctl.models import DEFAULT, opened_model

if TYPE_CHECKING:
    from attnctl.models import ModelArgument
    from attnctl.trace import Trace


@with_model_options
def batch(
    texts: Iterable[str | Mapping[str, object]],
    model: ModelArgument = DEFAULT,
    *,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    query: int | str | None = None,
    steps: Sequence[str] | None = None,
    batch_size: int = 32,
    **options: Unpack[ModelOptions],
) -> Iterator[Trace]:
    """Yield the trace of each text, in order; each is computed when it is needed.

    A text is a string, or a mapping like a line of JSON: `text`, and optionally its own `tokens` and `options`. The other
    arguments are those of `attnctl.attend`. With `steps`, such as ["weights"], a trace keeps only the arrays of these steps.
    `batch_size` texts share a pass through a checkpoint: they are chosen among four times as many, so that their lengths are
    similar.

    >>> [len(trace.tokens) for trace in batch(["Alice eats", "Bob sleeps well"], model="random")]
    [2, 3]

    Raises AttnctlError with the name of a text that cannot be read; the generator then ends.
    """
    from attnctl.batching.engines import chunks_of_items
    from attnctl.batching.passes import most_together
    from attnctl.batching.texts import numbered, of_row
    from attnctl.batching.work import Work, Worker
    from attnctl.trace.steps import check_names

    if isinstance(texts, (str, bytes)):
        raise TypeError(f"batch(): texts is a list of texts, not one {type(texts).__name__}: {texts[:80]!r}")
    check_types("batch", Iterable, texts=texts)
    check_types("batch", int | str | None, query=query)
    check_types("batch", int, batch_size=batch_size)
    limits.BATCH_SIZE.check_value("batch_size", batch_size)
    layers, heads = checked_selection("batch", "layer", layer), checked_selection("batch", "head", head)
    if steps is not None:
        require_type("batch", "steps", steps, str, Sequence)
    kept_steps = None if steps is None else tuple([steps] if isinstance(steps, str) else steps)
    for step in kept_steps or ():
        require_type("batch", "steps", step, str)
    check_names(kept_steps or ())
    opened = opened_model("batch", model, options)
    together = most_together(opened, batch_size)
    name = {"name": os.fspath(model)} if isinstance(model, (str, os.PathLike)) else {}
    query = None if query is None else str(query)
    chosen = _selection_text(layers), _selection_text(heads), query
    work = Work(name | options, (), *chosen, steps=kept_steps, batch_size=together, is_named=bool(name))
    worker = Worker(work, opened, current_flags())
    items = numbered(of_row(f"text {number}", _row_of_text(text, number)) for number, text in enumerate(texts))
    for chunk in chunks_of_items(items, 4 * together if together > 1 else 1):
        for result in worker.chunk_results(chunk):
            if result.trace is None:
                raise AttnctlError(f"{result.item.where}: {result.error}")
            yield result.trace


def _row_of_text(text: str | Mapping[str, object], number: int) -> dict[str, object]:
    """Return a text as a row. Raises TypeError for anything but a text or a mapping with one."""
    require_type("batch", f"texts[{number}]", text, str, Mapping)
    return {"text": text} if isinstance(text, str) else dict(text)


def _selection_text(indices: Sequence[int] | None) -> str | None:
    return None if indices is None else ",".join(map(str, indices))
