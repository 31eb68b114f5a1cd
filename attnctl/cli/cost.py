"""Estimate the time and memory of long work before it begins."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.source import TextSource
from attnctl.text import counted, duration_text

if TYPE_CHECKING:
    from attnctl.source import Source
    from attnctl.trace.model_info import ModelInfo

THREAD_CELLS = 256  # cells on a side, whose masses each thread holds
SURVEY_SWEEPS = 3  # for the page of a long text: the grid, its links and the rows of the blocks, about one sweep each
PAIRS_A_SECOND = 2e8  # weights that one thread sweeps
PRODUCTS_A_SECOND = 2e10  # multiply-adds of one thread in the other layers of a network
TOLD_SECONDS = 20.0  # a longer time is printed before the work
CUT_BYTES = 12  # for each pair of tokens of a pass with cut edges: its mask and arrays made of it
LESS_HEADS = "fewer layers or heads take less"


def cost_of_heads(source: Source, heads: int, sweeps: int = 1) -> str | None:
    """Return the cost of `heads` heads of a text through a model, in `sweeps` sweeps; None if it is small.

    Raises AttnctlError if the memory is not enough.
    """
    if not isinstance(source, TextSource):
        return None
    info, n = source.info, len(source.tokens)
    d_k, d_model, n_heads = info.d_k or 64, info.d_model or 64, info.n_heads or 1
    # queries, keys, values and their copies; the residual stream with its layers; the masses of each thread
    need = 4.0 * n * (8 * n_heads * d_k + 12 * d_model + 2 * (os.cpu_count() or 1) * THREAD_CELLS)
    limits.check_memory(need, f"a text of {n:,} tokens", "shorten it, or cut it into parts")
    seconds = _pass_seconds(info, n, sweeps * heads)
    return _cost_told(f"{counted(heads, 'head')} over {n:,} tokens", seconds, info, need, LESS_HEADS)


def cost_of_passes(info: ModelInfo, n: int, passes: int, *, cuts: bool, fewer: str = LESS_HEADS) -> str | None:
    """Return the cost of `passes` passes over n tokens; None if it is small. A pass with `cuts` needs memory for its mask.

    `fewer` says how to lower the cost. Raises AttnctlError if the memory is not enough.
    """
    need = CUT_BYTES * float(n) ** 2 if cuts else 0.0
    limits.check_memory(need, f"cutting edges of {n:,} tokens", "shorten the text")
    seconds = passes * _pass_seconds(info, n, (info.n_layers or 1) * (info.n_heads or 1))
    return _cost_told(f"{passes:,} passes over {n:,} tokens", seconds, info, need, fewer)


def _pass_seconds(info: ModelInfo, n: int, heads: int) -> float:
    """Return the seconds of one pass on the CPU: n × n weights of each of `heads` heads, and the rest of the network.

    Besides its attention a layer has about 12 d_model² weights: 4 in W_Q to W_O, 8 in an MLP.
    """
    threads = os.cpu_count() or 1
    sweep = heads * float(n) ** 2 * (0.5 if info.causal else 1.0) / (PAIRS_A_SECOND * threads)
    return sweep + 12.0 * (info.d_model or 64) ** 2 * (info.n_layers or 1) * n / (PRODUCTS_A_SECOND * threads)


def _cost_told(work: str, seconds: float, info: ModelInfo, need: float, fewer: str) -> str | None:
    if info.device != "cpu" or seconds <= TOLD_SECONDS:
        return None
    memory = f" and {limits.bytes_text(need)}" if need else ""
    return f"{work}: about {duration_text(seconds)}{memory} on the CPU ({fewer})"
