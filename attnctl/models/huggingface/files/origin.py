"""Where a checkpoint's weights come from, for whoever cites what is made of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from attnctl import limits
from attnctl.errors import AttnctlError
from attnctl.files import write_whole
from attnctl.models.huggingface.files.hub import KNOWN

if TYPE_CHECKING:
    from attnctl.text import Document

SNAPSHOT = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})/?$")
# of a GGUF file, by its general.file_type in ggml: how most of its weights are stored; others are said by their number
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
}  # fmt: skip
PLAIN = ("F32", "F16", "BF16")


def origin_of(path: Path, name: str = "") -> Document:
    """`source`, `revision`, `sha256` and `quantised` of a checkpoint's folder or GGUF file, those that are known.

    A snapshot in the hub's cache is named by its repository and commit; anything else by its name and the digest of its
    weights, which is made once and kept in the user's cache. The well-known `name` of a folder says its repository.
    """
    if snapshot := SNAPSHOT.search(path.as_posix()):
        return {"source": f"{snapshot['owner']}/{snapshot['name']}", "revision": snapshot["revision"]}
    if path.suffix.lower() == ".gguf":
        return {"source": path.name} | digest_of(path) | quantisation_of(path)
    weights = sorted(path.glob("*.safetensors"))
    source = KNOWN[name].hub_id if name in KNOWN else path.name
    return {"source": source} | (digest_of(weights[0]) if len(weights) == 1 else {})


def quantisation_of(path: Path) -> dict[str, str]:
    """`quantised`: how most weights of a GGUF file are stored, where that is not as plain numbers."""
    kept = kept_file(path, "quantised")
    stored = stored_text(kept, r"([A-Z0-9_]+|type [0-9]+)?")
    if stored is None:
        from attnctl.models.huggingface.files.gguf_header import read_header

        kind = read_header(path).entries.get("general.file_type")
        stored = FILE_TYPES.get(kind, f"type {kind}") if isinstance(kind, int) else ""
        store_text(kept, stored)
    return {} if stored in ("", *PLAIN) else {"quantised": f"{stored}, dequantised"}


def digest_of(path: Path) -> dict[str, str]:
    """`sha256` of a file, in hexadecimal digits; nothing of one of more than `limits.DIGEST_BYTES`."""
    if path.stat().st_size > limits.DIGEST_BYTES:
        return {}
    kept = kept_file(path, "sha256")
    if (known := stored_text(kept, "[0-9a-f]{64}")) is not None:
        return {"sha256": known}
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    store_text(kept, digest)
    return {"sha256": digest}


def kept_file(path: Path, what: str) -> Path:
    """Where `what` was found out of this very file is kept: by its place, size and time of change."""
    from platformdirs import user_cache_path

    return user_cache_path("attnctl") / "origins" / f"{file_fingerprint(path)}.{what}"


def file_fingerprint(path: Path) -> str:
    """What tells a file from another, and from itself before it was changed: of its place, size and time of change."""
    stat = path.stat()
    return hashlib.sha256(f"{os.path.realpath(path)}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:12]


def stored_text(path: Path, wanted: str) -> str | None:
    """A text kept before, where it matches the expression `wanted`; None where there is none, or it is damaged."""
    with contextlib.suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size < 1000:
            text = path.read_text(encoding="utf-8")
            return text if re.fullmatch(wanted, text) else None
    return None


def store_text(path: Path, text: str) -> None:
    """Keep a text in the user's cache, where that can be written."""
    with contextlib.suppress(OSError, AttnctlError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
