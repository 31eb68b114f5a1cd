"""Readers of networks with two towers (CLIP, SigLIP): one reads a text, the other a picture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnctl.checks.selection import selected_heads
from attnctl.errors import UsageError
from attnctl.models.huggingface.checkpoint import Checkpoint, ModelInput, Reader
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.network import network_info
from attnctl.models.huggingface.opened import OpenedCheckpoint
from attnctl.models.huggingface.readers.picture import PictureReader, open_picture_reader
from attnctl.models.huggingface.readers.text import TextReader
from attnctl.runtime.files import names_picture
from attnctl.text import visible_text
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from attnctl.trace.model_info import ModelInfo


@dataclass(frozen=True)
class TextTowerReader(TextReader):
    """The reader of the text tower; `both` is the whole network, `folder` the folder of its files."""

    both: Any
    folder: Path
    shares_passes: ClassVar[bool] = False

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return the tower that reads `text`: for a picture file the picture tower, with the same heads off.

        Raises the errors of `open_picture_reader` and `selected_heads`.
        """
        if not names_picture(text):
            return super().model_for(model, text)
        info = self._picture_info(model)
        if model.intervention is not None:
            info = replace(info, name=model.info.name, off=model.info.off)
            off = ((layer, head) for layer, heads in model.intervention.heads.items() for head in heads)
            selected_heads(off, info.n_layers or 1, info.n_heads or 1, info.card_name, "off")
        reader = open_picture_reader(self.folder, info.name)
        return OpenedCheckpoint(info, self.both.vision_model, reader, "self", intervention=model.intervention)

    def beside_picture(self, model: Checkpoint, path: str) -> Checkpoint:
        """Return the picture tower that reads the picture in the file `path`; each text gives the captions to choose among.

        Raises UsageError for a network that gives each caption a probability of its own.
        """
        if "siglip" in self.both.config.model_type:
            why = f"{model.info.name} does not choose among captions: give the picture alone"
            raise UsageError(why, option="image", value=path)
        pictures = open_picture_reader(self.folder, model.info.name)
        reader = CaptionReader(pictures.name, pictures.processor, path, model)
        return OpenedCheckpoint(self._picture_info(model), self.both, reader, "vision")

    def with_text_pair(self, model: Checkpoint, text_pair: str) -> Reader:
        """Raise UsageError: this network reads one text."""
        return Reader.with_text_pair(self, model, text_pair)

    def _picture_info(self, model: Checkpoint) -> ModelInfo:
        info = network_info(self.both.vision_model, model.info.name, "self").with_origin_of(model.info)
        return replace(info, causal=False)


@dataclass(frozen=True)
class CaptionReader(PictureReader):
    """The reader of a picture with captions ("a cat | a dog"): the picture's attention, and the captions as classes."""

    path: str
    text_tower: Checkpoint

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the picture. Raises the errors of `PictureReader.tokenize`."""
        return super().tokenize(model, self.path)

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the inputs of the picture and of the captions, padded: input_ids and attention_mask (captions, n).

        Raises UsageError for fewer than two captions.
        """
        captions = tuple(filter(None, map(str.strip, text.split("|"))))
        if len(captions) < 2:
            raise UsageError(
                f'give two captions or more to choose among, as "a cat | a dog", not {visible_text(text)!r}'
            )
        model_input = super().read(model, self.path, tokens)
        ids = [self.text_tower.token_ids(self.text_tower.tokenize(caption))[0] for caption in captions]
        pad = import_extra("torch").nn.utils.rnn.pad_sequence
        padding = self.text_tower.network.config.pad_token_id or 0
        inputs = {
            "input_ids": pad(ids, batch_first=True, padding_value=padding),
            "attention_mask": pad([caption_ids.new_ones(len(caption_ids)) for caption_ids in ids], batch_first=True),
        }
        return replace(model_input, inputs={**model_input.inputs, **inputs}, classes=dict(enumerate(captions)))
