"""A package names what is public of it twice, for type checkers and for Python: both lists are one."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import attnctl

PACKAGE = Path(attnctl.__file__).parent
NAMING = [
    ".".join(path.relative_to(PACKAGE.parent).parent.parts)
    for path in sorted(PACKAGE.rglob("__init__.py"))
    if "public_names(" in path.read_text("utf-8")
]


def test_the_packages_that_name_what_is_public() -> None:
    assert {
        "attnctl",
        "attnctl.cli",
        "attnctl.formats",
        "attnctl.readings",
        "attnctl.render",
        "attnctl.watched",
    } <= set(NAMING)


@pytest.mark.parametrize("name", NAMING)
def test_type_checkers_and_python_see_the_same_names(name: str) -> None:
    package = import_module(name)
    read = ast.parse(inspect.getsource(package)).body
    (branch,) = (node for node in read if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {}
    for node in branch.body:
        assert isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names:
            assert alias.asname == alias.name  # which makes it public for a type checker
            seen[alias.name] = node.module
    assert set(seen) | ({"__version__"} if name == "attnctl" else set()) == set(package.__all__) == set(dir(package))
    for word, module in seen.items():
        assert getattr(package, word) is getattr(import_module(module), word), word
    assert not {module.name for module in pkgutil.iter_modules(package.__path__)} & set(seen)
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'gone'"):
        getattr(package, "gone")  # noqa: B009


@pytest.mark.parametrize("name", NAMING)
def test_what_is_public_is_described(name: str) -> None:
    package = import_module(name)
    for word in package.__all__:
        value = getattr(package, word)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{word}"
