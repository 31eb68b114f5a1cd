"""Write a trace, or several, as one HTML file that needs nothing else: no network, no build step, no other file.

One JSON block holds the texts and sizes; blocks of base64 (deflated) hold the arrays, so that a browser reads one head at
a time. The browser runs only the script and the style whose hashes are in the file, and opens no connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError
from attnctl.readings.comparison import aligned_tokens, compare_traces
from attnctl.readings.overview import Overview
from attnctl.readings.rows import ExactBlock
from attnctl.render import forms
from attnctl.render.page.packing import Blobs, opening_blocks, pack_overview, pack_trace, packed_photograph
from attnctl.text import Document, every_string, harmless_line, harmless_text, shortened, visible_text
from attnctl.trace import Trace

if TYPE_CHECKING:
    from PIL.Image import Image

SCRIPTS = (  # in the order of the page
    "dom.js", "data.js", "colour.js", "state.js", "overview.js", "pen.js", "figure.js", "pointing.js", "heads.js",
    "sentence.js", "row.js", "arithmetic.js", "softmax.js", "matters.js", "save.js", "main.js",
)  # fmt: skip

NAME_LETTERS = 60  # of a text that names one of two traces


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
    """Return names for several traces: the models, or the texts, or the values of the first setting in which all differ."""
    texts = [shortened(visible_text(trace.text), NAME_LETTERS, close=True) for trace in traces]
    candidates = [[trace.model.name for trace in traces], texts]
    for setting in ("seed", "scale", "temperature", "causal", "n_heads", "d_k", "positions", "rope_theta"):
        candidates.append([f"{setting} {getattr(trace.model, setting)}" for trace in traces])
    candidates.append([chr(ord("A") + number) for number in range(len(traces))])
    return next(names for names in candidates if len(set(names)) == len(names))


def tab_title(traces: Sequence[Trace | Overview]) -> str:
    """Return the title of the browser's tab."""
    text = visible_text(traces[0].text) or traces[0].model.name
    return f"{shortened(text, 81)} · attnctl"


def page_colours() -> Document:
    """Return the stops of the colour maps, for a light and a dark page, and the luminance above which ink is dark."""
    maps = {
        "heat": {"light": forms.HEAT_ON_LIGHT, "dark": forms.HEAT_ON_DARK},
        "viridis": {"light": forms.VIRIDIS, "dark": forms.VIRIDIS},
        "cividis": {"light": forms.CIVIDIS, "dark": forms.CIVIDIS},
    }
    return {"maps": maps, "ink": {"luminance": forms.LUMINANCE, "darkFrom": forms.DARK_INK_FROM}}


def document_page(body: str, styles: Sequence[str], scripts: Sequence[str], title: str, cited: str = "") -> str:
    """Return one HTML file that needs no other: `body`, from its <body> on, in the frame that all pages share.

    `styles` and `scripts` name files of `web_source`, in order; the policy allows only these, and no connection.
    """
    style, script = "".join(map(web_source, styles)), "\n".join(map(web_source, scripts))
    return filled_template(
        "document.html",
        title=escaped_html(title),
        cited=escaped_html(cited),
        policy=security_policy(style, script),
        style=style,
        script=script,
        body=body,
    )


def escaped_html(text: str) -> str:
    """Return the text as HTML shows it; control characters and halves of surrogate pairs become visible."""
    return html.escape(harmless_text(text).encode("utf-8", "replace").decode())


def filled_template(name: str, **parts: str) -> str:
    """Return a file of `web_source` with each ${name} in it replaced; the replacements are not searched again."""
    return Template(web_source(name)).substitute(parts)


def security_policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows this script, this style, pictures made by the page, and no connection."""
    return (
        f"default-src 'none'; script-src '{_policy_digest(script)}'; style-src '{_policy_digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _policy_digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_for_script(document: object) -> str:
    """Return JSON for a <script> element: pure ASCII, without characters that HTML could read as markup."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), default=lambda array: array.tolist())
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def web_source(name: str) -> str:
    """Return the text of a file in web/, or of PACKAGE:FILE for a file of a command: a style, a script or a template."""
    package, _, name = name.rpartition(":")
    folder = files(package) if package else files("attnctl.render.page") / "web"
    return (folder / name).read_text(encoding="utf-8")


FRAME_HEIGHT = 760  # pixels
NOTEBOOK_BYTES = 8_000_000  # of a page in a notebook


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
    return _framed(page_html([trace], max_bytes=NOTEBOOK_BYTES))


class Page(str):
    """The HTML of a page: text that can be written to a file, and that a notebook shows in a frame."""

    def _repr_html_(self) -> str:
        """Return the page in a frame, without access to the notebook's own page."""
        return _framed(self)


def _framed(page: str) -> str:
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="allow-scripts allow-downloads" '
        f'title="attention, by attnctl" style="width:100%;height:{FRAME_HEIGHT}px;border:0"></iframe>'
    )
