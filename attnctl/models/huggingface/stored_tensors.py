"""List the tensors that a checkpoint's files hold, by the choice of their index, and read them one at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError
from attnctl.formats.arrays import safetensors_header
from attnctl.models.huggingface.hub import INDEX, read_json, stored_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

PART = re.compile(r"-\d{5}-of-\d{5}\.safetensors")
PLAIN_DTYPES = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file, which is read when it is indexed, as safetensors' own slices are."""

    name: str
    path: Path
    dtype: str  # as in the header: F32, F8_E4M3, I8
    shape: tuple[int, ...]

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        return self.values

    @property
    def values(self) -> torch.Tensor:
        """Return the numbers as they are stored."""
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(self.name)
        return tensor

    def get_shape(self) -> list[int]:
        """Return the shape, as safetensors' own slices do."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Return the type of the numbers, as safetensors' own slices do."""
        return self.dtype


@dataclass(frozen=True)
class StoredTensors:
    """All tensors of a checkpoint's folder by name; `repeated` are names that a second file holds too."""

    tensors: Mapping[str, StoredTensor]
    repeated: frozenset[str] = frozenset()

    @cached_property
    def n_numbers(self) -> int:
        """Return how many numbers the tensors hold."""
        from math import prod

        return sum(prod(tensor.shape) for tensor in self.tensors.values())


def stored_tensors(folder: Path, name: str) -> StoredTensors:
    """Return the tensors of a folder's files. Raises AttnctlError for a damaged header, or parts without their index."""
    try:
        files = stored_files(folder)
        if any(PART.search(path.name) for path in files) and not (folder / INDEX).is_file():
            raise AttnctlError(
                f"{folder} holds parts of a checkpoint without {INDEX}: copy that file into the folder too"
            )
        chosen: Any = read_json(folder / INDEX)["weight_map"] if len(files) > 1 and (folder / INDEX).is_file() else {}
        tensors, repeated = dict[str, StoredTensor](), set[str]()
        for path in files:
            for key, entry in safetensors_header(path).items():
                if key == "__metadata__":
                    continue
                if key in tensors:
                    repeated.add(key)
                    if chosen.get(key) != path.name:
                        continue
                tensors[key] = StoredTensor(key, path, entry["dtype"], tuple(entry["shape"]))
    except AttnctlError as error:
        raise AttnctlError(f"cannot read {name}: {error}") from error
    return StoredTensors(tensors, frozenset(repeated))
