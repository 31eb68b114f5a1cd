"""Read pictures: photographs, drawings, the first frame of a moving picture."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from itertools import accumulate
from typing import IO, TYPE_CHECKING

from attnctl.checks import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.runtime.files import check_regular, names_picture

if TYPE_CHECKING:
    from PIL.Image import Image


# the formats of the suffixes in `files.names_picture`. Pillow chooses a format by content, and some other formats start
# programs or are seldom used: a PostScript file called photo.png would start Ghostscript.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
GAP = 0.02  # between pictures side by side: a share of the largest height


def read_photograph(paths: str) -> Image:
    """Return the picture in a file; several, separated by commas, side by side. Errors as in `read_photographs`."""
    return side_by_side(read_photographs(paths))


def photograph_of(function: str, picture: object) -> Image:
    """Return a picture that is an image of Pillow, or the name of its file. Raises TypeError for anything else."""
    if isinstance(picture, (str, os.PathLike)):
        return read_photograph(os.fspath(picture)).convert("RGB")
    if not all(hasattr(picture, name) for name in ("size", "convert", "resize")):
        raise TypeError(f"{function}(): picture is a file or an image of Pillow, not {type(picture).__name__}")
    converted: Image = picture.convert("RGB")  # type: ignore[attr-defined]
    return converted


def read_photographs(paths: str) -> tuple[Image, ...]:
    """Return the pictures in files; commas separate their names, unless a file has the whole name.

    Raises AttnctlError for a picture that does not exist or is damaged, and if one picture or all side by side have more
    than limits.PICTURE_PIXELS.
    """
    pictures = tuple(map(_read_one, _picture_names(paths)))
    size = max(picture.height for picture in pictures) * sum(picture.width for picture in pictures)
    if size > limits.PICTURE_PIXELS:
        raise AttnctlError(
            f"{len(pictures)} pictures side by side are {size:,} pixels, more than attnctl reads: make them smaller"
        )
    return pictures


def _picture_names(paths: str) -> list[str]:
    """Return the names between the commas; a comma inside the name of an existing file does not separate."""
    parts, names = paths.split(","), list[str]()
    while parts:
        counts = (count for count in range(len(parts), 1, -1) if names_picture(",".join(parts[:count]).strip()))
        count = next(counts, 1)
        names.append(",".join(parts[:count]).strip())
        del parts[:count]
    if not all(names):
        why = "a name is missing: give the file of a picture, or several with commas between them"
        raise AttnctlError(why, option="image", value=paths)
    return names


def side_by_side(pictures: Sequence[Image]) -> Image:
    """Return pictures as one, their upper edges in a line, on white; a single picture is returned unchanged."""
    if len(pictures) == 1:
        return pictures[0]
    from PIL import Image

    offsets = strip_offsets(pictures)
    strip = Image.new("RGB", (offsets[-1] + pictures[-1].width, max(picture.height for picture in pictures)), "white")
    for picture, offset in zip(pictures, offsets, strict=True):
        strip.paste(picture, (offset, 0))
    return strip


def strip_offsets(pictures: Sequence[Image]) -> list[int]:
    """Return the first pixel of each picture when they stand side by side."""
    gap = max(1, round(GAP * max(picture.height for picture in pictures)))
    return [0, *accumulate(picture.width + gap for picture in pictures[:-1])]


def open_picture(file: str | IO[bytes], formats: tuple[str, ...] = FORMATS) -> Image:
    """Open a picture of one of these formats without reading its pixels. Raises Pillow's errors for other formats."""
    from PIL import Image

    return Image.open(file, formats=formats)


def _read_one(path: str) -> Image:
    """Return a picture as RGB, turned upright by its EXIF; of a moving picture the first frame; transparency becomes white.

    Errors as in `read_photographs`.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not names_picture(path):
        raise AttnctlError(
            f"no picture {path[:80]!r}: this model reads pictures, so give the name of an existing file (photo.jpg)"
        )
    check_regular(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about large pictures, which are refused below
            opened = open_picture(path)
        with opened:
            if opened.width * opened.height > limits.PICTURE_PIXELS:
                raise AttnctlError(
                    f"{path} has {opened.width:,} × {opened.height:,} pixels, but attnctl reads at most "
                    f"{limits.PICTURE_PIXELS:,}: make it smaller"
                )
            upright = ImageOps.exif_transpose(opened)
            if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
                clear = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
            return upright.convert("RGB")
    except AttnctlError:
        raise
    except UnidentifiedImageError as error:
        raise AttnctlError(
            f"cannot read the picture {path}: it is damaged, or its format is not one of {', '.join(FORMATS)}"
        ) from error
    except Exception as error:  # each format fails in its own way
        raise AttnctlError(f"cannot read the picture {path}: {in_one_line(error)}") from error
