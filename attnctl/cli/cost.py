"""Check the memory of long work before it begins. Its time is measured: `attnctl/cli/progress.py`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.source import TextSource

if TYPE_CHECKING:
    from attnctl.source import Source

THREAD_CELLS = 256  # cells on a side, whose masses each thread holds
CUT_BYTES = 12  # for each pair of tokens of a pass with cut edges: its mask and arrays made of it
LESS_HEADS = "fewer layers or heads take less"


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
