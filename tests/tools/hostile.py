"""Files that are none, or claim to hold what they cannot; and every command line that reads one."""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save

TEXT = "Alice will eat"

# every command line that reads a file; {} is its name
READERS = {
    "text": ["explain", "--file", "{}"],
    "trace": ["heatmap", "{}.json"],
    "npz": ["heatmap", "{}.npz"],
    "matrix": ["view", "{}.npy", "--no-open"],
    "table": ["heatmap", "{}.csv"],
    "compared": ["compare", "{}.json", "{}.json"],
    "weights": ["explain", TEXT, "-m", "{}.safetensors"],
    "weights in npz": ["explain", TEXT, "-m", "{}.npz"],
    "gguf": ["explain", TEXT, "-m", "{}.gguf"],
    "gguf card": ["model", "{}.gguf"],
    "embeddings": ["explain", TEXT, "-m", "dot", "--embeddings", "{}.npy"],
    "qkv": ["explain", TEXT, "--qkv", "{}.npz"],
    "qkv in safetensors": ["explain", TEXT, "--qkv", "{}.safetensors"],
    "tokenizer": ["explain", TEXT, "-m", "random", "--tokenizer", "{}.json"],
    "spans": ["heatmap", TEXT, "--spans", "./{}.csv"],
    "corpus": ["train", "{}", "-o", "run"],
    "batch": ["batch", "{}.txt"],
    "rows": ["batch", "{}.csv"],
    "parquet": ["batch", "{}.parquet"],
}


# --- no files ----------------------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 << 30)


NO_FILES: tuple[Callable[[Path], None], ...] = (fifo, zeros, loop, folder, sparse)


# --- claims ------------------------------------------------------------------------------------------------------


def zipped(array: bytes, name: str = "weights.npy") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(name, array)
    return out.getvalue()


def npz(arrays: dict[str, np.ndarray[Any, Any]]) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def npy(shape: tuple[int, ...], data: bytes = b"", descr: str = "<f4") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue() + data


def tensors(**entries: Any) -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header


def one_tensor(dtype: Any = "F32", shape: Any = (1,), start: int = 0, end: int = 4) -> bytes:
    return tensors(W_Q={"dtype": dtype, "shape": shape, "data_offsets": [start, end]}) + bytes(16)[:end]


def gguf(entries: int, body: bytes, tensors: int = 0) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, entries) + body


def entry(kind: int, value: bytes, key: bytes = b"general.architecture") -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def tensor(shape: tuple[int, ...], kind: int, start: int) -> bytes:
    return struct.pack(f"<Q1sI{len(shape)}QIQ", 1, b"t", len(shape), *shape, kind, start)


class Claim(NamedTuple):
    """Bytes that say what they do not hold, and what is said of them; where nothing is given, their name."""

    data: bytes
    said: str = ""


class Kind(NamedTuple):
    """A kind of file: its name, what reads it, a sound one where there is one as small, and those that lie."""

    name: str
    readers: tuple[list[str], ...]
    sound: bytes | None
    claims: tuple[Claim, ...]


WHOLE = npy((2, 2), np.eye(2, dtype=np.float32).tobytes())
SHAPES = ((10**12,), (10**6, 10**6), (2**40, 2**40), (0, 10**18, 10**18), (1,) * 40, (-1, 5))
WEIGHTS = {name: np.ones((1, 8, 4), np.float32) for name in ("W_Q", "W_K", "W_V")}
LLAMA = entry(8, struct.pack("<Q5s", 5, b"llama"))
BEYOND = "bytes beyond the file"

