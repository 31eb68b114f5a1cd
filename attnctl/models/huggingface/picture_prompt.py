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
from attnctl.models.huggingface.hub import import_extra, read_json
from attnctl.models.huggingface.image_checkpoint import read_processor
from attnctl.models.huggingface.network import device_of_inputs, quiet_library
from attnctl.models.huggingface.picture_views import PictureLayout
from attnctl.models.huggingface.template_process import template_process
from attnctl.models.huggingface.tokenizer import named_token
from attnctl.tokens import Token

if TYPE_CHECKING:
    from PIL.Image import Image

    from attnctl.models.huggingface.attention_sites import Output
    from attnctl.trace.run import Prediction


@dataclass(frozen=True)
class PicturePrompt(Checkpoint):
    """A vision-language checkpoint beside one picture or several: each text is what is said to it of them.

    The checkpoint's chat template puts the two together; where it has none, its mark of a picture stands before the text.
    The tokens of the picture have their boxes in it as it was given.
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
            if value.shape == ids.shape:  # a number a token
                value = import_extra("torch").nn.functional.pad(
                    value, (0, n - ids.shape[1]), value=self._type_behind(name)
                )
            beside[name] = value.to(
                device_of_inputs(self.network), self.network.dtype if value.is_floating_point() else None
            )
        return beside

    def _type_behind(self, name: str) -> int:
        """Return the number that a token behind the prompt has in an input of this name: that of plain text, 0.

        Where the prompt with its picture has 0, it sees itself whole, and what follows it has 1 (PaliGemma).
        """
        return int(name == "token_type_ids" and self._sees_prompt_whole())

    def _sees_prompt_whole(self) -> bool:
        assert self.prepared is not None
        types = None if self.info.causal else self.prepared.get("token_type_ids")
        return types is not None and not bool(types.any())

    def read_together(self, tokens: Sequence[Token]) -> int:
        """Return how many of a prompt's tokens one forward must read: up to its picture's last, or all that see ahead."""
        if self._sees_prompt_whole():
            return len(tokens)
        mark = self._picture_id()
        return 1 + max(at for at, token in enumerate(tokens) if token.id == mark)

    def _predicted_tokens(self, tokens: Sequence[Token], output: Output, causal: bool) -> tuple[Prediction, ...]:
        """As of a decoder, also where the picture's tokens see each other ahead (Gemma 3)."""
        return super()._predicted_tokens(tokens, output, causal or self.network.can_generate())

    def _prompt(self, text: str) -> str:
        """Picture and text as the chat template puts them together."""
        settings = self.pieces.settings
        template = getattr(self.processor, "chat_template", None) or settings.get("chat_template")
        if not isinstance(template, str):
            mark = getattr(self.processor, "boi_token", None) or getattr(self.processor, "image_token", "<image>")
            between = (
                "\n" if "Llava" in type(self.processor).__name__ else ""
            )  # others end the line themselves, or not at all
            return f"{str(mark) * len(self.photographs)}{between}{text}"
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
        raise UsageError(f"{model.info.name} reads no picture beside a text", option="image", value=path)
    photographs = read_photographs(path)
    processor = read_processor(model.info.name, lambda: _processor_of_pictures(folder, model.network.config))
    if not hasattr(processor, "image_processor"):
        raise AttnctlError(
            f"{model.info.name} has no preprocessor_config.json: how its pictures are resized is not known"
        )
    given = {field.name: getattr(model, field.name) for field in fields(model)}
    given["pieces"] = replace(model.pieces, bos=False)  # the template begins as it does
    return PicturePrompt(**given, processor=processor, photographs=photographs)


def _processor_of_pictures(folder: Path, config: Any) -> Any:
    """Return the processor in a checkpoint's folder, without its part for videos, which needs torchvision."""
    processing = import_extra("transformers.models.auto.processing_auto")
    how = {"local_files_only": True, "trust_remote_code": False}
    files = (folder / name for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"))
    name = next((found for file in files if file.is_file() and (found := read_json(file).get("processor_class"))), None)
    kind: Any = processing.processor_class_from_name(str(name)) if name else None
    if kind is None and type(config) in processing.PROCESSOR_MAPPING:
        kind = processing.PROCESSOR_MAPPING[type(config)]
    if kind is None or "video_processor" not in kind.get_attributes():
        return processing.AutoProcessor.from_pretrained(folder, **how, backend="pil")

    class WithoutVideos(kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: object) -> object:
            return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)

    auto = import_extra("transformers.processing_utils").MODALITY_TO_AUTOPROCESSOR_MAPPING
    parts: list[Any] = []
    for part in kind.get_attributes():
        pil = {"backend": "pil"} if part == "image_processor" else {}
        parts.append(None if part == "video_processor" else auto[part].from_pretrained(folder, **how, **pil))
    return WithoutVideos.from_args_and_dict(parts, kind.get_processor_dict(folder, local_files_only=True)[0])
