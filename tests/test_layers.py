"""Who may import whom: cli → batching → render, training, models → formats → readings → blockwise → attention; tokens, errors, files by all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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
BELOW = {"attention": 0, "arrays": 0.5, "interventions": 0.7, "blockwise": 1, "layer": 1.5, "measures": 1.7, "steps": 2, "readings": 2, "formats": 2.5, "source": 2.5,
         "models": 3, "render": 3,
         "training": 4, "batching": 5, "inputs": 6, "pages": 5, "api": 6, "docs": 6.5, "cli": 7, "__init__": 8, "__main__": 8}  # fmt: skip


def area(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, top_only: bool = False) -> set[str]:
    """The parts of attnctl that a file imports at run time; those for type checkers do not count."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in tree.body if top_only else ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attnctl"):
            parts = (node.module or "").split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("attnctl.")}
    return found - {"__version__", "call_named", "find_named"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = area(path)
    for other in imports(path) - {own}:
        if other in SHARED or (own, other) in {
            ("readings", "steps"),
            ("steps", "readings"),
            ("__init__", "models"),
            ("docs", "cli"),
        }:
            continue  # the public API is looked up when it is used; pages of the commands are made from their table
        if own in SHARED and other not in SHARED:
            pytest.fail(f"{own} is used by all, and imports {other}")
        assert other in BELOW, f"{other} has no place in the order: give it one"
        assert BELOW[other] < BELOW[own] or own in ("__init__", "__main__"), f"{own} imports {other}"


def test_attention_imports_the_standard_library_alone() -> None:
    tree = ast.parse((PACKAGE / "attention.py").read_text())
    names = {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)}
    assert names <= {"__future__", "math", "dataclasses", "typing"}


def test_models_and_renderers_never_meet() -> None:
    for path in FILES:
        if area(path) in ("models", "render"):
            other = {"models": "render", "render": "models"}[area(path)]
            assert other not in imports(path), path


def test_no_import_rings() -> None:
    """No module leads back to itself, imports inside functions counted."""
    modules = {
        ".".join(("attnctl", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in FILES
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        typing_only = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and id(node) not in typing_only and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    found.add(inner if inner in modules else node.module)
        graph[name] = (found & modules.keys()) - {name}
    done: set[str] = set()

    def walk(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " → ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*way, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def test_what_is_told_and_pages_and_figures_know_no_terminal() -> None:
    """Neither rich nor the terminal's renderers; that forms counts cells by rich does not count."""
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        if parts[0] == "render" and parts[1] in ("told", "figure", "page", "forms.py"):
            tree = ast.parse(path.read_text())
            nodes = tree.body if parts[1] == "forms.py" else ast.walk(tree)
            named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
            assert not [name for name in named if name.startswith(("rich", "attnctl.render.terminal"))], path
