"""Find the boxes of a prompt's picture tokens: one grid, tiles with a small view of the whole, or several pictures."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from attnctl.attention import Array
from attnctl.errors import AttnctlError
from attnctl.formats.photographs import strip_offsets
from attnctl.models.huggingface.hub import import_extra
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.models.huggingface.readers.picture import boxes_between, boxes_of_grid
from attnctl.text.tokens import WHOLE, Token

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedConfig

    from attnctl.models.huggingface.attention_sites import Keywords

_TILE = re.compile(r"<row_(\d+)_col_(\d+)>")  # before each tile of Idefics 3 and SmolVLM
_GLOBAL = "<global-img>"


@dataclass(frozen=True)
class PictureLayout:
    """The processor's result for some pictures, and the runs of picture tokens in the prompt.

    A run is (the token before it, its number of tokens); `processed` is the processor's result for the network.
    """

    processor: Any
    config: PreTrainedConfig
    processed: Keywords
    pictures: Sequence[Image]
    runs: Sequence[tuple[str, int]]

    def tokens(self) -> list[Token]:
        """Return a token with its box for each picture token of the prompt, in order; several pictures are side by side.

        Raises AttnctlError if the picture tokens are not a known kind of grid.
        """
        if config_value(self.config, "perceiver_config", "qformer_config") is not None:
            name = type(self.processor).__name__
            raise AttnctlError(f"the picture tokens of {name} are learned queries, which have no places in the picture")
        pictures = list(self._tokens_of_each())
        n_found, n_expected = sum(map(len, pictures)), sum(count for _, count in self.runs)
        if len(pictures) != len(self.pictures) or n_found != n_expected:
            raise AttnctlError(
                f"{type(self.processor).__name__} makes {n_expected:,} tokens of the picture, which are not a grid "
                "that attnctl knows: their places in the picture are unknown"
            )
        if len(pictures) == 1:
            return pictures[0]
        offsets = strip_offsets(self.pictures)
        return [
            _in_strip(token, number, offset)
            for number, (tokens, offset) in enumerate(zip(pictures, offsets, strict=True))
            for token in tokens
        ]

    def _tokens_of_each(self) -> Iterable[list[Token]]:
        """Return the tokens of each picture, with their boxes in that picture."""
        values, sizes = self.processed.get("pixel_values"), self.processed.get("image_sizes")
        if (grids := self.processed.get("image_grid_thw")) is not None:
            merged = config_value(self.config.vision_config, "spatial_merge_size") or 1
            shapes = [(int(grid[1]) // merged, int(grid[2]) // merged) for grid in grids]
            return [boxes_of_grid(*each, None) for each in zip(self.pictures, shapes, strict=False)]
        if any(before == _GLOBAL or _TILE.fullmatch(before) for before, _ in self.runs):
            return self._named_tiles()
        if values is not None and values.ndim == 5:
            return [self._base_and_tiles(picture) for picture in self.pictures]
        if values is not None and hasattr(self.processor.image_processor, "crop_to_patches"):
            return self._squeezed_tiles()
        if values is None or len(values) != len(self.pictures):
            return []
        if sizes is not None:  # each picture has its own shape; smaller ones are padded (Pixtral)
            side = self.config.vision_config.patch_size * (config_value(self.config, "spatial_merge_size") or 1)
            shapes = [(int(high) // side, int(wide) // side) for high, wide in sizes]
            return [boxes_of_grid(*each, None) for each in zip(self.pictures, shapes, strict=True)]
        side = math.isqrt(sum(count for _, count in self.runs) // len(self.pictures))
        return [boxes_of_grid(picture, (side, side), values.shape[-2:], self._processed) for picture in self.pictures]

    def _processed(self, picture: Image, **changed: bool) -> Array:
        """Return the picture as the processor prepares it: (1, 3, height, width)."""
        return self.processor.image_processor(picture, return_tensors="pt", **changed)["pixel_values"]

    def _named_tiles(self) -> Iterator[list[Token]]:
        """Yield each picture's tokens for Idefics 3 and SmolVLM: tiles named by row and column, then a view of the whole."""
        pictures, tiles = iter(self.pictures), []
        for before, count in self.runs:
            side = math.isqrt(count)
            if (tile := _TILE.fullmatch(before)) is not None:
                tiles.append((int(tile[1]) - 1, int(tile[2]) - 1))
                continue
            if (picture := next(pictures, None)) is None:
                return
            whole, tile_tokens = boxes_of_grid(picture, (side, side), None), list[Token]()
            if tiles:
                rows, columns = (side * (1 + max(numbers)) for numbers in zip(*tiles, strict=True))
                grid = boxes_of_grid(picture, (rows, columns), None)
                places = [
                    (side * row + y, side * column + x)
                    for row, column in tiles
                    for y in range(side)
                    for x in range(side)
                ]
                tile_tokens = [grid[y * columns + x] for y, x in places]
                whole = _as_whole(whole)
            yield [*tile_tokens, *whole]
            tiles = []

    def _squeezed_tiles(self) -> Iterator[list[Token]]:
        """Yield each picture's tokens for InternVL: tiles of the whole picture, squeezed to fill them, then a small view.

        A picture of one tile has no small view.
        """
        resizer = self.processor.image_processor
        canvas = sys.modules[type(resizer).__module__].get_optimal_tiled_canvas
        tile = (resizer.size.height, resizer.size.width)
        for picture, (_, count) in zip(self.pictures, self.runs, strict=False):
            length = getattr(self.processor, "image_seq_length", None) or count // len(self.processed["pixel_values"])
            side = math.isqrt(length)
            whole = boxes_of_grid(picture, (side, side), None)
            if count == length:
                yield whole
                continue
            limits = (resizer.min_patches, resizer.max_patches)
            across, down = canvas((picture.height, picture.width), tile, *limits)
            grid = boxes_of_grid(picture, (side * down, side * across), None)
            places = [
                (side * row + y, side * column + x)
                for row in range(down)
                for column in range(across)
                for y in range(side)
                for x in range(side)
            ]
            yield [*(grid[y * side * across + x] for y, x in places), *_as_whole(whole)]

    def _base_and_tiles(self, picture: Image) -> list[Token]:
        """Return a picture's tokens for LLaVA-NeXT and LLaVA-OneVision: a view of the whole, then its tiles row by row.

        A token ends each row. With several pictures OneVision makes no tiles: one token ends each picture.
        """
        side = self.processed["pixel_values"].shape[-1]
        patches = side // self.config.vision_config.patch_size
        base = boxes_of_grid(picture, (patches, patches), None)
        counts = self.processed.get("batch_num_images")
        if counts is not None and int(counts[0]) > 1:
            return [*base, Token("end", special=True)]
        utilities = import_extra("transformers.image_processing_utils")
        sides = (picture.height, picture.width)
        target = utilities.select_best_resolution(sides, self.processor.image_processor.image_grid_pinpoints)
        tiles = [length // side for length in target]
        cells, rows = self.processor._get_unpadded_features(*sides, patches, patches, *tiles)
        scale = min(target[axis] / sides[axis] for axis in (0, 1))
        row_edges, column_edges = (
            _unpadded_edges(sides[axis], scale, target[axis], patches * tiles[axis], count)
            for axis, count in enumerate((rows, cells // rows))
        )
        tokens = _as_whole(base)
        for row, row_tokens in groupby(
            boxes_between(row_edges, column_edges), lambda token: token.text.partition("c")[0]
        ):
            tokens += [*row_tokens, Token(f"{row}end", special=True)]
        return tokens


def _unpadded_edges(length: int, scale: float, target: int, patches: int, count: int) -> list[int]:
    """Return the edges, in pixels of a picture's side, of the `count` tokens along it that remain without padding.

    The side of `length` pixels was resized by `scale` into the middle of `target` pixels, which are `patches` tokens. Whole
    tokens of padding are cut off at both ends; the others may be pooled to fewer.
    """
    resized, pixels = min(math.ceil(length * scale), target), target / patches
    cut = (patches - int(round(length * scale / pixels, 7))) // 2
    step, start = (patches - 2 * cut) / count * pixels, cut * pixels - (target - resized) // 2
    return [min(max(round((start + number * step) * length / resized), 0), length) for number in range(count + 1)]


def _as_whole(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens of a small view of the whole picture, renamed to tell them from those in tiles."""
    return [replace(token, text=f"{WHOLE}{token.text}") for token in tokens]


def _in_strip(token: Token, number: int, offset: int) -> Token:
    """Return a token of picture `number` as a token of several pictures side by side, `offset` pixels to the right."""
    box = None if token.box is None else (token.box[0] + offset, token.box[1], token.box[2] + offset, token.box[3])
    return replace(token, text=f"p{number}-{token.text}", box=box, picture=number)
