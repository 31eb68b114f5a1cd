"""Results of a model for one text beside the attention of its layers: predictions, notes, embeddings, gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from attnctl.attention import Array

if TYPE_CHECKING:
    from attnctl.checks.document_fields import Index, Portion, about
    from attnctl.text.tokens import Token
    from attnctl.trace.model_info import ModelInfo


@dataclass(frozen=True, slots=True)
class Prediction:
    """A word that the model expects at a position, or a class of the whole, with its probability (0 to 1)."""

    position: Index
    text: str
    id: Index
    probability: Portion
    is_class: Annotated[bool, about("Whether it is a class of the whole text or picture.")] = False


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


class StopForward(BaseException):
    """Raised by a visitor that needs no more layers: the model leaves the others out.

    It is not an Exception, so that a network's own code cannot take it for an error and go on.
    """


@dataclass
class Run:
    """The results of a model for one text beside the attention of its layers; arrays are NumPy, one row for each token."""

    tokens: tuple[Token, ...]
    embeddings: Array | None = None  # (n, d_model)
    key_tokens: tuple[Token, ...] | None = None
    predictions: tuple[Prediction, ...] = ()
    model: ModelInfo | None = None  # if the run adds facts about the model
    notes: tuple[str, ...] = ()
    text: str = ""
    measure: str | None = None  # what stands in place of the weights
    gates: dict[int, Array] = field(
        default_factory=dict
    )  # layer → how far gates after the context are open (heads, n_q)

    @property
    def known_model(self) -> ModelInfo:
        """Return the model; every source has named it when a reading ends."""
        assert self.model is not None
        return self.model
