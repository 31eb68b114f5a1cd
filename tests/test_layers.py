"""Who may import whom: cli → batching → render, training, models → formats → readings → trace → layer → blockwise → attention; tokens, errors, files by all."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "attnctl"
FILES = sorted(PACKAGE.rglob("*.py"))
SHARED = {
    "argument_types",
    "document_fields",
    "errors",
    "files",
    "interrupts",
    "light_import",
    "limits",
    "named_function",
    "tokens",
    "text",
}
BELOW = {"attention": 0, "arrays": 0.5, "interventions": 0.7, "blockwise": 1, "layer": 1.5, "measures": 1.7, "trace": 1.8, "readings": 2, "formats": 2.5, "source": 2.5,
         "models": 3, "render": 3,
         "training": 4, "batching": 5, "inputs": 6, "pages": 5, "api": 6, "docs": 6.5, "cli": 7, "commands": 7.5, "__init__": 8, "__main__": 8}  # fmt: skip
# the public API is looked up when it is used; pages of the commands are made from their table
BESIDE = {
    ("__init__", "models"),
    ("docs", "cli"),
    ("cli", "commands"),
}  # those of cli/commands are commands, too, until they are moved


def area(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The imports of a file at run time, those inside functions too; those for type checkers do not count."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    guarded = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    typing_only = {id(inner) for node in guarded for inner in ast.walk(node)}
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in typing_only]


def modules_named(path: Path) -> set[str]:
    """Every module and every name of a module that a file imports, dotted."""
    return {
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in imports_of(path)
        for alias in node.names
    }


def test_imports_point_down() -> None:
    for path in FILES:
        own = area(path)
        found = {name.split(".")[1] for name in modules_named(path) if name.startswith("attnctl.")}
        for other in found - {own, "__version__", "call_named", "find_named"}:
            if other in SHARED or (own, other) in BESIDE:
                continue
            assert own not in SHARED, f"{own} is used by all, and imports {other}"
            assert other in BELOW, f"{other} has no place in the order: give it one"
            assert BELOW[other] < BELOW[own] or own in ("__init__", "__main__"), f"{path} imports {other}"
            assert {own, other} != {"models", "render"}, path


def test_attention_imports_the_standard_library_alone() -> None:
    named = {name.split(".")[0] for name in modules_named(PACKAGE / "attention.py")}
    assert named <= {"__future__", "math", "dataclasses", "typing", "array_api_compat"}  # the last for tensors alone


def test_no_import_rings() -> None:
    """No module leads back to itself, imports inside functions counted."""
    modules = {
        ".".join(("attnctl", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in FILES
    }
    graph = {
        name: {inner if inner in modules else inner.rpartition(".")[0] for inner in modules_named(path)} - {name}
        for name, path in modules.items()
    }
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " → ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name] & modules.keys()):
                walk(other, (*way, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def test_what_is_told_and_pages_and_figures_know_no_terminal() -> None:
    """Neither rich nor the terminal's renderers; that forms counts cells by rich does not count."""
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] == "render" and parts[1] in ("told", "figure", "page", "forms.py"):
            named = {name for name in modules_named(path) if name.startswith(("rich", "attnctl.render.terminal"))}
            assert {name.rpartition(".")[0] for name in named} <= ({"rich.cells"} if parts[1] == "forms.py" else set())
