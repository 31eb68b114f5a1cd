"""Import only what is needed: functions by name, and transformers without parts that no forward pass needs.

To import one architecture, transformers 5 imports torch's compiler and its distributed tensors, and SciPy and scikit-learn
if they are installed (for losses, and for sampling): more than half of the time of its import. Here a stand-in replaces
the compiler until that import is done (transformers only wants to mark functions that the compiler should leave alone).
The other packages are reported as not installed, as on a machine without them.

Where torch registers operators of its own, it asks for the file, the line and the module. To answer, Python resolves the
path of every module that is imported by then. Here the frame itself answers.

torch's optimizers import that compiler at their first step, and a layer norm on the meta device at its first call, to tell
it to leave them alone. Here the stand-in answers.

To list its models, transformers 5 reads each of its files twice, line by line. Here each is read once, from `__all__` on.

torch 2.13 computes the shapes that operations return in C++, and again in Python, with SymPy, for its compiler. Networks are
laid out by shapes before they have weights. Here the shapes of C++ are used, and those of Python only if C++ has none.

The system takes 0.2 s to load torch's largest library, and needs none of Python's lock for it. Here a second thread loads it
beside other imports.

The gguf library imports all of its modules, and theirs, for one of them. Here one is imported.

Typer's help imports Rich's Markdown and tracebacks, with their parsers, and uses neither for a help without Markdown. Here
they are imported when they are first used.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread
from types import FrameType, ModuleType
from typing import Any, TypeVar

from attnctl.errors import AttnctlError
from attnctl.runtime import core_count

Result = TypeVar("Result")

alone = False  # whether this process belongs to attnctl: set at the start of the program, or of a worker

TESTED = {
    "transformers": ("5.23.", "5.24."),
    "torch": ("2.13.",),
}  # other versions are imported as usual
ABSENT = ("is_torch_distributed_available", "is_scipy_available", "is_sklearn_available")

LISTING = "transformers.utils.import_utils"  # the module that lists its models
SHAPES = "torch._meta_registrations"  # the shapes of operations, in Python
COMPILER = "torch._dynamo"
# decorators that only the compiler reads, and a mark within a function
MARKS = ("disable", "allow_in_graph", "assume_constant_result", "graph_break")
LATE = {"_trace_wrapped_higher_order_op": ("TransformGetItemToIndex",)}  # submodule → names that are imported from it


@contextmanager
def without_collections() -> Iterator[None]:
    """Within this context no garbage is collected, and what it made is left out of later collections.

    What an import makes lives on, and each collection would walk through it.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def import_lightly(load: Callable[[], Result]) -> Result:
    """Return the result of `load`, which imports an architecture of transformers and builds it. Raises the errors of `load`.

    If other code runs in this process, with versions not in TESTED, or if transformers or the compiler are imported already,
    `load` is only called.
    """
    at_work = "transformers.modeling_utils" in sys.modules or COMPILER in sys.modules
    if not alone or at_work or not are_tested():
        return _load_by_any_shapes(load)
    before = set(sys.modules)
    utils = (import_module("transformers.utils.import_utils"), import_module("transformers.utils"))
    functions = [(module, name, getattr(module, name)) for module in utils for name in ABSENT if hasattr(module, name)]
    for module, name, _ in functions:
        setattr(module, name, lambda: False)
    try:
        with _stand_in_for_compiler(), without_collections():
            return load()
    except AttnctlError:
        raise
    except Exception:  # transformers needs more here than expected, or the import fails in any case
        for name in set(sys.modules) - before:
            if name.startswith("transformers."):
                del sys.modules[name]
    finally:
        for module, name, function in functions:
            setattr(module, name, function)
    complete_torch()
    return load()


def _load_by_any_shapes(load: Callable[[], Result]) -> Result:
    """Return the result of `load`; import the shapes that `light_torch` left out if it needs them."""
    try:
        return load()
    except NotImplementedError:
        if SHAPES in sys.modules:
            raise
    complete_torch()
    return load()


