"""Pictures that are read: photographs, drawings, the first frame of a moving one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.errors import AttnctlError, in_one_line
from attnctl.files import check_regular, names_picture

if TYPE_CHECKING:
    from PIL.Image import Image


def read_photograph(path: str) -> Image:
    """A picture as RGB, turned upright as its EXIF says; of a moving one the first frame, on white where it is clear.

    Raises AttnctlError, one line, where there is none, it is damaged, or has more than limits.PICTURE_PIXELS.
    """
    from PIL import Image, ImageOps

    if not names_picture(path):
        raise AttnctlError(
            f"no picture {path[:80]!r}: this model reads pictures, so give the name of a file (photo.jpg)"
        )
    check_regular(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a large one, which is refused below
            opened = Image.open(path)
        with opened:
            if opened.width * opened.height > limits.PICTURE_PIXELS:
                raise AttnctlError(
                    f"{path} has {opened.width:,} × {opened.height:,} pixels, more than the {limits.PICTURE_PIXELS:,} that "
                    "are read: make it smaller"
                )
            upright = ImageOps.exif_transpose(opened)
            if upright.mode in ("RGBA", "LA", "PA") or "transparency" in upright.info:
                clear = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
            return upright.convert("RGB")
    except AttnctlError:
        raise
    except Exception as error:  # each format fails in its own way
        raise AttnctlError(f"cannot read the picture {path}: {in_one_line(error)}") from error
