"""A trace, or several, as one HTML file that needs nothing else: no network, no build step, no other file.

The texts and sizes stand in one JSON block, the arrays in blocks of base64 (deflated), so that a browser reads one head at
a time. It runs the script and the style whose hashes the file names, and nothing else, and connects nowhere.
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
from attnctl.render.page.packing import Blobs, pack_overview, pack_trace, packed_photograph
from attnctl.text import Document, every_string, harmless_text, shortened, visible_text
from attnctl.trace import Trace

if TYPE_CHECKING:
    from PIL.Image import Image

SCRIPTS = (  # in the order in which they stand in the page
    "dom.js", "data.js", "colour.js", "state.js", "overview.js", "pen.js", "figure.js", "pointing.js", "heads.js",
    "sentence.js", "row.js", "arithmetic.js", "softmax.js", "matters.js", "save.js", "main.js",
)  # fmt: skip

NAME_LETTERS = 60  # of a text, where it names one of two traces


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
    """The HTML of one trace, of two side by side with their difference, of the steps of a training run, or of one overview.

    `labels` None: named by what the traces differ in. `start` says what is chosen at first (`layer`, `head`, `query`, `key`:
    numbers); `effects`, a document of attnctl.effects/1, shades the tokens by what they do for a prediction. `photographs`
    are those whose patches the tokens of a trace are. Exact float32
    where that stays small, otherwise as fine as `max_bytes` of HTML allow; the page says which.
    """
    blobs = Blobs()
    budget = max_bytes // len(traces)  # bytes of base64 for the weights of each, and twice what the rest may take
    names = trace_names(traces) if labels is None else list(labels)
    compared = len(traces) == 2 and not over_training
    packed = [
        pack_overview(trace, name, blobs, exact)
        if isinstance(trace, Overview)
        else pack_trace(trace, name, blobs, budget, walked=not over_training or at == 0)
        for at, (trace, name) in enumerate(zip(traces, names, strict=True))
    ]
    for one, photograph in zip(packed, photographs, strict=False):
        if photograph is not None:
            one["photograph"] = packed_photograph(photograph)
    for one, place in zip(packed, largest_change(traces) if compared else [], strict=False):
        one["focus"] = place
    document = {
        "schema": "attnctl.page/1",
        "mode": "steps" if over_training else "compare" if compared else "one",
        "traces": packed,
        "aligned": aligned(traces) if compared else None,
        "start": start or {},
        "effects": effects,
    }
    cited = "; ".join(dict.fromkeys(trace.cited for trace in traces))
    data = as_data(every_string(document | page_colours(), harmless_text))
    # elements that no browser runs
    elements = (f'<script type="text/plain" id="b{at}">{block}</script>' for at, block in enumerate(blobs.blocks))
    body = filled_template("page.html", data=data, blobs="\n".join(elements), cited=escaped_html(cited))
    return document_page(body, ["page.css"], SCRIPTS, title or tab_title(traces), cited)


def aligned(traces: Sequence[Trace | Overview]) -> dict[str, list[list[int | None]]]:
    """Of two traces, for each token of either the same one of the other: of the queries, and of the keys."""
    a, b = traces
    sides = {"query": (a.tokens, b.tokens), "key": (a.key_axis, b.key_axis)}
    texts = a.text, b.text
    return {
        axis: [aligned_tokens(ours, theirs, *texts), aligned_tokens(theirs, ours, *reversed(texts))]
        for axis, (ours, theirs) in sides.items()
    }


def largest_change(traces: Sequence[Trace | Overview]) -> list[Document]:
    """Where two traces differ most, in the numbers of either; empty where nothing can be compared, or is other."""
    a, b = traces
    if not isinstance(a, Trace) or not isinstance(b, Trace):
        return []
    try:
        pair = compare_traces(a, b)
    except AttnctlError:  # no token or head of both: side by side they are shown all the same
        return []
    layer, head, i, j = pair.largest_difference()
    if not pair.gap_of_head((layer, head)):
        return []
    queries, keys = ((i, i), (j, j)) if pair.aligned is None else (pair.aligned.queries[i], pair.aligned.keys[j])
    place = {"layer": layer, "head": head, "reason": "the largest change of all"}
    return [place | {"query": query, "key": key} for query, key in zip(queries, keys, strict=True)]


def trace_names(traces: Sequence[Trace | Overview]) -> list[str]:
    """What to call each of several traces: by model, or by text, or by the first setting in which they differ."""
    texts = [shortened(visible_text(trace.text), NAME_LETTERS, close=True) for trace in traces]
    ways = [[trace.model.name for trace in traces], texts]
    for setting in ("seed", "scale", "temperature", "causal", "n_heads", "d_k", "positions", "rope_theta"):
        ways.append([f"{setting} {getattr(trace.model, setting)}" for trace in traces])
    ways.append([chr(ord("A") + at) for at in range(len(traces))])
    return next(names for names in ways if len(set(names)) == len(names))


def tab_title(traces: Sequence[Trace | Overview]) -> str:
    """The title of the browser's tab."""
    text = visible_text(traces[0].text) or traces[0].model.name
    return f"{shortened(text, 81)} · attnctl"


