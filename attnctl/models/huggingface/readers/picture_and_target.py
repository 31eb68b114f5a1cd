"""The reader of captioners and of OCR (ViT-GPT2, TrOCR, Donut): the source is a picture, the target its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnctl.errors import AttnctlError
from attnctl.formats.photographs import read_photograph
from attnctl.models.huggingface.checkpoint import Checkpoint, ModelInput, Reader
from attnctl.models.huggingface.network import network_info, running_network
from attnctl.models.huggingface.opened import OpenedCheckpoint
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.models.huggingface.readers.picture import PictureReader, boxes_of_grid, open_picture_reader
from attnctl.models.huggingface.readers.text import SourceTargetReader, written_note, written_tokens
from attnctl.runtime.files import names_picture
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.attention import Array
    from attnctl.models.huggingface.tokenizer import Pieces


@dataclass(frozen=True)
class PictureTargetReader(SourceTargetReader):
    """The reader of a picture's file as source, and of a given or generated target; `encoder` reads the picture alone."""

    encoder: Checkpoint
    takes: ClassVar[str] = "picture"

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the decoder's tokens. Raises AttnctlError for a file that is no picture, and an encoder without a grid."""
        values = self._picture(text)[1]
        start = self.decoder_start(model, text)
        if model.target is None:
            return (*start, *written_tokens(model, {"pixel_values": values}, start))
        words = self.pieces.tokenize_target(model.target)
        if words and words[0].id == start[0].id and words[0].special:  # the start is the tokenizer's own beginning
            words = words[1:]
        tokens = self._shifted_target(model, words)
        return (*start, *(replace(token, start=None, end=None, word=None) for token in tokens[len(start) :]))

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the picture, and the ids of the decoder's tokens."""
        patches, values = self._picture(text)
        model.check_tokens(tokens)
        inputs = {"pixel_values": values, "decoder_input_ids": model.token_ids(tokens)}
        notes = () if model.target is not None else (written_note(model, tokens),)
        return ModelInput(tokens, inputs, patches if model.kind == "cross" else None, notes, patches)

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return the tokens that the encoder puts out for cross attention; None otherwise: the keys are the tokens."""
        return self._picture(text)[0] if model.kind == "cross" else None

    def text_as_read(self, text: str) -> str:
        """Return the name of the picture's file: the tokens of the target have no position in it."""
        return text

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return the model, for encoder attention its encoder. Raises AttnctlError if `text` is no picture's file."""
        if not names_picture(text):
            raise AttnctlError(
                f"no picture {text[:80]!r}: {model.info.name} writes about pictures, so give a file's name (photo.jpg)"
            )
        if model.kind != "encoder":
            return model
        return replace(self.encoder, intervention=model.intervention, notes=model.notes)

    def with_text_pair(self, model: Checkpoint, text_pair: str) -> Reader:
        """Raise UsageError: this network reads one picture."""
        return Reader.with_text_pair(self, model, text_pair)

    @property
    def _reader(self) -> PictureReader:
        assert isinstance(self.encoder.reader, PictureReader)
        return self.encoder.reader

    def _picture(self, path: str) -> tuple[tuple[Token, ...], Array]:
        """Return the tokens that the encoder puts out for a picture, with their boxes, and its pixel values.

        An encoder in stages (Swin) puts out a smaller grid than its patches.
        """
        photograph, network = read_photograph(path), self.encoder.network
        values = self._reader.processed(self.encoder, photograph)  # (1, 3, height, width)
        sides, patch = (int(values.shape[-2]), int(values.shape[-1])), config_value(network.config, "patch_size")
        stages = len(config_value(network.config, "depths") or ())
        if not stages or not isinstance(patch, int):
            return self._reader.tokenize(self.encoder, path), values
        with running_network(network, math.prod(sides) // patch**2, self.encoder.info.name):
            n_out = int(network(pixel_values=values)[0].shape[1])
        step = patch * 2 ** (stages - 1)
        grid = (math.ceil(sides[0] / step), math.ceil(sides[1] / step))
        if math.prod(grid) != n_out:
            raise AttnctlError(
                f"{self.encoder.info.name} puts out {n_out:,} tokens for a picture, which are not a grid"
            )
        covered = (grid[0] * step, grid[1] * step)
        processed = partial(self._reader.processed, self.encoder)
        return tuple(boxes_of_grid(photograph, grid, sides, processed, covered)), values


def open_captioner(folder: Path, network: PreTrainedModel, name: str, pieces: Pieces) -> PictureTargetReader:
    """Return the reader of a network with a vision encoder and a decoder of text.

    Raises AttnctlError if the settings of its image processor are missing or unreadable.
    """
    encoder: Any = network.encoder
    info = replace(network_info(encoder, name, "self"), causal=False)
    return PictureTargetReader(pieces, OpenedCheckpoint(info, encoder, open_picture_reader(folder, name), "self"))
