"""Open a GGUF file: its configuration, its network with mapped weights, and notes about it."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnctl.errors import AttnctlError, in_one_line
from attnctl.models.gguf.configuration import configuration_fields, file_notes, settings_and_family
from attnctl.models.gguf.families import Family
from attnctl.models.gguf.ollama_layout import open_gguf
from attnctl.models.gguf.settings import Settings
from attnctl.models.gguf.tensors import GgufFile
from attnctl.models.huggingface.hub import import_extra
from attnctl.runtime.light_import import import_lightly

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from attnctl.text import Document

BIG = 10**9  # from this many parameters on, a GPU multiplies in half precision


class Opened(NamedTuple):
    """A GGUF file whose header was read."""

    name: str
    settings: Settings
    family: Family
    configuration: Document  # under the names of a config.json
    notes: tuple[str, ...]

    @property
    def file(self) -> GgufFile:
        """Return the file."""
        return self.settings.file


def opened_gguf(path: Path, name: str) -> Opened:
    """Return a GGUF file with its configuration.

    Raises AttnctlError, in one line, for a damaged file, and for an architecture or a setting that is not read.
    """
    import_extra("gguf.quants")
    _remove_old_copies()
    file, left_out = open_gguf(path)
    opened = opened_file(file, name)
    return opened._replace(notes=(*left_out, *opened.notes))


def opened_file(file: GgufFile, name: str) -> Opened:
    """Return an open file with its configuration. Raises the errors of `opened_gguf`."""
    settings, family = settings_and_family(file, name)
    fields = configuration_fields(settings, family)
    return Opened(name, settings, family, fields, file_notes(settings, fields))


def load_gguf(path: Path, name: str, dtype: str, device: str) -> PreTrainedModel:
    """Return the network of a GGUF file: its matrices stay quantised in the mapped file, and multiply in `dtype`.

    Raises AttnctlError in the same cases as `opened_gguf`, and for tensors that are missing or not read.
    """
    opened = opened_gguf(path, name)
    import torch

    from attnctl.runtime.arrays import torch_device

    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else torch_device(device)
    halves = (
        dtype == "auto" and str(place) != "cpu" and sum(tensor.size for tensor in opened.file.tensors.values()) > BIG
    )
    number_type = torch.float16 if halves else torch.float32 if dtype == "auto" else getattr(torch, dtype)
    try:
        return import_lightly(lambda: load_network_of(opened, number_type, place))
    except (AttnctlError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # settings of a damaged file fail in many ways
        raise AttnctlError(f"cannot read {path}: {in_one_line(error)}") from error


def load_network_of(opened: Opened, dtype: torch.dtype, device: str | torch.device) -> PreTrainedModel:
    """Return the network of an open file. Raises AttnctlError for tensors that are missing or not read."""
    from attnctl.models.gguf.matrices import empty_network, place_weights
    from attnctl.models.gguf.parameters import Parameters

    network = empty_network(*_class_and_configuration(opened), dtype)
    weights = Parameters(network, opened.settings, opened.family).weights()
    missing = place_weights(network, weights, name=opened.name, dtype=dtype, device=device)
    if missing:
        first = min(missing)
        raise AttnctlError(f"{opened.name} lacks {len(missing)} of its weights, {first} first: its file is incomplete")
    network.train(False)
    return network


def _class_and_configuration(opened: Opened) -> tuple[Any, Any]:
    """Return the class of network of a file, and its configuration."""
    transformers = import_extra("transformers")
    model_class: Any = getattr(transformers, opened.family.network, None)
    if model_class is None:
        needs = (
            f"{opened.name} needs {opened.family.network}, which transformers {transformers.__version__} does not have"
        )
        raise AttnctlError(f"{needs}: pip install --upgrade transformers")
    config = model_class.config_class(**opened.configuration)
    config.name_or_path = opened.name
    fused = model_class._can_set_attn_implementation() and model_class._supports_sdpa
    config._attn_implementation = "sdpa" if fused else "eager"
    return model_class, config


def _remove_old_copies() -> None:
    """Remove what earlier versions kept in the user's cache: whole models, dequantised, with settings left out.

    Only folders are removed that such a version named in a file beside them.
    """
    from platformdirs import user_cache_path

    folder = user_cache_path("attnctl") / "gguf"
    with contextlib.suppress(OSError):
        for place in folder.glob("*.place"):
            with contextlib.suppress(ValueError):  # it is no text
                if re.fullmatch(OLD_PLACE, stored := place.read_text(encoding="utf-8")[:1000]):
                    shutil.rmtree(folder / stored.partition("\n")[0], ignore_errors=True)
            place.unlink(missing_ok=True)


# content of a .place file of earlier versions: the name of the folder, and the path of the GGUF file
OLD_PLACE = r"[^/\\\0\n]*-[0-9a-f]{12}(\n[^\0]*)?"