KINDS = (
    Kind(
        "a.npz",
        (["heatmap", "a.npz"],),
        zipped(WHOLE),
        (
            Claim(zipped(npy((400_000, 1000), bytes(200 << 20))), "would unpack to 210 MB"),
            *(Claim(zipped(npy(shape))) for shape in SHAPES),
        ),
    ),
    Kind(
        "w.npz",
        (["explain", TEXT, "-m", "w.npz"],),
        npz(WEIGHTS),
        tuple(Claim(zipped(npy(shape))) for shape in SHAPES),
    ),
    Kind(
        "a.npy",
        (["heatmap", "a.npy"],),
        WHOLE,
        (*(Claim(npy(shape)) for shape in SHAPES), Claim(npy((1,), b"\0", "<U1000000000"))),
    ),
    Kind(
        "w.safetensors",
        (
            ["explain", TEXT, "-m", "w.safetensors"],
            ["model", "w.safetensors"],
            ["explain", TEXT, "--qkv", "w.safetensors"],
        ),
        save(WEIGHTS | {name: np.ones((3, 4), np.float32) for name in "QKV"}),
        (
            Claim(struct.pack("<Q", 2**63) + b"{}"),
            Claim(struct.pack("<Q", 2) + b"[]"),
            Claim(struct.pack("<Q", 4) + b"null"),
            Claim(struct.pack("<Q", 10**5) + b"[" * 10**5),
            Claim(tensors(W_Q=5)),
            Claim(one_tensor("F32", [10**12], 0, 4 * 10**12)),
            Claim(one_tensor("F32", [-1, -4], 0, 16)),
            Claim(one_tensor("F32", [True])),
            Claim(one_tensor("F32", [2], 8, 0) + bytes(8)),
            Claim(one_tensor("F4", [4], 0, 2)),
            Claim(one_tensor("F8_E8M0", [2, 2])),
            Claim(one_tensor(["F32"])),
            Claim(one_tensor("F32", [])),
            Claim(
                tensors(__metadata__={"a": 5}, W_Q={"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}) + bytes(4)
            ),
            Claim(b""),
            Claim(b"\0" * 7),
        ),
    ),
    Kind(
        "m.gguf",
        (["model", "m.gguf"],),
        None,  # transformers reads one, of a whole network
        tuple(
            Claim(data + bytes(4096), said)  # room, for those who only look at the size
            for data, said in (
                (gguf(2**62, b""), ""),
                (gguf(0, b"", 2**40), ""),
                (gguf(1, entry(9, struct.pack("<IQ", 8, 10**9))) + bytes(1 << 20), ""),
                (gguf(1, entry(9, struct.pack("<IQ", 4, 2**61))), ""),
                (gguf(1, entry(9, struct.pack("<IQ", 9, 100)) + struct.pack("<IQ", 9, 100) * 100), ""),
                (gguf(1, entry(8, struct.pack("<Q", 2**63))), ""),
                (gguf(1, entry(77, b"")), ""),
                (gguf(1, b"\xff" * 8), ""),
                (gguf(0, struct.pack("<Q", 1) + b"x" + struct.pack("<I", 2**31), 1), ""),
                (gguf(0, b""), ""),
                (b"GGUF", ""),
                (gguf(1, LLAMA + tensor((4, 4), 0, 2**40), 1), "the tensor t ends 1,099,5"),
                (gguf(1, LLAMA + tensor((2**40, 2**20), 12, 0), 1), BEYOND),
                (gguf(1, LLAMA + tensor((4097,), 24, 0), 1), BEYOND),
                (gguf(1, LLAMA + tensor((4, 4), 999, 0), 1), "the tensor t has the type 999"),
                (gguf(2, LLAMA + entry(4, struct.pack("<I", 0), b"general.alignment")), "its alignment is 0"),
                (gguf(1, entry(8, struct.pack("<Q5s", 5, b"llama"), b"another")), "it does not say its architecture"),
                (
                    gguf(2, LLAMA + entry(9, struct.pack("<IQ2I", 4, 2, 4, 8), b"llama.block_count")),
                    "num_hidden_layers is",
                ),
            )
        ),
    ),
)

# parts of a tokenizer.json that are wrong, and one that does no harm
PADDING = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
TOKENIZERS: tuple[dict[str, Any], ...] = (
    {"padding": PADDING},
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    {"normalizer": 5},
    {"added_tokens": "x"},
)


def tokenizer(part: dict[str, Any]) -> str:
    """A tokenizer.json with this part in it."""
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model} | part)
