"""The sentence about attention that is parked on the first token and on special tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnctl.text import counted, percent, visible_text
from attnctl.text.tokens import Token
from attnctl.trace import Trace


def sink_sentence(trace: Trace) -> str | None:
    """Return a sentence on how much attention goes to the first token and to special tokens; None for a single key.

    The row of the first token is left out: if the future is hidden, that token can only look at itself.
    """
    keys = trace.key_axis
    parked = []  # of each layer, the mean weight on each column
    columns = [0, *(j for j, token in enumerate(keys) if token.special and j > 0)]
    for layer in trace.layers:
        if layer.weights is None:
            continue
        queries = range(len(trace.tokens)) if layer.rows is None else layer.rows
        sees = np.ones(len(queries), bool) if layer.mask is None else np.asarray(layer.mask.any(1))  # (rows,)
        rows = [place for place, i in enumerate(queries) if sees[place] and (i > 0 or not trace.reads_itself)]
        if rows and layer.heads:
            cells = layer.weights[:, np.array(rows)[:, None], columns]  # (heads, rows, columns)
            parked.append(cells.mean((0, 1), dtype=np.float64))
    if not parked or len(keys) < 2:
        return None
    first, *special = np.mean(parked, 0).tolist()
    with_weights = [layer for layer in trace.layers if layer.weights is not None]
    where = heads_text([(layer.layer, head) for layer in with_weights for head in layer.heads])
    if keys[0].seconds:  # frames: the special ones pad a sound to its full length
        return parked_sentence(where, [(sum(special), "frames after the end of the sound")]) if special else None
    shares = [(first, f"the first token, {visible_text(keys[0].text)}")]
    if special:
        shares.append((sum(special), other_special([keys[j] for j in columns[1:]])))
    return parked_sentence(where, shares)


def parked_sentence(where: str, shares: Sequence[tuple[float, str]], is_remainder: bool = False) -> str:
    """Return a sentence on how much attention of `where` goes to certain keys; `shares` holds each key's share and name.

    `is_remainder`: the shares are of the attention without the keys that are left out.
    """
    (share, name), *other_shares = shares
    more = (f", {percent(share)} to {name}" for share, name in other_shares)
    of = "what is left of the attention" if is_remainder else "the attention"
    return f"Of {of} of {where}, {percent(share)} goes to {name}{''.join(more)}."


def heads_text(places: Sequence[tuple[int, int]]) -> str:
    """Return "layer 3, head 2", or "72 heads"."""
    return counted(len(places), "head") if len(places) != 1 else "layer {}, head {}".format(*places[0])


def other_special(tokens: Sequence[Token]) -> str:
    """Return "the other special ones ([SEP])"."""
    names = dict.fromkeys(visible_text(token.text) for token in tokens)
    return f"the other special ones ({', '.join(list(names)[:4])})"