def page_colours() -> Document:
    """The colour maps, as stops, for a light and a dark page; and by which luminance ink on them is chosen."""
    maps = {
        "heat": {"light": forms.HEAT_ON_LIGHT, "dark": forms.HEAT_ON_DARK},
        "viridis": {"light": forms.VIRIDIS, "dark": forms.VIRIDIS},
        "cividis": {"light": forms.CIVIDIS, "dark": forms.CIVIDIS},
    }
    return {"maps": maps, "ink": {"luminance": forms.LUMINANCE, "darkFrom": forms.DARK_INK_FROM}}


def document_page(body: str, styles: Sequence[str], scripts: Sequence[str], title: str, cited: str = "") -> str:
    """One HTML file that needs no other: `body`, from its <body> on, in the frame that every page has.

    `styles` and `scripts` are files as of `web_source`, in their order; the policy allows these alone, and no connection.
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
    """The text as HTML shows it, its control characters and halves of surrogate pairs visible."""
    return html.escape(harmless_text(text).encode("utf-8", "replace").decode())


def filled_template(name: str, **parts: str) -> str:
    """A file as of `web_source` with each ${name} in it put in; what was put in is never searched again."""
    return Template(web_source(name)).substitute(parts)


def security_policy(style: str, script: str) -> str:
    """A Content-Security-Policy: this script, this style, pictures made by the page itself, and no connection at all."""
    return (
        f"default-src 'none'; script-src '{_policy_digest(script)}'; style-src '{_policy_digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _policy_digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def as_data(document: object) -> str:
    """JSON that may stand inside a <script> element: pure ASCII, and no sign that HTML could read as its own."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), default=lambda array: array.tolist())
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def web_source(name: str) -> str:
    """A file of web/, or PACKAGE:FILE of a command: a style, a script, a template."""
    package, _, name = name.rpartition(":")
    folder = files(package) if package else files("attnctl.render.page") / "web"
    return (folder / name).read_text(encoding="utf-8")


FRAME_HEIGHT = 760  # pixels


def page_in_frame(trace: Trace, height: int = FRAME_HEIGHT, max_bytes: int = 8_000_000) -> str:
    """The page inside an <iframe>, as a notebook shows it. Sealed off from the notebook's own page.

    A trace too large to be kept in a notebook is named, with what to do about it.
    """
    count = sum(layer.weights.size for layer in trace.layers if layer.weights is not None)
    if count == 0 or count > max_bytes // 2:
        said = (
            f"{tab_title([trace])}: {count:,} weights; too many to show here, see attnctl view"
            if count
            else "no weights"
        )
        return f"<p>{html.escape(said)}</p>"
    return _framed(page_html([trace], max_bytes=max_bytes), height)


class Page(str):
    """The HTML of a page: a text to write, which a notebook shows in a frame."""

    def _repr_html_(self) -> str:
        """Return the page in a frame, sealed off from the notebook's own page."""
        return _framed(self, FRAME_HEIGHT)


def _framed(page: str, height: int) -> str:
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="allow-scripts allow-downloads" '
        f'title="attention, by attnctl" style="width:100%;height:{height}px;border:0"></iframe>'
    )
