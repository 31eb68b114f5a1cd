"""The page of a trace or an overview, of two side by side, and of a training run.

One JSON block holds the texts and sizes; blocks of base64 (deflated) hold the arrays, so that a browser reads one head at
a time.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError
from attnctl.measures import measure_text
from attnctl.readings.comparison import aligned_tokens, compare_traces
from attnctl.readings.overview import Overview
from attnctl.readings.rows import ExactBlock
from attnctl.render.page import document_page, escaped_html, filled_template, framed_page, json_for_script, page_colours
from attnctl.render.page.packing import Blobs, opening_blocks, pack_overview, pack_trace, packed_photograph
from attnctl.text import Document, every_string, harmless_line, shortened, visible_text
from attnctl.trace import Trace

if TYPE_CHECKING:
    from PIL.Image import Image

SCRIPTS = (  # in the order of the page
    "dom.js", "data.js", "colour.js", "state.js", "overview.js", "pen.js", "figure.js", "pointing.js", "heads.js",
    "sentence.js", "row.js", "arithmetic.js", "softmax.js", "matters.js", "save.js", "main.js",
)  # fmt: skip

NAME_LETTERS = 60  # of a text that names one of two traces
NOTEBOOK_BYTES = 8_000_000  # of a page in a notebook


def page_html(
    traces: Sequence[Trace | Overview],
    *,
    labels: Sequence[str] | None = None,
    over_training: bool = False,
    start: Document | None = None,
    effects: Document | None = None,
    title: str | None = None,
    exact: Sequence[ExactBlock] = (),
    photographs: Sequence[Image | None] = (),
    max_bytes: int = 40_000_000,
) -> str:
    """Return the HTML page of one trace or overview, of two traces side by side with their difference, or of a training run.

    `labels` name the traces (None: what the traces differ in). `start` is the first selection (`layer`, `head`, `query`,
    `key`: numbers). `effects`, a document of attnctl.effects/1, shades the tokens by their effect on a prediction.
    `photographs` are the pictures whose patches are the tokens of a trace. Weights are exact float32 if these are small,
    otherwise as fine as `max_bytes` of HTML allow; the page says which.
    """
    blobs = Blobs()
    budget = max_bytes // len(traces)  # bytes of base64 for the weights of each; everything else may take half
    names = trace_names(traces) if labels is None else list(labels)
    compared = len(traces) == 2 and not over_training
    packed = [
        pack_overview(trace, name, blobs, exact)
        if isinstance(trace, Overview)
        else pack_trace(trace, name, blobs, budget, with_steps=not over_training or index == 0)
        for index, (trace, name) in enumerate(zip(traces, names, strict=True))
    ]
    for entry, photograph in zip(packed, photographs, strict=False):
        if photograph is not None:
            entry["photograph"] = packed_photograph(photograph)
    for entry, place in zip(packed, largest_change(traces) if compared else [], strict=False):
        entry["focus"] = place
    document = {
        "schema": "attnctl.page/1",
        "mode": "steps" if over_training else "compare" if compared else "one",
        "traces": packed,
        "aligned": aligned(traces) if compared else None,
        "start": start or {},
        "effects": effects,
    }
    cited = "; ".join(dict.fromkeys(trace.cited for trace in traces))
    data = json_for_script(every_string(document | page_colours(), harmless_line))
    opening = opening_blocks(packed[-1:] if over_training else packed, start or {})
    # elements that no browser runs
    elements = (
        f'<script type="text/plain" id="b{number}"{" data-inflated" * (number in opening)}>'
        f"{blobs.as_read(number, number in opening)}</script>"
        for number in range(len(blobs.blocks))
    )
    body = filled_template("page.html", data=data, blobs="\n".join(elements), cited=escaped_html(cited))
    return document_page(body, ["page.css"], SCRIPTS, title or tab_title(traces), cited)


def aligned(traces: Sequence[Trace | Overview]) -> dict[str, list[list[int | None]]]:
    """Return for each token of either of two traces the same token in the other: once for queries, once for keys."""
    a, b = traces
    sides = {"query": (a.tokens, b.tokens), "key": (a.key_axis, b.key_axis)}
    texts = a.text, b.text
    return {
        axis: [aligned_tokens(first, second, *texts), aligned_tokens(second, first, *reversed(texts))]
        for axis, (first, second) in sides.items()
    }


def largest_change(traces: Sequence[Trace | Overview]) -> list[Document]:
    """Return where two traces differ most, by the indices of each; empty if they cannot be compared or do not differ."""
    a, b = traces
    if not isinstance(a, Trace) or not isinstance(b, Trace):
        return []
    try:
        pair = compare_traces(a, b)
    except AttnctlError:  # no common token or head: the page still shows them side by side
        return []
    layer, head, i, j = pair.largest_difference(*pair.telling_place())
    if not pair.gap_of_head((layer, head)):
        return []
    queries, keys = ((i, i), (j, j)) if pair.aligned is None else (pair.aligned.queries[i], pair.aligned.keys[j])
    is_largest = (layer, head) == pair.largest_difference()[:2]
    reason = "the largest change of all" if is_largest else "the largest change of a head that was measured"
    place = {"layer": layer, "head": head, "reason": reason}
    return [place | {"query": query, "key": key} for query, key in zip(queries, keys, strict=True)]


def trace_names(traces: Sequence[Trace | Overview]) -> list[str]:
    """Return names for several traces: the models, the texts, the measures, or the first setting in which all differ.

    The page puts A and B before the names of two.
    """
    texts = [shortened(visible_text(trace.text), NAME_LETTERS, close=True) for trace in traces]
    candidates = [[trace.model.name for trace in traces], texts, [measure_text(trace.measure) for trace in traces]]
    for setting in ("seed", "scale", "temperature", "causal", "n_heads", "d_k", "positions", "rope_theta"):
        candidates.append([f"{setting} {getattr(trace.model, setting)}" for trace in traces])
    candidates.append(["first", "second"] if len(traces) == 2 else [str(number) for number in range(len(traces))])
    return next(names for names in candidates if len(set(names)) == len(names))


def tab_title(traces: Sequence[Trace | Overview]) -> str:
    """Return the title of the browser's tab."""
    text = visible_text(traces[0].text) or traces[0].model.name
    return f"{shortened(text, 81)} · attnctl"


def page_in_frame(trace: Trace) -> str:
    """Return the page inside an <iframe>, as a notebook shows it, without access to the notebook's own page.

    For a trace that is too large for a notebook, return one line that says so and what to do.
    """
    count = sum(layer.weights.size for layer in trace.layers if layer.weights is not None)
    if count == 0 or count > NOTEBOOK_BYTES // 2:
        reason = (
            f"{tab_title([trace])}: {count:,} weights; too many to show here, see attnctl view"
            if count
            else "no weights"
        )
        return f"<p>{html.escape(reason)}</p>"
    return framed_page(page_html([trace], max_bytes=NOTEBOOK_BYTES))