def complete_torch() -> None:
    """Import what `light_torch` left out."""
    if "torch" in sys.modules:
        import_module(SHAPES)


@functools.cache
def version(name: str) -> str:
    """Return the version of an installed distribution."""
    from importlib import metadata  # takes a tenth of the start with a short text

    return metadata.version(name)


def are_tested(*names: str) -> bool:
    """Return whether the installed versions are those that the tests cover; of these distributions, or of all."""
    return all(version(name).split("+")[0].startswith(TESTED[name]) for name in names or TESTED)


@contextmanager
def quick_listing() -> Iterator[None]:
    """Within this context, `import transformers` lists its models in a tenth of the time: the same list, the same files."""
    if not alone or "transformers" in sys.modules or not are_tested():
        yield
        return
    sys.meta_path.insert(0, _ListingFinder)
    try:
        with without_collections():
            yield
    finally:
        sys.meta_path.remove(_ListingFinder)


class _ListingFinder:
    """A finder of only the module that lists transformers' models."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == LISTING else None
        if spec is not None and spec.origin is not None:
            spec.loader = _ListingLoader(name, spec.origin)
        return spec


class _ListingLoader(SourceFileLoader):
    """A loader of that module, with a quicker search for `__all__` and a cache of the folders that it reads."""

    def exec_module(self, module: Any) -> None:
        super().exec_module(module)
        plain = module.fetch__all__  # searches for the last line that begins with __all__
        module.fetch__all__ = lambda content: plain(content[content.rfind("\n__all__") + 1 :])
        folder = module.create_import_structure_from_path
        module.create_import_structure_from_path = functools.cache(folder.__wrapped__)


def import_part(name: str) -> Any:
    """Import a module of a package without the package's own `__init__`, which runs when something else of it is asked for.

    That of the gguf library imports a reader of YAML, SentencePiece and progress bars. Raises ImportError if it is missing.
    """
    package = name.partition(".")[0]
    spec = find_spec(package) if alone and package not in sys.modules else None
    if spec is not None:
        stand_in = ModuleType(package)
        stand_in.__spec__, stand_in.__path__ = spec, list(spec.submodule_search_locations or ())
        setattr(stand_in, "__getattr__", functools.partial(_of_whole_package, stand_in))  # noqa: B010
        sys.modules[package] = stand_in
    return import_module(name)


class _Late(type):
    """The type of a class that stands for another one, whose module is imported where it is first used."""

    target: str  # "module:class"

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return resolve_name(cls.target)(*arguments, **options)

    def __getattr__(cls, name: str) -> Any:
        return getattr(resolve_name(cls.target), name)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, resolve_name(cls.target))


UNUSED_IN_HELP = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}


def help_renderer() -> Any:
    """Return typer.rich_utils, imported without Rich's Markdown and tracebacks if this process belongs to attnctl."""
    name = "typer.rich_utils"
    late = {} if not alone or name in sys.modules else UNUSED_IN_HELP
    stand_ins = {module: ModuleType(module) for module in late if module not in sys.modules}
    for module, stand_in in stand_ins.items():
        setattr(stand_in, late[module], _Late(late[module], (), {"target": f"{module}:{late[module]}"}))
    sys.modules.update(stand_ins)
    try:
        return import_module(name)
    finally:
        for module in stand_ins:
            del sys.modules[module]


def _of_whole_package(stand_in: ModuleType, name: str) -> Any:
    """Return an attribute of the package that a stand-in stands for, which is now imported."""
    package = str(stand_in.__name__)
    if name.startswith("__"):  # asked by the import system
        raise AttributeError(name)
    if sys.modules.get(package) is stand_in:
        del sys.modules[package]
        whole = import_module(package)
        for key, part in list(sys.modules.items()):
            if key.rpartition(".")[0] == package:
                setattr(whole, key.rpartition(".")[2], part)
    return getattr(sys.modules[package], name)


