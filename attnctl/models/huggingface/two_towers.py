"""Networks of two towers (CLIP, SigLIP): one reads a text, the other a picture, and each has an attention of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnctl.errors import UsageError
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.image_checkpoint import ImageCheckpoint, open_image_checkpoint
from attnctl.models.huggingface.network import network_info
from attnctl.selection import selected_heads
from attnctl.text import visible_text
from attnctl.tokens import Token


@dataclass(frozen=True)
class TextTower(Checkpoint):
    """The tower that reads a text; `both` is the whole network, `folder` that of its files."""

    both: Any = None
    folder: Path = Path()

    def picture_tower(self) -> ImageCheckpoint:
        """The tower that reads a picture, the same heads off. Errors as of `open_image_checkpoint` and `selected_heads`."""
        tower = self._reads_pictures(self.both.vision_model, "self")
        if self.intervention is None:
            return tower
        info = replace(tower.info, name=self.info.name, off=self.info.off)
        off = ((layer, head) for layer, heads in self.intervention.heads.items() for head in heads)
        selected_heads(off, info.n_layers or 1, info.n_heads or 1, info.card_name, "off")
        return replace(tower, intervention=self.intervention, info=info)

    def beside_picture(self, path: str) -> CaptionedPicture:
        """The picture in the file `path`, read by its tower; each text is the captions among which the network chooses.

        Raises UsageError for a network that gives each caption a probability of its own.
        """
        if "siglip" in self.both.config.model_type:
            why = f"{self.info.name} does not choose among captions: give the picture alone"
            raise UsageError(why, option="image", value=path)
        tower = self._reads_pictures(self.both, "vision")
        given = {field.name: getattr(tower, field.name) for field in fields(tower)}
        return CaptionedPicture(**given, path=path, text_tower=self)

    def _reads_pictures(self, network: Any, kind: str) -> ImageCheckpoint:
        said = {name: getattr(self.info, name) for name in ("source", "revision", "sha256", "quantised")}
        info = replace(network_info(self.both.vision_model, self.info.name, "self"), causal=False, **said)
        return replace(open_image_checkpoint(self.folder, network, info), kind=kind)


@dataclass(frozen=True)
class CaptionedPicture(ImageCheckpoint):
    """A picture beside captions ("a cat | a dog"): the picture's attention, and the captions as its classes."""

    path: str = ""
    text_tower: TextTower | None = None
    captions: tuple[str, ...] = ()

    @property
    def classes(self) -> Mapping[int, str]:
        """The captions, by their place."""
        return dict(enumerate(self.captions))

    def tokenize(self, text: str) -> tuple[Token, ...]:
        """The tokens of the picture. Errors as of `ImageCheckpoint.tokenize`."""
        return super().tokenize(self.path)

    def of_text(self, text: str) -> CaptionedPicture:
        """The same, with the captions that stand in `text`. Raises UsageError for fewer than two."""
        captions = tuple(filter(None, map(str.strip, text.split("|"))))
        if len(captions) < 2:
            given = visible_text(text)
            raise UsageError(f'give two captions or more to choose among, as "a cat | a dog", not {given!r}')
        return replace(self, picture=super().of_text(self.path).picture, captions=captions)

    def inputs_of_tokens(self, tokens: Sequence[Token]) -> dict[str, object]:
        """The picture, and the captions filled up to the longest: input_ids and attention_mask (captions, n)."""
        assert self.text_tower is not None
        ids = [self.text_tower.token_ids(self.text_tower.tokenize(caption))[0] for caption in self.captions]
        pad = import_extra("torch").nn.utils.rnn.pad_sequence
        padding = self.text_tower.network.config.pad_token_id or 0
        return super().inputs_of_tokens(tokens) | {
            "input_ids": pad(ids, batch_first=True, padding_value=padding),
            "attention_mask": pad([one.new_ones(len(one)) for one in ids], batch_first=True),
        }
