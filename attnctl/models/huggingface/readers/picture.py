"""The reader of pictures for vision transformers: the tokens are patches, each with its box in the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from attnctl.attention import Array
from attnctl.errors import AttnctlError, in_one_line
from attnctl.formats.photographs import read_photograph
from attnctl.models.huggingface.attention_sites import attention_sites
from attnctl.models.huggingface.checkpoint import ModelInput, Reader
from attnctl.models.huggingface.hub import has_processor, import_extra
from attnctl.models.huggingface.network import device_of_inputs, quiet_library
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.runtime.arrays import as_numpy
from attnctl.text.tokens import PADDING, Token
from attnctl.trace.run import StopForward

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch.nn import Module
    from transformers import PreTrainedConfig

    from attnctl.models.huggingface.attention_sites import Keywords
    from attnctl.models.huggingface.checkpoint import Checkpoint

Processor = TypeVar("Processor")


@dataclass(frozen=True)
class PictureReader(Reader):
    """The reader of pictures: a user gives the name of a picture's file in place of a text.

    `processor` is the checkpoint's own: it resizes, crops and scales.
    """

    name: str
    processor: Any
    takes: ClassVar[str] = "picture"
    tokenizer = None

    def tokenize(self, model: Checkpoint, text: str) -> tuple[Token, ...]:
        """Return the tokens of the picture file `text`: the special tokens (CLS, registers), then the patches row by row.

        A patch is called r3c5 (row 3, column 5). Raises AttnctlError if the file is not a picture, or if the network's
        tokens are not the patches of a grid.
        """
        photograph = read_photograph(text)
        values, config = self.processed(model, photograph), picture_config(model)
        patches = self._patches(model, photograph, values)
        n_special = _token_count(model, values) - len(patches)
        n_detection = int(config_value(config, "num_detection_tokens") or 0)
        names = ["[CLS]"] if n_special - n_detection > 0 else []
        names += ["[DIST]"] if config.model_type == "deit" and n_special > 1 else []
        names += [f"[REG{number}]" for number in range(n_special - n_detection - len(names))]
        if n_special < 0 or n_special - n_detection > 1 + max(
            int(config_value(config, "num_register_tokens") or 0), len(names) - 1
        ):
            raise AttnctlError(
                f"{model.info.name} makes other tokens of a picture than its {len(patches)} patches: their "
                "places in the picture are unknown"
            )
        before = tuple(Token(name, special=True) for name in names)
        return (*before, *patches, *(Token(f"[DET{number}]", special=True) for number in range(n_detection)))

    def read(self, model: Checkpoint, text: str, tokens: tuple[Token, ...]) -> ModelInput:
        """Return the network's inputs for the picture file `text`: its pixel values alone."""
        return ModelInput(tokens, {"pixel_values": self.processed(model, read_photograph(text))})

    def processed(self, model: Checkpoint, photograph: Image, **changed: bool) -> Array:
        """Return the picture as the checkpoint's processor prepares it: (1, 3, height, width)."""
        try:
            with quiet_library():
                values = self.processor(photograph, return_tensors="pt", **changed)["pixel_values"]
        except Exception as error:  # each family's processor raises its own errors
            raise AttnctlError(
                f"the image processor of {model.info.name} fails on this picture: {in_one_line(error)}"
            ) from error
        if values.ndim != 4 or len(values) != 1:
            raise AttnctlError(f"the image processor of {model.info.name} makes several pictures of one")
        return values.to(device_of_inputs(model.network), model.network.dtype)

    def _patches(self, model: Checkpoint, photograph: Image, values: Array) -> list[Token]:
        """Return the patches row by row, each with its box in the picture before resizing and cropping."""
        sides = values.shape[-2:]  # height and width of the network's input
        patch = picture_config(model).patch_size
        patch_height, patch_width = patch if isinstance(patch, (list, tuple)) else (patch, patch)
        grid = (sides[0] // patch_height, sides[1] // patch_width)
        covered = (grid[0] * patch_height, grid[1] * patch_width)
        return boxes_of_grid(photograph, grid, sides, partial(self.processed, model), covered)


def picture_config(model: Checkpoint) -> PreTrainedConfig:
    """Return the configuration of the part of the network that reads pictures."""
    return config_value(model.network.config, "vision_config") or model.network.config


def _token_count(model: Checkpoint, values: Array) -> int:
    """Return how many tokens the first attention reads; -1 if it does not read the tokens of one picture."""
    counts: list[int] = []

    def stop(_: Module, arguments: tuple[Array, ...], keywords: Keywords) -> None:
        states = arguments[0] if arguments else keywords["hidden_states"]
        counts.append(int(states.shape[1]) if states.ndim == 3 and len(states) == 1 else -1)
        raise StopForward

    first = next(iter(attention_sites(model.network, model.kind).values()), None)
    if first is None:
        raise AttnctlError(f"{model.info.name} has no attention")
    handle = first.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with suppress(StopForward), import_extra("torch").inference_mode():
            model.network(pixel_values=values)
    finally:
        handle.remove()
    return counts[0] if counts else -1


def boxes_of_grid(
    photograph: Image,
    grid: tuple[int, int],
    sides: tuple[int, int] | None,
    processed: Callable[..., Array] | None = None,
    covered: tuple[int, int] | None = None,
) -> list[Token]:
    """Return the tokens of a grid (rows, columns) row by row, each with its box in the original picture.

    `sides` (height, width) is the network's input: the middle of the result of `processed` without the crop; None: the
    whole picture. `covered` (height, width) is the part of the input that the grid covers, from its upper left corner;
    None: all of it.
    """
    original = np.array((photograph.height, photograph.width))
    size = original if sides is None else np.array(sides)
    full, picture_spans = tuple(original.tolist()), tuple((0.0, float(side)) for side in original)
    if sides is not None and processed is not None:
        full, picture_spans = _place_in_processed(photograph, processed)
    steps, offset = np.array(covered or tuple(size)) / grid, (np.array(full) - size) // 2

    def spans(axis: int) -> list[tuple[int, int] | None]:
        start, end = picture_spans[axis]
        pixels = np.arange(grid[axis] + 1) * steps[axis] + offset[axis]  # (count + 1,)
        exact = (pixels - start) * original[axis] / (end - start)
        edges = np.clip(np.round(exact), 0, original[axis]).astype(int).tolist()
        is_outside = [low < 0 or high > original[axis] for low, high in pairwise(exact.tolist())]
        return [None if a == b and out else (a, b) for (a, b), out in zip(pairwise(edges), is_outside, strict=True)]

    return boxes_of_spans(spans(0), spans(1))


Place = tuple[float, float]  # start and end along one side, in pixels


def _place_in_processed(
    photograph: Image, processed: Callable[..., Array]
) -> tuple[tuple[int, int], tuple[Place, Place]]:
    """Return the size (height, width) of a processed picture before the crop, and where the picture lies in it.

    The processor runs on a white and on a black picture of this size: where both results are equal is padding.
    """
    from PIL import Image

    white, black = (
        as_numpy(processed(Image.new("RGB", photograph.size, colour), do_center_crop=False)[0]).astype(np.float64)
        for colour in ("white", "black")
    )
    differs = np.abs(white - black).mean(0)  # (height, width)
    inner = differs > differs.max() / 2
    whole = (differs.shape[0], differs.shape[1])
    if inner.all() or not inner.any():
        return whole, ((0.0, float(whole[0])), (0.0, float(whole[1])))
    share = differs / np.median(differs[inner])  # about 1 in the picture, less where padding is blended in

    def place(axis: int) -> Place:
        profile = np.median(share[inner.any(1)], 0) if axis else np.median(share[:, inner.any(0)], 1)  # (side,)
        length, middle = profile.sum(), profile @ (np.arange(len(profile)) + 0.5) / profile.sum()
        return float(middle - length / 2), float(middle + length / 2)

    return whole, (place(0), place(1))


def boxes_between(row_edges: Sequence[int], column_edges: Sequence[int]) -> list[Token]:
    """Return the tokens of a grid row by row, given the edges of its rows and of its columns in pixels."""
    return boxes_of_spans(list(pairwise(row_edges)), list(pairwise(column_edges)))


def boxes_of_spans(
    row_spans: Sequence[tuple[int, int] | None], column_spans: Sequence[tuple[int, int] | None]
) -> list[Token]:
    """Return the tokens of a grid row by row, given the spans of its rows and columns; a span of None is padding."""
    return [
        Token(f"{PADDING}r{row}c{column}", special=True)
        if row_span is None or column_span is None
        else Token(f"r{row}c{column}", box=(column_span[0], row_span[0], column_span[1], row_span[1]))
        for row, row_span in enumerate(row_spans)
        for column, column_span in enumerate(column_spans)
    ]


def read_processor(name: str, load: Callable[[], Processor]) -> Processor:
    """Return the processor that `load` reads for the checkpoint `name`. Raises AttnctlError, in one line, if that fails."""
    try:
        with quiet_library():
            return load()
    except Exception as error:
        if "torchvision" in str(error).lower() and find_spec("torchvision") is None:
            raise AttnctlError(
                f"the processor of {name} needs torchvision, which is not installed: pip install torchvision (the version "
                "that fits your torch)"
            ) from error
        raise AttnctlError(f"the processor of {name} cannot be read: {in_one_line(error)}") from error


def open_picture_reader(folder: Path, name: str) -> PictureReader:
    """Return the picture reader of a checkpoint's folder. Raises AttnctlError if its processor cannot be read."""
    if not has_processor(folder):
        raise AttnctlError(f"{name} has no preprocessor_config.json: how its pictures are resized is not known")
    auto = import_extra("transformers").AutoImageProcessor
    options = {"local_files_only": True, "trust_remote_code": False, "backend": "pil"}
    return PictureReader(name, read_processor(name, lambda: auto.from_pretrained(folder, **options)))
