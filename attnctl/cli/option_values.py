"""Options that stand in a table or in a class, given to a command as if they were its own parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import get_type_hints

CommandFunction = Callable[..., None]

SWITCHES = ("no_scale", "rope", "no_colorbar", "renormalise", "words")  # options of tables that are on or off


def with_options(options: Mapping[str, object]) -> Callable[[CommandFunction], CommandFunction]:
    """Give a command that takes `**options` each of these options (name → annotation) as a keyword."""

    def with_extra_options(command: CommandFunction) -> CommandFunction:
        own = inspect.signature(command, eval_str=True)
        parameters = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters += [_keyword(name, kind, False if name in SWITCHES else None) for name, kind in options.items()]
        _set_signature(command, own.replace(parameters=parameters))
        return command

    return with_extra_options


def with_values(**classes: Callable[..., object]) -> Callable[[CommandFunction], CommandFunction]:
    """Give a command a value of each of these classes, made of options: one a field, declared as a parameter would be.

    A field's type is `Annotated` with a typer.Option; its default is the option's.
    """

    def with_field_options(command: CommandFunction) -> CommandFunction:
        own = inspect.signature(command, eval_str=True)
        fields = {name: _field_parameters(kind) for name, kind in classes.items()}

        @wraps(command)
        def gather_values(**given: object) -> None:
            values = {
                name: classes[name](**{field.name: given.pop(field.name) for field in fields[name]}) for name in classes
            }
            command(**given, **values)

        parameters: list[inspect.Parameter] = []
        for name, parameter in own.parameters.items():
            parameters += fields.get(name, [parameter])
        _set_signature(gather_values, own.replace(parameters=parameters))
        return gather_values

    return with_field_options


def _field_parameters(kind: Callable[..., object]) -> list[inspect.Parameter]:
    """The fields of a dataclass or NamedTuple as keywords."""
    hints, made = get_type_hints(kind, include_extras=True), inspect.signature(kind)
    return [_keyword(name, hints[name], field.default) for name, field in made.parameters.items()]


def _keyword(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _set_signature(command: CommandFunction, signature: inspect.Signature) -> None:
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {"return": None}
