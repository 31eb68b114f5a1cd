"""The subject of attention: a text with its tokens, the model that read it, what stands in place of the weights, notes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from attnctl.text.tokens import Token
from attnctl.trace.model_info import ModelInfo
from attnctl.trace.notes import Note, NoteKind


def reads_itself(tokens: tuple[Token, ...], key_tokens: tuple[Token, ...] | None, model: ModelInfo) -> bool:
    """Return whether query i and key i are the same token: self-attention, whatever keys follow the text's own.

    Such keys are slots that hold several tokens, or a source text that a decoder merges with its own. Cross attention
    over a source that begins with the target's tokens differs by its mask, which hides no later key.
    """
    return key_tokens is None or (bool(model.causal) and key_tokens[: len(tokens)] == tokens)


def numbers_in_text(tokens: tuple[Token, ...], keys: tuple[Token, ...]) -> tuple[int, ...] | None:
    """Return the positions in `tokens` of keys that are some of these tokens, in order; None for other keys."""
    numbers: list[int] = []
    for key in keys:
        try:
            numbers.append(tokens.index(key, numbers[-1] + 1 if numbers else 0))
        except ValueError:
            return None
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class Subject:
    """What attention is about: the text, its tokens as queries, these or other tokens as keys, and the model.

    A source has one and a value holds one. A run may replace it, since a network can add notes, facts about the model and
    other keys; a change to the weights replaces it once.
    """

    text: str
    tokens: tuple[Token, ...]
    model: ModelInfo
    key_tokens: tuple[Token, ...] | None = None  # where the keys are not just `tokens`: cross attention, slots
    measure: str | None = None  # what stands in place of the weights
    notes: tuple[str, ...] = ()  # sentences that a reader must know; a Note has a kind

    @property
    def noted(self) -> set[NoteKind]:
        """Return the kinds of the notes."""
        return {note.kind for note in self.notes if isinstance(note, Note)}

    @property
    def change_notes(self) -> list[Note]:
        """Return the notes on keys that were left out and rows that were rescaled."""
        return [note for note in self.notes if isinstance(note, Note) and note.kind in ("left-out", "rescaled")]

    @property
    def key_axis(self) -> tuple[Token, ...]:
        """Return the tokens of the key axis: the text's own tokens, except in cross attention and with slots behind them."""
        return self.tokens if self.key_tokens is None else self.key_tokens

    @property
    def key_numbers(self) -> tuple[int, ...]:
        """Return the number of each key: its token's number in the text, even if keys were left out.

        Keys of another text are numbered from 0.
        """
        numbers = numbers_in_text(self.tokens, self.key_axis) if "left-out" in self.noted else None
        return tuple(range(len(self.key_axis))) if numbers is None else numbers

    @property
    def reads_itself(self) -> bool:
        """Return whether query i and key i are the same token."""
        return reads_itself(self.tokens, self.key_tokens, self.model)

    def own_key(self, query: int) -> int | None:
        """Return the place among the keys of a query's token: behind earlier keys, as with a cache; None for other keys."""
        numbers, tokens = self.key_numbers, self.tokens
        if self.reads_itself or "left-out" in self.noted and numbers_in_text(self.tokens, self.key_axis) is not None:
            return numbers.index(query) if query in numbers else None
        first = (
            next((i for i, key in enumerate(self.key_axis) if key == tokens[0]), None) if self.model.causal else None
        )
        cached = first is not None and self.key_axis[first : first + len(tokens)] == tokens
        return first + query if cached and first is not None else None


class HasSubject:
    """A source or a value that has a subject, and hands on its text, tokens and measure."""

    __slots__ = ()

    subject: Subject

    @property
    def text(self) -> str:
        """Return the text: both texts of a pair."""
        return self.subject.text

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Return the tokens of the text: the queries."""
        return self.subject.tokens

    @property
    def measure(self) -> str | None:
        """Return the name of the measure in place of the weights; None for the weights."""
        return self.subject.measure


Held = TypeVar("Held", bound="HoldsSubject")


class HoldsSubject(HasSubject):
    """A value that holds a subject, and hands on what users ask of it, as `trace.text` and `trace.model`."""

    __slots__ = ()

    def about(self: Held, **changes: Any) -> Held:
        """Return the value about a changed subject: `changes` are fields of Subject."""
        return replace(self, subject=replace(self.subject, **changes))  # type: ignore[type-var]

    def to_records(self) -> list[dict[str, Any]]:
        """Return a flat record for each weight: layer, head, query, key, query_text, key_text, weight (None: hidden).

        Of an overview a record for each cell, else for each head, else for each link; a cell that holds several tokens has
        these as query_tokens and key_tokens, and pool.
        """
        records: list[dict[str, Any]] = resolve_name("attnctl.formats.tables:value_records")(self)
        return records

    def save(self, path: str | Path) -> None:
        """Write to `path`, a .json file, whole or not at all; `attnctl.load` reads it back."""
        resolve_name("attnctl.formats.storage:save_value")(self, path)

    @property
    def model(self) -> ModelInfo:
        """Return the facts about the model."""
        return self.subject.model

    @property
    def key_tokens(self) -> tuple[Token, ...] | None:
        """Return the tokens of the keys where they are not just the text's own; else None."""
        return self.subject.key_tokens

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the sentences that a reader must know."""
        return self.subject.notes

    @property
    def cited(self) -> str:
        """Return the source of the numbers for the metadata of a picture: program and model."""
        return self.model.citation

    @property
    def noted(self) -> set[NoteKind]:
        """Return the kinds of the notes."""
        return self.subject.noted

    @property
    def key_axis(self) -> tuple[Token, ...]:
        """Return the tokens of the key axis."""
        return self.subject.key_axis

    @property
    def key_numbers(self) -> tuple[int, ...]:
        """Return the number of each key in the text."""
        return self.subject.key_numbers

    @property
    def reads_itself(self) -> bool:
        """Return whether query i and key i are the same token."""
        return self.subject.reads_itself

    def own_key(self, query: int) -> int | None:
        """Return the place of a query's token among the keys; None for other keys."""
        return self.subject.own_key(query)
