"""The reader of a text with pictures, for vision-language checkpoints: some tokens are parts of a picture."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.formats.photographs import read_photographs, side_by_side
from attnctl.models.huggingface.checkpoint import ModelInput, Reader
from attnctl.models.huggingface.hub import import_extra, read_json
from attnctl.models.huggingface.network import device_of_inputs, quiet_library
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.models.huggingface.readers.picture import read_processor
from attnctl.models.huggingface.readers.picture_views import PictureLayout
from attnctl.models.huggingface.readers.text import (
    continuation_notes,
    generated_tokens,
    input_notes,
    table_notes,
)
from attnctl.models.huggingface.template_process import fill_templates
from attnctl.models.huggingface.tokenizer import named_token
from attnctl.text.tokens import Token

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedConfig, ProcessorMixin

    from attnctl.models.huggingface.attention_sites import Keywords
    from attnctl.models.huggingface.checkpoint import Checkpoint
    from attnctl.models.huggingface.tokenizer import Pieces


@dataclass(frozen=True)
class PicturePromptReader(Reader):
    """The reader of a prompt with one picture or several: each text is a message about them.

    The checkpoint's chat template joins pictures and text; without a template, the picture token is put before the text.
    The tokens of a picture have their boxes in the original picture.
    """

    tokenizer: Pieces
    processor: ProcessorMixin
    photographs: tuple[Image, ...]
    _last: dict[str, Keywords] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def photograph(self) -> Image:
        """Return the picture that boxes refer to: the only one, or several side by side."""
        return side_by_side(self.photographs)

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the prompt.

        Tokens of a picture are called r3c5 (row 3, column 5). No token has a position in `text`.
        """
        processed = self._processed(model, text)
        ids, mark = processed["input_ids"][0].tolist(), self._picture_id(model, processed)
        tokens: list[Token] = []
        runs: list[tuple[str, int]] = []  # (the token before a run of picture tokens, their number)
        before = ""
        for is_picture, group in groupby(ids, lambda number: number == mark):
            run_ids = list(group)
            if is_picture:
                runs.append((before, len(run_ids)))
            tokens += (
                [Token("", number) for number in run_ids] if is_picture else self.pieces.continued_tokens((), run_ids)
            )
            before = self.pieces.tokenizer.id_to_token(run_ids[-1]) or ""
        positions = [position for position, number in enumerate(ids) if number == mark]
        layout = PictureLayout(self.processor, model.network.config, processed, self.photographs, runs)
        for position, patch in zip(positions, layout.tokens(), strict=True):
            tokens[position] = replace(patch, id=mark)
        if model.generate:
            tokens += generated_tokens(model, self.read(model, text, tuple(tokens)).inputs)
        return tuple(tokens)

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the ids of the tokens, and the other inputs that the processor makes for the prompt.

        The notes are about generated tokens only: the processor made the others.
        """
        model.check_tokens(tokens)
        processed = self._processed(model, text)
        n, device, dtype = processed["input_ids"].shape[-1], device_of_inputs(model.network), model.network.dtype
        inputs = {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in processed.items()
            if name not in ("attention_mask", "labels") and hasattr(value, "shape")
        }
        whole = self._is_seen_whole(model, processed)
        mark = self._picture_id(model, processed)
        together = (
            len(tokens) if whole else 1 + max(position for position, token in enumerate(tokens) if token.id == mark)
        )
        prompt = ModelInput(tokens, inputs, together=together, type_behind=int(whole))
        ids = model.token_ids(tokens)
        inputs = {"input_ids": ids, **prompt.other_inputs(ids.shape[-1])}
        notes = (*input_notes(model, tokens[n:], inputs), *continuation_notes(model, tokens), *table_notes(model))
        return replace(prompt, inputs=inputs, notes=notes, blanks=self.pieces.mask_positions(tokens))

    def _processed(self, model: Checkpoint, text: str) -> Keywords:
        """Return the processor's result for pictures and text. Raises AttnctlError if the processor fails."""
        if text not in self._last:
            prompt = self.prompt(model, text)
            try:
                with quiet_library():
                    processed = self.processor(text=[prompt], images=list(self.photographs), return_tensors="pt")
            except Exception as error:  # each family's processor raises its own errors
                raise AttnctlError(
                    f"the processor of {model.info.name} fails on this picture and text: {in_one_line(error)}"
                ) from error
            self._last.clear()
            self._last[text] = dict(processed)
        return self._last[text]

    def _is_seen_whole(self, model: Checkpoint, processed: Keywords) -> bool:
        """Return whether all tokens of the prompt see each other: their token type is 0, and 1 after them (PaliGemma)."""
        types = None if model.info.causal else processed.get("token_type_ids")
        return types is not None and not bool(types.any())

    def prompt(self, model: Checkpoint, text: str) -> str:
        """Return pictures and text joined by the chat template."""
        settings = self.pieces.settings
        template = getattr(self.processor, "chat_template", None) or settings.get("chat_template")
        if not isinstance(template, str):
            mark = getattr(self.processor, "boi_token", None) or getattr(self.processor, "image_token", "<image>")
            # other processors add a line end, or need none
            between = "\n" if "Llava" in type(self.processor).__name__ else ""
            return f"{str(mark) * len(self.photographs)}{between}{text}"
        special = {key: named_token(settings, key) for key in ("bos_token", "eos_token", "pad_token", "unk_token")}
        conversation = [
            {"role": "user", "content": [*[{"type": "image"}] * len(self.photographs), {"type": "text", "text": text}]}
        ]
        try:
            return fill_templates(template, [conversation], add_generation_prompt=True, **special)[0]
        except ValueError as error:
            why = f"the chat template of {model.info.name} refuses a picture beside a text: {in_one_line(error)}"
            raise AttnctlError(why) from error

    def _picture_id(self, model: Checkpoint, processed: Keywords) -> int:
        """Return the id of the token that is replaced by a part of a picture."""
        config = model.network.config
        mark = config_value(config, "image_token_id", "image_token_index")
        if not isinstance(mark, int) or not bool((processed["input_ids"] == mark).any()):
            raise AttnctlError(
                f"{model.info.name} has no picture tokens in its prompt: the keys of the picture are not known"
            )
        return mark


