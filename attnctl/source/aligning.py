"""What a model that aligns does: attend from a target to its source, or from the words of a speech to its frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from attnctl.source.model import Generates, Model, SpellsTokens

if TYPE_CHECKING:
    from attnctl.runtime.arrays import Floats
    from attnctl.text.tokens import Token


@runtime_checkable
class AlignsTexts(Generates, SpellsTokens, Protocol):
    """A model that reads a source with its target: both in one text, or a target that it writes."""

    @property
    def target(self) -> str | None:
        """Return the text of the decoder; None if the model writes it, or has no decoder."""

    def writes_targets(self) -> bool:
        """Return whether the model is an encoder-decoder, which reads a source and writes its target."""

    def from_target(self, target: str | None, generate: int, /) -> Model:
        """Return an encoder-decoder that shows how it attends from a target to the source.

        A target of None is written by the model, with at most `generate` tokens (0: as its settings say). Raises
        AttnctlError if it attends to both in one softmax.
        """

    def target_tokens(self, target: str, /) -> tuple[Token, ...]:
        """Return the tokens of a decoder's text, with their places in it."""

    def spelled_target(self, tokens: Sequence[Token], /) -> tuple[str, tuple[Token, ...]]:
        """Return the text that a decoder's tokens spell, and the tokens with their places in it and their words."""


class HeardSpeech(NamedTuple):
    """What a model heard in a window of sound: the ids of its words, their probabilities, and where it looked for each.

    `weights` is layer → (heads, prompt + tokens + 1, frames); `prompt` counts the tokens before the words'.
    """

    ids: list[int]
    probabilities: Floats  # (tokens,)
    weights: dict[int, Floats]
    prompt: int
    language: str | None


@runtime_checkable
class HearsSpeech(SpellsTokens, Protocol):
    """A model that may write down speech."""

    def hears_speech(self) -> bool:
        """Return whether the model writes down speech by attention to its frames (Whisper)."""

    def reads_sounds(self) -> bool:
        """Return whether it was opened with its reader of sounds."""

    def alignment_heads(self) -> Any:
        """Return the heads that the model's own settings name for times of words, as they stand there; () for none."""

    def heard(self, samples: Floats, target: str | None, language: str | None, /) -> HeardSpeech:
        """Return what the model hears in samples (n,) at 16 kHz; `target` is the text that is spoken, if it is known.

        Raises UsageError for a language that it does not know, AttnctlError for a target that is too long.
        """


class CheckpointKind(NamedTuple):
    """What a checkpoint is for by its configuration, before it is opened."""

    name: str  # for sentences
    settings: Mapping[str, object] | None  # None: the name is not that of a checkpoint

    def hears_speech(self) -> bool:
        """Return whether it writes down speech."""
        return (self.settings or {}).get("model_type") == "whisper"

    def writes_targets(self) -> bool:
        """Return whether it is an encoder-decoder."""
        return bool((self.settings or {}).get("is_encoder_decoder"))
