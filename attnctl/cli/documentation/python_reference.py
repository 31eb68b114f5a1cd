"""The reference of the Python package, made from signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

LONGEST_SIGNATURE = 88  # characters, beyond which each parameter has a line of its own


def python_page() -> str:
    """The Markdown of the reference of the package."""
    import attnctl

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
    for own, member in vars(thing).items():
        if own.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            parts += [f"### {name}.{own}", docstring(member)]
        elif callable(plain := getattr(member, "__func__", member)):
            parts += [f"### {name}.{own}", code(f"{name.lower()}.{own}", plain), docstring(plain)]
    return parts


def code(name: str, thing: Callable[..., object]) -> str:
    """The signature of a function as a block of code: one line, or a line a parameter."""
    called = inspect.signature(thing)
    kept = [parameter for own, parameter in called.parameters.items() if own not in ("self", "cls")]
    written = separated(kept)
    answer = (
        "" if called.return_annotation in (called.empty, None, "None") else f" -> {type_name(called.return_annotation)}"
    )
    line = f"{name}({', '.join(written)}){answer}"
    if len(line) > LONGEST_SIGNATURE:
        line = "\n".join((f"{name}(", *(f"    {one}," for one in written), f"){answer}"))
    return f"```python\n{line}\n```"


def separated(parameters: list[inspect.Parameter]) -> list[str]:
    """Parameters as they are written, `*` before the first that is given by keyword alone."""
    written, starred = [], False
    for parameter in parameters:
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            written.append("*")
            starred = True
        written.append(as_written(parameter))
    return written


def as_written(parameter: inspect.Parameter) -> str:
    """One parameter: its name, type and default."""
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    stars = next((mark for kind, mark in marks.items() if parameter.kind is kind), "")
    typed = "" if parameter.annotation is parameter.empty else f": {type_name(parameter.annotation)}"
    equals = " = " if typed else "="
    default = "" if parameter.default is parameter.empty else f"{equals}{parameter.default!r}"
    return f"{stars}{parameter.name}{typed}{default}"


def type_name(annotation: object) -> str:
    """A type as the source writes it."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def docstring(thing: object) -> str:
    """A docstring as Markdown, its doctests as blocks of code."""
    from attnctl.cli.documentation.command_reference import as_markdown

    parts = [part.strip("\n") for part in re.split(r"\n\s*\n", inspect.getdoc(thing) or "")]
    return "\n\n".join(
        f"```pycon\n{part.strip()}\n```"
        if part.lstrip().startswith(">>>")
        else indented_as_code(part, as_markdown(part))
        for part in parts
    )


def indented_as_code(part: str, markdown: str) -> str:
    """A paragraph as Markdown; one that is indented throughout, or aligned in columns, as a block of code."""
    lines = part.splitlines()
    aligned = len(lines) > 1 and all(re.search(r"\S {2,}\S", line) or line.startswith("  ") for line in lines)
    return f"```text\n{inspect.cleandoc(part)}\n```" if aligned else markdown
