"""Measure the memory that a GGUF file of a 7–8B model's shape takes: `python -m tests.tools.large_gguf [llama8b|qwen7b] [FOLDER]`.

The file is sparse: its tensors are zeros, which take no disk, and as much memory as others when they are mapped. It is written
into FOLDER (by default a temporary one), explained in a process of its own, and removed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# block count, width, feed-forward, heads, KV heads, vocabulary; the types as Q4_K_M has them
SHAPES = {
    "llama8b": ("llama", 32, 4096, 14336, 32, 8, 128_256),
    "qwen7b": ("qwen2", 28, 3584, 18944, 28, 4, 152_064),
    "tiny": ("llama", 2, 256, 512, 4, 2, 1000),
}
TEXT = "The cat that the dog chased sat on the mat because it was tired."


def tensors_of(shape: tuple[Any, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return name → shape and type of each tensor."""
    architecture, layers, width, inner, heads, kv_heads, vocabulary = shape
    kv = width // heads * kv_heads
    tensors = {
        "token_embd.weight": ((vocabulary, width), "Q4_K"),
        "output.weight": ((vocabulary, width), "Q6_K"),
        "output_norm.weight": ((width,), "F32"),
    }
    for b in range(layers):
        matrices = {
            "attn_q": ((width, width), "Q4_K"),
            "attn_k": ((kv, width), "Q4_K"),
            "attn_v": ((kv, width), "Q6_K" if b % 2 else "Q4_K"),
            "attn_output": ((width, width), "Q4_K"),
            "ffn_gate": ((inner, width), "Q4_K"),
            "ffn_up": ((inner, width), "Q4_K"),
            "ffn_down": ((width, inner), "Q6_K" if b % 2 else "Q4_K"),
            "attn_norm": ((width,), "F32"),
            "ffn_norm": ((width,), "F32"),
        }
        tensors |= {f"blk.{b}.{name}.weight": value for name, value in matrices.items()}
        if architecture == "qwen2":
            tensors |= {f"blk.{b}.attn_{part}.bias": ((kv if part != "q" else width,), "F32") for part in "qkv"}
    return tensors


def write_sparse(path: Path, shape: tuple[Any, ...]) -> int:
    """Write a file whose tensors are zeros; return the bytes of its tensors."""
    architecture, layers, width, inner, heads, kv_heads, vocabulary = shape
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters = [chr(number) for number in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    writer.add_token_list([*letters, *(f"piece{number}" for number in range(vocabulary - len(letters)))])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    size = 0
    for name, (dimensions, kind) in tensors_of(shape).items():
        form = gguf.GGMLQuantizationType[kind]
        stored = gguf.quant_shape_to_byte_shape(dimensions, form) if kind != "F32" else dimensions
        item = np.dtype(np.float32 if kind == "F32" else np.uint8)
        count = int(np.prod(stored)) * item.itemsize
        size += -(-count // 32) * 32
        writer.add_tensor_info(name, stored, item, count, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        begin = -(-path.stat().st_size // 32) * 32
        file.truncate(begin + size)
    return size


def main() -> None:
    """Write, explain, measure, remove."""
    which = sys.argv[1] if len(sys.argv) > 1 else "llama8b"
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        path = Path(folder) / f"{which}.gguf"
        size = write_sparse(path, SHAPES[which])
        tensors = tensors_of(SHAPES[which])
        layer = sum(4 * int(np.prod(dims)) for name, (dims, _) in tensors.items() if name.startswith("blk.0."))
        begin = time.monotonic()
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        subprocess.run(
            [sys.executable, "-m", "attnctl", "explain", TEXT, "--model", str(path), "--quiet"],
            check=True, env=environment, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        seconds = time.monotonic() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak = used.ru_maxrss * 1024
        print(f"{which}: file {size / 1e9:.2f} GB, peak memory {peak / 1e9:.2f} GB")
        print(f"{seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of a processor's time")
        bound = 1.3 * size + layer
        print(f"bound: 1.3 × file + a layer in float32 ({layer / 1e9:.2f} GB) = {bound / 1e9:.2f} GB")
        if peak > bound:
            raise SystemExit("more memory than the bound")


if __name__ == "__main__":
    main()
