"""What a model offers, as protocols: every model has the members of `Model`, some can do more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attnctl.errors import UsageError
from attnctl.files import names_picture, names_sound

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.arrays import Floats
    from attnctl.interventions import Intervention
    from attnctl.layer import LayerAttention
    from attnctl.tokens import Token
    from attnctl.trace.model_info import ModelInfo
    from attnctl.trace.run import Run


@runtime_checkable
class Model(Protocol):
    """A model: a text's tokens, and their way through its layers."""

    @property
    def info(self) -> ModelInfo:
        """What is known of the model before any text."""

    @property
    def photograph(self) -> Image | None:
        """The picture beside which each text is read; None without one."""

    @property
    def limit(self) -> int | None:
        """How many tokens the model reads; None: any number."""

    def tokenize(self, text: str, /) -> tuple[Token, ...]:
        """Return the tokens of a text whose queries are read."""

    def run(self, tokens: Sequence[Token], visit: Callable[[LayerAttention], None], text: str = "") -> Run:
        """Run the text through every layer; `visit` sees each layer's attention, until it raises StopForward."""

    def text_as_read(self, text: str) -> str:
        """Return the text in which the tokens have their places: of a pair both texts."""

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return the tokens of the keys where these are not the queries' own; else None."""

    def model_for(self, text: str) -> Model:
        """Return what of the model reads `text`: itself, or its tower for pictures (CLIP).

        Raises UsageError for a picture or a sound where it reads texts alone.
        """

    def with_text_pair(self, text_pair: str) -> Model:
        """Return the model that reads `text_pair` behind each text. Raises UsageError where it reads one text."""


@runtime_checkable
class Predicts(Model, Protocol):
    """A model that predicts words."""

    @property
    def predict(self) -> str | None:
        """The token after which, or at which, words are predicted; "all" for every one; None: the last, and blanks."""

    @property
    def predicts_words(self) -> bool:
        """Whether there is an unembedding, so that a word can be predicted at all."""


@runtime_checkable
class Generates(Model, Protocol):
    """A model that may write text itself, or look at a text through several attentions."""

    @property
    def kind(self) -> str:
        """Which attention is read: self, or of an encoder-decoder encoder, decoder, cross; vision beside captions."""

    @property
    def generate(self) -> int:
        """How many tokens the model adds before the attention is read."""

    def with_target(self, target: str) -> Model:
        """Return the model with this text of its decoder. Raises UsageError where that is not read."""


@runtime_checkable
class CanIntervene(Model, Protocol):
    """A model whose heads can be switched off, and whose layers can be run again with other values."""

    @property
    def intervention(self) -> Intervention | None:
        """What is changed in every run: the heads that are off."""

    def run_with_zeroed_values(
        self,
        tokens: Sequence[Token],
        take: Callable[[LayerAttention, Floats, Iterator[Floats]], None],
        text: str = "",
        layers: Sequence[int] | None = None,
    ) -> Run:
        """Run the tokens; `take` sees each of `layers` with its output, and its outputs with one key's value zeroed each."""


class TextModel:
    """The members of `Model` that are alike in every model that reads one text alone."""

    info: ModelInfo

    @property
    def photograph(self) -> Image | None:
        """None: no picture stands beside a text."""
        return None

    @property
    def limit(self) -> int | None:
        """None: any number of tokens is read."""
        return None

    def text_as_read(self, text: str) -> str:
        """Return the text itself."""
        return text

    def tokens_of_keys(self, tokens: Sequence[Token], text: str) -> tuple[Token, ...] | None:
        """Return None: the keys are the tokens."""
        return None

    def model_for(self, text: str) -> Model:
        """Return the model itself. Raises UsageError for a picture or a sound."""
        check_text(text, self.info.name)
        return self  # type: ignore[return-value]

    def with_text_pair(self, text_pair: str) -> Model:
        """Raise UsageError: one text is read."""
        raise UsageError(f"is for checkpoints: {self.info.name} reads one text", option="text_pair")


def check_text(text: str, name: str, instead: str = "name a vision model") -> None:
    """Raise UsageError where a text names a file of a picture, or of a sound, that the model `name` does not read."""
    if names_sound(text):
        raise UsageError(f"{text} is a sound, and {name} reads text: name a model that hears")
    if names_picture(text):
        raise UsageError(f"{text} is a picture, and {name} reads text: {instead}")
