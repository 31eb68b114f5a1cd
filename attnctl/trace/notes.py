"""Notes: sentences that a reader of numbers must know, each with its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

# guess: the model cannot read the text well; doubt: numbers that contradict others in their file; no-weights:
# numbers that no softmax gives; input: the model read less than it can; left-out: keys; rescaled: rows; sink: a learned one;
# parked: how much the first token gets; axes: how the axes of an array were read;
# unseen: rows that see nothing
NoteKind = Literal[
    "", "guess", "doubt", "no-weights", "input", "left-out", "rescaled", "sink", "parked", "axes", "unseen"
]


class Note(str):
    """A sentence that a reader must know, and its kind if the program, too, must know what it says."""

    kind: NoteKind

    def __new__(cls, text: str, kind: NoteKind = "") -> Note:
        """Return the sentence with its kind."""
        note = super().__new__(cls, text)
        note.kind = kind
        return note


def notes_of_kind(notes: Sequence[str], *kinds: NoteKind) -> list[str]:
    """Return the notes of these kinds."""
    return [note for note in notes if isinstance(note, Note) and note.kind in kinds]


SINK_NOTE = Note("A learned sink takes a part of each row and gives nothing back: rows sum to less than 1.", "sink")
SCALED_NOTE = Note(
    "The model multiplies its weights after the softmax, as by a gate or a decay: rows sum to less than 1, and the rest "
    "goes nowhere, as to a sink.",
    "sink",
)
