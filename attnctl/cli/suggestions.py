"""Complete the values of options, in the user's shell and in `attnctl shell`; suggest the nearest name."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from typer import Context

if TYPE_CHECKING:
    from typer._click.core import Context as ClickContext

COMPLETED_SHELL = "_ATTNCTL_COMPLETE"  # a variable that a user's shell sets while it completes a line
WORDS, WORD = (
    "COMP_WORDS",
    "COMP_CWORD",
)  # variables of bash: the words of the line, and the number of the one being typed
TEXT_WORDS = "the words of the text"  # a placeholder in the values of an option


def suggest_choice(name: str, choices: Iterable[str]) -> str:
    """Return the end of a sentence that suggests the nearest choice, ": did you mean layer?"; "" if no choice is near."""
    matches = get_close_matches(name.casefold(), list(choices), 1, 0.6)
    return f": did you mean {matches[0]}?" if matches else ""


def named_values(values: Iterable[str], text: str = "") -> list[str]:
    """Return values, with "module:attribute" replaced by that table's values and TEXT_WORDS by the words of the text.

    "{attnctl.measures}" is replaced by the names that packages add, without those that cannot be imported.
    """
    from attnctl.plugins import names_from_packages
    from attnctl.text.tokens import split_words

    names: list[str] = []
    for value in values:
        if value == TEXT_WORDS:
            names += dict.fromkeys(token.text for token in split_words(text)[:200])
        elif value.startswith("{"):
            names += names_from_packages(value[1:-1], warn=False)
        elif ":" in value:
            table = resolve_name(value)
            names += table() if callable(table) else table
        else:
            names.append(value)
    return names


def _beginning_with(values: Iterable[str], incomplete: str, joined: bool) -> list[str]:
    """Return the values that begin with `incomplete`; if `joined`, those that begin with its part after the last comma."""
    before, _, last = incomplete.rpartition(",") if joined else ("", "", incomplete)
    lead = f"{before}," if before else ""
    return [lead + value for value in values if value.casefold().startswith(last.casefold())]


def completing(*values: str, joined: bool = False) -> Callable[[Context, str], list[str]]:
    """Return the `autocompletion` of an option that takes these values, as `named_values` reads them.

    With `joined` several values may be given, with commas between them.
    """

    def complete(ctx: Context, incomplete: str) -> list[str]:
        return _beginning_with(named_values(values, _text_of_context(ctx)), incomplete, joined)

    return complete


@contextlib.contextmanager
def words_of_bash() -> Iterator[None]:
    """Within this context, complete names with colons (ollama:llama3.2:3b), which bash cuts into words at each colon.

    The words are joined in the environment, and what is printed is cut: bash replaces only what follows the last colon.
    """
    from attnctl.models.gguf.ollama import SCHEME  # imports NumPy

    words, number = os.environ.get(WORDS, "").split("\n"), os.environ.get(WORD, "")
    place = next(
        (place for place, word in enumerate(words) if f"{word}:" == SCHEME and words[place + 1 : place + 2] == [":"]),
        None,
    )
    if place is None or not number.isdecimal() or int(number) <= place:
        yield
        return
    name = "".join(words[place:])
    os.environ |= {WORDS: "\n".join([*words[:place], name]), WORD: str(place)}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            yield
        finally:
            kept = name.rfind(":") + 1
            lines = "".join(line[kept:] for line in printed.getvalue().splitlines(keepends=True))
            sys.__stdout__.write(lines)  # type: ignore[union-attr]


def _text_of_context(context: ClickContext) -> str:
    """Return the text that a command being typed is about, or ""."""
    parameters: Mapping[str, object] = context.params
    typed = next((str(parameters[name]) for name in ("source", "text") if parameters.get(name)), " ".join(context.args))
    return typed or (context.obj.text if context.obj is not None else None) or ""
