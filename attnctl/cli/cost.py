"""Check the memory of long work before it begins, and note the size of a large table.

The time of the work is measured: `attnctl/cli/progress.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnctl.checks import limits
from attnctl.source import TextSource

if TYPE_CHECKING:
    from attnctl.readings.heatmap import GridReading
    from attnctl.source import Prepared, Source

THREAD_CELLS = 256  # cells on a side, whose masses each thread holds
CUT_BYTES = 12  # for each pair of tokens of a pass with cut edges: its mask and arrays made of it
NOTED_TABLE = 50e6  # bytes; for a larger table of weights, a note says its size
CSV_ROW, PARQUET_ROW = 26, 5  # bytes of a weight in a table, in CSV without the texts of its query and key
LESS_HEADS = "fewer layers or heads take less"


def notes_on_table(form: str, prepared: Prepared, grid: GridReading) -> tuple[str, ...]:
    """Return the note on the size of a table of the weights of a grid, if it will be a large file."""
    cells = prepared.head_count * len(grid.rows) * len(grid.columns)
    axes = (grid.rows, prepared.source.tokens), (grid.columns, prepared.key_tokens)
    names = (
        len((tokens[part.first_token].text if part.token_count == 1 else part.name).encode()) / len(parts)
        for parts, tokens in axes
        for part in parts
    )
    size = cells * (PARQUET_ROW if form == "parquet" else CSV_ROW + sum(names))
    if size <= NOTED_TABLE:
        return ()
    kind, smaller = ("Parquet", "") if form == "parquet" else ("CSV", ".parquet is smaller, and ")
    return (
        f"up to {limits.bytes_text(size)} of {kind}, a row for each of {cells:,} weights: {smaller}--layer, --head, "
        "--rows, --columns or --pool mean write fewer rows",
    )


def check_memory_of_heads(source: Source) -> None:
    """Raise AttnctlError if the memory is not enough for the heads of a text through a model."""
    if not isinstance(source, TextSource):
        return
    info, n = source.info, len(source.tokens)
    d_k, d_model, n_heads = info.d_k or 64, info.d_model or 64, info.n_heads or 1
    # queries, keys, values and their copies; the residual stream with its layers; the masses of each thread
    need = 4.0 * n * (8 * n_heads * d_k + 12 * d_model + 2 * (os.cpu_count() or 1) * THREAD_CELLS)
    limits.check_memory(need, f"a text of {n:,} tokens", "shorten it, or cut it into parts")


def check_memory_of_cuts(n: int) -> None:
    """Raise AttnctlError if the memory is not enough for a pass over n tokens with cut edges, which holds its mask."""
    limits.check_memory(CUT_BYTES * float(n) ** 2, f"cutting edges of {n:,} tokens", "shorten the text")
