"""State what a GGUF file is: how Q, K, V and O of each layer are stored, and how far its reading was held to llama.cpp."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from attnctl.models.gguf.tensors import GgufFile
from attnctl.text import counted, number_list

# end of a tensor's name → the part of the attention that it makes
PARTS = {
    "attn_q": "Q", "attn_k": "K", "attn_v": "V", "attn_qkv": "Q, K, V", "attn_output": "O", "attn_q_a": "Q", "attn_q_b": "Q",
    "attn_kv_a_mqa": "K, V", "attn_kv_b": "K, V", "attn_k_b": "K", "attn_v_b": "V",
}  # fmt: skip


@functools.cache
def measurements() -> Mapping[str, Any]:
    """Return what the table in the documentation holds: rows of architecture, settings and largest difference."""
    table: dict[str, Any] = json.loads(files("attnctl.models.gguf").joinpath("measured.json").read_text("utf-8"))
    return table


def file_facts(file: GgufFile) -> dict[str, str]:
    """Return sentences about a file by their titles."""
    return {"Q, K, V and O are stored as": stored_parts(file), "this reading, against llama.cpp": held_to(file)}


def stored_parts(file: GgufFile) -> str:
    """Return the types of the matrices of attention, by layer where they differ."""
    kinds: dict[int, dict[str, str]] = {}
    for name, tensor in file.tensors.items():
        found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
        if found and (part := PARTS.get(found[2])) is not None:
            kinds.setdefault(int(found[1]), {})[part] = tensor.kind
    layers_of: dict[str, list[int]] = {}
    for layer in sorted(kinds):
        layers_of.setdefault(_sentence(kinds[layer]), []).append(layer)
    if len(layers_of) < 2:
        return "".join(layers_of) or "no matrix of attention has a known name"
    return "; ".join(f"{sentence} in layers {number_list(layers)}" for sentence, layers in layers_of.items())


def _sentence(kinds: Mapping[str, str]) -> str:
    """Return "Q, K, O Q4_K, V Q6_K": parts of one type together."""
    letters: dict[str, set[str]] = {}
    for part, kind in kinds.items():
        letters.setdefault(kind, set()).update(part.split(", "))
    return ", ".join(
        f"{', '.join(letter for letter in 'QKVO' if letter in found)} {kind}" for kind, found in letters.items()
    )


def held_to(file: GgufFile) -> str:
    """Return how far weights lay from llama.cpp's in random files of this architecture."""
    architecture, table = str(file.metadata.get("general.architecture", "")), measurements()
    rows = [row for row in table["rows"] if row["architecture"] == architecture]
    if not rows:
        return f"no file of the architecture {architecture[:60]} was compared"
    largest = max(row["largest"] for row in rows)
    count = counted(len(rows), f"random {architecture} file")
    return f"max |Δ weight| {largest:.1e} in {count} in float32 (llama.cpp {table['llama.cpp']})"
