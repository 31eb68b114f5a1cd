"""Find the GGUF file of a model of Ollama in its store, without its server and without a copy.

Source: Ollama's repository, types/model/name.go (names), manifest/ (manifests and blobs), envconfig/config.go (folders).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attnctl.checks import limits
from attnctl.errors import AttnctlError, UsageError
from attnctl.models.gguf.files import begins_as_gguf
from attnctl.runtime.files import parse_json, read_bytes

SCHEME = "ollama:"
HOST, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
# a part of a name: host, namespace, model, tag
PARTS = (r"\w[\w.:-]{0,349}", r"\w[\w-]{0,79}", r"\w[\w.-]{0,79}", r"\w[\w.-]{0,79}")
DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the service that the installer sets up on Linux
LAYER = "application/vnd.ollama.image."
LISTED = 12


class OllamaName(NamedTuple):
    """The name of a model of Ollama, with its defaults."""

    host: str
    namespace: str
    model: str
    tag: str

    def __str__(self) -> str:
        """Return the shortest name that Ollama takes for this model."""
        name = f"{self.model}:{self.tag}" if self.tag != TAG else self.model
        if self.host != HOST:
            return f"{self.host}/{self.namespace}/{name}"
        return f"{self.namespace}/{name}" if self.namespace != NAMESPACE else name

    @property
    def place(self) -> Path:
        """Return the path of its manifest within a store's folder of manifests."""
        return Path(*self)


class OllamaModel(NamedTuple):
    """A model in a store: its name, its GGUF file, and the kinds of its other layers (template, system, params, …)."""

    name: OllamaName
    path: Path
    layers: frozenset[str]


def parse_name(name: str) -> OllamaName:
    """Return the parts of `[HOST/][NAMESPACE/]NAME[:TAG]`. Raises UsageError for a name that Ollama would not take."""
    bare = name.partition("://")[2] if "://" in name else name
    rest, tag = bare, TAG
    if bare.rfind(":") > bare.rfind("/"):  # a colon before a slash belongs to a host
        rest, _, tag = bare.rpartition(":")
    given = rest.rsplit("/", 2)
    parts = OllamaName._make((*(HOST, NAMESPACE)[: 3 - len(given)], *given, tag))
    if not all(re.fullmatch(form, part, re.ASCII) for form, part in zip(PARTS, parts, strict=True)):
        why = (
            f"{name[:100]!r} is no name of a model of Ollama: it is [HOST/][NAMESPACE/]NAME[:TAG], such as llama3.2:3b"
        )
        raise UsageError(why, value=f"{SCHEME}{name}")
    return parts


def store_folders() -> list[Path]:
    """Return the folders of Ollama's stores: OLLAMA_MODELS, else the user's and the service's own, those that exist."""
    stated = _stated_folder()
    candidates = [Path(stated)] if stated else [Path.home() / ".ollama" / "models", SERVICE]
    return [folder for folder in candidates if os.path.isdir(folder / "manifests")]  # noqa: PTH112


def _stated_folder() -> str:
    """Return the folder that the variable OLLAMA_MODELS names, as Ollama reads it; "" if it is not set."""
    return os.environ.get("OLLAMA_MODELS", "").strip(" \"'")


def installed_names() -> list[OllamaName]:
    """Return the names of the models in the stores."""
    names: dict[OllamaName, None] = {}
    for folder in store_folders():
        manifests = folder / "manifests"
        for path in sorted(manifests.glob("*/*/*/*")):
            if not path.is_dir():
                names[OllamaName(*path.relative_to(manifests).parts)] = None
    return list(names)


def completions() -> list[str]:
    """Return the models in the stores, as values of an option."""
    try:
        return [f"{SCHEME}{name}" for name in installed_names()]
    except OSError:  # a folder of another user
        return []


