"""The references, made from the program itself: of the commands, of Python, and of the files that are written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import attnctl
from attnctl.cli import Command
from attnctl.cli.command_table import COMMANDS, commands_by_heading
from attnctl.formats.documents.schemas import SCHEMAS
from attnctl.text import Document

LONGEST_SIGNATURE = 88  # characters, beyond which each parameter has a line of its own

# --- commands: what their --help says ---


def as_markdown(text: str) -> str:
    """Plain text as Markdown that shows it as it is; what stands between backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<])", r"\\\1", part) for part in parts)


def command_page(name: str) -> str:
    """The Markdown of the reference of one command: what its --help says."""
    command = Command(name)
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join((f"attnctl {name}", *command.collect_usage_pieces(context)))
    about = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    parts = [f"# attnctl {name}", *map(as_markdown, about), f"```text\n{usage}\n```"]
    parts += ["For example", f"```text\n{COMMANDS[name].example}\n```"]
    for heading, rows in command.help_rows(context).items():
        listed = "\n".join(f"- `{flags}`: {as_markdown(' '.join(said.split()))}" for flags, said in rows)
        parts += [f"## {heading}", listed]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """The Markdown of the list of commands."""
    parts = [
        "# Commands",
        "An option means the same in every command that has it. Results go to standard output; progress, notes and errors "
        "to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some items of a batch failed, 130 interrupted.",
    ]
    for heading, commands in commands_by_heading().items():
        rows = "\n".join(f"- [`attnctl {name}`](attnctl-{name}.md): {entry.about}" for name, entry in commands.items())
        parts += [f"## {heading}", rows]
    return "\n\n".join(parts) + "\n"


# --- Python: signatures and docstrings ---


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
    for own, member in vars(thing).items():
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


# --- formats: the JSON Schemas ---

INTRODUCTION = """# Formats

attnctl writes JSON, one document a line. Numbers are the shortest text that reads back to the same float32; no NaN and no
Infinity appears. What a source cannot give is absent, not null. Each document names its schema, as `attnctl.trace/1`; the
number after the slash rises only where a reader of the old one would break. `attnctl schema NAME` prints the JSON Schema
(draft 2020-12), from which this page is made.

An `.npz` file (`explain -o run.npz`) holds the same arrays under the same names, for NumPy. `attnctl.load` reads both, and
so does every command that takes a trace."""


def formats_page() -> str:
    """The Markdown of every format, field by field; a part that several have stands once, at the end."""
    schemas = {name: make() for name, make in SCHEMAS.items()}
    shared = shared_parts(list(schemas.values()))
    parts = [INTRODUCTION, *(schema_section(name, schema, shared) for name, schema in schemas.items())]
    if shared:
        parts.append("## Parts that several formats share")
        parts += [part_described(name, definition) for name, definition in shared.items()]
    return "\n\n".join(parts) + "\n"


def shared_parts(schemas: list[Document]) -> dict[str, Document]:
    """The definitions that more than one schema has, and all alike."""
    found: dict[str, list[Document]] = {}
    for schema in schemas:
        for name, definition in schema.get("$defs", {}).items():
            found.setdefault(name, []).append(definition)
    return {name: same[0] for name, same in found.items() if len(same) > 1 and all(one == same[0] for one in same)}


def schema_section(name: str, schema: Document, shared: dict[str, Document]) -> str:
    """The Markdown of one schema: what it is, its fields, and the parts that it alone has."""
    parts = [f"## {name}", schema.get("description", ""), field_list(schema)]
    own = {part: definition for part, definition in schema.get("$defs", {}).items() if part not in shared}
    parts += [part_described(f"{name}: {part}", definition) for part, definition in own.items()]
    return "\n\n".join(part for part in parts if part)


def part_described(heading: str, definition: Document) -> str:
    """The Markdown of a part that fields name."""
    return "\n\n".join((f"### {heading}", definition["description"], field_list(definition)))


def field_list(schema: Document) -> str:
    """The fields of an object, each with its type, whether it is always there, and what it means."""
    required = schema.get("required", [])
    lines = []
    for name, field in schema.get("properties", {}).items():
        always = "" if name in required else ", optional"
        meaning = f": {field['description']}" if "description" in field else ""
        lines.append(f"- `{name}` ({type_of(field)}{always}){meaning}")
    return "\n".join(lines)


def type_of(field: Document) -> str:
    """The type of a field, in words."""
    if "enum" in field:
        return ("one of " if len(field["enum"]) > 1 else "always ") + ", ".join(
            f"`{choice}`" for choice in field["enum"]
        )
    if "anyOf" in field:
        return " or ".join(map(type_of, field["anyOf"]))
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    kind = field.get("type", "any value")
    if kind == "array" and isinstance(field.get("items"), dict):
        return f"list of {type_of(field['items'])}"
    return " or ".join(kind) if isinstance(kind, list) else {"array": "list"}.get(kind, str(kind))
