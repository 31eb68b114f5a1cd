"""The readers of captioners and of OCR (ViT-GPT2, TrOCR, Donut, Pix2Struct, BLIP, GIT): a picture, and its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from attnctl.errors import AttnctlError, in_one_line
from attnctl.formats.photographs import read_photograph
from attnctl.models.huggingface.checkpoint import Checkpoint, ModelInput, Reader
from attnctl.models.huggingface.network import device_of_inputs, network_info, quiet_library, running_network
from attnctl.models.huggingface.opened import OpenedCheckpoint
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.models.huggingface.readers.picture import PictureReader, boxes_of_grid, open_picture_reader
from attnctl.models.huggingface.readers.text import ONE_TEXT, SourceTargetReader, written_note, written_tokens
from attnctl.runtime.files import names_picture
from attnctl.text.tokens import PADDING, Token

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from attnctl.models.huggingface.attention_sites import Keywords
    from attnctl.models.huggingface.tokenizer import Pieces
    from attnctl.text import Document


@dataclass(frozen=True)
class PictureTargetReader(SourceTargetReader):
    """The reader of a picture's file as source, and of a given or generated target; `encoder` reads the picture alone."""

    encoder: Checkpoint
    takes: ClassVar[str] = "picture"

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the decoder's tokens. Raises AttnctlError for a file that is no picture, and an encoder without a grid."""
        inputs = self._picture(text)[1]
        start = self.decoder_start(model, text)
        if model.target is None:
            return (*start, *self._written(model, inputs, start))
        words = self.pieces.tokenize_target(model.target)
        if words and words[0].id == start[0].id and words[0].special:  # the start is the tokenizer's own beginning
            words = words[1:]
        tokens = self._shifted_target(model, words)
        return (*start, *(replace(token, start=None, end=None, word=None) for token in tokens[len(start) :]))

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the picture, and the ids of the decoder's tokens."""
        patches, inputs = self._picture(text)
        model.check_tokens(tokens)
        inputs = {**inputs, "decoder_input_ids": model.token_ids(tokens)}
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

    def _written(self, model: Checkpoint, inputs: Keywords, start: Sequence[Token]) -> tuple[Token, ...]:
        """Return the tokens that the model writes about a picture after the `start` of its decoder."""
        return written_tokens(model, inputs, start)

    def _picture(self, path: str) -> tuple[tuple[Token, ...], Keywords]:
        """Return the tokens that the encoder puts out for a picture, with their boxes, and the network's inputs for it.

        An encoder in stages (Swin) puts out a smaller grid than its patches.
        """
        photograph, network = read_photograph(path), self.encoder.network
        values = self._reader.processed(self.encoder, photograph)  # (1, 3, height, width)
        sides, patch = (int(values.shape[-2]), int(values.shape[-1])), config_value(network.config, "patch_size")
        stages = len(config_value(network.config, "depths") or ())
        if not stages or not isinstance(patch, int):
            return self._reader.tokenize(self.encoder, path), {"pixel_values": values}
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
        return tuple(boxes_of_grid(photograph, grid, sides, processed, covered)), {"pixel_values": values}


@dataclass(frozen=True)
class FlattenedPatchesReader(PictureTargetReader):
    """The reader of Pix2Struct: its processor cuts a picture into a grid of its own shape, and fills up with padding."""

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the patches for encoder attention, else the decoder's tokens."""
        return self._picture(text)[0] if model.kind == "encoder" else super().tokenize(model, text)

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the patches, and the ids of the decoder's tokens."""
        if model.kind != "encoder":
            return super().read(model, text, tokens)
        start = model.token_ids(self.decoder_start(model, text))
        return ModelInput(tokens, {**self._picture(text)[1], "decoder_input_ids": start})

    def model_for(self, model: Checkpoint, text: str) -> Checkpoint:
        """Return the model, which reads the picture itself. Raises AttnctlError if `text` is no picture's file."""
        return model if super().model_for(replace(model, kind="cross"), text) else model

    def _picture(self, path: str) -> tuple[tuple[Token, ...], Keywords]:
        photograph, network = read_photograph(path), self.encoder.network
        try:
            with quiet_library():
                made = self._reader.processor(photograph, return_tensors="pt")
        except Exception as error:  # each family's processor raises its own errors
            raise AttnctlError(
                f"the processor of {self.encoder.info.name} fails on this picture: {in_one_line(error)}"
            ) from error
        patches, mask = (
            made["flattened_patches"],
            made["attention_mask"],
        )  # (1, n, 2 + pixels): row and column come first
        rows, columns = (int(numbers.max()) for numbers in (patches[0, :, 0], patches[0, :, 1]))
        cells = boxes_of_grid(photograph, (rows, columns), None)  # the whole picture, resized to the grid
        padding = (Token(f"{PADDING}{number}", special=True) for number in range(patches.shape[1] - len(cells)))
        device = device_of_inputs(network)
        return (*cells, *padding), {
            "flattened_patches": patches.to(device, network.dtype),
            "attention_mask": mask.to(device),
        }


