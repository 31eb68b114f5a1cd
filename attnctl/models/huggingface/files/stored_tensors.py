"""What a checkpoint's files say they hold, looked at before anything is built from them."""

from __future__ import annotations

from pathlib import Path

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.formats.safetensors_header import safetensors_header

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")


def check_stored(folder: Path, settings: dict[str, object], name: str) -> None:
    """Raise AttnctlError where the settings ask for more layers than there are tensors, or files are named elsewhere."""
    text = settings.get("text_config")
    count = len(_tensor_names(folder, name))
    for said in (settings, text if isinstance(text, dict) else {}):
        for field in LAYERS:
            layers = said.get(field)
            if isinstance(layers, int) and layers > max(count, limits.LAYERS_BUILT):
                raise AttnctlError(
                    f"{name}: config.json says {field} {str(layers)[:40]}, its files hold {count:,} tensors"
                )


def _tensor_names(folder: Path, name: str) -> set[str]:
    """The names of all tensors in a folder's safetensors files."""
    index = folder / "model.safetensors.index.json"
    if not (folder / "model.safetensors").is_file() and index.is_file():
        from attnctl.models.huggingface.text.tokenizer import read_json

        files = read_json(index).get("weight_map")
        if not isinstance(files, dict) or not files:
            raise AttnctlError(f"{index} names no tensors")
        for file in files.values():
            if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
                raise AttnctlError(
                    f"{index} names {str(file)[:80]!r}: attnctl reads safetensors files of the same folder"
                )
        return set(files)
    found: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        found |= _names_in_header(path, name)
    return found


def _names_in_header(path: Path, name: str) -> set[str]:
    """The names in one file's header, which is JSON after its length in eight bytes."""
    try:
        return set(safetensors_header(path)) - {"__metadata__"}
    except AttnctlError as error:
        raise AttnctlError(f"cannot read {name}: {error}") from error