def beside_picture(model: Checkpoint, folder: Path, path: str) -> Checkpoint:
    """Return the checkpoint that reads its texts with the pictures of `path` (names separated by commas).

    Raises UsageError if the checkpoint reads no pictures.
    """
    if config_value(model.network.config, "vision_config") is None or model.kind != "self":
        raise UsageError(f"{model.info.name} reads no picture beside a text", option="image", value=path)
    photographs = read_photographs(path)
    processor = read_processor(model.info.name, lambda: _processor_of_pictures(folder, model.network.config))
    if not hasattr(processor, "image_processor"):
        raise AttnctlError(
            f"{model.info.name} has no preprocessor_config.json: how its pictures are resized is not known"
        )
    pieces = replace(model.pieces, bos=False)  # the template adds the beginning token if it needs one
    return replace(model, reader=PicturePromptReader(pieces, processor, photographs))


def _processor_of_pictures(folder: Path, config: PreTrainedConfig) -> Any:
    """Return the processor in a checkpoint's folder, without its part for videos, which would need torchvision."""
    processing = import_extra("transformers.models.auto.processing_auto")
    options = {"local_files_only": True, "trust_remote_code": False}
    files = (folder / name for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"))
    name = next(
        (class_name for file in files if file.is_file() and (class_name := read_json(file).get("processor_class"))),
        None,
    )
    kind: Any = processing.processor_class_from_name(str(name)) if name else None
    if kind is None and type(config) in processing.PROCESSOR_MAPPING:
        kind = processing.PROCESSOR_MAPPING[type(config)]
    if kind is None or "video_processor" not in kind.get_attributes():
        return processing.AutoProcessor.from_pretrained(folder, **options, backend="pil")

    class WithoutVideos(kind):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: object) -> object:
            return None if argument is None else super().check_argument_for_proper_class(argument_name, argument)

    auto = import_extra("transformers.processing_utils").MODALITY_TO_AUTOPROCESSOR_MAPPING
    parts: list[object] = []
    for part in kind.get_attributes():
        pil = {"backend": "pil"} if part == "image_processor" else {}
        parts.append(None if part == "video_processor" else auto[part].from_pretrained(folder, **options, **pil))
    return WithoutVideos.from_args_and_dict(parts, kind.get_processor_dict(folder, local_files_only=True)[0])