@dataclass(frozen=True)
class BlipReader(PictureTargetReader):
    """The reader of BLIP: the decoder, which is the model here, attends to the states that the vision model puts out."""

    both: Any  # the whole network

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the decoder's tokens: its own first token in place of the tokenizer's, and no last one."""
        if model.target is None:
            return super().tokenize(model, text)
        words = [token for token in self.pieces.tokenize_target(model.target) if not token.special]
        start = self.decoder_start(model, text)
        return (*start, *(replace(token, start=None, end=None, word=None) for token in words))

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the states of the picture, and the ids of the decoder's tokens."""
        read = super().read(model, text, tokens)
        with running_network(self.both, len(read.source or ()), self.encoder.info.name):
            states = self.both.vision_model(pixel_values=read.inputs["pixel_values"])[0]  # (1, n, d_model)
        return replace(read, inputs={"input_ids": read.inputs["decoder_input_ids"], "encoder_hidden_states": states})

    def _written(self, model: Checkpoint, inputs: Keywords, start: Sequence[Token]) -> tuple[Token, ...]:
        more = {"max_new_tokens": model.generate} if model.generate else {}
        with running_network(self.both, len(start), self.encoder.info.name):
            ids = self.both.generate(inputs["pixel_values"], **more, **ONE_TEXT)[0].tolist()
        return self.pieces.continued_tokens(ids[: len(start)], ids[len(start) :])


@dataclass(frozen=True)
class GitReader(PictureTargetReader):
    """The reader of GIT: the picture's tokens stand before those of the caption, in one sequence."""

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the picture, and after them those of the caption."""
        patches, inputs = self._picture(text)
        if model.target is not None:
            words = self.pieces.tokenize_target(model.target)
            words = words[:-1] if words and words[-1].special and len(words) > 1 else words
            return (*patches, *(replace(token, start=None, end=None, word=None) for token in words))
        start = self.decoder_start(model, text)
        more = {"max_new_tokens": model.generate} if model.generate else {}
        network: Any = model.network
        with running_network(network, len(patches), self.encoder.info.name):
            ids = network.generate(**inputs, input_ids=model.token_ids(start), **more, **ONE_TEXT)[0].tolist()
        return (*patches, *start, *self.pieces.continued_tokens(ids[: len(start)], ids[len(start) :]))

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the picture, and the ids of the caption's tokens."""
        patches, inputs = self._picture(text)
        words = tokens[len(patches) :]
        model.check_tokens(words)
        notes = () if model.target is not None else (written_note(model, words),)
        return ModelInput(tokens, {**inputs, "input_ids": model.token_ids(words)}, notes=notes, together=len(patches))

    def key_tokens(self, model: Checkpoint, text: str, tokens: Sequence[Token]) -> tuple[Token, ...] | None:
        """Return None: the keys are the tokens."""
        return None


CAPTIONERS = (
    "vision-encoder-decoder",
    "pix2struct",
    "blip",
    "git",
)  # model types whose text is written about a picture


def is_captioner(settings: Document) -> bool:
    """Return whether a configuration is that of a network that writes about a picture alone."""
    name = str((settings.get("architectures") or [""])[0])
    writes = name.endswith(("ForConditionalGeneration", "ForCausalLM"))
    kind = settings.get("model_type")
    return kind == CAPTIONERS[0] or (kind in CAPTIONERS and writes)


def open_captioner(
    folder: Path, network: PreTrainedModel, name: str, pieces: Pieces
) -> tuple[PictureTargetReader, PreTrainedModel]:
    """Return the reader of a network that writes about a picture, and the network whose attention is shown.

    Raises AttnctlError if the settings of its image processor are missing or unreadable.
    """
    pictures, whole = open_picture_reader(folder, name), cast("Any", network)
    parts = {"git": lambda: whole.git.image_encoder, "blip": lambda: whole.vision_model}
    kind = network.config.model_type
    encoder = parts.get(kind, lambda: whole.encoder)()
    info = replace(network_info(encoder, name, "self"), causal=False)
    checkpoint = OpenedCheckpoint(info, encoder, pictures, "self")
    if kind == "blip":
        return BlipReader(pieces, checkpoint, whole), whole.text_decoder
    readers = {"git": GitReader, "pix2struct": FlattenedPatchesReader}
    return readers.get(kind, PictureTargetReader)(pieces, checkpoint), network