def find_model(name: str) -> OllamaModel:
    """Return a model in Ollama's store; `name` is the value of an option, with or without `ollama:`.

    Raises UsageError for a name that is not there, and AttnctlError, in one line, for a model without weights in GGUF.
    """
    wanted = parse_name(name.removeprefix(SCHEME))
    folders = store_folders()
    if not folders:
        raise AttnctlError(
            f"no store of Ollama: {_places()} has no manifests; the variable OLLAMA_MODELS names another folder"
        )
    manifest = next((place for folder in folders for place in _manifests_of(folder, wanted)), None)
    if manifest is None:
        raise UsageError(_unknown(wanted), value=f"{SCHEME}{wanted}")
    folder = manifest.parents[4]
    document = parse_json(read_bytes(manifest, limits.SETTINGS_BYTES), str(manifest))
    layers = list(_layers_of(document))
    paths = {kind: _blob(folder, digest, manifest) for kind, digest in layers if kind in ("model", "adapter")}
    _check_layers(wanted, paths, {kind for kind, _ in layers}, document, folder)
    path = paths["model"]
    if not os.path.lexists(path):
        raise AttnctlError(f"{SCHEME}{wanted} lacks its weights ({path}): ollama pull {wanted} fetches them")
    if not begins_as_gguf(path):
        reason = "cannot be read by this user" if not os.access(path, os.R_OK) else "does not begin with GGUF"
        raise AttnctlError(f"cannot read {SCHEME}{wanted}: its file {path} {reason}")
    return OllamaModel(wanted, path, frozenset(kind for kind, _ in layers))


def _manifests_of(folder: Path, name: OllamaName) -> Iterator[Path]:
    """Yield the manifest of a name in a store; Ollama's names do not differ by letter case alone."""
    exact = folder / "manifests" / name.place
    if os.path.isfile(exact):  # noqa: PTH113, which raises where it may not look
        yield exact
        return
    for path in sorted((folder / "manifests").glob("*/*/*/*")):
        if path.is_file() and [part.casefold() for part in path.parts[-4:]] == [part.casefold() for part in name]:
            yield path


def _layers_of(document: Any) -> Iterator[tuple[str, str]]:
    """Yield kind and digest of the layers of a manifest."""
    layers = document.get("layers") if isinstance(document, dict) else None
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and str(layer.get("mediaType", "")).startswith(LAYER):
            yield str(layer["mediaType"]).removeprefix(LAYER).partition("; ")[0], str(layer.get("digest", ""))


def _blob(folder: Path, digest: str, manifest: Path) -> Path:
    if (match := DIGEST.fullmatch(digest)) is None:
        raise AttnctlError(f"{manifest} is damaged: its digest {digest[:80]!r} is none")
    return folder / "blobs" / f"sha256-{match[1].lower()}"


def _check_layers(name: OllamaName, paths: Iterable[str], kinds: set[str], document: Any, folder: Path) -> None:
    """Raise AttnctlError for a model with an adapter, and for one whose weights are no GGUF file."""
    if "adapter" in paths:
        raise AttnctlError(
            f"{SCHEME}{name} is a model with an adapter (LoRA), which attnctl does not apply: merge the adapter into the "
            "model's weights, or name the model that it was made from"
        )
    if "model" in paths:
        return
    config = document.get("config") if isinstance(document, dict) else None
    digest = DIGEST.fullmatch(str(config.get("digest", ""))) if isinstance(config, dict) else None
    blob = folder / "blobs" / f"sha256-{digest[1].lower()}" if digest else None
    settings = parse_json(read_bytes(blob, limits.SETTINGS_BYTES), str(blob)) if blob and blob.is_file() else {}
    if isinstance(settings, dict) and settings.get("remote_host"):
        raise AttnctlError(
            f"{SCHEME}{name} runs on {str(settings['remote_host'])[:80]}, not here: it has no weights on this machine"
        )
    has = "its weights are single tensors, not a GGUF file" if "tensor" in kinds else "it has no weights"
    raise AttnctlError(f"cannot read {SCHEME}{name}: {has}")


def _unknown(name: OllamaName) -> str:
    names = [str(installed) for installed in installed_names()]
    more = f", … ({len(names)} in all)" if len(names) > LISTED else ""
    there = f"{', '.join(names[:LISTED])}{more}" if names else "none"
    return f"Ollama has no model {name} on this machine; it has: {there}"


def _places() -> str:
    home = SERVICE.parents[1]
    is_closed = os.path.lexists(home) and not os.access(home, os.R_OK | os.X_OK)
    closed = ", which this user may not read," if is_closed else ""
    return _stated_folder() or f"{Path.home() / '.ollama' / 'models'} or {SERVICE}{closed}"
