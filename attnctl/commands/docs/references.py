"""Make the reference pages from the program: the commands and the file formats."""

from __future__ import annotations

import re
from itertools import groupby

from attnctl.cli import load_command
from attnctl.formats import SCHEMAS
from attnctl.registry import COMMANDS
from attnctl.text import Document

# --- commands: what their --help says ---


def as_markdown(text: str) -> str:
    """Return plain text as Markdown that shows it unchanged; text in backticks stays code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<])", r"\\\1", part) for part in parts)


def command_page(name: str) -> str:
    """Return the reference of one command as Markdown: the text of its --help."""
    command = load_command(name)
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join((f"attnctl {name}", *command.collect_usage_pieces(context)))
    about = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    parts = [f"# attnctl {name}", *map(as_markdown, about), f"```text\n{usage}\n```"]
    parts += ["For example", f"```text\n{command.example}\n```"]
    for heading, rows in command.help_rows(context).items():
        listed = "\n".join(f"- `{flags}`: {as_markdown(' '.join(sentence.split()))}" for flags, sentence in rows)
        parts += [f"## {heading}", listed]
    return "\n\n".join(parts) + "\n"


def commands_page() -> str:
    """Return the list of commands as Markdown."""
    parts = [
        "# Commands",
        "An option means the same in every command that has it. Results go to standard output; progress, notes and errors "
        "to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some items of a batch failed, 4 a check found "
        "something, 130 interrupted.",
    ]
    for panel, commands in groupby(COMMANDS.items(), lambda item: item[1].panel):
        rows = "\n".join(f"- [`attnctl {name}`](attnctl-{name}.md): {listed.about}" for name, listed in commands)
        parts += [f"## {panel}", rows]
    return "\n\n".join(parts) + "\n"


# --- formats: the JSON Schemas ---

INTRODUCTION = """# Formats

attnctl writes JSON, one document a line. Numbers are the shortest text that reads back to the same float32; no NaN and no
Infinity appears. What a source cannot give is absent, not null. Each document names its schema, as `attnctl.trace/1`; the
number after the slash rises only where a reader of the old one would break. `attnctl schema NAME` prints the JSON Schema
(draft 2020-12), from which this page is made.

An `.npz` file (`explain -o run.npz`) holds the same arrays under the same names, for NumPy. `attnctl.load` reads both, and
so does every command that takes a trace."""


def formats_page() -> str:
    """Return every format as Markdown, field by field; parts that several formats share are at the end."""
    schemas = {name: make() for name, make in SCHEMAS.items()}
    shared = shared_parts(list(schemas.values()))
    parts = [INTRODUCTION, *(schema_section(name, schema, shared) for name, schema in schemas.items())]
    if shared:
        parts.append("## Parts that several formats share")
        parts += [part_described(name, definition) for name, definition in shared.items()]
    return "\n\n".join(parts) + "\n"


def shared_parts(schemas: list[Document]) -> dict[str, Document]:
    """Return the definitions that several schemas have in the same form."""
    definitions: dict[str, list[Document]] = {}
    for schema in schemas:
        for name, definition in schema.get("$defs", {}).items():
            definitions.setdefault(name, []).append(definition)
    return {
        name: versions[0]
        for name, versions in definitions.items()
        if len(versions) > 1 and all(version == versions[0] for version in versions)
    }


def schema_section(name: str, schema: Document, shared: dict[str, Document]) -> str:
    """Return one schema as Markdown: its description, its fields, and the parts that only it has."""
    parts = [f"## {name}", schema.get("description", ""), field_list(schema)]
    own_parts = {part: definition for part, definition in schema.get("$defs", {}).items() if part not in shared}
    parts += [part_described(f"{name}: {part}", definition) for part, definition in own_parts.items()]
    return "\n\n".join(part for part in parts if part)


def part_described(heading: str, definition: Document) -> str:
    """Return a part that fields name, as Markdown."""
    return "\n\n".join((f"### {heading}", definition["description"], field_list(definition)))


def field_list(schema: Document) -> str:
    """Return the fields of an object: the type, whether the field is always present, and the meaning."""
    required = schema.get("required", [])
    lines = []
    for name, field in schema.get("properties", {}).items():
        always = "" if name in required else ", optional"
        meaning = f": {field['description']}" if "description" in field else ""
        lines.append(f"- `{name}` ({type_of(field)}{always}){meaning}")
    return "\n".join(lines)


def type_of(field: Document) -> str:
    """Return the type of a field in words."""
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