@contextmanager
def light_torch() -> Iterator[None]:
    """Within this context, `import torch` leaves out the shapes of operations in Python: a sixth of its time."""
    if not alone or "torch" in sys.modules or not are_tested():
        yield
        return
    sys.modules[SHAPES] = stand_in = ModuleType(SHAPES)
    sys.meta_path.insert(0, _CompilerFinder)
    of_frame, inspect.getframeinfo = inspect.getframeinfo, _place_of_frame
    of_object, inspect.getmodule = inspect.getmodule, functools.partial(_module_of, inspect.getmodule)
    try:
        with without_collections():
            yield
    finally:
        inspect.getframeinfo, inspect.getmodule = of_frame, of_object
        if sys.modules.get(SHAPES) is stand_in:
            del sys.modules[SHAPES]


def begin_torch(before: Sequence[str] = ()) -> None:
    """Begin to load torch's largest library in a second thread, if a core is free for it; import the modules `before` first.

    The system's loader needs none of Python's lock, but serves one thread at a time: the calling thread gains if it needs no
    other compiled module meanwhile. The library is loaded as torch itself loads it, after the one whose names are global.
    What cannot be loaded here is left to `import torch`.
    """
    spec = find_spec("torch") if alone and "torch" not in sys.modules and sys.platform == "linux" else None
    if spec is None or spec.origin is None or core_count() < 2:
        return
    folder = Path(spec.origin).parent / "lib"
    for name in before:
        with suppress(ImportError):  # whoever needs it says so
            import_module(name)

    def load() -> None:
        from ctypes import CDLL, c_char_p, c_int

        with suppress(AttributeError, OSError):
            load_library = CDLL(None).dlopen
            load_library.argtypes = [c_char_p, c_int]
            for name, mode in (("libtorch_global_deps.so", os.RTLD_GLOBAL), ("libtorch_cpu.so", os.RTLD_LOCAL)):
                load_library(bytes(folder / name), os.RTLD_NOW | mode)

    Thread(target=load, name="load torch").start()


def _place_of_frame(frame: Any, context: int = 1) -> inspect.Traceback:
    """Return the file and the line of a frame, without its source."""
    code = frame.f_code
    return inspect.Traceback(code.co_filename, frame.f_lineno, code.co_name, None, None)


def _module_of(usual: Callable[..., ModuleType | None], place: Any, *more: Any) -> ModuleType | None:
    """Return the module of an object as `usual` does; of a frame by its name, not by its file among those of all modules."""
    if isinstance(place, FrameType):
        return sys.modules.get(place.f_globals.get("__name__", ""))
    return usual(place, *more)


class _CompilerFinder:
    """A finder that completes torch before its real compiler is imported, which needs the shapes; it finds no module."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None) -> None:
        if name == COMPILER:
            sys.meta_path.remove(cls)
            complete_torch()


@contextmanager
def without_compiler() -> Iterator[None]:
    """Within this context, torch's own functions do not import its compiler, which takes longer than torch itself."""
    if not alone or COMPILER in sys.modules or not are_tested("torch"):
        yield
        return
    with _stand_in_for_compiler():
        yield


@contextmanager
def _stand_in_for_compiler() -> Iterator[None]:
    """Within this context, an import of torch's compiler returns a stand-in."""
    import torch

    stand_ins = {COMPILER: ModuleType(COMPILER)}
    stand_ins[COMPILER].__path__ = []
    for name in MARKS:
        setattr(stand_ins[COMPILER], name, _unchanged)
    for part, names in LATE.items():
        module = stand_ins[f"{COMPILER}.{part}"] = ModuleType(f"{COMPILER}.{part}")
        for name in names:
            setattr(module, name, functools.partial(_call_late, f"{module.__name__}:{name}"))
    sys.modules.update(stand_ins)
    torch._dynamo = stand_ins[COMPILER]
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]
        del torch._dynamo  # torch imports the real one when it is needed


def _call_late(target: str, /, *arguments: object, **options: object) -> Any:
    """Call the function that "module:function" names; its module is imported now."""
    return resolve_name(target)(*arguments, **options)


def _unchanged(function: Any = None, *_: object, **__: object) -> Any:
    """Return the function that is decorated, or a decorator that does; arguments are ignored."""
    return _unchanged if function is None else function
