"""Call a function of the user's own that returns a model: `package.module:function` or `file.py:function`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl.checks.own_functions import may_be_called
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.models.torch.own_errors import own_error
from attnctl.text import visible_text

if TYPE_CHECKING:
    from types import ModuleType

    from attnctl.models.torch.module_model import ModuleModel


def open_function(name: str) -> ModuleModel:
    """Call the function of this name, and return what it returns as a model.

    Raises UsageError unless the user typed the name, or if there is no such file, module or function; OwnCodeError for an
    exception in it; AttnctlError if it returns something else than a module, alone or with a tokenizer or a function.
    """
    if not may_be_called(name):
        raise UsageError(
            f"{visible_text(name[:200])} is a function, which runs code: it is called only where it is typed as "
            f"{option_name('model').rstrip('=')}; in Python call it, and give its module to attnctl.capture",
            value=name,
        )
    place, _, function = name.rpartition(":")
    module = _module_of(place, name)
    build = getattr(module, function, None)
    if not callable(build):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = next(iter(get_close_matches(function, names, 1)), None)
        meant = f": did you mean {near}?" if near else ""
        raise UsageError(f"{place} has no function {function}{meant}", option="model", value=name)
    return model_of_result(_called(name, build), name)


def _module_of(place: str, name: str) -> ModuleType:
    """Return the module of a file, or of a dotted name that is found from the current folder."""
    if not place.lower().endswith(".py"):
        folder = str(Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            return _called(name, lambda: import_module(place))  # type: ignore[no-any-return]
        except ModuleNotFoundError as error:
            if not (error.name and f"{place}.".startswith(f"{error.name}.")):
                raise
            raise UsageError(f"there is no module {error.name}", option="model", value=name) from None
    path = Path(place)
    if not path.is_file():
        raise UsageError(f"there is no file {visible_text(place)}", option="model", value=name)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a script
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{visible_text(place)} cannot be imported", option="model", value=name)
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    load = spec.loader.exec_module
    _called(name, lambda: load(module))
    return module


def _called(name: str, call: Callable[[], Any]) -> Any:
    """Call the user's own code. Raises OwnCodeError with the part of the traceback that is the user's own."""
    try:
        return call()
    except ModuleNotFoundError as error:
        place = name.rpartition(":")[0]
        if error.name and f"{place}.".startswith(f"{error.name}."):
            raise  # the module itself
        raise own_error(name, error) from error
    except Exception as error:
        raise own_error(name, error) from error


def model_of_result(result: object, name: str) -> ModuleModel:
    """Return the model of what a function returned. Raises AttnctlError for anything but what it may return."""
    from torch.nn import Module

    from attnctl.models.torch.module_model import ModuleModel

    parts = result if isinstance(result, tuple) else (result,)
    if not parts or len(parts) > 2 or not isinstance(parts[0], Module):
        found = ", ".join(type(part).__name__ for part in parts)
        raise AttnctlError(
            f"{name} returned {f'({found})' if isinstance(result, tuple) else found}: it returns a torch module, alone or "
            "as (module, tokenizer) or (module, function from a text, or a picture, to inputs)"
        )
    reader = parts[1] if len(parts) == 2 else None
    if reader is not None and not callable(reader) and not hasattr(reader, "encode"):
        raise AttnctlError(f"{name} returned {type(reader).__name__} beside its module: a tokenizer has encode(text)")
    return ModuleModel.of_parts(parts[0].eval(), reader, name)
