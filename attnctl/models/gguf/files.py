"""Find the files of a GGUF model: by their first bytes, all parts of a split one, and not what only belongs to a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl.errors import AttnctlError
from attnctl.runtime.files import check_regular, open_regular

if TYPE_CHECKING:
    from attnctl.models.gguf.header import Metadata

MAGIC = b"GGUF"
PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.[^.]*)?")  # as llama.cpp names parts
# values of general.type and general.architecture of files that are no models → what they are
OTHER_KINDS = {
    "mmproj": "the part of a model that reads pictures or sounds (mmproj)",
    "clip": "the part of a model that reads pictures or sounds (mmproj)",
    "adapter": "an adapter (LoRA), which changes another model's weights",
    "controlvector": "a control vector, which is added to another model's states",
    "imatrix": "an importance matrix, which llama.cpp quantises a model by",
}


def begins_as_gguf(path: Path) -> bool:
    """Return whether a path is a regular file that begins with GGUF, whatever its name is."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):  # no permission, or no possible name
        return False


def gguf_parts(path: Path) -> tuple[Path, ...]:
    """Return all parts of a split GGUF file in their order, from the path of any of them; of a whole file, its path.

    Raises AttnctlError if a part is missing.
    """
    split = PART.fullmatch(path.name)
    if split is None:
        return (path,)
    count = int(split["count"])
    names = [f"{split['stem']}-{number:05}-of-{count:05}{split['suffix'] or ''}" for number in range(1, count + 1)]
    missing = [name for name in names if not (path.parent / name).exists()]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AttnctlError(f"{path} is a part of a GGUF file in {count} parts: {missing[0]}{others} is not beside it")
    return tuple(path.parent / name for name in names)


def check_gguf(path: Path) -> Path:
    """Return the path of a GGUF file, of a split one the first part; its header and those of all parts are read.

    Raises AttnctlError if it is damaged, lacks a part, or holds no model.
    """
    check_regular(path)
    with open_regular(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise AttnctlError(f"{path} is not a GGUF file: it does not begin with GGUF")
    from attnctl.models.gguf.header import read_header

    parts = gguf_parts(path)
    headers = [read_header(part) for part in parts]
    _check_kind(path, headers[0])
    _check_count(path, parts, headers[0])
    return parts[0]


def _check_kind(path: Path, header: Metadata) -> None:
    """Raise AttnctlError if a file holds something else than a model."""
    for key in ("general.type", "general.architecture"):
        kind = header.entries.get(key)
        if isinstance(kind, str) and kind in OTHER_KINDS:
            raise AttnctlError(f"{path} holds {OTHER_KINDS[kind]}: name the model's own .gguf file")


def _check_count(path: Path, parts: tuple[Path, ...], header: Metadata) -> None:
    """Raise AttnctlError if a header names more parts than its file's name does."""
    count = header.entries.get("split.count", 0)
    if isinstance(count, int) and count > len(parts):
        number = int(header.entries.get("split.no", 0)) + 1  # type: ignore[arg-type]
        ending = f"-{number:05}-of-{count:05}.gguf"
        raise AttnctlError(f"{path} is part {number} of {count}: put the parts together, each named like …{ending}")
