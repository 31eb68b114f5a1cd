"""How a checkpoint reads a text, a picture or a sound: one file a way, and what all of them give the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from attnctl.errors import UsageError
from attnctl.files import names_sound

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.tokenizer import Pieces
    from attnctl.tokens import Token


@dataclass(frozen=True)
class ModelInput:
    """What a network is called with for one text, and what its rows and columns stand for."""

    tokens: tuple[Token, ...]  # of the queries
    inputs: Mapping[str, Any]  # keywords of the network's forward
    key_tokens: tuple[Token, ...] | None = None  # of the keys, where these are not the tokens alone
    notes: tuple[str, ...] = ()
    source: tuple[Token, ...] | None = None  # what an encoder reads for the decoder whose tokens these are
    blanks: Sequence[int] = ()  # tokens that the network is to fill in
    classes: Mapping[int, str] | None = None  # those of this text; None: the network's own
    together: int = 0  # how many tokens one forward must read: up to the last one of a picture, or that is seen ahead
    type_behind: int = 0  # the token type of what follows these tokens

    @property
    def has_ids_alone(self) -> bool:
        """Whether every token is a row of the table of embeddings: no picture and no sound stands among them."""
        return not self.inputs.keys() - {"input_ids", "decoder_input_ids", "token_type_ids"}

    def followed_by(self, more: Sequence[int]) -> dict[str, Any]:
        """Return the inputs with these ids behind those that the network continues: the decoder's, or the text's."""
        name = "decoder_input_ids" if "decoder_input_ids" in self.inputs else "input_ids"
        if not more:
            return dict(self.inputs)
        ids = self.inputs[name]  # (1, n)
        longer = ids.new_tensor([[*ids[0].tolist(), *more]])  # (1, n + more)
        if name == "decoder_input_ids":
            return {**self.inputs, name: longer}
        return {name: longer, **self.beside(longer.shape[-1])}

    def beside(self, n: int) -> dict[str, Any]:
        """Return what the network is given beside the ids of a text's first `n` tokens, which may be more than it has."""
        from torch.nn.functional import pad

        shape, found = self.inputs["input_ids"].shape, {}
        for name, value in self.inputs.items():
            behind = self.type_behind if name == "token_type_ids" else 0
            if name != "input_ids":  # one number a token is cut or filled up
                found[name] = pad(value, (0, n - shape[1]), value=behind) if value.shape == shape else value
        return found


class Reader:
    """Turn what a user gives in a text's place into tokens, and these into what the network is called with."""

    takes: ClassVar[str] = "text"  # what a user gives: a text, a picture, a sound
    shares_passes: ClassVar[bool] = False  # whether several texts may be padded to one length
    tokenizer: Pieces | None
    name: str  # of the checkpoint

    @property
    def pieces(self) -> Pieces:
        """The tokenizer. Raises UsageError for a checkpoint that has none."""
        if self.tokenizer is None:
            does = "hears" if self.takes == "sound" else "reads pictures"
            raise UsageError(f"{self.name} {does}, and this takes a model of text")
        return self.tokenizer

    @property
    def photograph(self) -> Image | None:
        """The picture in which tokens have boxes, where it is not the text itself that names it."""
        return None

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens whose queries are read, generated ones included."""
        raise NotImplementedError

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return what the network is called with for these tokens of `text`. Raises AttnctlError where they do not fit."""
        raise NotImplementedError

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return the tokens of the keys where these are not the queries' own."""
        return None

    def decoder_start(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens that the decoder of an encoder-decoder begins with; () for other networks."""
        return ()

    def text_as_read(self, text: str) -> str:
        """Return the text in which the tokens have their places."""
        return text

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return what of the model reads `text`: itself, or its tower for pictures.

        Raises UsageError for a picture or a sound where none is read.
        """
        if names_sound(text) and self.takes != "sound":
            raise UsageError(f"{text} is a sound, and {model.info.name} reads no sound: name a model that hears")
        return model

    def with_text_pair(self, model: Checkpoint, text_pair: str) -> Reader:
        """Return the reader of two texts. Raises UsageError where one is read."""
        why = f"does not go with {model.info.name}, which reads one text, with a picture or a sound beside it"
        raise UsageError(why, option="text_pair")
