"""Write one HTML file that needs nothing else: no network, no build step, no other file.

The browser runs only the script and the style whose hashes are in the file, and opens no connection. The page of a trace
is in `trace_page.py`, that of another reading in `reading_pages.py`.
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

from attnctl.render import forms
from attnctl.text import Document, harmless_text


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


class Page(str):
    """The HTML of a page: text that can be written to a file, and that a notebook shows in a frame."""

    def _repr_html_(self) -> str:
        """Return the page in a frame, without access to the notebook's own page."""
        return framed_page(self)


def framed_page(page: str) -> str:
    """Return a page inside an <iframe>, without access to the page around it."""
    return (
        f'<iframe srcdoc="{html.escape(page, quote=True)}" sandbox="allow-scripts allow-downloads" '
        f'title="attention, by attnctl" style="width:100%;height:{FRAME_HEIGHT}px;border:0"></iframe>'
    )
