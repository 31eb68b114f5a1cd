"""Makes the reference of the Python package, `attnctl/docs/python.md`, from signatures and docstrings.

`python -m tests.tools.documentation python` writes it. It is stored, as to read the signatures is to import torch and
transformers: ten times what the page takes to be shown.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import attnctl
from attnctl.commands.docs.references import as_markdown
from attnctl.trace.subject import HasSubject, HoldsSubject
from tests.tools.documentation.examples import ROOT

PAGE = ROOT / "attnctl/docs/python.md"
LONGEST_SIGNATURE = 88  # characters, beyond which each parameter has a line of its own


def python_page() -> str:
    """The Markdown of the reference of the package."""
    parts = ["# Python", "```python\nimport attnctl\n```"]
    for name in attnctl.__all__:
        if name.startswith("__"):
            continue
        try:
            parts += object_section(name, getattr(attnctl, name))
        except ModuleNotFoundError as error:
            parts += [f"## {name}", f"Needs {error.name}, which is not installed here."]
    return "\n\n".join(parts) + "\n"


def object_section(name: str, thing: Any) -> list[str]:
    """The Markdown of one function, or of one class with what it has."""
    if not inspect.isclass(thing):
        return [f"## {name}", code(f"attnctl.{name}", thing), docstring(thing)]
    parts = [f"## {name}"]
    if not issubclass(thing, Exception):
        parts.append(code(f"attnctl.{name}", thing))
    parts.append(docstring(thing))
    # trace.text, trace.tokens, …
    of_subject = {**vars(HasSubject), **vars(HoldsSubject)} if issubclass(thing, HoldsSubject) else {}
    for own, member in (dict(of_subject) | dict(vars(thing))).items():
        if own.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            parts += [f"### {name}.{own}", docstring(member)]
        elif callable(plain := getattr(member, "__func__", member)):
            parts += [f"### {name}.{own}", code(f"{name.lower()}.{own}", plain), docstring(plain)]
    return parts


class _Unquoted(str):
    """An annotation, which a signature shows as the source writes it."""

    __repr__ = str.__str__


def code(name: str, thing: Callable[..., object]) -> str:
    """The signature of a function as a block of code: one line, or a line a parameter."""

    def unquoted(annotation: object) -> object:
        return _Unquoted(annotation) if isinstance(annotation, str) else annotation

    signature = inspect.signature(thing)
    kept = [parameter for own, parameter in signature.parameters.items() if own not in ("self", "cls")]
    written = [str(parameter.replace(annotation=unquoted(parameter.annotation))) for parameter in kept]
    kinds = [parameter.kind for parameter in kept]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        written.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    answer = signature.return_annotation
    none = answer in (signature.empty, None, "None")
    ending = ")" if none else f") -> {inspect.formatannotation(unquoted(answer))}"
    line = f"{name}({', '.join(written)}{ending}"
    if len(line) > LONGEST_SIGNATURE:
        line = "\n".join((f"{name}(", *(f"    {one}," for one in written), ending))
    return f"```python\n{line}\n```"


def docstring(thing: object) -> str:
    """A docstring as Markdown; doctests, and paragraphs indented throughout or aligned in columns, as blocks of code."""
    parts = [part.strip("\n") for part in re.split(r"\n\s*\n", inspect.getdoc(thing) or "")]
    return "\n\n".join(_paragraph(part) for part in parts)


def _paragraph(part: str) -> str:
    lines = part.splitlines()
    if part.lstrip().startswith(">>>"):
        return f"```pycon\n{part.strip()}\n```"
    if len(lines) > 1 and all(re.search(r"\S {2,}\S", line) or line.startswith("  ") for line in lines):
        return f"```text\n{inspect.cleandoc(part)}\n```"
    return as_markdown(part)
