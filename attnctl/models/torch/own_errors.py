"""The error of a user's own code: a line that names the function, and its own traceback."""

from __future__ import annotations

import traceback
from pathlib import Path

from attnctl.errors import AttnctlError


class OwnCodeError(AttnctlError):
    """An exception of the user's own function, with its traceback."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


def own_error(name: str, error: Exception) -> OwnCodeError:
    """Return an error with a line that names the function, and the traceback of the user's own code."""
    here, frame = Path(__file__).resolve().parent, error.__traceback__
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).resolve().parent == here:
        frame = frame.tb_next
    lines = traceback.format_exception(type(error), error, frame or error.__traceback__)
    return OwnCodeError(f"{name} raised {type(error).__name__}:", "".join(lines))
