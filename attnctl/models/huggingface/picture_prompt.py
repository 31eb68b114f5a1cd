"""A text beside a picture: vision-language checkpoints, where some of a prompt's tokens are parts of the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.formats.photographs import read_photographs, side_by_side
from attnctl.models.huggingface.checkpoint import Checkpoint, generated_tokens, text_notes
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.network import device_of_inputs, quiet_library
from attnctl.models.huggingface.picture_views import PictureLayout
from attnctl.models.huggingface.template_process import template_process
from attnctl.models.huggingface.tokenizer import named_token
from attnctl.tokens import Token

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.models.huggingface.attention_sites import Output
    from attnctl.readings.traces.trace import Prediction


@dataclass(frozen=True)
class PicturePrompt(Checkpoint):
    """A vision-language checkpoint beside one picture or several: each text is what is said to it of them.

    The checkpoint's chat template puts the two together, or where it has none its mark of a picture and a line's end. The
    tokens of the picture have their boxes in it as it was given.
    """

    processor: Any = None
    photographs: tuple[Image, ...] = ()
    prepared: Mapping[str, Any] | None = None  # what the processor makes of picture and text, for one text

    @cached_property
    def photograph(self) -> Image:
        """The picture, or several side by side, in which boxes are."""
        return side_by_side(self.photographs)

    def tokenize(self, text: str) -> tuple[Token, ...]:
        """The tokens of the prompt: those of the picture are called r3c5 (row 3, column 5); none has a place in `text`."""
        model = self.of_text(text)
        ids: list[int] = model.prepared["input_ids"][0].tolist()  # type: ignore[index]
        mark = model._picture_id()
        tokens: list[Token] = []
        for is_picture, run in groupby(ids, lambda one: one == mark):
            own = list(run)
            tokens += [Token("", one) for one in own] if is_picture else model.pieces.continued_tokens((), own)
        places = [at for at, one in enumerate(ids) if one == mark]
        for at, patch in zip(places, model._layout(ids, mark).tokens(), strict=True):
            tokens[at] = replace(patch, id=mark)
        if self.generate:
            tokens += generated_tokens(model, tokens, len(tokens))
        return tuple(tokens)

    def _layout(self, ids: Sequence[int], mark: int) -> PictureLayout:
        """How the pictures lie in the prompt's tokens, of which `mark` stands for a part of one."""
        runs: list[tuple[str, int]] = []
        before = ""
        for is_picture, run in groupby(ids, lambda one: one == mark):
            own = list(run)
            if is_picture:
                runs.append((before, len(own)))
            before = self.pieces.tokenizer.id_to_token(own[-1]) or ""
        assert self.prepared is not None
        return PictureLayout(self.processor, self.network.config, self.prepared, self.photographs, runs)

    def of_text(self, text: str) -> PicturePrompt:
        """The same, prepared for one text. Raises AttnctlError where the processor fails on it."""
        try:
            with quiet_library():
                made = self.processor(text=[self._prompt(text)], images=list(self.photographs), return_tensors="pt")
        except AttnctlError:
            raise
        except Exception as error:  # each family's processor has its own
            raise AttnctlError(
                f"the processor of {self.info.name} fails on this picture and text: {in_one_line(error)}"
            ) from error
        return replace(self, prepared=dict(made))

    def text_notes(self, tokens: Sequence[Token], source: Sequence[Token] | None, bare: bool) -> tuple[str, ...]:
        """What a reader must know of the tokens that were generated; the others are the processor's."""
        assert self.prepared is not None
        return text_notes(self, tokens[self.prepared["input_ids"].shape[1] :], source, bare)

    def inputs_beside(self, n: int) -> dict[str, object]:
        """What the processor made beside the ids, for the prompt and what follows it, `n` tokens together."""
        assert self.prepared is not None
        ids, beside = self.prepared["input_ids"], {}
        for name, value in self.prepared.items():
            if name in ("input_ids", "attention_mask", "labels") or not hasattr(value, "shape"):
                continue
            if value.shape == ids.shape:  # a number a token: 0 is text
                value = import_extra("torch").nn.functional.pad(value, (0, n - ids.shape[1]))
            beside[name] = value.to(
                device_of_inputs(self.network), self.network.dtype if value.is_floating_point() else None
            )
        return beside

    def _predicted_tokens(self, tokens: Sequence[Token], output: Output, causal: bool) -> tuple[Prediction, ...]:
        """As of a decoder, also where the picture's tokens see each other ahead (Gemma 3)."""
        return super()._predicted_tokens(tokens, output, causal or self.network.can_generate())

    def _prompt(self, text: str) -> str:
        """Picture and text as the chat template puts them together."""
        settings, template = self.pieces.settings, self.pieces.settings.get("chat_template")
        if not isinstance(template, str):
            mark = getattr(self.processor, "boi_token", None) or getattr(self.processor, "image_token", "<image>")
            return f"{str(mark) * len(self.photographs)}\n{text}"
        special = {key: named_token(settings, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        said = [
            {"role": "user", "content": [*[{"type": "image"}] * len(self.photographs), {"type": "text", "text": text}]}
        ]
        try:
            return template_process.fill_templates(template, [said], add_generation_prompt=True, **special)[0]
        except ValueError as error:
            why = f"the chat template of {self.info.name} refuses a picture beside a text: {in_one_line(error)}"
            raise AttnctlError(why) from error

    def _picture_id(self) -> int:
        """The id that stands for a part of the picture."""
        config = self.network.config
        named = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
        found = next((one for one in named if isinstance(one, int)), None)
        if found is None or self.prepared is None or not bool((self.prepared["input_ids"] == found).any()):
            raise AttnctlError(
                f"{self.info.name} has no tokens of a picture in its prompt: which keys are it is not known"
            )
        return found


def beside_picture(model: Checkpoint, folder: Path, path: str) -> PicturePrompt:
    """The checkpoint beside the pictures that `path` names, with commas. Raises UsageError for one that reads none."""
    if getattr(model.network.config, "vision_config", None) is None or model.kind != "self":
        raise UsageError(f"--image: {model.info.name} reads no picture beside a text")
    photographs = read_photographs(path)
    try:
        with quiet_library():
            processor = import_extra("transformers").AutoProcessor.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, backend="pil"
            )
    except Exception as error:
        raise AttnctlError(f"the processor of {model.info.name} cannot be read: {in_one_line(error)}") from error
    if not hasattr(processor, "image_processor"):
        raise AttnctlError(
            f"{model.info.name} has no preprocessor_config.json: how its pictures are resized is not known"
        )
    given = {field.name: getattr(model, field.name) for field in fields(model)}
    given["pieces"] = replace(model.pieces, bos=False)  # the template begins as it does
    return PicturePrompt(**given, processor=processor, photographs=photographs)
