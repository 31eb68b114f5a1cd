"""Completion of what an option takes: models, steps, measures, maps, and the tokens of the text that is typed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attnctl.cli import help_text

if TYPE_CHECKING:
    from typer._click.core import Command as ClickCommand
    from typer._click.core import Context, Parameter

    from attnctl.cli.session import Session

# the colour maps of matplotlib that grids of weights are drawn in most; a test holds that it has them
MAPS = (
    "viridis", "cividis", "magma", "inferno", "plasma", "Greys", "Blues", "Greens", "Oranges", "Purples", "Reds", "YlGnBu",
    "gray", "bone", "hot", "cubehelix",
)  # fmt: skip
DEVICES = ("auto", "cpu", "cuda", "mps")

LISTS = ("steps", "query", "formats", "drop")  # options whose values may stand in a list, with commas between them

COMMANDS = tuple(name for commands in help_text.COMMANDS.values() for name in commands)

Values = Callable[[str], Iterable[str]]


def values_of(option: str, text: str = "") -> list[str]:
    """The values that an option may take, by its name in Python; `text` is what the command asks about."""
    found = _VALUES.get(option.rstrip("_"))
    return [] if found is None else list(found(text))


def completions(option: str, incomplete: str, text: str = "") -> list[str]:
    """The values that begin with `incomplete`; of a list, those that its last part begins with."""
    before, _, last = incomplete.rpartition(",") if option in LISTS else ("", "", incomplete)
    lead = f"{before}," if before else ""
    return [lead + value for value in values_of(option, text) if value.casefold().startswith(last.casefold())]


def complete_parameter(context: Context, parameter: Parameter, incomplete: str) -> list[str]:
    """The completions of one parameter in a user's own shell (bash, zsh, fish, PowerShell)."""
    given: Mapping[str, object] = context.params
    text = next((str(given[name]) for name in ("source", "text") if given.get(name)), " ".join(context.args))
    return completions(parameter.name or "", incomplete, text)


# --- values by option ----------------------------------------------------------------------------------------


def _models(_: str) -> Iterable[str]:
    from attnctl.models import REGISTRY
    from attnctl.models.huggingface.files.hub import KNOWN

    return [*REGISTRY, *KNOWN]


def _configurations(_: str) -> Iterable[str]:
    from attnctl.models.huggingface.files.configured_sizes import known_configurations

    return known_configurations()


def _steps(_: str) -> Iterable[str]:
    from attnctl.steps import NAMES

    return (*NAMES, "contributions")


def _measures(_: str) -> Iterable[str]:
    from attnctl.readings.measures import MEASURES

    return MEASURES


def _statistics(_: str) -> Iterable[str]:
    from attnctl.readings.statistic_table import STATISTICS

    return STATISTICS


def _spans(_: str) -> Iterable[str]:
    from attnctl.readings.spans import KINDS

    return KINDS


def _tokens(text: str) -> Iterable[str]:
    from attnctl.tokens import split_words

    return dict.fromkeys(token.text for token in split_words(text)[:200])


def _dropped(text: str) -> Iterable[str]:
    return ("first", "special", *_tokens(text))


def _schemas(_: str) -> Iterable[str]:
    from attnctl.formats.schemas.json_schemas import SCHEMAS

    return SCHEMAS


def _commands(_: str) -> Iterable[str]:
    return COMMANDS


def _formats(_: str) -> Iterable[str]:
    from attnctl.cli.commands.models.batch import FORMATS

    return FORMATS


def _fixed(*values: str) -> Values:
    return lambda _: values


_VALUES: dict[str, Values] = {
    "model": _models, "name": _configurations, "steps": _steps, "measure": _measures, "by": _statistics,
    "cmap": _fixed(*MAPS), "query": _tokens, "watch": _tokens, "predict": _tokens, "drop": _dropped, "spans": _spans,
    "positions": _fixed("sinusoidal"), "rope_pairs": _fixed("half", "interleaved"), "device": _fixed(*DEVICES),
    "dtype": _fixed("auto", "float32", "bfloat16", "float16"), "attention": _fixed("encoder", "decoder", "cross"),
    "tokenizer": _fixed("words", "chars"), "pool": _fixed("mean", "max"), "scale": _fixed("auto", "none"),
    "how": _fixed("zero", "mean", "resample"), "engine": _fixed("local", "ray"), "formats": _formats,
    "objective": _fixed("next-word", "masked-word"), "layer": _fixed("all"), "head": _fixed("all"),
    "command": _commands, "schema": _schemas, "a": _models, "b": _models,
}  # fmt: skip


# --- at the prompt of attnctl shell ------------------------------------------------------------------------------


def shell_completions(line: str, here: Session, own: Iterable[str], named: Callable[[str], ClickCommand]) -> list[str]:
    """The completions of the last word of a line at the shell's prompt; `own` are its own words, `named` knows commands."""
    parts = line.split(" ")
    word, last = parts[0], parts[-1]
    if len(parts) == 1:
        return [name for name in (*COMMANDS, *own) if name.startswith(last)]
    if word == "use":
        return completions("model", last)
    if word not in COMMANDS:
        return []
    command = named(word)
    flags = {flag: parameter for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    before = flags.get(parts[-2])
    if before is not None and not getattr(before, "is_flag", False):
        return completions(before.name or "", last, _text_of(line) or here.text or "")
    if last.startswith("-"):
        return [flag for flag in flags if flag.startswith(last)]
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    return completions(arguments[0].name or "", last) if arguments else []


def _text_of(line: str) -> str:
    """What is quoted in a line: a text of its own."""
    try:
        return next((part for part in shlex.split(line)[1:] if " " in part), "")
    except ValueError:
        return ""


def shell_completer(here: Session, own: Iterable[str], named: Callable[[str], ClickCommand]) -> Any:
    """The completer that prompt_toolkit asks."""
    from prompt_toolkit.completion import Completer, Completion

    class ShellCompleter(Completer):  # type: ignore[misc]
        def get_completions(self, document: Any, _: Any) -> Iterable[Any]:
            last = document.text_before_cursor.split(" ")[-1]
            for value in shell_completions(document.text_before_cursor, here, own, named):
                yield Completion(f'"{value}"' if " " in value else value, -len(last))

    return ShellCompleter()
